"""What a type checker knows of state keys, and which updates it refuses. It is checked, and never run."""

from __future__ import annotations

from typing import Any, assert_type

from keepstate import (
    AgentRun,
    CounterKey,
    KeyedState,
    ListKey,
    MapKey,
    MaximumKey,
    MutationBatch,
    PersistedState,
    ProfileAccess,
    ProfileEntry,
    ProfileKey,
    RegisterKey,
    RunRecord,
    RunStep,
    SetKey,
    Snapshot,
    StateChange,
    StateKey,
    StateMap,
    StateScope,
    ToolCallContext,
    sync,
)


class Profile:
    name: str = ""


class Person(StateKey[Profile, str]):
    KEY = "person"

    @classmethod
    def apply(cls, value: Profile, update: str) -> Profile:
        value.name = update
        return value


class Wrong(StateKey[int, str]):
    KEY = "wrong"

    @classmethod
    def apply(cls, value: int, update: int) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return value + update


class Visits(CounterKey):
    KEY = "visits"


class Notes(ListKey[str]):
    KEY = "notes"


class Seen(SetKey[int]):
    KEY = "seen"


class Table(MapKey[float]):
    KEY = "table"


class Peak(MaximumKey[int]):
    KEY = "peak"


class Plan(RegisterKey[str | None]):
    KEY = "plan"


class Locale(ProfileKey[str]):
    KEY = "locale"


def values(snapshot: Snapshot, state: StateMap) -> None:
    assert_type(snapshot.get(Person), Profile | None)
    assert_type(snapshot.get(Visits), int | None)
    assert_type(snapshot.get(Notes), list[str] | None)
    assert_type(snapshot.get(Seen), set[int] | None)
    assert_type(snapshot.get(Table), dict[str, float] | None)
    assert_type(snapshot.get(Peak), int | None)
    assert_type(snapshot.get(Plan), str | None)
    assert_type(snapshot.ext, StateMap)
    assert_type(state.get_or_insert_default(Notes), list[str])
    assert_type(state.remove(Visits), int | None)
    assert_type(sorted(snapshot.get(Notes) or []), list[str])
    assert_type(len(snapshot.get(Notes) or ()), int)
    state.insert(Visits, 3)
    state.insert(Visits, "three")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    state.insert(Notes, [3])  # type: ignore[misc]  # pyright: ignore[reportArgumentType]


def batches(batch: MutationBatch) -> None:
    batch.update(Person, "Ada").update(Visits, 1).update(Notes, ["a"]).update(Plan, None)
    batch.update(Person, 3)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    batch.update(Visits, "one")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    batch.update(Notes, "a")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    batch.update(Notes, [1])  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    batch.update(Peak, None)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    batch.update(Locale, "de")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def states() -> None:
    async with KeyedState("t", keys=[Person, Visits]) as state:
        assert_type(state.read(Person), Profile | None)
        assert_type(await state.commit(state.begin_mutation()), int)
        assert_type(state.merge_parallel(MutationBatch(), MutationBatch()), MutationBatch)
        assert_type(state.export_persisted(), PersistedState)
        assert_type(await state.at("main"), Snapshot)
        await state.restore_persisted(state.export_persisted(), unknown="skip")
        await state.restore_persisted(state.export_persisted(), unknown="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        async with state.watch(Notes) as changes:
            async for change in changes:
                assert_type(change, StateChange[list[str]])
                assert_type(change.new, list[str] | None)


async def runs(run: AgentRun) -> None:
    async def tool(ctx: ToolCallContext) -> MutationBatch:
        assert_type(ctx.snapshot, Snapshot)
        assert_type(ctx.profile, ProfileAccess)
        return MutationBatch()

    def takes_text(text: str) -> None: ...

    assert_type(await run.start_run("t", "r"), RunRecord)
    assert_type(await run.step(tool, tool, messages=["hi"]), RunStep)
    assert_type(run.state, KeyedState)
    assert_type(run.read(Visits), int | None)
    await run.step(takes_text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def profiles(access: ProfileAccess) -> None:
    assert_type(await access.read(Locale, "alice"), str)
    assert_type(await access.read(Locale, agent="alice"), str)
    assert_type(await access.read(Locale, scope=StateScope.global_()), str)
    assert_type(await access.entry(Locale, "alice"), ProfileEntry[str] | None)
    assert_type(await access.write(Locale, "alice", "de"), int)
    assert_type(await access.write(Locale, value="de", agent="alice", expected_version=0), int)
    assert_type(await access.update(Locale, "alice", str.upper), str)
    assert_type(await access.update(Locale, scope=StateScope.global_(), change=str.upper), str)
    assert_type(await access.list("alice"), list[ProfileEntry[Any]])
    await access.write(Locale, "alice", 3)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await access.write(Locale, "alice")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await access.read(Visits, "alice")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def blocking() -> None:
    def tool(ctx: sync.ToolCallContext) -> None:
        assert_type(ctx.profile, sync.ProfileAccess)
        assert_type(ctx.profile.read(Locale, "alice"), str)

    with sync.AgentRun(keys=[Visits]) as run, sync.KeyedState() as state:
        assert_type(run.step(tool), RunStep)
        assert_type(run.state, sync.KeyedState)
        assert_type(state.commit(MutationBatch()), int)
        with state.watch(Visits) as changes:
            for change in changes:
                assert_type(change, StateChange[int])
