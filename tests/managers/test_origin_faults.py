"""Each fault that agenticaiframework 3.0.12 shows where state, agents and workflows are kept, and not here.

The numbers are those of the list that was made by running it.
"""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from keepstate import (
    AgentCheckpoint,
    AgentSnapshot,
    AgentStateStore,
    FileBackend,
    InvalidError,
    MemoryBackend,
    StateConfig,
    StateManager,
    StepState,
    StoreUnavailableError,
    TransitionError,
    WorkflowState,
    WorkflowStateManager,
    WorkflowStatus,
    sync,
)
from keepstate._clock import SYSTEM_CLOCK
from keepstate.managers.workflows.records import WORKFLOW
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "workflows.md"


def in_files(tmp_path: Path) -> StateConfig:
    return StateConfig(backend=FileBackend(tmp_path / "state", format="json"))


def test_1_a_backend_that_was_asked_for_is_the_one_that_is_used(tmp_path: Path) -> None:
    with sync.StateManager(in_files(tmp_path)) as state:
        state.save("k", 1)

    assert (tmp_path / "state" / "keepstate.journal").exists()
    for wrong in ("postgres", "disk"):
        with pytest.raises(InvalidError):
            sync.StateManager(StateConfig(backend=wrong))


def test_2_and_3_keys_come_back_as_they_were_and_share_nothing(tmp_path: Path) -> None:
    keys = ["tool_exec:1", "a/b", "a__b", "a:b", "a_b", "x" * 300, "speech_stt:é"]
    with sync.StateManager(in_files(tmp_path)) as state:
        for key in keys:
            state.save(key, key)
    with sync.StateManager(in_files(tmp_path)) as again:
        assert again.list_keys() == sorted(keys, key=str.encode)
        assert again.list_keys("tool_exec:*") == ["tool_exec:1"]
        assert [again.get(key) for key in keys] == keys


def test_4_a_value_that_cannot_be_stored_leaves_the_old_one(tmp_path: Path) -> None:
    with sync.StateManager(in_files(tmp_path)) as state:
        state.save("k", {"n": 1})
        with pytest.raises(InvalidError, match=r"plan\[1\]"):
            state.save("k", {"plan": [1, object()]})

        entry = state.entry("k")
        assert state.get("k") == {"n": 1} and entry is not None and entry.version == entry.created


@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
def test_5_and_6_four_times_five_hundred_updates_at_once_are_two_thousand(kind: str, tmp_path: Path) -> None:
    place = {
        "memory": "memory://faults-6",
        "file": f"file:///{tmp_path}/f/",
        "sqlite": f"sqlite:///{tmp_path}/s?durability=normal",
    }[kind]
    config = StateConfig(backend=place, record=False)
    seen: list[Any] = []

    def increment() -> None:
        with sync.StateManager(config) as state:
            for _ in range(500):
                state.update("n", lambda old: {"n": old["n"] + 1}, default={"n": 0})
            seen.append(state.get("n"))

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    with sync.StateManager(config) as state:
        assert state.get("n") == {"n": 2_000} and None not in seen


def test_8_agent_1_never_touches_agent_10(tmp_path: Path) -> None:
    with sync.AgentStateStore(persistence="file", file_path=tmp_path / "f") as agents:
        for id in ("1", "10", "1x"):
            agents.save_checkpoint(AgentCheckpoint(id, "c", 1))
        agents.delete("1")

        assert agents.list_agents() == ["10", "1x"]
        assert len(agents.list_checkpoints("10")) == len(agents.list_checkpoints("1x")) == 1


async def test_9_and_10_the_latest_is_the_last_saved_also_after_a_restart(tmp_path: Path) -> None:
    place = {"persistence": "sqlite", "file_path": tmp_path / "a.db"}
    for begin in (1, 7):
        async with WorkflowStateManager(**place, checkpoint_interval=1) as workflows:  # type: ignore[arg-type]
            if begin == 1:
                await workflows.create(WorkflowState("w", total_steps=20))
            for number in range(begin, begin + 6):
                await workflows.update_step("w", StepState(number, status="completed"))
    async with WorkflowStateManager(**place) as workflows:  # type: ignore[arg-type]
        assert [each.step for each in await workflows.list_checkpoints("w")] == list(range(1, 13))
        assert (await workflows.resume_from("w")).step == 12


async def test_11_a_server_that_is_away_is_told_by_every_call() -> None:
    url = "redis://127.0.0.1:9/0?retry_for_s=0.1&timeout_s=0.1"
    state, agents = StateManager(persistence=url), AgentStateStore(persistence=url)
    for call in (state.save("k", 1), state.get("k"), agents.save_checkpoint(AgentCheckpoint("a", "c", 1))):
        with pytest.raises(StoreUnavailableError):
            await call
    await state.close()
    await agents.close()


async def test_12_a_workflow_that_was_paused_stays_so_when_it_goes_back() -> None:
    async with WorkflowStateManager(persistence=MemoryBackend("12"), checkpoint_interval=1) as workflows:
        await workflows.create(WorkflowState("w", total_steps=3))
        await workflows.update_step("w", StepState(1, status="completed"))
        await workflows.pause("w")
        await workflows.resume_from("w")

        assert await workflows.get_status("w") is WorkflowStatus.PAUSED


