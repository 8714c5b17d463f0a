"""A history in an encrypted store: the same moments, and names that tell nothing."""

from __future__ import annotations

from pathlib import Path

import keepstate
from keepstate.engine.history.history import History
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.stores.wrappers.encrypted import KeyRing
from keepstate.values.codec import Codec
from tests.engine.history.conftest import history_of
from tests.engine.history.test_upkeep import LONG, entries


async def objects(history: History) -> set[bytes]:
    return {entry.key[len(layout.STATES) :] for entry in await entries(history, layout.STATES)}


async def test_a_history_is_kept_collected_and_verified_under_encryption(
    tmp_path: Path, opened: list[Keepstate]
) -> None:
    ring = KeyRing(KeyRing.new_key())
    opened.append(keepstate.open(f"sqlite:///{tmp_path}/keepstate.db", encryption=ring))
    history = history_of(opened[-1].space("run/1"))
    state = {"messages": LONG, "big": b"x" * 1_500_000}
    await history.commit(state)
    await history.commit({**state, "messages": LONG[200:]}, branch="side")
    await history.append("messages", "new")
    await history.delete_branch("side")

    assert await history.collect() > 0
    assert dict(await history.checkout()) == {**state, "messages": [*LONG, "new"]}
    assert (await history.verify()).problems == ()
    named = await objects(history)
    assert named
    assert named.isdisjoint(Codec().to_merkle(state).objects)


async def test_two_spaces_name_the_same_objects_differently(tmp_path: Path, opened: list[Keepstate]) -> None:
    ring = KeyRing(KeyRing.new_key())
    opened.append(keepstate.open(f"sqlite:///{tmp_path}/keepstate.db", encryption=ring))
    one, other = (history_of(opened[-1].space(name)) for name in ("one", "other"))
    await one.commit({"messages": LONG})
    await one.fork(other)

    assert dict(await other.checkout()) == {"messages": LONG}
    assert (await objects(one)).isdisjoint(await objects(other))
