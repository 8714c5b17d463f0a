"""Expiry in the order of writes: an entry that a transaction read is live when it commits (promise 18)."""

from __future__ import annotations

from keepstate.stores.base import SWEPT_BY_FLUSH, StoreBase
from keepstate.stores.protocol import ABSENT, Applied, Batch, Change, Check, Conflict, Put
from keepstate.testing.schedules import Schedule
from keepstate.testing.store_contract.stage import (
    LONG_MS,
    SHORT_MS,
    Stage,
    applied,
    changed,
    is_invalid,
    value_of,
)

A, B = b"\x01a", b"\x01b"
DOC = b"\x02doc"


class SerialOrders(Stage):
    """Expiry judged at a given time, and batches that end with it."""

    schedules = 4
    """The number of random schedules to play; each takes real time if the clock cannot be turned."""

    async def test_expiry_is_judged_at_the_time_that_is_given(self, store: StoreBase, space: str) -> None:
        done = await applied(store, space, Put(A, b"1", ttl_ms=SHORT_MS), Put(B, b"2", ttl_ms=LONG_MS))
        expiry_ms = done.now_ms + SHORT_MS

        before = await store.read(space, [A, B], at_ms=expiry_ms - 1)
        after = await store.read(space, [A, B], at_ms=expiry_ms)
        one = await store.read(space, [A], at_ms=expiry_ms)
        pages = [await store.scan(space, b"\x01", at_ms=at_ms) for at_ms in (expiry_ms - 1, expiry_ms)]

        assert [entry and entry.value for entry in before.entries] == [b"1", b"2"]
        assert [entry and entry.value for entry in after.entries] == [None, b"2"]
        assert list(one.entries) == [None]
        assert [[entry.key for entry in page.entries] for page in pages] == [[A, B], [B]]

    async def test_what_has_expired_since_is_read_at_an_earlier_time(
        self, store: StoreBase, space: str
    ) -> None:
        done = await applied(store, space, Put(A, b"1", ttl_ms=SHORT_MS), Put(DOC, b"2", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)
        assert await value_of(store, space, A) is None

        reading = await store.read(space, [A, DOC], at_ms=done.now_ms)
        one = await store.read(space, [A], at_ms=done.now_ms)
        page = await store.scan(space, b"\x01", at_ms=done.now_ms)

        assert [entry and entry.value for entry in (*reading.entries, *one.entries)] == [b"1", b"2", b"1"]
        assert [entry.key for entry in page.entries] == [A]
        assert reading.now_ms >= done.now_ms + SHORT_MS
        assert page.now_ms >= reading.now_ms, "a page tells the present time too"

    async def test_many_keys_are_judged_at_one_time(self, store: StoreBase, space: str) -> None:
        keys = [b"\x01%03d" % number for number in range(40)]
        done = await applied(store, space, *(Put(key, b"v" * 100, ttl_ms=SHORT_MS) for key in keys))
        await self.pass_time(SHORT_MS)

        reading = await store.read(space, keys, at_ms=done.now_ms)

        assert [entry and entry.key for entry in reading.entries] == keys
        assert list((await store.read(space, keys)).entries) == [None] * len(keys)

    async def test_a_page_tells_the_time_that_it_was_judged_at(self, store: StoreBase, space: str) -> None:
        done = await applied(store, space, Put(A, b"1", ttl_ms=LONG_MS))

        page = await store.scan(space, b"\x01")
        nothing = await store.scan(space, DOC)

        assert done.now_ms <= page.now_ms <= nothing.now_ms <= (await store.read(space, [])).now_ms

    async def test_a_batch_is_refused_once_what_it_stands_on_has_expired(
        self, store: StoreBase, space: str
    ) -> None:
        done = await applied(store, space, Put(A, b"1", ttl_ms=SHORT_MS))
        until_ms = done.now_ms + SHORT_MS
        await self.pass_time(SHORT_MS)

        lone = Batch(space, [Put(B, b"2")], at=1, alive_until_ms=until_ms)
        several = Batch(space, [Put(B, b"2"), Put(DOC, b"3")], at=1, alive_until_ms=until_ms)
        judged = Batch(space, [], at=1, alive_until_ms=until_ms)
        outcomes = [(await store.apply([batch]))[0] for batch in (lone, several, judged)]

        assert outcomes == [Conflict(None, 1)] * 3
        assert await value_of(store, space, B) is None

    async def test_a_batch_applies_while_what_it_stands_on_lives(self, store: StoreBase, space: str) -> None:
        done = await applied(store, space, Put(A, b"1", ttl_ms=LONG_MS))
        until_ms = done.now_ms + LONG_MS

        [lone] = await store.apply([Batch(space, [Put(B, b"2")], at=1, alive_until_ms=until_ms)])
        [moved] = await store.apply([Batch(space, [Put(B, b"3")], at=1, alive_until_ms=until_ms)])

        assert isinstance(lone, Applied)
        assert moved == Conflict(None, 2)

    async def test_a_time_without_a_revision_is_refused(self, store: StoreBase, space: str) -> None:
        await is_invalid(store.apply([Batch(space, [Put(A, b"1")], alive_until_ms=1)]))
        await is_invalid(store.apply([Batch(space, [Put(A, b"1")], at=0, alive_until_ms=-1)]))
        await is_invalid(store.read(space, [A], at_ms=-1))
        await is_invalid(store.scan(space, A, at_ms=-1))

    async def test_a_write_over_an_expired_entry_tells_both_changes(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(DOC, b"old", ttl_ms=SHORT_MS), Put(A, b"old", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)

        done = await applied(store, space, Put(DOC, b"new"), Put(A, b"new"))
        again = await applied(store, space, Put(DOC, b"newer"))

        assert await changed(store, space, 1) == [
            Change(done.revision, A, False),
            Change(done.revision, DOC, False, b"old", b"new", expired=True),
            Change(again.revision, DOC, False, b"new", b"newer"),
        ]

    async def test_each_of_many_writes_over_expired_entries_tells_both_changes(
        self, store: StoreBase, space: str
    ) -> None:
        keys = [b"\x02%02d" % number for number in range(SWEPT_BY_FLUSH)]
        await applied(store, space, *(Put(key, key, ttl_ms=SHORT_MS) for key in keys))
        await self.pass_time(SHORT_MS)

        done = await applied(
            store, space, *(Put(key, b"new") for key in keys), checks=[Check(key, ABSENT) for key in keys]
        )

        told = [change for change in await changed(store, space, 1) if change.revision == done.revision]
        assert [(change.old, change.new, change.expired) for change in told] == [
            (key, b"new", True) for key in keys
        ]

    async def test_transactions_over_what_expires_have_a_serial_order(
        self, store: StoreBase, space: str
    ) -> None:
        for seed in range(self.schedules):
            name = f"{space}/{seed}"
            await Schedule(store, name, seed, self.pass_time).play()
            await store.drop(name)