async def test_13_what_was_cancelled_begins_nothing_and_no_step_is_below_one() -> None:
    async with WorkflowStateManager(persistence=MemoryBackend("13")) as workflows:
        await workflows.create(WorkflowState("w"))
        with pytest.raises(InvalidError):
            await workflows.update_step("w", StepState(-1, status="completed"))
        await workflows.cancel("w")
        with pytest.raises(TransitionError):
            await workflows.update_step("w", StepState(1, status="running"))
        with pytest.raises(TransitionError):
            await workflows.pause("w")


def test_15_and_16_values_are_copies_and_keep_their_types(tmp_path: Path) -> None:
    value = {
        "at": datetime(2026, 11, 21, tzinfo=UTC), "day": date(2026, 11, 21), "set": {1}, "bytes": b"x",
        "tuple": (1,), 1: "int", (1, "a"): "tuple", "span": timedelta(seconds=1),
    }  # fmt: skip
    for config in (in_files(tmp_path), StateConfig(backend=MemoryBackend("15"))):
        with sync.StateManager(config) as state:
            state.save("k", value)
            found = state.get("k")
            found["set"].add(2)

            assert state.get("k") == value
            assert [type(each) for each in state.get("k").values()] == [type(each) for each in value.values()]


async def test_18_what_has_expired_is_gone_and_does_not_slide() -> None:
    async with StateManager(StateConfig(backend=MemoryBackend("18"), ttl=600)) as state:
        await state.save("k", {"a": 1})
        saved = await state.entry("k")
        await asyncio.sleep(0.01)
        await state.update("k", {"b": 2})
        updated = await state.entry("k")

        assert saved is not None and updated is not None and saved.version < updated.version
        assert saved.expires_at == updated.expires_at is not None
    async with StateManager(StateConfig(backend=MemoryBackend("18"), ttl=0.05)) as state:
        await state.save("brief", {"a": 1})
        await asyncio.sleep(0.1)

        assert await state.get("brief") is None and "brief" not in await state.list_keys()
        assert await state.entry("brief") is None


def test_19_a_listing_takes_nothing_out_of_keys() -> None:
    with sync.StateManager(StateConfig(backend=MemoryBackend("19"), key_prefix="state:")) as state:
        state.save("x:state:y", 1)

        assert state.list_keys() == ["x:state:y"] and state.list_keys("state:*") == []


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_20_compression_makes_a_folder_smaller_and_encryption_is_not_an_option(
    format: Literal["json", "msgpack"], tmp_path: Path
) -> None:
    sizes: dict[bool, int] = {}
    for is_compressed in (False, True):
        backend = FileBackend(tmp_path / str(is_compressed), format=format, compression=is_compressed)
        with sync.StateManager(StateConfig(backend=backend)) as state:
            for number in range(50):
                state.save(f"note {number}", {"text": f"a note of some {number} words, " * 30})
            state.save("long", "one of those values over four KiB; " * 200)
        with sync.StateManager(StateConfig(backend=backend)) as state:
            assert state.get("note 7") == {"text": "a note of some 7 words, " * 30}
        sizes[is_compressed] = (tmp_path / str(is_compressed) / "keepstate.journal").stat().st_size

    assert sizes[True] < sizes[False] * 0.6
    with pytest.raises(TypeError):
        StateConfig(encryption=True)  # type: ignore[call-arg]


def test_21_when_it_was_created_survives_saves_and_versions_go_on_after_a_deletion() -> None:
    with sync.StateManager(StateConfig(backend=MemoryBackend("21"))) as state:
        state.save("k", 1)
        first = state.entry("k")
        state.save("k", 2)
        second = state.entry("k")
        state.delete("k")
        state.save("k", 3)
        third = state.entry("k")

        assert first is not None and second is not None and third is not None
        assert first.created == second.created < third.created
        assert first.version < second.version < third.version


async def test_a_writer_whose_clock_is_behind_loses_nothing_that_is_kept_to_a_cleanup() -> None:
    clock = ManualClock(SYSTEM_CLOCK.now_ms() + 3_600_000)  # the store's: writers are an hour behind it
    store = await MemoryStore(clock=clock).open()
    async with AgentStateStore(persistence=store) as agents:
        await agents.save_checkpoint(AgentCheckpoint("a", "old", 1))
        clock.advance(60_000)
        for step in (2, 3):
            await agents.save_checkpoint(AgentCheckpoint("a", f"new {step}", step))
            await agents.save_snapshot(AgentSnapshot("a", datetime(2001, 1, 1), memory_state=step))

        assert await agents.cleanup(older_than=timedelta(seconds=30)) == 1
        assert [each.step for each in await agents.list_checkpoints("a")] == [2, 3]
        assert [each.memory_state for each in await agents.list_snapshots("a")] == [2, 3]
    await store.close()


def test_one_append_costs_the_same_however_many_keys_there_are() -> None:
    with sync.AgentStateStore(persistence=MemoryBackend("cost")) as agents:
        messages: list[str] = []
        sizes: list[int] = []
        for number in range(60):
            messages.append(f"{number} " * 50)
            agents.save_checkpoint(AgentCheckpoint("a", "current", number, {"messages": messages}))
            sizes.append(agents.size().size_bytes)
        early, late = sizes[20] - sizes[10], sizes[59] - sizes[49]

        assert late < early * 2


def test_the_page_draws_the_table_that_the_code_goes_by() -> None:
    text = PAGE.read_text(encoding="utf-8")
    drawn = {
        start: set(ends.split(", "))
        for start, ends in re.findall(r"^\| ([A-Z]+) \| ([A-Z, ]+) \|$", text, re.MULTILINE)
    }

    assert drawn == {start.name: {end.name for end in ends} for start, ends in WORKFLOW.table.items()}
