"""Lost history: each kind of call notices that a server lost acknowledged writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from keepstate.errors import HistoryLostError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Check, DetectsLosses, Put, ReportsMarks
from keepstate.testing.store_contract.stage import (
    Stage,
    applied,
    changed,
    outcome_of,
    put_away,
    revision_of,
    scanned,
)

A, B = b"\x02a", b"\x02b"

Call = Callable[[StoreBase, str], Awaitable[object]]

CALLS: dict[str, Call] = {
    "revision": revision_of,
    "read one": lambda store, space: store.read(space, [A]),
    "read many": lambda store, space: store.read(space, [b"\x02%d" % n for n in range(20)]),
    "scan": lambda store, space: scanned(store, space, A),
    "changes": lambda store, space: changed(store, space, 2),
    "put": lambda store, space: outcome_of(store, space, Put(B, b"after a loss")),
    "apply": lambda store, space: outcome_of(store, space, Put(A, b""), Put(B, b"after a loss")),
    "judge": lambda store, space: outcome_of(store, space, checks=[Check(A, version=3)]),
    "drop": lambda store, space: store.drop(space),
}
"""Every kind of call on a space; calls with different requests to a server are listed separately."""


class NoticesLostFloors(Stage):
    """A store on a server, whose handles compare the last mark that they saw with the present one."""

    async def replace_floor(self, store: StoreBase, space: str) -> None:
        """Give the floor of a space another nonce: the server lost that revision and made it again."""
        raise NotImplementedError(f"{type(self).__name__} does not say how to replace a floor")

    async def _lost_at_the_floor(self, store: StoreBase, space: str, tmp_path: Path) -> StoreBase:
        """Return a handle whose highest mark was the floor; `store` has written above it since."""
        second = await self.make_store(tmp_path).open()
        await applied(store, space, Put(A, b"1"))
        await store.drop(space)
        assert await revision_of(second, space) == 2
        await applied(store, space, Put(A, b"3"))
        await self.replace_floor(store, space)
        return second

    @pytest.mark.parametrize("call", CALLS)
    async def test_a_mark_at_the_floor_that_the_server_lost_is_noticed(
        self, store: StoreBase, space: str, tmp_path: Path, call: str
    ) -> None:
        second = await self._lost_at_the_floor(store, space, tmp_path)

        noticed: object
        try:
            noticed = await CALLS[call](second, space)
        except HistoryLostError as error:
            noticed = error

        assert isinstance(noticed, HistoryLostError)
        assert isinstance(second, DetectsLosses)
        assert second.losses(space) == 1
        assert [entry.value for entry in await scanned(store, space, b"\x02")] == [b"3"]
        await second.close()

    async def test_a_batch_that_stands_on_what_was_lost_is_void(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        second = await self._lost_at_the_floor(store, space, tmp_path)
        with pytest.raises(HistoryLostError):
            await revision_of(second, space)
        await applied(second, space, Put(B, b"after it was noticed"))

        stale = Batch(space, [Put(A, b"stale")], losses=0)
        fresh = Batch(space, [Put(B, b"fresh")], losses=1)
        (lone,) = await second.apply([stale])
        beside = await second.apply([fresh, stale])

        assert [type(outcome) for outcome in (lone, *beside)] == [HistoryLostError, Applied, HistoryLostError]
        assert [entry.value for entry in await scanned(store, space, b"\x02")] == [b"3", b"fresh"]
        await second.close()

    async def test_a_loss_in_one_space_leaves_the_answers_of_the_others(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        second, neighbour = await self._lost_at_the_floor(store, space, tmp_path), f"{space}'s neighbour"
        names = [space, neighbour, space, neighbour]

        outcomes = await second.apply([Batch(name, [Put(B, b"%d" % n)]) for n, name in enumerate(names)])

        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [HistoryLostError, Applied, HistoryLostError, Applied]
        assert [entry.value for entry in await scanned(store, neighbour, b"\x02")] == [b"3"]
        await put_away(store, neighbour)
        await second.close()

    async def test_changes_under_a_mark_of_another_handle_hide_no_loss(
        self, store: StoreBase, space: str, tmp_path: Path
    ) -> None:
        second = await self._lost_at_the_floor(store, space, tmp_path)
        await applied(store, space, Put(B, b"4"))
        assert isinstance(store, ReportsMarks)
        assert isinstance(second, ReportsMarks)
        mark = store.mark(space)
        assert mark is not None and mark.revision == 4

        told = await second.changes_under(space, mark, 3)

        assert [change.key for change in told.items] == [B]
        with pytest.raises(HistoryLostError):
            await revision_of(second, space)
        await second.close()
