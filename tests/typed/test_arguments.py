"""Every argument of every public call on typed state: what it may not be is refused, in both modes.

A call is written once for both modes; `wrong` are values for the one argument that its name tells of.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

import keepstate
from keepstate import (
    InvalidError,
    MutationBatch,
    PersistedState,
    Snapshot,
    StateError,
    StateMap,
    ToolOutput,
    sync,
)
from tests.contracts.typed.keys import Plan, Score, Visits
from tests.contracts.typed.plugins import BranchEventLog


class Later:
    """No plugin: nobody would wait for what it registers."""

    async def register(self, registrar: Any) -> None:
        registrar.register_key(Plan)


NO_TEXT = (1, b"a", ["a"], None, "\ud800")
NO_AUTHOR = (1, b"a", ["a"], "", "a" * 513)
NO_FLAG = (1, None, "yes")
NO_KEY = ("visits", 1, None, int, Score, Visits.KEY, [Visits])
NO_PROFILE_KEY = ("score", 1, None, int, Visits)
NO_KEYS = ("visits", 1, None, {"visits": Visits}, [1], ["visits"], [Score])
NO_PLUGIN = ("diary", 1, None, object(), BranchEventLog, Later(), Visits)
NO_PLUGINS = ("diary", 1, None, *([each] for each in NO_PLUGIN))
NO_BATCH = (1, None, "visits", {"visits": 1}, [MutationBatch()])
NO_MESSAGES = ("hello", b"hello", 1, None, {"role": "user"}, {"a", "b"}, iter(["hello"]))
NO_REVISION = ("1", 1.0, -1, True, [1])
NO_LENGTH = ("1", 0, -1, True, [1], float("nan"), float("inf"))
NO_WAIT = ("1", -1, True, [1], float("nan"))
NO_COUNT = ("1", 0, -1, 1.5, True, None)
NO_FUNCTION = (1, None, "f")
NO_REF = (1, None, ["main"], "", "main~x")
NO_SCOPE = (1, "alice", b"a", ["a"])


def batch() -> MutationBatch:
    return MutationBatch().update(Visits, 1)


@dataclass(frozen=True)
class Place:
    """Where calls are tried: the classes of one colour, and one of each."""

    mode: Any
    state: Any
    run: Any
    profile: Any


CALLS: dict[str, tuple[Callable[[Place, Any], Any], tuple[Any, ...]]] = {
    "KeyedState(thread_id)": (lambda at, x: at.mode.KeyedState(x), (*NO_TEXT, "", "a" * 300)),
    "KeyedState(run_id)": (lambda at, x: at.mode.KeyedState("t", run_id=x), (*NO_TEXT, "a" * 600)),
    "KeyedState(keys)": (lambda at, x: at.mode.KeyedState(keys=x), NO_KEYS),
    "KeyedState(plugins)": (lambda at, x: at.mode.KeyedState(plugins=x), NO_PLUGINS),
    "KeyedState(author)": (lambda at, x: at.mode.KeyedState(author=x), NO_AUTHOR),
    "KeyedState(record)": (lambda at, x: at.mode.KeyedState(record=x), NO_FLAG),
    "KeyedState.read(key)": (lambda at, x: at.state.read(x), NO_KEY),
    "KeyedState.commit(batch)": (lambda at, x: at.state.commit(x), NO_BATCH),
    "KeyedState.commit(message)": (lambda at, x: at.state.commit(batch(), message=x), NO_TEXT),
    "KeyedState.merge_all(batches)": (lambda at, x: at.state.merge_all(x), (*NO_BATCH[:-1], [1], ["visits"])),
    "KeyedState.merge_parallel(a)": (lambda at, x: at.state.merge_parallel(x, batch()), NO_BATCH),
    "KeyedState.merge_parallel(b)": (lambda at, x: at.state.merge_parallel(batch(), x), NO_BATCH),
    "KeyedState.install_plugin(plugin)": (lambda at, x: at.state.install_plugin(x), NO_PLUGIN),
    "KeyedState.uninstall_plugin(plugin)": (lambda at, x: at.state.uninstall_plugin(x), NO_PLUGIN),
    "KeyedState.add_hook(hook)": (lambda at, x: at.state.add_hook(x), NO_FUNCTION),
    "KeyedState.restore_persisted(state)": (
        lambda at, x: at.state.restore_persisted(x),
        (
            *(1, None, "state", {"revision": 1, "extensions": {}}),
            *(PersistedState(x, {}) for x in NO_REVISION),
            *(PersistedState(1, x) for x in (None, ["visits"], {1: 1}, {"": 1})),
            *(
                PersistedState(1, {"visits": 1}, x)
                for x in (None, [1], {"visits": "1"}, {1: 1}, {"visits": 0})
            ),
            *(PersistedState(1, {"visits": 1}, {}, x) for x in (None, "visits", {"visits"}, [1])),
        ),
    ),
    "KeyedState.restore_persisted(unknown)": (
        lambda at, x: at.state.restore_persisted(PersistedState(1, {}), x),
        (1, None, "drop", True),
    ),
    "KeyedState.watch(key)": (lambda at, x: at.state.watch(x), NO_KEY),
    "KeyedState.watch(timeout_s)": (lambda at, x: at.state.watch(Visits, timeout_s=x), NO_WAIT),
    "KeyedState.at(ref)": (lambda at, x: at.state.at(x), NO_REF),
    "KeyedState.diff(a)": (lambda at, x: at.state.diff(x), NO_REF),
    "KeyedState.diff(b)": (lambda at, x: at.state.diff("main", x), NO_REF),
    "AgentRun(keys)": (lambda at, x: at.mode.AgentRun(keys=x), NO_KEYS),
    "AgentRun(plugins)": (lambda at, x: at.mode.AgentRun(plugins=x), NO_PLUGINS),
    "AgentRun(profile)": (lambda at, x: at.mode.AgentRun(profile=x), (1, "alice", [Score])),
    "AgentRun(author)": (lambda at, x: at.mode.AgentRun(author=x), NO_AUTHOR),
    "AgentRun(record)": (lambda at, x: at.mode.AgentRun(record=x), NO_FLAG),
    "AgentRun(on_conflict)": (lambda at, x: at.mode.AgentRun(on_conflict=x), (1, None, "ignore")),
    "AgentRun(reruns)": (lambda at, x: at.mode.AgentRun(reruns=x), NO_COUNT),
    "AgentRun(lease_ttl_s)": (lambda at, x: at.mode.AgentRun(lease_ttl_s=x), NO_LENGTH),
    "AgentRun.start_run(thread_id)": (
        lambda at, x: at.mode.AgentRun().start_run(x, "r"),
        (*NO_TEXT, "", "a" * 300),
    ),
    "AgentRun.start_run(run_id)": (
        lambda at, x: at.mode.AgentRun().start_run("t", x),
        (*NO_TEXT, "", "a" * 600),
    ),
    "AgentRun.start_run(resume)": (lambda at, x: at.mode.AgentRun().start_run("t", "r", resume=x), NO_FLAG),
    "AgentRun.start_run(wait_s)": (lambda at, x: at.mode.AgentRun().start_run("t", "r", wait_s=x), NO_WAIT),
    "AgentRun.finish_run(status)": (lambda at, x: at.run.finish_run(x), (1, None, "running", "done")),
    "AgentRun.finish_run(messages)": (lambda at, x: at.run.finish_run(messages=x), NO_MESSAGES),
    "AgentRun.messages(after)": (lambda at, x: at.run.messages(after=x), NO_REVISION),
    "AgentRun.messages(limit)": (lambda at, x: at.run.messages(limit=x), NO_COUNT),
    "AgentRun.read(key)": (lambda at, x: at.run.read(x), NO_KEY),
    "AgentRun.add_hook(hook)": (lambda at, x: at.run.add_hook(x), NO_FUNCTION),
    "AgentRun.step(tools)": (lambda at, x: at.run.step(x), NO_FUNCTION),
    "AgentRun.step(messages)": (lambda at, x: at.run.step(messages=x), NO_MESSAGES),
    "AgentRun.commit(batch)": (lambda at, x: at.run.commit(x), NO_BATCH),
    "AgentRun.commit(messages)": (lambda at, x: at.run.commit(batch(), messages=x), NO_MESSAGES),
    "ToolOutput(batch)": (lambda at, x: at.run.step(lambda ctx: ToolOutput(batch=x)), (1, "b", [batch()])),
    "ToolOutput(messages)": (lambda at, x: at.run.step(lambda ctx: ToolOutput(messages=x)), NO_MESSAGES),
    "ProfileAccess(keys)": (lambda at, x: at.mode.ProfileAccess(keys=x), (*NO_KEYS[:5], [Visits])),
    "ProfileAccess(author)": (lambda at, x: at.mode.ProfileAccess(author=x), NO_AUTHOR),
    "ProfileAccess.read(profile_key)": (lambda at, x: at.profile.read(x, "alice"), NO_PROFILE_KEY),
    "ProfileAccess.read(key)": (lambda at, x: at.profile.read(Score, x), (*NO_TEXT, "")),
    "ProfileAccess.read(agent)": (lambda at, x: at.profile.read(Score, agent=x), (*NO_TEXT, "")),
    "ProfileAccess.read(scope)": (lambda at, x: at.profile.read(Score, scope=x), NO_SCOPE),
    "ProfileAccess.entry(profile_key)": (lambda at, x: at.profile.entry(x, "alice"), NO_PROFILE_KEY),
    "ProfileAccess.write(profile_key)": (lambda at, x: at.profile.write(x, "alice", 1), NO_PROFILE_KEY),
    "ProfileAccess.write(key)": (lambda at, x: at.profile.write(Score, x, 1), (*NO_TEXT, "")),
    "ProfileAccess.write(value)": (lambda at, x: at.profile.write(Score, "alice", x), ("1", 1.5, None, [1])),
    "ProfileAccess.write(expected_version)": (
        lambda at, x: at.profile.write(Score, "alice", 1, expected_version=x),
        NO_REVISION,
    ),
    "ProfileAccess.update(profile_key)": (lambda at, x: at.profile.update(x, "alice", len), NO_PROFILE_KEY),
    "ProfileAccess.update(change)": (lambda at, x: at.profile.update(Score, "alice", x), NO_FUNCTION),
    "ProfileAccess.delete(profile_key)": (lambda at, x: at.profile.delete(x, "alice"), NO_PROFILE_KEY),
    "ProfileAccess.delete(expected_version)": (
        lambda at, x: at.profile.delete(Score, "alice", expected_version=x),
        NO_REVISION,
    ),
    "ProfileAccess.list(key)": (lambda at, x: at.profile.list(x), (*NO_TEXT, "")),
    "ProfileAccess.clear(key)": (lambda at, x: at.profile.clear(x), (*NO_TEXT, "")),
    "MutationBatch(base_revision)": (lambda _, x: MutationBatch(x), NO_REVISION),
    "MutationBatch(lineage)": (lambda _, x: MutationBatch(1, lineage=x), (1, b"a", ["a"])),
    "MutationBatch.update(key)": (lambda _, x: MutationBatch().update(x, 1), NO_KEY),
    "MutationBatch.extend(other)": (lambda _, x: MutationBatch().extend(x), NO_BATCH),
    "MutationBatch.merge_parallel(other)": (lambda _, x: MutationBatch().merge_parallel(x), NO_BATCH),
    "StateMap.contains(key)": (lambda _, x: StateMap().contains(x), NO_KEY),
    "StateMap.get(key)": (lambda _, x: StateMap().get(x), NO_KEY),
    "StateMap.get_mut(key)": (lambda _, x: StateMap().get_mut(x), NO_KEY),
    "StateMap.insert(key)": (lambda _, x: StateMap().insert(x, 1), NO_KEY),
    "StateMap.insert(value)": (lambda _, x: StateMap().insert(Visits, x), ("1", 1.5, None)),
    "StateMap.remove(key)": (lambda _, x: StateMap().remove(x), NO_KEY),
    "StateMap.get_or_insert_default(key)": (lambda _, x: StateMap().get_or_insert_default(x), NO_KEY),
    "Snapshot(revision)": (lambda _, x: Snapshot.new(x, StateMap()), (*NO_REVISION, None)),
    "Snapshot(ext)": (lambda _, x: Snapshot.new(1, x), (1, None, {Visits: 1})),
    "Snapshot.get(key)": (lambda _, x: Snapshot.new(1, StateMap()).get(x), NO_KEY),
    "Snapshot.ext.contains(key)": (lambda at, x: at.state.snapshot().ext.contains(x), NO_KEY),
}
REFUSED = (InvalidError, StateError)


def tried(name: str) -> list[Any]:
    """Return the wrong values of a call."""
    return list(CALLS[name][1])


@pytest.mark.parametrize("name", CALLS)
def test_what_an_argument_may_not_be_is_refused(name: str) -> None:
    async def refused(at: Place, wrong: Any) -> None:
        with pytest.raises(REFUSED) as told:
            given = CALLS[name][0](at, wrong)
            if inspect.isawaitable(given):
                await given
            elif hasattr(given, "__aenter__") and "watch" in name:
                await given.__aenter__()
        assert str(told.value), f"{name}: {wrong!r}"

    async def main() -> None:
        async with AsyncExitStack() as stack:
            at = await opened(stack)
            for wrong in tried(name):
                await refused(at, wrong)
            assert (at.run.record.steps, at.state.revision) == (0, 1)

    asyncio.run(main())


async def opened(stack: AsyncExitStack) -> Place:
    state = await stack.enter_async_context(keepstate.KeyedState(keys=[Visits], record=True))
    await state.commit(batch())
    run = await stack.enter_async_context(keepstate.AgentRun(keys=[Visits]))
    profile = await stack.enter_async_context(keepstate.ProfileAccess())
    await run.start_run("t", "r")
    return Place(keepstate, state, run, profile)


@pytest.mark.parametrize("name", CALLS)
def test_in_blocking_use_it_is_refused_just_the_same(name: str) -> None:
    with ExitStack() as stack:
        state = stack.enter_context(sync.KeyedState(keys=[Visits], record=True))
        state.commit(batch())
        run = stack.enter_context(sync.AgentRun(keys=[Visits]))
        profile = stack.enter_context(sync.ProfileAccess())
        run.start_run("t", "r")
        at = Place(sync, state, run, profile)
        for wrong in tried(name):
            with pytest.raises(REFUSED):
                given = CALLS[name][0](at, wrong)
                if "watch" in name:
                    given.__enter__()

        assert (run.record.steps, state.revision) == (0, 1)


def test_a_module_and_a_class_with_a_class_method_are_plugins() -> None:
    class Whole:
        @classmethod
        def register(cls, registrar: Any) -> None:
            registrar.register_key(Plan)

    counting = ModuleType("counting")
    vars(counting)["register"] = lambda registrar: registrar.register_key(Visits)

    async def main() -> None:
        async with keepstate.KeyedState(plugins=[Whole, counting]) as state:
            await state.commit(batch().update(Plan, "p"))
            await state.uninstall_plugin(counting)

            assert (state.read(Plan), state.read(Visits)) == ("p", None)

    asyncio.run(main())


def test_profiles_for_a_run_are_of_its_mode() -> None:
    blocking: Any = sync.ProfileAccess()
    waiting: Any = keepstate.ProfileAccess()

    with pytest.raises(InvalidError, match="profile"):
        keepstate.AgentRun(profile=blocking)
    with pytest.raises(InvalidError, match="pass it to a class of keepstate"):
        sync.AgentRun(profile=waiting)
