"""Time: an expired entry is absent at once, and its removal is an ordinary logged change."""

from __future__ import annotations

import pytest

from keepstate.stores.base import SWEPT_BY_FLUSH, StoreBase
from keepstate.stores.protocol import ABSENT, Applied, Batch, Change, Check, Conflict, Delete, Leap, Put
from keepstate.testing.store_contract.stage import (
    LONG_MS,
    SHORT_MS,
    Stage,
    applied,
    changed,
    entry_of,
    refused,
    revision_of,
    scanned,
    value_of,
)
from keepstate.values import limits

A, B = b"\x01a", b"\x01b"
DOC = b"\x02doc"


class Times(Stage):
    """Promises of the protocol about time, a test each."""

    async def test_a_ttl_counts_from_the_batch_s_now(self, store: StoreBase, space: str) -> None:
        done = await applied(store, space, Put(A, b"1", ttl_ms=LONG_MS), Put(B, b"2"))

        entry, lasting = (await store.read(space, [A, B])).entries
        assert entry is not None
        assert entry.expires_at_ms == done.now_ms + LONG_MS
        assert lasting is not None
        assert lasting.expires_at_ms is None

    async def test_the_leap_of_a_new_space_is_that_of_its_first_revision(
        self, store: StoreBase, space: str
    ) -> None:
        first, *_ = await store.apply([Batch(space, [Put(A, b"%d" % number)]) for number in range(3)])

        assert isinstance(first, Applied)
        assert await store.last_leap(space) == Leap(1, 0, first.now_ms)

    async def test_an_expired_entry_is_absent_for_reads_at_once(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=SHORT_MS), Put(B, b"2", ttl_ms=LONG_MS))
        await self.pass_time(SHORT_MS)

        reading = await store.read(space, [A, B])
        page = await store.scan(space, b"\x01")
        backwards = await store.scan(space, b"\x01", reverse=True)

        assert [entry and entry.value for entry in reading.entries] == [None, b"2"]
        assert [entry.key for entry in page.entries] == [entry.key for entry in backwards.entries] == [B]
        assert await revision_of(store, space) == 1

    async def test_an_expired_entry_is_absent_for_checks_at_once(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)

        assert await refused(store, space, checks=[Check(A, version=1)]) == Conflict(A, 0)
        assert await refused(store, space, checks=[Check(A, created=1)]) == Conflict(A, 0)
        await applied(store, space, Put(A, b"2"), checks=[Check(A, version=ABSENT)])

        assert await value_of(store, space, A) == b"2"

    async def test_a_put_over_an_expired_entry_creates_it_anew(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(DOC, b"old", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)

        done = await applied(store, space, Put(DOC, b"new"))

        entry = await entry_of(store, space, DOC)
        assert entry is not None
        assert (entry.version, entry.created) == (done.revision, done.revision)
        assert (await changed(store, space, 1))[-1] == Change(
            done.revision, DOC, False, b"old", b"new", expired=True
        )

    @pytest.mark.parametrize("is_together", [True, False])
    async def test_what_expires_first_is_gone_for_a_put_though_others_expire_later(
        self, store: StoreBase, space: str, *, is_together: bool
    ) -> None:
        short, long = Put(DOC, b"old", ttl_ms=SHORT_MS), Put(B, b"", ttl_ms=LONG_MS)
        for writes in [(short, long)] if is_together else [(Put(A, b""),), (short,), (long,)]:
            await applied(store, space, *writes)
        await self.pass_time(SHORT_MS)

        done = await applied(store, space, Put(DOC, b"new"))

        entry = await entry_of(store, space, DOC)
        assert entry is not None
        assert (entry.created, entry.value) == (done.revision, b"new")
        told = [change for change in await changed(store, space, 1) if change.key == DOC]
        # If the writes take longer than the time to live, the last of them has removed the entry already.
        assert told[-1].expired or told[-2].deleted

    async def test_a_rewrite_without_a_ttl_stays(self, store: StoreBase, space: str) -> None:
        short, lasting = [Put(A, b"1", ttl_ms=SHORT_MS)], [Put(A, b"2")]
        await store.apply([Batch(space, short), Batch(space, lasting)])  # with no time between the two
        await self.pass_time(SHORT_MS)
        await applied(store, space, Put(B, b"a flush that looks for what expired"))
        await store.sweep(limit=1000)

        entry = await entry_of(store, space, A)
        assert entry is not None
        assert (entry.value, entry.created, entry.expires_at_ms) == (b"2", 1, None)

    async def test_a_renewed_ttl_counts_from_the_renewal(self, store: StoreBase, space: str) -> None:
        short, long = [Put(A, b"1", ttl_ms=SHORT_MS)], [Put(A, b"1", ttl_ms=LONG_MS)]
        _, renewed = await store.apply([Batch(space, short), Batch(space, long)])
        assert isinstance(renewed, Applied)
        await self.pass_time(SHORT_MS)
        await applied(store, space, Put(B, b"a flush that looks for what expired"))

        entry = await entry_of(store, space, A)
        assert entry is not None
        assert entry.expires_at_ms == renewed.now_ms + LONG_MS
        assert entry.created == 1

    async def test_deleting_an_expired_entry_removes_and_logs_it(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(DOC, b"1", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)

        done = await applied(store, space, Delete(DOC))

        assert await changed(store, space, 1) == [Change(done.revision, DOC, True, b"1", None)]

    async def test_each_flush_removes_some_expired_entries_in_a_batch_of_their_own(
        self, store: StoreBase, space: str
    ) -> None:
        keys = [b"\x01%02d" % i for i in range(SWEPT_BY_FLUSH + 4)]
        await applied(store, space, *(Put(key, b"", ttl_ms=SHORT_MS) for key in keys))
        await self.pass_time(SHORT_MS)

        first = await applied(store, space, Put(B, b"1"))
        second = await applied(store, space, Put(B, b"2"))

        removed = [
            (change.revision, change.key) for change in await changed(store, space, 1) if change.deleted
        ]
        assert first.revision == 2
        assert second.revision == 4
        assert [revision for revision, _ in removed] == [3] * SWEPT_BY_FLUSH + [5] * 4
        assert sorted(key for _, key in removed) == keys
        assert await revision_of(store, space) == 5

    async def test_a_flush_does_not_sweep_between_its_batches(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)

        outcomes = await store.apply([Batch(space, [Put(B, b"")], at=revision) for revision in (1, 2, 3)])

        assert [type(outcome).__name__ for outcome in outcomes] == ["Applied"] * 3
        assert [change.revision for change in await changed(store, space) if change.deleted] == [5]

    async def test_sweep_removes_what_expired_as_logged_changes(self, store: StoreBase, space: str) -> None:
        keys = [b"\x02%02d" % i for i in range(40)]
        await applied(store, space, *(Put(key, b"v", ttl_ms=SHORT_MS) for key in keys), Put(B, b"stays"))
        await self.pass_time(SHORT_MS)

        removed = 0
        while step := await store.sweep(limit=30):
            assert step <= 30
            removed += step

        gone = [change for change in await changed(store, space, 1) if change.deleted]
        assert removed >= 40
        assert [(change.key, change.old, change.new) for change in sorted(gone, key=lambda c: c.key)] == [
            (key, b"v", None) for key in keys
        ]
        assert [entry.key for entry in await scanned(store, space, b"\x01")] == [B]
        assert await store.sweep() == 0

    async def test_a_sweep_below_a_prefix_leaves_other_spaces_alone(
        self, store: StoreBase, space: str
    ) -> None:
        inside, outside = (
            [f"{space}a/{number}" for number in range(3)],
            [f"{space}{end}" for end in ("", "b")],
        )
        for name in (*inside, *outside):
            await applied(store, name, *(Put(key, b"1", ttl_ms=SHORT_MS) for key in (A, DOC)))
        await self.pass_time(SHORT_MS)

        removed = 0
        while step := await store.sweep(f"{space}a", limit=3):
            assert step <= 3  # the limit counts over all spaces
            removed += step

        assert removed == 6
        assert [(await store.read(name, [])).revision > 1 for name in (*inside, *outside)] == [
            *([True] * 3),
            *([False] * 2),
        ]
        while await store.sweep(limit=1_000):
            pass
        assert [(await store.read(name, [])).revision for name in outside] == [2, 2]
        for name in (*inside, *outside):
            await store.drop(name)

    async def test_sweeps_of_one_entry_come_to_every_space(self, store: StoreBase, space: str) -> None:
        names = [f"{space}/{number}" for number in range(3)]
        for name in names:
            await applied(store, name, Put(A, b"1", ttl_ms=SHORT_MS), Put(DOC, b"2", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)

        steps: list[int] = []
        while step := await store.sweep(limit=1):
            steps.append(step)

        assert set(steps) == {1}
        for name in names:
            assert sorted(c.key for c in await changed(store, name, 1)) == [A, DOC]
            await store.drop(name)

    async def test_an_unswept_entry_costs_no_revision(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)

        await store.read(space, [A])
        await store.scan(space, b"\x01")

        assert (await store.changes(space, 0)).upto == 1

    async def test_a_century_is_a_ttl(self, store: StoreBase, space: str) -> None:
        done = await applied(store, space, Put(A, b"1", ttl_ms=limits.TTL_MS))

        entry = await entry_of(store, space, A)
        assert entry is not None
        assert entry.expires_at_ms == done.now_ms + limits.TTL_MS
