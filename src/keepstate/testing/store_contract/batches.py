"""Batches apply whole or not at all, in order, and take dense revisions (promise 1)."""

from __future__ import annotations

from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Conflict, Delete, Entry, Put
from keepstate.testing.store_contract.stage import (
    Stage,
    applied,
    changed,
    entry_of,
    refused,
    revision_of,
    scanned,
    value_of,
)

A, B, C = b"\x01a", b"\x01b", b"\x01c"


class Batches(Stage):
    """Promises of the protocol about batches, a test each."""

    async def test_a_put_is_read_back_with_its_facts(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"one"))

        assert await entry_of(store, space, A) == Entry(A, b"one", version=1, created=1, expires_at_ms=None)

    async def test_an_empty_value_is_a_value(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b""))

        assert await value_of(store, space, A) == b""

    async def test_any_bytes_are_kept_in_keys_and_values(self, store: StoreBase, space: str) -> None:
        every_byte = bytes(range(256))
        key = b"\x01" + every_byte

        await applied(store, space, Put(key, every_byte), Put(b"\x01" + every_byte[::-1], every_byte * 2))

        assert await value_of(store, space, key) == every_byte
        assert [entry.key for entry in await scanned(store, space, b"\x01")] == [
            key,
            b"\x01" + every_byte[::-1],
        ]

    async def test_a_batch_writes_all_its_keys_in_one_revision(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(C, b"old"))

        done = await applied(store, space, Put(A, b"1"), Put(B, b"2"), Delete(C))

        reading = await store.read(space, [A, B, C])
        assert [entry and entry.version for entry in reading.entries] == [2, 2, None]
        assert reading.revision == done.revision == 2

    async def test_revisions_are_dense(self, store: StoreBase, space: str) -> None:
        revisions = [(await applied(store, space, Put(A, b"%d" % i))).revision for i in range(20)]

        assert revisions == list(range(1, 21))

    async def test_a_refused_batch_changes_nothing_and_takes_no_revision(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"), Put(B, b"1"))

        conflict = await refused(
            store, space, Put(A, b"2"), Delete(B), Put(C, b"2", stamp=True), checks=[Check(A, version=9)]
        )

        assert conflict == Conflict(A, 1)
        assert [(e.key, e.value) for e in await scanned(store, space, b"\x01")] == [(A, b"1"), (B, b"1")]
        assert await revision_of(store, space) == 1
        assert (await applied(store, space, Put(A, b"3"))).revision == 2

    async def test_batches_of_one_call_apply_in_the_order_given(self, store: StoreBase, space: str) -> None:
        outcomes = await store.apply(
            [
                Batch(space, [Put(A, b"1")]),
                Batch(space, [Put(A, b"2")], [Check(A, version=1)]),
                Batch(space, [Put(A, b"3")], [Check(A, version=1)]),
                Batch(space, [Put(B, b"4")], [Check(A, version=2)], at=2),
            ]
        )

        assert [type(outcome) for outcome in outcomes] == [Applied, Applied, Conflict, Applied]
        assert outcomes[2] == Conflict(A, 2)
        assert await value_of(store, space, A) == b"2"
        assert await revision_of(store, space) == 3

    async def test_one_call_writes_several_spaces(self, store: StoreBase, space: str) -> None:
        second = space + "'s neighbour"

        outcomes = await store.apply(
            [Batch(name, [Put(A, name.encode())]) for name in (space, second, space)]
        )

        assert [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)] == [1, 1, 2]
        assert await value_of(store, space, A) == space.encode()
        assert await value_of(store, second, A) == second.encode()
        await store.drop(second)

    async def test_a_batch_without_writes_is_judged_and_takes_no_revision(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))

        holds = await applied(store, space, checks=[Check(A, version=1), Check(B, version=ABSENT)], at=1)
        fails = await refused(store, space, checks=[Check(A, version=2)])

        assert holds.revision == 1
        assert fails == Conflict(A, 1)
        assert await revision_of(store, space) == 1

    async def test_deleting_removes_the_key(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"), Put(B, b"1"))

        await applied(store, space, Delete(A))

        assert await entry_of(store, space, A) is None
        assert [entry.key for entry in await scanned(store, space, b"\x01")] == [B]

    async def test_deleting_an_absent_key_is_no_change_but_takes_a_revision(
        self, store: StoreBase, space: str
    ) -> None:
        done = await applied(store, space, Delete(A))

        assert done.revision == 1
        assert await changed(store, space) == []
        assert (await store.changes(space, 0)).upto == 1

    async def test_version_is_the_last_write_and_created_the_first(
        self, store: StoreBase, space: str
    ) -> None:
        for value in (b"1", b"2", b"3"):
            await applied(store, space, Put(A, value))

        assert await entry_of(store, space, A) == Entry(A, b"3", version=3, created=1)

    async def test_created_starts_anew_when_a_key_was_absent(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Delete(A))

        await applied(store, space, Put(A, b"2"))

        assert await entry_of(store, space, A) == Entry(A, b"2", version=3, created=3)

    async def test_the_same_key_in_two_spaces_is_two_keys(self, store: StoreBase, space: str) -> None:
        second = space + "'s neighbour"
        await applied(store, space, Put(A, b"1"))

        await applied(store, second, Put(B, b"2"))

        assert await value_of(store, second, A) is None
        assert await scanned(store, space, b"\x01") == [Entry(A, b"1", 1, 1)]
        await store.drop(second)

    async def test_no_batches_are_no_work(self, store: StoreBase) -> None:
        assert await store.apply([]) == []

    async def test_an_answer_says_the_time_and_time_does_not_go_back(
        self, store: StoreBase, space: str
    ) -> None:
        first = await applied(store, space, Put(A, b"1"))
        reading = await store.read(space, [A])
        second = await applied(store, space, Put(A, b"2"))

        assert 0 < first.now_ms <= reading.now_ms <= second.now_ms

    async def test_changing_what_was_given_or_read_changes_nothing_stored(
        self, store: StoreBase, space: str
    ) -> None:
        writes: list[Put | Delete] = [Put(A, b"1")]
        await store.apply([Batch(space, writes)])
        writes[0] = Delete(A)
        reading, page, log = (
            await store.read(space, [A]),
            await store.scan(space, A),
            await store.changes(space, 0),
        )

        for answer in (reading.entries, page.entries, log.items):
            if isinstance(answer, list):
                answer.clear()

        assert await value_of(store, space, A) == b"1"
        assert len(await scanned(store, space, A)) == len(await changed(store, space)) == 1

    async def test_a_batch_of_a_thousand_writes_applies(self, store: StoreBase, space: str) -> None:
        keys = [b"\x01%04d" % i for i in range(1000)]

        await applied(store, space, *(Put(key, key) for key in keys))

        assert [entry.key for entry in await scanned(store, space, b"\x01", limit=300)] == keys
        assert (await store.read(space, keys)).entries[-1] == Entry(keys[-1], keys[-1], 1, 1)
