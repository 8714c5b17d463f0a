"""The names of the published interface, each as this package has it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import keepstate
from keepstate import (
    KeyedState,
    KeyScope,
    MergeStrategy,
    MutationBatch,
    PersistedState,
    PluginRegistrar,
    ProfileAccess,
    ProfileKey,
    Snapshot,
    StateKey,
    StateKeyOptions,
    StateMap,
    StateScope,
    StorageError,
    ToolCallContext,
)

NAMES = {
    "StateKey": ("KEY", "MERGE", "SCOPE", "VERSION", "apply", "default", "encode", "decode", "upgrade"),
    "ProfileKey": ("KEY", "VERSION", "default", "encode", "decode", "upgrade"),
    "KeyScope": ("RUN", "THREAD"),
    "MergeStrategy": ("EXCLUSIVE", "COMMUTATIVE"),
    "StateMap": ("contains", "get", "get_mut", "insert", "remove", "get_or_insert_default", "copy"),
    "Snapshot": ("revision", "ext", "new", "get"),
    "StateKeyOptions": ("persistent", "retain_on_uninstall", "scope"),
    "PersistedState": ("revision", "extensions"),
    "StateScope": ("global_", "parent_thread", "agent_type", "thread", "new", "as_str"),
    "ProfileAccess": ("read", "write", "delete", "update", "entry", "list", "clear"),
    "PluginRegistrar": ("register_key", "register_profile_key"),
    "MutationBatch": ("base_revision", "update", "touched_keys", "extend", "merge_parallel"),
    "KeyedState": (
        *("snapshot", "begin_mutation", "commit", "merge_parallel", "merge_all", "install_plugin"),
        *("uninstall_plugin", "add_hook", "export_persisted", "restore_persisted", "watch", "at", "diff"),
    ),
    "AgentRun": ("start_run", "step", "finish_run"),
    "ToolCallContext": ("profile",),
    "StateError": ("code",),
    "StorageError": ("code",),
}


class Counter(StateKey[int, int]):
    KEY = "counter"

    @classmethod
    def apply(cls, value: int, update: int) -> int:
        return value + update


class Locale(ProfileKey[str]):
    KEY = "locale"


@pytest.mark.parametrize("name", NAMES)
def test_each_published_name_is_importable_and_has_its_members(name: str) -> None:
    thing = getattr(keepstate, name)
    declared = {
        member for base in thing.__mro__ for member in (*vars(base), *vars(base).get("__annotations__", ()))
    }

    assert set(NAMES[name]) - declared == set()


def test_what_a_hook_is_told_and_what_a_hook_is_can_be_imported() -> None:
    told: list[keepstate.CommitEvent] = []
    hook: keepstate.CommitHook = told.append

    async def main() -> None:
        async with KeyedState(keys=[Counter]) as state:
            state.add_hook(hook)
            await state.commit(MutationBatch().update(Counter, 1))

    asyncio.run(main())

    assert [event.new_revision for event in told] == [1]


def test_defaults_are_those_that_were_published() -> None:
    async def main() -> None:
        class Plain:
            def register(self, registrar: PluginRegistrar) -> None:
                registrar.register_key(Counter, StateKeyOptions())

        async with KeyedState(plugins=[Plain()]) as state:
            await state.commit(state.begin_mutation().update(Counter, 1))
            assert state.export_persisted() == PersistedState(
                1, {"counter": 1}, {"counter": 1}, run_scoped=["counter"]
            )
            await state.clear_run_scoped()
            assert state.read(Counter) is None  # for a run
            await state.commit(state.begin_mutation().update(Counter, 1))
            await state.uninstall_plugin(Plain)
            assert state.export_persisted().extensions == {}  # not retained

    asyncio.run(main())

    assert (Counter.MERGE, Counter.SCOPE) == (MergeStrategy.EXCLUSIVE, KeyScope.RUN)
    assert Counter.default() == 0


def test_the_published_state_map() -> None:
    values = StateMap()
    values.insert(Counter, 1)
    snapshot = Snapshot.new(3, values)

    assert (values.get(Counter), values.get_or_insert_default(Counter), values.remove(Counter)) == (1, 1, 1)
    assert (snapshot.revision, snapshot.get(Counter), type(snapshot)) == (3, 1, Snapshot)


def test_a_tool_receives_a_snapshot_its_run_its_thread_and_profiles() -> None:
    access = ProfileAccess()
    context = ToolCallContext(Snapshot(1, StateMap()), "run", "thread", access)

    assert (context.snapshot.revision, context.run_id, context.thread_id) == (1, "run", "thread")
    assert context.profile is access


@pytest.mark.parametrize(
    ("scope", "text"),
    [
        (StateScope.global_(), "global"),
        (StateScope.parent_thread("p1"), "parent_thread::p1"),
        (StateScope.agent_type("planner"), "agent_type::planner"),
        (StateScope.thread("t1"), "thread::t1"),
        (StateScope.new("any::thing %"), "any::thing %"),
        (StateScope.thread("a::b%"), "thread::a%3A%3Ab%25"),
    ],
)
def test_a_scope_is_the_string_that_was_published(scope: StateScope, text: str) -> None:
    assert scope.as_str() == text
    assert scope == StateScope.new(text)


def test_shared_state_and_profiles_go_by_the_same_methods_and_are_no_part_of_snapshots() -> None:
    async def main() -> None:
        async with keepstate.open("memory://") as ks:
            access = ProfileAccess(persistence=ks)
            async with KeyedState(persistence=ks, keys=[Counter]) as state:
                await access.write(Locale, StateScope.global_().as_str(), "de")
                await access.write(Locale, "system", "en-US")

                assert await access.read(Locale, "global") == "de"
                assert await access.read(Locale, "alice") == ""
                assert await state.refresh() == 0

    asyncio.run(main())


def test_a_store_that_fails_raises_a_storage_error() -> None:
    async def main() -> None:
        unreachable: Any = "redis://127.0.0.1:1"
        with pytest.raises(StorageError):
            await ProfileAccess(persistence=unreachable).read(Locale, "alice")
        with pytest.raises(StorageError):
            await KeyedState(persistence=unreachable, keys=[Counter]).commit(
                MutationBatch().update(Counter, 1)
            )

    asyncio.run(main())
