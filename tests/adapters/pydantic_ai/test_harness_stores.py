"""The stores of Pydantic AI's harness: equal to its own ones, and safe between writers."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import IntegrityError
from typing import Any, Final

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai_harness.conversation_search import ConversationSearch, SnapshotHistorySource, SnapshotStore
from pydantic_ai_harness.memory import (
    InMemoryStore,
    Memory,
    MemoryConflictError,
    MemoryOperation,
    MemoryOperationConflictError,
    MemoryStore,
    MetadataMemoryStore,
    SearchableMemoryStore,
)
from pydantic_ai_harness.step_persistence import (
    ContinuableSnapshot,
    RunRecord,
    SqliteStepStore,
    StepEvent,
    StepPersistence,
    StepStore,
    ToolEffectRecord,
    continue_run,
)

from keepstate.adapters import pydantic_values
from keepstate.adapters.pydantic_ai_harness import KeepstateMemoryStore, KeepstateStepStore, steps
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from tests.adapters.conftest import BACKENDS, url_of
from tests.adapters.pydantic_ai.talking import said

BEGAN: Final = datetime(2026, 1, 2, tzinfo=UTC)
RUNS: Final = 100
STEPS: Final = 50
KINDS: Final = (
    *("register", "event", "event", "snapshot", "snapshot", "snapshot", "snapshot", "latest", "snapshots"),
    *("snapshots", "events", "effect", "effect", "effects", "runs", "run"),
)


class RandomSteps:
    """The same random operations on any store of steps."""

    def __init__(self, store: Any, seed: int) -> None:
        self.store, self.chance, self.number = store, random.Random(seed), 0
        self.history: list[ModelMessage] = []

    async def step(self) -> tuple[str, Any]:
        kind = self.chance.choice(KINDS)
        self.number += 1
        at = BEGAN + timedelta(seconds=self.number)
        run, other = f"r{self.chance.choice((0, 0, 0, 1, 2))}/ü", f"p{self.chance.randrange(2)}"
        key, flag = (
            self.chance.choice((None, None, *(f"{n}:k" for n in range(5)))),
            self.chance.random() < 0.5,
        )
        call, size = f"call/{self.chance.randrange(4)}", self.chance.randrange(6)
        try:
            return kind, await self.do(kind, at, run, other, key, flag, call, size)
        except (IntegrityError, InvalidError):  # each store has its own error for a run that is registered
            return kind, "refused"

    async def do(
        self, kind: str, at: datetime, run: str, other: str, key: str | None, flag: bool, call: str, size: int
    ) -> Any:
        store = self.store
        match kind:
            case "register":
                parent = other if flag else None
                record = RunRecord(
                    run_id=run,
                    conversation_id=other,
                    parent_run_id=parent,
                    started_at=at,
                    metadata={"k": call},
                )
                return await store.register_run(record)
            case "event":
                event = StepEvent(
                    run_id=run,
                    kind="run_started",
                    step_index=size,
                    timestamp=at,
                    idempotency_key=key,
                    error=call,
                )
                return await store.append_event(event)
            case "snapshot":
                cut = self.chance.randrange(3)
                self.history = [*self.history[cut:], *(said(self.number + n) for n in range(size))]
                snapshot = ContinuableSnapshot(
                    run_id=run,
                    step_index=size,
                    messages=self.history,
                    timestamp=at,
                    state="complete" if flag else "interrupted",
                    idempotency_key=key,
                )
                return await store.save_snapshot(snapshot)
            case "latest":
                return await store.latest_snapshot(run_id=run, include_interrupted=flag)
            case "snapshots":
                return await store.list_snapshots(run_id=run, include_interrupted=flag)
            case "events":
                return await store.list_events(run_id=run)
            case "effect":
                effect = effect_of(call, run, at, "started" if flag else "completed")
                await store.record_tool_effect(effect)
                return await store.get_tool_effect(run_id=run, tool_call_id=call)
            case "effects":
                found = await store.list_unresolved_tool_effects(run_id=run)
                return sorted(found, key=lambda effect: effect.started_at)
            case "runs":
                return await store.list_runs(
                    conversation_id=other if flag else None, parent_run_id=other if size > 2 else None
                )
            case _:
                return await store.get_run(run_id=run)


def effect_of(call: str, run: str, at: datetime, status: Any) -> ToolEffectRecord:
    return ToolEffectRecord(tool_call_id=call, tool_name="pay", run_id=run, status=status, started_at=at)


async def check_steps(url: str, seed: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most = (None, 1, 2, 5)[seed % 4]
    if seed % 3:
        monkeypatch.setattr(pydantic_values, "AT_ONCE", 2)
        monkeypatch.setattr(steps, "_PRUNED_AT_ONCE", 2)
    theirs = SqliteStepStore(database=path, media_store=None, max_snapshots_per_run=most)
    async with KeepstateStepStore.from_url(url, name=f"{seed}", max_snapshots_per_run=most) as ours:
        mine, its = RandomSteps(ours, seed), RandomSteps(theirs, seed)
        for number in range(STEPS):
            (kind, answer), (_, expected) = await mine.step(), await its.step()
            assert answer == expected, f"step {number} of {seed}: {kind}"


@pytest.mark.parametrize("seed", range(20))
async def test_a_random_run_of_steps(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await check_steps(f"memory://{tmp_path.name}", seed, tmp_path / "theirs.db", monkeypatch)


@pytest.mark.parametrize("seed", range(2))
async def test_random_steps_on_each_backend(
    seed: int, any_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_steps(any_url, RUNS + seed, tmp_path / "theirs.db", monkeypatch)


class RandomMemories:
    """The same random operations on any store of memories, told without versions, which differ."""

    def __init__(self, store: Any, seed: int) -> None:
        self.store, self.chance = store, random.Random(seed)
        self.versions: dict[str, str | None] = {}

    async def step(self) -> tuple[str, Any]:
        kind = self.chance.choice(
            ("write", "write", "write", "delete", "read", "read", "paths", "search", "operation")
        )
        path = self.chance.choice(
            ("a", "b.md", "n/a", "n/b", "n/deep/a", "n/aa/x", "n/aa/y", "m/x", "bad//path", "../x")
        )
        prefix = self.chance.choice(("", "n/", "n/deep/", "m/", "x"))
        number, stale = self.chance.randrange(30), self.chance.random() < 0.15
        kept = self.chance.choice((None, {"by": "ann"}, {}, {"nul": "\0"}))
        operation = MemoryOperation(f"o{number % 8}", f"f{number % 3}") if number < 15 else None
        try:
            return kind, await self.do(kind, path, prefix, number, stale, kept, operation)
        except (ValueError, RuntimeError) as error:
            return kind, type(error).__name__

    async def do(
        self,
        kind: str,
        path: str,
        prefix: str,
        number: int,
        stale: bool,
        kept: dict[str, str] | None,
        operation: MemoryOperation | None,
    ) -> Any:
        store, expected = self.store, None if stale else self.versions.get(path)
        match kind:
            case "write":
                text = "red apple " * (number % 4) + "green pear " * (number % 3)
                done = await store.write_with_metadata(
                    path, text, expected_version=expected, metadata=kept, operation=operation
                )
                if not done.replayed:
                    self.versions[path] = done.version
                return done.replayed, done.existed, done.version is None
            case "delete":
                done = await store.delete(path, expected_version=expected, operation=operation)
                if not done.replayed:
                    self.versions[path] = None
                return done.replayed, done.existed, done.version is None
            case "read":
                found = await store.read(path, max_chars=number)
                if found is None:
                    return None
                assert found.version == self.versions[path]
                return replace(found, version=""), found.metadata
            case "paths":
                return await store.list_paths(prefix, limit=number % 5)
            case "operation":
                receipt = await store.get_operation(operation or MemoryOperation("none", ""))
                return None if receipt is None else (receipt.existed, receipt.replayed)
            case _:
                return await store.search(
                    prefix,
                    ("apple", "pear red", "", "nothing")[number % 4],
                    limit=number % 4,
                    max_files=1 + number % 5,
                    max_chars=40 + number,
                    max_file_chars=5 + 2 * number,
                )


async def check_memories(url: str, seed: int) -> None:
    async with KeepstateMemoryStore.from_url(url, name=f"{seed}") as ours:
        mine, its = RandomMemories(ours, seed), RandomMemories(InMemoryStore(), seed)
        for number in range(2 * STEPS):
            (kind, answer), (_, expected) = await mine.step(), await its.step()
            assert answer == expected, f"step {number} of {seed}: {kind}"


@pytest.mark.parametrize("seed", range(30))
async def test_a_random_run_of_memories(seed: int, tmp_path: Path) -> None:
    await check_memories(f"memory://{tmp_path.name}", seed)


@pytest.mark.parametrize("seed", range(2))
async def test_random_memories_on_each_backend(seed: int, any_url: str) -> None:
    await check_memories(any_url, RUNS + seed)


@pytest.mark.deep
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("some", range(0, RUNS, 10))
async def test_all_random_runs_on_each_backend(
    some: int,
    backend: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = url_of(backend, request, tmp_path)
    for seed in range(some, some + 10):
        with monkeypatch.context() as patch:
            await check_steps(url, seed, tmp_path / f"theirs-{seed}.db", patch)
        await check_memories(url, seed)


# ---- writers


def test_the_stores_have_the_interfaces_of_the_harness() -> None:
    steps, memories = KeepstateStepStore("memory://"), KeepstateMemoryStore("memory://")

    assert isinstance(steps, StepStore)
    assert isinstance(steps, SnapshotStore)
    assert isinstance(memories, MemoryStore)
    assert isinstance(memories, MetadataMemoryStore)
    assert isinstance(memories, SearchableMemoryStore)


async def test_of_two_registrations_of_a_run_one_is_refused(shared_url: str) -> None:
    async with (
        KeepstateStepStore.from_url(shared_url) as one,
        KeepstateStepStore.from_url(shared_url) as other,
    ):
        done = await asyncio.gather(
            *(store.register_run(RunRecord(run_id="r")) for store in (one, other)), return_exceptions=True
        )

        assert sorted(type(each).__name__ for each in done) == ["InvalidError", "NoneType"]
        with pytest.raises(ValueError, match="'r' is already in the store"):
            await one.register_run(RunRecord(run_id="r"))


async def test_of_two_writers_of_one_version_one_is_refused(shared_url: str) -> None:
    async with (
        KeepstateMemoryStore.from_url(shared_url) as one,
        KeepstateMemoryStore.from_url(shared_url) as other,
    ):
        written = await one.write("a", "0", expected_version=None)
        done = await asyncio.gather(
            *(
                store.write("a", text, expected_version=written.version)
                for store, text in ((one, "1"), (other, "2"))
            ),
            return_exceptions=True,
        )
        assert sorted(type(each).__name__ for each in done) == ["MemoryConflictError", "MemoryMutation"]

        found = await one.read("a", max_chars=9)
        assert found is not None
        operation = MemoryOperation("o", "f")
        both = await asyncio.gather(
            *(
                store.write("a", "3", expected_version=found.version, operation=operation)
                for store in (one, other)
            )
        )
        assert sorted(each.replayed for each in both) == [False, True]
        assert both[0].version == both[1].version
        with pytest.raises(MemoryOperationConflictError):
            await other.delete("a", expected_version=None, operation=MemoryOperation("o", "another"))
        with pytest.raises(MemoryConflictError):
            await other.delete("a", expected_version=found.version)


async def test_parallel_events_of_a_run_are_all_there(shared_url: str) -> None:
    async with (
        KeepstateStepStore.from_url(shared_url) as one,
        KeepstateStepStore.from_url(shared_url) as other,
    ):
        events = [
            StepEvent(run_id="r", kind="tool_call_started", step_index=n, idempotency_key=f"{n // 2}:e")
            for n in range(24)
        ]
        await asyncio.gather(*((one, other)[n % 2].append_event(event) for n, event in enumerate(events)))

        assert len(await one.list_events(run_id="r")) == 12


async def test_a_message_is_stored_once_for_all_snapshots_and_runs(any_url: str) -> None:
    async with KeepstateStepStore.from_url(any_url) as store:
        history = [said(n) for n in range(900)]
        for run in ("r1", "r2"):
            for n in range(3):
                history.append(said(1_000 + n + 10 * int(run[1])))
                await store.save_snapshot(
                    ContinuableSnapshot(run_id=run, step_index=n, messages=[*history, history[0]])
                )

        async def names(ks: Keepstate) -> list[str]:
            space = ks.space("pydantic-steps/main")
            return [name async for name in space.documents.keys(prefix="message/")]

        assert len(await store.call(names)) == 906
        latest = await store.latest_snapshot(run_id="r2")
        assert latest is not None
        assert latest.messages == [*history, history[0]]


async def test_stores_of_owners_are_erased(any_url: str) -> None:
    async with (
        KeepstateStepStore.from_url(any_url, owner="ann") as steps,
        KeepstateMemoryStore.from_url(any_url, owner="ann") as memories,
        KeepstateMemoryStore.from_url(any_url, owner="bob") as others,
    ):
        await steps.register_run(RunRecord(run_id="r"))
        for store in (memories, others):
            await store.write("a", "x", expected_version=None)

        assert (await steps.erase("ann")).spaces == (await memories.erase("ann")).spaces == 1
        assert await steps.list_runs() == await memories.list_paths(limit=9) == []
        assert await others.list_paths(limit=9) == ["a"]


async def test_wrong_arguments_are_told() -> None:
    with pytest.raises(InvalidError, match="max_snapshots_per_run"):
        KeepstateStepStore("memory://", max_snapshots_per_run=0)
    async with KeepstateMemoryStore.from_url("memory://") as store:
        with pytest.raises(InvalidError, match="a path has 500 characters"):
            await store.write("a/" * 249 + "aa", "x", expected_version=None)
        with pytest.raises(ValueError, match="invalid memory path"):
            await store.read("../a", max_chars=1)


# ---- agents


async def test_a_run_that_failed_is_continued_by_another_process(shared_url: str) -> None:
    calls: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[ToolCallPart("look", {}, "call_1")])
        if len(calls) == 1 and len(messages) == 3:
            calls.append("failed")
            raise ConnectionError("the model is away")
        return ModelResponse(parts=[TextPart("done")])

    def agent(store: KeepstateStepStore, run_id: str) -> Agent[None, str]:
        made = Agent(FunctionModel(answer), capabilities=[StepPersistence(store=store, run_id=run_id)])

        @made.tool_plain
        def look() -> str:
            calls.append("looked")
            return "seen"

        return made

    async with KeepstateStepStore.from_url(shared_url) as store:
        with pytest.raises(ConnectionError):
            await agent(store, "first").run("look around", conversation_id="c")

    async with KeepstateStepStore.from_url(shared_url) as store:
        assert [event.kind for event in await store.list_events(run_id="first")][-1] == "run_failed"
        assert await store.list_unresolved_tool_effects(run_id="first") == []
        messages = await continue_run(store, run_id="first")
        result = await agent(store, "second").run(message_history=messages, conversation_id="c")

        assert (result.output, calls) == ("done", ["looked", "failed"])
        assert [run.run_id for run in await store.list_runs(conversation_id="c")] == ["first", "second"]
        source = SnapshotHistorySource(store)
        assert [run.run_id for run in await source.list_runs()] == ["first", "second"]
        assert len(await source.run_history(run_id="second")) == 4


async def test_an_agent_writes_memories_and_searches_its_conversations(any_url: str) -> None:
    async with (
        KeepstateStepStore.from_url(any_url) as steps,
        KeepstateMemoryStore.from_url(any_url) as memories,
    ):
        capabilities = [
            StepPersistence(store=steps),
            Memory(store=memories),
            ConversationSearch(source=SnapshotHistorySource(steps), scope="all"),
        ]
        agent = Agent(TestModel(call_tools=[]), capabilities=capabilities)
        await agent.run("the word is abracadabra")
        tools: dict[str, Any] = {}

        def call_all(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            tools.update({tool.name: tool for tool in info.function_tools})
            if len(messages) == 1:
                found = [
                    ToolCallPart(name, {"query": "abracadabra"})
                    for name in tools
                    if "search_conversation" in name
                ]
                return ModelResponse(parts=found)
            return ModelResponse(parts=[TextPart(str(messages[-1].parts[0].content))])

        with agent.override(model=FunctionModel(call_all)):
            result = await agent.run("what was the word?")

        assert "abracadabra" in result.output, list(tools)
