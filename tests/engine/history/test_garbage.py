"""A collector beside writers loses nothing that a branch or tag leads to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import keepstate
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Page
from tests.engine.history.conftest import history_of


class HookedStore(MemoryStore):
    """A store that lets something happen just before tags are looked at."""

    hook: Callable[[], Awaitable[object]] | None = None

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        if prefix == layout.TAGS and self.hook is not None:
            hook, self.hook = self.hook, None
            await hook()
        return await super().scan(space, prefix, **options)


async def test_what_moves_from_a_tag_to_a_branch_under_the_collector_is_kept(
    opened: list[Keepstate],
) -> None:
    store = HookedStore()
    opened.append(keepstate.open(store))
    await store.open()
    history = history_of(opened[-1].space("run/1"))
    await history.commit({"n": 0})
    await history.commit({"messages": ["x" * 3_000, "y" * 3_000]}, branch="side")
    await history.tag("only", "side")
    await history.delete_branch("side")

    async def move() -> None:
        await history.branch("again", "only")
        await history.delete_tag("only")

    store.hook = move
    removed = await history.collect()

    assert (removed, store.hook) == (0, None)
    assert dict(await history.checkout("again")) == {"messages": ["x" * 3_000, "y" * 3_000]}
    await store.close()
