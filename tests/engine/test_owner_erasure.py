"""Erasing an owner: nothing of that person is left in the tenant, and nobody else loses an entry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import Session
from keepstate._runner import TaskRunner
from keepstate.engine.index.carrier import Carrier, OwnerErasure
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.space import owner_erasure
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.owners import OwnerSearch
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Batch, Entry, Put
from tests.engine.conftest import Turned, url_of
from tests.engine.dumps import Dump
from tests.engine.test_erasure import NOT_REACHED, archived
from tests.engine.test_expunge import Dying, KilledError, of_others, with_ann

OF_BOB = ("session/bobs-0", "session/bobs-1", "shared", "states", "user/BOB")
ERASURE = owner_erasure._Erasure  # pyright: ignore[reportPrivateUsage]
REUSED = ("session/reused", "reused")
"""Spaces with a session that ANN owned first, then BOB, ANN again, and BOB until now."""


async def talk(ks: Keepstate, id: str, user: str, **storage: Any) -> Session:
    session = Session(id, user_id=user, **(storage or {"persistence": ks}))
    await session.conversation.append({"role": "user", "content": f"Secret of {user}"})
    await session.user.update_preferences({"name": user})
    return session


async def fill(ks: Keepstate) -> None:
    for user, id in (("ANN", "ANNs"), ("BOB", "bobs")):
        await talk(ks, f"{id}-0", user)
        await (await talk(ks, f"{id}-1", user)).end()
        await talk(ks, f"{id}-live", user, space=ks.space("shared"))
        await (await talk(ks, f"{id}-over", user, space=ks.space("shared"))).end()
        user_only = Session("none", user_id=user, space=ks.space("states", record=user == "BOB"))
        await user_only.user.update_preferences({"name": user})
    for life, user in enumerate(("ANN", "BOB") * 2, 1):
        for space in (None, ks.space("reused", record=True)):
            storage: dict[str, Any] = {"persistence": ks} if space is None else {"space": space}
            session = await talk(ks, "reused", user, **storage)
            if life < 4:
                await session.end()
    await ks.find()


async def lives_with_messages(ks: Keepstate, space: str) -> list[str]:
    """Return the generations of the session of both whose messages are there."""
    names = [name async for name in ks.space(space).documents.keys("*/message/*")]
    return [name.split("life/")[1].split("/")[0] for name in names]


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

        assert erased.spaces == 7
        assert await of_bob(tenant) == others
        assert [await lives_with_messages(tenant, space) for space in REUSED] == [["2", "4"]] * 2
        assert await left_of_ann(tenant) == []
        assert {found.owner for found in await tenant.find()} == {"BOB"}
        again = await tenant.erase_owner("ANN")
        assert (again.spaces, again.entries, again.size_bytes) == (0, 0, 0)
        if kind == "sqlite":
            assert not dump.has(b"Secret of ANN")
            assert dump.has(b"Secret of BOB")


async def test_an_erasure_of_an_owner_names_the_archives_of_own_and_shared_spaces(
    ks: Keepstate, tmp_path: Path
) -> None:
    for name in ("session/ANNs", "shared"):
        space = await archived(ks, name, tmp_path / f"{name[-4:]}.archive", "ANN")
        await talk(ks, "ANNs", "ANN", space=space)
    await archived(ks, "other", tmp_path / "other.archive", "BOB")

    erased = await ks.erase_owner("ANN")

    assert erased.archives == [tmp_path / "ANNs.archive", tmp_path / "ared.archive"]
    assert erased.not_reached[:2] == NOT_REACHED
    assert erased.not_reached[-1] == "data that names this person, but is not a subject of this owner"


async def test_an_owner_of_one_tenant_stays_in_the_others(tmp_path: Path) -> None:
    async with keepstate.open(f"memory://{tmp_path.name}") as ks:
        for tenant in ("a", "b"):
            await fill(ks.tenant(tenant))
        before = (await ks.tenant("b").size()).entries

        await ks.tenant("a").erase_owner("ANN")

        assert (await ks.tenant("b").size()).entries == before


async def test_an_expired_session_and_one_that_got_its_owner_later_are_erased(turned: Turned) -> None:
    ks = turned.ks
    for space in (None, ks.space("shared")):
        storage: dict[str, Any] = {"persistence": ks} if space is None else {"space": space}
        await Session("ANNs", ttl_s=60, **storage).update({"said": "before"})
        await Session("ANNs", ttl_s=60, user_id="ANN", **storage).update({"said": "after"})
        await Session("later", ttl_s=60, user_id="BOB", **storage).update({"said": "by BOB"})
    turned.clock.advance(61_000)
    assert await ks.find() == []

    erased = await ks.erase_owner("ANN")

    assert erased.spaces == 2
    assert await left_of_ann(ks) == []
    assert [name async for name in ks.space("shared").documents.keys("*/state/data")] == [
        "session/later/life/1/state/data"
    ]


async def test_a_session_whose_owner_cannot_be_read_is_reported(ks: Keepstate) -> None:
    await talk(ks, "broken", "ANN")
    store = await ks.opened()
    key = layout.named_key(layout.DOCUMENTS, "session")
    await store.apply([Batch(ks.stored_name("session/broken"), [Put(key, b"\xc1")])])

    erased = await ks.erase_owner("ANN")

    assert "session 'broken' in 'session/broken', whose owner cannot be read" in erased.not_reached


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
            erased = await ks.tenant("t").erase_owner("ANN")

            assert await of_bob(ks.tenant("t")) == others
            assert await left_of_ann(ks.tenant("t")) == []
            for space in REUSED:
                assert await lives_with_messages(ks.tenant("t"), space) == ["2", "4"]
            # A call that is killed when it only had to trim a log has forgotten its counts already.
            assert erased.spaces in ((7, 0) if is_killed else (0,))
    finally:
        await one.close()
        await other.close()
    return is_killed


async def test_an_erasure_that_was_killed_is_completed_by_the_next_one() -> None:
    call = 0
    while await survived(call):
        call += 37

    assert call > 30


# ---- planted bugs


async def test_an_erasure_that_forgets_its_shared_spaces_when_it_is_killed_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def note(erasure: Any, change: Callable[[OwnerErasure], OwnerErasure]) -> None:
        erasure.done = change(erasure.done)

    monkeypatch.setattr(ERASURE, "_note", note)

    with pytest.raises(AssertionError):
        await test_an_erasure_that_was_killed_is_completed_by_the_next_one()


async def test_a_shared_space_that_is_left_out_is_noticed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def owned(*_: object) -> None:
        return None

    async def expunge(*_: SpaceExecutor, scrubs: bool) -> Erased:
        return Erased(0, 0, 0, [], [])

    async def advance(_: Carrier) -> bool:
        return False

    for place, name, planted in (
        (owner_erasure, "expunge", expunge),
        (OwnerSearch, "_owned", owned),
        (Carrier, "advance", advance),
    ):
        with monkeypatch.context() as planting, pytest.raises(AssertionError):
            planting.setattr(place, name, planted)
            await test_an_owner_is_erased_and_nobody_else("memory", request, tmp_path / name)
