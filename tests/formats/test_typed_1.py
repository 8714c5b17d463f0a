"""How typed state stands in a space: what this version wrote, later ones read."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import ANY

import keepstate
from keepstate import (
    AgentRun,
    CounterKey,
    KeyedState,
    KeyScope,
    ListKey,
    MutationBatch,
    ProfileAccess,
    ProfileKey,
)


class Calls(CounterKey):
    KEY = "calls/all"
    SCOPE = KeyScope.THREAD


class Notes(ListKey[str]):
    KEY = "notes"
    VERSION = 3


class Locale(ProfileKey[str]):
    KEY = "locale"


KEYS = (Calls, Notes)
STORED: dict[str, Any] = {
    "typed/head": {
        "revision": 2,
        "lineage": "",
        "removed": 0,
        "floor": 0,
        "recent": {"thread/calls/all": 2},
        "runs": {"r/1": 2},
    },
    "typed/run/r%2F1/notes": {"value": ["a", "b"], "version": 3, "revision": 2},
    "typed/runs/r/1": {
        "run_id": "r/1",
        "thread_id": "t",
        "status": "running",
        "fence": 1,
        "steps": 2,
        "pending": [],
        "messages": 1,
        "revision": 2,
        "author": "me",
    },
    "typed/thread/calls/all": {"value": 2, "version": 1, "revision": 2},
}


def both(number: int) -> MutationBatch:
    return MutationBatch().update(Calls, 1).update(Notes, ["ab"[number]])


def test_a_thread_is_written_as_it_always_was() -> None:
    async def main() -> None:
        async with keepstate.open("memory://") as ks:
            async with AgentRun(persistence=ks, keys=KEYS, author="me") as run:
                await run.start_run("t", "r/1")
                await run.step(lambda ctx: both(0), messages=["hello"])
                await run.step(lambda ctx: both(1))
            space = ks.space("thread/t")

            head = {**STORED["typed/head"], "lineage": ANY}  # a random one; the first versions wrote none
            assert {name: value async for name, value in space.documents.items()} == {
                **STORED,
                "typed/head": head,
            }
            assert [event.data for event in await space.events.read(stream="messages")] == ["hello"]

    asyncio.run(main())


def test_a_head_says_when_a_run_that_began_has_removed_values() -> None:
    async def main() -> None:
        async with keepstate.open("memory://") as ks:
            async with AgentRun(persistence=ks, keys=KEYS) as run:
                await run.start_run("t", "r/1")
                await run.commit(both(0))
                await run.finish_run()
                await run.start_run("t", "r/2")

            assert await ks.space("thread/t").documents.get("typed/head") == {
                "revision": 2,
                "lineage": ANY,
                "removed": 0,
                "floor": 0,
                "recent": {"thread/calls/all": 1},
                "runs": {"r/2": 0},
                "cleared": 2,
            }

    asyncio.run(main())


def test_what_was_written_is_read() -> None:
    async def main() -> None:
        async with keepstate.open("memory://") as ks:
            for name, value in STORED.items():
                await ks.space("thread/t").documents.put(name, value)
            async with KeyedState("t", persistence=ks, keys=KEYS, run_id="r/1") as state:
                assert (state.revision, state.read(Calls), state.read(Notes)) == (2, 2, ["a", "b"])
            async with AgentRun(persistence=ks, keys=KEYS) as run:
                record = await run.start_run("t", "r/1", resume=True)
                assert (record.steps, record.messages, run.read(Notes)) == (2, 1, ["a", "b"])

    asyncio.run(main())


def test_in_a_space_that_was_passed_names_begin_with_the_thread() -> None:
    async def main() -> None:
        async with keepstate.open("memory://") as ks:
            state = KeyedState("t/1", space=ks.space("shared"), keys=KEYS)
            await state.commit(MutationBatch().update(Calls, 1).update(Notes, ["a"]))

            assert [name async for name, _ in ks.space("shared").documents.items()] == [
                "thread/t%2F1/typed/head",
                "thread/t%2F1/typed/run//notes",
                "thread/t%2F1/typed/thread/calls/all",
            ]

    asyncio.run(main())


def test_a_profile_stands_under_its_owner() -> None:
    async def main() -> None:
        async with keepstate.open("memory://") as ks:
            access = ProfileAccess(persistence=ks)
            await access.write(Locale, "global", "de")
            await access.write(Locale, value="fr", agent="a/b:c")
            stored = {
                space: {name: value async for name, value in ks.space(space).documents.items()}
                async for space in ks.spaces()
            }

            assert stored == {
                "profile/agent::a/b%3Ac": {
                    "profile/agent::a%2Fb%253Ac/locale": {"value": "fr", "version": 1, "revision": 0}
                },
                "profile/global": {"profile/global/locale": {"value": "de", "version": 1, "revision": 0}},
            }

    asyncio.run(main())
