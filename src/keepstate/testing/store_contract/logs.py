"""The log: all changes after a revision, in order, and an error if some are no longer there."""

from __future__ import annotations

import pytest

from keepstate.errors import CompactedError, HistoryLostError, InvalidError, OutcomeUnknownError
from keepstate.stores.base import StoreBase
from keepstate.stores.combiner import FLUSH_BATCHES
from keepstate.stores.protocol import NONCE_BYTES, Applied, Batch, Change, Changes, Delete, Put
from keepstate.testing.store_contract.stage import Stage, applied, changed, outcome_of, revision_of, value_of
from keepstate.values import limits

A, B = b"\x01a", b"\x01b"
DOC, OBJECT = b"\x02doc", b"\x00object"

SLACK = 1_000
"""Revisions by which a test overfills the log; a store may cut late, but not later than this."""


async def fill_log(store: StoreBase, space: str, revisions: int) -> None:
    """Apply many small batches quickly."""
    batches = [Batch(space, [Put(b"\x01%d" % (i % 7), b"")]) for i in range(revisions)]
    for start in range(0, revisions, FLUSH_BATCHES):
        outcomes = await store.apply(batches[start : start + FLUSH_BATCHES])
        assert all(isinstance(outcome, Applied) for outcome in outcomes)


def told(changes: Changes) -> tuple[list[Change], int, int]:
    """Return an answer without its nonces."""
    return list(changes.items), changes.upto, changes.floor


async def nonces(store: StoreBase, space: str, after: int, *, limit: int = 1024) -> dict[int, bytes]:
    """Return the nonces in one answer."""
    return dict((await store.changes(space, after, limit=limit)).nonces)


