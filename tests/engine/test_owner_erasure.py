"""Erasing an owner: nothing of that person is left in the tenant, and nobody else loses an entry."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import Session
from keepstate._runner import TaskRunner
from keepstate.engine.index.carrier import Carrier
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.space import owner_erasure
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.keepstate import Keepstate
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Entry
from tests.engine.conftest import url_of
from tests.engine.dumps import Dump
from tests.engine.test_expunge import Dying, KilledError, of_others, with_ann

OF_BOB = ("session/bobs-0", "session/bobs-1", "shared", "user/BOB")


async def talk(ks: Keepstate, id: str, user: str, **storage: Any) -> None:
    session = Session(id, user_id=user, **(storage or {"persistence": ks}))
    await session.conversation.append({"role": "user", "content": f"Secret of {user}"})
    await session.user.update_preferences({"name": user})


async def fill(ks: Keepstate) -> None:
    for user, id in (("ANN", "ANNs"), ("BOB", "bobs")):
        for number in range(2):
            await talk(ks, f"{id}-{number}", user)
        await talk(ks, f"{id}-shared", user, space=ks.space("shared"))
    await ks.find()


async def of_bob(ks: Keepstate) -> dict[str, list[Entry]]:
    """Return the entries of the other person in each space."""
    return {space: await of_others(ks.store, ks.stored_name(space)) for space in OF_BOB}


async def left_of_ann(ks: Keepstate) -> list[tuple[str, bytes]]:
    """Return what is left of the owner in entries and logs of all spaces.

    A killed drop leaves the name of its space in a mark, until another delivery finds it old.
    """
    return [
        (name, key)
        async for name in ks.stored_names()
        for key in await with_ann(await ks.opened(), name)
        if not key.startswith(layout.DROPPING)
    ]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
async def test_an_owner_is_erased_and_nobody_else(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with keepstate.open(url_of(kind, request, tmp_path)) as ks:
        tenant, dump = ks.tenant("t"), Dump(kind, request, tmp_path)
        for each in (tenant, ks.tenant("other")):
            await fill(each)
        others = await of_bob(tenant)
        await ks.tenant("other").erase(confirm="other")

        erased = await tenant.erase_owner("ANN")

        assert erased.spaces == 4
        assert await of_bob(tenant) == others
        assert await left_of_ann(tenant) == []
        assert {found.owner for found in await tenant.find()} == {"BOB"}
        assert (await tenant.erase_owner("ANN")).entries == 0
        if kind == "sqlite":
            assert not dump.has(b"Secret of ANN")
            assert dump.has(b"Secret of BOB")


async def test_an_owner_of_one_tenant_stays_in_the_others(tmp_path: Path) -> None:
    async with keepstate.open(f"memory://{tmp_path.name}") as ks:
        for tenant in ("a", "b"):
            await fill(ks.tenant(tenant))
        before = (await ks.tenant("b").size()).entries

        await ks.tenant("a").erase_owner("ANN")

        assert (await ks.tenant("b").size()).entries == before


async def survived(call: int) -> bool:
    """Kill an erasure before a call, complete it, and return whether it was killed."""
    heap = MemoryHeap()
    one, other = (Dying(MemoryStore(runner=TaskRunner(), heap=heap)) for _ in range(2))
    is_killed = False
    try:
        async with keepstate.open(await other.open()) as ks:
            await fill(ks.tenant("t"))
            others = await of_bob(ks.tenant("t"))
            async with keepstate.open(await one.open()) as dying:
                one.calls_left = call
                try:
                    await dying.tenant("t").erase_owner("ANN")
                except KilledError:
                    is_killed = True
                one.calls_left = 1 << 30
            await ks.tenant("t").erase_owner("ANN")

            assert await of_bob(ks.tenant("t")) == others
            assert await left_of_ann(ks.tenant("t")) == []
    finally:
        await one.close()
        await other.close()
    return is_killed


async def test_an_erasure_that_was_killed_is_completed_by_the_next_one() -> None:
    call = 0
    while await survived(call):
        call += 7

    assert call > 30


# ---- planted bugs


async def test_an_erasure_that_forgets_its_shared_spaces_when_it_is_killed_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def note_spaces(_carrier: Carrier, _owner: str, spaces: Iterable[str]) -> set[str]:
        return set(spaces)

    monkeypatch.setattr(owner_erasure, "_note_spaces", note_spaces)

    with pytest.raises(AssertionError):
        await test_an_erasure_that_was_killed_is_completed_by_the_next_one()


async def test_a_shared_space_that_is_left_out_is_noticed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def expunge(*_: SpaceExecutor, scrubs: bool) -> Erased:
        return Erased(0, 0, 0, [], [])

    async def advance(_: Carrier) -> bool:
        return False

    for place, name, planted in ((owner_erasure, "expunge", expunge), (Carrier, "advance", advance)):
        with monkeypatch.context() as planting, pytest.raises(AssertionError):
            planting.setattr(place, name, planted)
            await test_an_owner_is_erased_and_nobody_else("memory", request, tmp_path / name)
