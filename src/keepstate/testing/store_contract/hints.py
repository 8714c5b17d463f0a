"""Hints: a listener is notified of changes soon. A reader that does not listen misses no change."""

from __future__ import annotations

from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Put
from keepstate.testing.store_contract.stage import SHORT_MS, Stage, applied, changed

A = b"\x01a"
AN_HOUR_S = 3600.0
"""The wait of a listener that is not woken; the time limit of the test ends it."""


class Hints(Stage):
    """`wait` and `listen` within one handle."""

    async def test_a_listener_keeps_a_hint_until_it_waits(self, store: StoreBase, space: str) -> None:
        listener = store.listen([space])
        await applied(store, space, Put(A, b"1"))

        await listener.wait(AN_HOUR_S)

        listener.close()

    async def test_a_waiting_listener_is_woken(self, store: StoreBase, space: str) -> None:
        listener = store.listen([space, space + "'s neighbour"])

        async def follow() -> None:
            upto, seen = 0, 0
            while seen < 20:
                await listener.wait(AN_HOUR_S)
                changes = await store.changes(space, upto)
                upto, seen = changes.upto, seen + len(changes.items)

        async def write() -> None:
            for i in range(20):
                await applied(store, space, Put(A, b"%d" % i))

        await self.together(follow(), write())

        listener.close()

    async def test_waiting_ends_when_its_time_is_up(self, store: StoreBase, space: str) -> None:
        for _ in range(3):
            await store.wait([space], 0.02)

        assert (await store.read(space, [])).revision == 0

    async def test_a_drop_and_a_sweep_are_heard(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)
        for act in (store.sweep, lambda: store.drop(space)):
            listener = store.listen([space])
            before = (await store.read(space, [])).revision
            await act()

            await listener.wait(AN_HOUR_S)

            assert (await store.read(space, [])).revision > before
            listener.close()

    async def test_a_closed_listener_stays_closed(self, store: StoreBase, space: str) -> None:
        listener = store.listen([space])
        listener.close()
        listener.close()

        await applied(store, space, Put(A, b"1"))

        assert len(await changed(store, space)) == 1