class Logs(Stage):
    """Promises of the protocol about changes, a test each."""

    async def test_section_00_is_not_logged(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(OBJECT, b"1"))
        await applied(store, space, Delete(OBJECT))

        assert told(await store.changes(space, 0)) == ([], 2, 0)

    async def test_section_01_is_logged_by_key(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Put(A, b"2"))
        await applied(store, space, Delete(A))

        assert await changed(store, space) == [Change(1, A, False), Change(2, A, False), Change(3, A, True)]

    async def test_section_02_is_logged_with_old_and_new_value(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(DOC, b"1"))
        await applied(store, space, Put(DOC, b""))
        await applied(store, space, Delete(DOC))

        assert await changed(store, space) == [
            Change(1, DOC, False, None, b"1"),
            Change(2, DOC, False, b"1", b""),
            Change(3, DOC, True, b"", None),
        ]

    async def test_a_write_of_equal_bytes_is_a_change(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(DOC, b"same"))
        await applied(store, space, Put(DOC, b"same"))

        assert (await changed(store, space, 1)) == [Change(2, DOC, False, b"same", b"same")]

    async def test_a_refused_batch_is_not_logged(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        await outcome_of(store, space, Put(A, b"2"), at=9)

        assert await changed(store, space) == [Change(1, A, False)]

    async def test_an_answer_holds_whole_revisions(self, store: StoreBase, space: str) -> None:
        for start in range(4):
            await applied(store, space, *(Put(b"\x01%d" % (start + i), b"") for i in range(3)))

        page = await store.changes(space, 0, limit=4)
        rest = await store.changes(space, page.upto, limit=1)

        assert page.upto == 2
        assert [change.revision for change in page.items] == [1, 1, 1, 2, 2, 2]
        assert rest.upto == 3
        assert [change.revision for change in rest.items] == [3, 3, 3]

    async def test_upto_moves_over_revisions_without_items(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Put(OBJECT, b"1"))
        await applied(store, space, Delete(B))

        assert told(await store.changes(space, 0)) == ([Change(1, A, False)], 3, 0)
        assert told(await store.changes(space, 1)) == ([], 3, 0)
        assert told(await store.changes(space, 3)) == ([], 3, 0)

    async def test_resuming_from_upto_misses_nothing_and_repeats_nothing(
        self, store: StoreBase, space: str
    ) -> None:
        for i in range(50):
            await store.apply([Batch(space, [Put(b"\x01%d" % i, b""), Put(b"\x02%d" % i, b"v")])])

        seen: list[tuple[int, bytes]] = []
        upto = 0
        while (page := await store.changes(space, upto, limit=7)).upto > upto:
            seen += [(change.revision, change.key) for change in page.items]
            upto = page.upto

        assert sorted(seen) == sorted((i + 1, key % i) for i in range(50) for key in (b"\x01%d", b"\x02%d"))

    async def test_a_space_that_nobody_wrote_has_an_empty_log(self, store: StoreBase, space: str) -> None:
        assert told(await store.changes(space, 0)) == ([], 0, 0)

    async def test_a_revision_that_the_space_has_not_reached_is_lost_history(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))

        with pytest.raises(HistoryLostError, match=r"2") as caught:
            await store.changes(space, 2)

        assert (caught.value.space, caught.value.revision) == (space, 2)

    async def test_a_page_of_changes_ends_with_the_revision_that_reaches_8_mib(
        self, store: StoreBase, space: str
    ) -> None:
        """The new value of one key is the old value of its next change: each weighs two."""
        for i in range(12):
            await applied(store, space, Put(DOC, bytes([i]) * limits.VALUE_BYTES))

        page = await store.changes(space, 0)

        sizes = [len(change.old or b"") + len(change.new or b"") for change in page.items]
        assert 0 < page.upto < 12
        assert sum(sizes[:-1]) < limits.PAGE_BYTES <= sum(sizes)
        assert [change.revision for change in await changed(store, space)] == list(range(1, 13))

    async def test_the_log_keeps_the_last_10_000_revisions_and_tells_its_floor(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"), token=b"cut")
        await fill_log(store, space, limits.LOG_REVISIONS + SLACK - 1)
        last = limits.LOG_REVISIONS + SLACK

        with pytest.raises(CompactedError) as caught:
            await store.changes(space, 0)

        floor = caught.value.floor
        assert floor is not None
        assert 0 < floor <= SLACK, "the log keeps at least its last 10,000 revisions"
        assert caught.value.space == space
        with pytest.raises(CompactedError):
            await store.changes(space, floor - 1)
        page = await store.changes(space, floor, limit=5)
        assert [change.revision for change in page.items] == [floor + i for i in range(1, 6)]
        assert page.floor == floor
        assert (await store.changes(space, last)).upto == last

        retried = await outcome_of(store, space, Put(A, b"twice?"), token=b"cut", retry_of=0)
        assert isinstance(retried, OutcomeUnknownError)
        assert await revision_of(store, space) == last

    async def test_the_log_keeps_64_mib(self, store: StoreBase, space: str) -> None:
        revisions = limits.LOG_BYTES // (2 * limits.VALUE_BYTES) + 8
        for i in range(revisions):
            await applied(store, space, Put(DOC, bytes([i]) * limits.VALUE_BYTES))

        with pytest.raises(CompactedError) as caught:
            await store.changes(space, 0)

        floor = caught.value.floor
        assert floor is not None
        assert 0 < floor <= 16
        told = await changed(store, space, floor)
        kept_bytes = sum(len(change.old or b"") + len(change.new or b"") for change in told)
        assert told[0].revision == floor + 1
        assert kept_bytes <= limits.LOG_BYTES + limits.LOG_BYTES // 64 + 2 * limits.VALUE_BYTES
        assert (await store.changes(space, revisions)).upto == revisions

    async def test_the_64_mib_of_the_log_count_deleted_values_too(self, store: StoreBase, space: str) -> None:
        """Half of these bytes are of puts, and the other half of deletes."""
        keys = [b"\x02%d" % number for number in range(7)]
        rounds = limits.LOG_BYTES // (2 * len(keys) * limits.VALUE_BYTES) + 2
        for _ in range(rounds):
            await applied(store, space, *(Put(key, b"v" * limits.VALUE_BYTES) for key in keys))
            await applied(store, space, *map(Delete, keys))

        with pytest.raises(CompactedError) as caught:
            await store.changes(space, 0)

        floor = caught.value.floor
        assert floor is not None
        told = await changed(store, space, floor)
        kept_bytes = sum(len(change.old or b"") + len(change.new or b"") for change in told)
        assert told[0].revision == floor + 1
        assert kept_bytes <= limits.LOG_BYTES + limits.LOG_BYTES // 64
        assert kept_bytes > limits.LOG_BYTES - 2 * len(keys) * limits.VALUE_BYTES

    async def test_a_batch_replaces_no_more_than_a_log_keeps(self, store: StoreBase, space: str) -> None:
        count = limits.LOG_BYTES // limits.VALUE_BYTES + 1
        keys = [b"\x02%03d" % number for number in range(count)]
        value = b"v" * limits.VALUE_BYTES
        for first in range(0, count, 7):
            await applied(store, space, *(Put(key, value) for key in keys[first : first + 7]))
        before = await revision_of(store, space)

        deleted = await outcome_of(store, space, *map(Delete, keys))
        replaced = await outcome_of(store, space, *(Put(key, b"") for key in keys))

        assert isinstance(deleted, InvalidError)
        assert isinstance(replaced, InvalidError)
        assert await revision_of(store, space) == before
        assert await value_of(store, space, keys[-1]) == value
        await applied(store, space, *map(Delete, keys[:7]), *(Delete(b"\x02%d" % i) for i in range(60)))

    # ---- nonces

    async def test_an_answer_names_the_nonce_of_every_revision_that_it_tells(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Put(OBJECT, b"1"))
        await applied(store, space, Put(DOC, b"1"), Put(A, b"2"))
        await applied(store, space, Put(OBJECT, b"2"))

        first = await nonces(store, space, 0)
        each = {n: (await nonces(store, space, n))[n] for n in range(5)}

        assert each[0] == b""
        assert all(len(each[n]) == NONCE_BYTES for n in range(1, 5))
        assert {0, 1, 3, 4} <= first.keys()
        assert first.items() <= each.items()
        assert (await nonces(store, space, 1, limit=1)).items() <= each.items()

    async def test_a_nonce_is_the_same_for_whoever_asks_and_after_later_writes(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        before = await nonces(store, space, 1)
        for i in range(5):
            await applied(store, space, Put(b"\x01%d" % i, b""))

        assert (await nonces(store, space, 1))[1] == before[1]
        assert (await nonces(store, space, 0))[1] == before[1]

    async def test_a_page_tells_the_nonce_of_its_revision(self, store: StoreBase, space: str) -> None:
        keys = [b"\x01%d" % i for i in range(3)]
        told: list[tuple[int, bytes]] = []
        logged: list[tuple[int, bytes]] = []
        for key in keys:
            await applied(store, space, Put(key, b"1"))
            logged += [*(await nonces(store, space, await revision_of(store, space))).items()] * 2
            first = await store.scan(space, b"\x01", limit=1)
            last = await store.scan(space, b"\x01", after=keys[0])
            told += [(page.revision, page.nonce) for page in (first, last)]
        await store.drop(space)
        dropped = await store.scan(space, b"\x01")

        assert told == logged
        assert [revision for revision, _ in told] == [1, 1, 2, 2, 3, 3]
        assert (await nonces(store, space, dropped.revision))[dropped.revision] == dropped.nonce

    async def test_the_floor_keeps_its_nonce(self, store: StoreBase, space: str) -> None:
        """Of a log that is cut, and of a space that was dropped."""
        known: dict[int, bytes] = {}
        for start in range(0, limits.LOG_REVISIONS + SLACK, 500):
            await fill_log(store, space, 500)
            if start < 2 * SLACK:
                known |= await nonces(store, space, start)
        with pytest.raises(CompactedError) as caught:
            await store.changes(space, 0)
        floor = caught.value.floor
        assert floor is not None
        assert (await nonces(store, space, floor, limit=1))[floor] == known[floor]

        await store.drop(space)
        revision = await revision_of(store, space)

        (dropped,) = (await nonces(store, space, revision)).values()
        assert len(dropped) == NONCE_BYTES
        await applied(store, space, Put(A, b"1"))
        assert (await nonces(store, space, revision))[revision] == dropped

    # ---- trimming

    async def test_trimming_leaves_the_last_revision_of_the_log(self, store: StoreBase, space: str) -> None:
        for i in range(5):
            await applied(store, space, Put(A, b"%d" % i), Put(DOC, b"%d" % i), token=b"t%d" % i)
        known = await nonces(store, space, 0)

        await store.trim(space)
        await store.trim(space)

        with pytest.raises(CompactedError) as caught:
            await store.changes(space, 3)
        assert caught.value.floor == 4
        assert told(await store.changes(space, 4)) == (
            [Change(5, A, False), Change(5, DOC, False, b"3", b"4")],
            5,
            4,
        )
        assert await nonces(store, space, 4) == {4: known[4], 5: known[5]}
        assert await revision_of(store, space) == 5
        assert await value_of(store, space, DOC) == b"4"
        again = await outcome_of(store, space, Put(A, b"twice?"), token=b"t4", retry_of=4)
        assert isinstance(again, Applied)
        assert again.revision == 5
        retried = await outcome_of(store, space, Put(A, b"twice?"), token=b"t2", retry_of=2)
        assert isinstance(retried, OutcomeUnknownError)
        assert (await applied(store, space, Delete(A))).revision == 6
        assert [change.revision for change in await changed(store, space, 4)] == [5, 5, 6]

    async def test_trimming_a_log_of_one_revision_or_none_changes_nothing(
        self, store: StoreBase, space: str
    ) -> None:
        await store.trim(space)
        assert await revision_of(store, space) == 0
        await applied(store, space, Put(A, b"1"))
        await store.trim(space)
        assert await changed(store, space) == [Change(1, A, False)]
        await store.drop(space)
        await store.trim(space)

        assert await store.spaces(space) == []
        assert await revision_of(store, space) == 2

    async def test_trimming_leaves_as_many_revisions_as_asked(self, store: StoreBase, space: str) -> None:
        for i in range(6):
            await applied(store, space, Put(DOC, b"%d" % i), token=b"t%d" % i)
        known = await nonces(store, space, 0)

        for keep in (7, 6, 3, 4):  # a log is never made longer
            await store.trim(space, keep=keep)

        with pytest.raises(CompactedError) as caught:
            await store.changes(space, 2)
        assert caught.value.floor == 3
        assert [change.revision for change in await changed(store, space, 3)] == [4, 5, 6]
        assert await nonces(store, space, 3) == {at: known[at] for at in (3, 4, 5, 6)}
        for at, kind in ((6, Applied), (4, Applied), (2, OutcomeUnknownError)):
            token = b"t%d" % (at - 1)
            assert isinstance(
                await outcome_of(store, space, Put(A, b"?"), token=token, retry_of=at - 1), kind
            )
        assert await value_of(store, space, A) is None
        assert (await applied(store, space, Put(DOC, b"6"))).revision == 7
        await store.trim(space, keep=2)
        assert [change.revision for change in await changed(store, space, 5)] == [6, 7]

    async def test_a_log_keeps_a_revision_at_least_and_no_more_than_it_can(
        self, store: StoreBase, space: str
    ) -> None:
        for keep in (0, -1, True, limits.LOG_REVISIONS + 1):
            with pytest.raises(InvalidError, match="`keep`"):
                await store.trim(space, keep=keep)

    async def test_trimming_leaves_the_log_of_other_spaces(self, store: StoreBase, space: str) -> None:
        other = f"{space}/other"
        for name in (space, other):
            await fill_log(store, name, 3)

        await store.trim(space)

        assert len(await changed(store, other)) == 3
        await store.drop(other)
