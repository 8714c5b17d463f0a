"""The blocking twins: the same, without `await`."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import (
    CommitEvent,
    InvalidError,
    MutationBatch,
    StateConflictError,
    StateScope,
    ToolOutput,
    sync,
)
from tests.contracts.typed.keys import KEYS, Draft, Notes, Plan, Score, Steps, Visits
from tests.contracts.typed.plugins import BranchEventLog


def test_a_state_is_made_read_and_changed_without_await(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    told: list[CommitEvent] = []
    with sync.KeyedState("t", persistence=url, keys=[Visits, Plan], plugins=[BranchEventLog()]) as state:
        state.add_hook(told.append)
        batch = state.begin_mutation().update(Visits, 1).update(Notes, ["a"])

        assert state.commit(batch) == 1
        assert (state.revision, state.read(Visits), state.snapshot().get(Notes)) == (1, 1, ["a"])
        state.uninstall_plugin("diary")
        state.install_plugin(BranchEventLog())
        exported = state.export_persisted()
        state.restore_persisted(exported)

    assert [event.new_revision for event in told] == [1]
    with sync.KeyedState("t", persistence=url, keys=[Visits]) as again:
        assert (again.refresh(), again.read(Visits)) == (2, 1)


def test_a_space_and_a_transaction_of_blocking_use_are_taken(tmp_path: Path) -> None:
    with sync.open(f"sqlite:///{tmp_path}/state.db") as ks:
        space = ks.space("shared")
        with space.transaction() as tx:
            state = sync.KeyedState(space=tx, keys=[Visits])
            state.commit(MutationBatch().update(Visits, 2))
            sync.ProfileAccess(space=tx).write(Score, "alice", 3)

        assert sync.KeyedState(space=space, keys=[Visits]).refresh() == 1
        assert sync.ProfileAccess(space=space).read(Score, "alice") == 3
        assert sync.ProfileAccess(persistence=ks).read(Score, "alice") == 0
        with pytest.raises(InvalidError, match="sync"):
            keepstate.KeyedState(space=space)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_an_asynchronous_handle_is_refused() -> None:
    handle: Any = keepstate.open("memory://")

    with pytest.raises(InvalidError, match="pass it to a class of keepstate"):
        sync.KeyedState(persistence=handle)


def test_threads_share_a_state_and_lose_nothing() -> None:
    with sync.KeyedState(keys=[Visits]) as state:
        threads = [
            threading.Thread(
                target=lambda: [state.commit(MutationBatch().update(Visits, 1)) for _ in range(25)]
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert (state.read(Visits), state.revision) == (100, 100)


def test_a_run_works_with_plain_functions_in_threads() -> None:
    both = threading.Barrier(2, timeout=60)

    def meets(ctx: sync.ToolCallContext) -> MutationBatch:
        both.wait()
        ctx.profile.update(Score, scope=StateScope.thread(ctx.thread_id), change=lambda score: score + 1)
        return MutationBatch().update(Steps, 1)

    with sync.AgentRun(keys=KEYS) as run:
        run.start_run("t", "r")
        step = run.step(meets, meets, messages=["hi"])

        assert (step.revision, run.read(Steps)) == (1, 2)
        assert [event.data for event in run.messages()] == ["hi"]
        assert run.state.read(Steps) == run.snapshot().get(Steps) == 2
        assert run.record.steps == 1
        assert run.commit(MutationBatch().update(Draft, "d")) == 2
        assert run.finish_run().status == "finished"


def test_tools_are_named_in_what_is_raised() -> None:
    def plans(ctx: sync.ToolCallContext) -> ToolOutput:
        return ToolOutput(batch=MutationBatch().update(Plan, "p"))

    def plots(ctx: sync.ToolCallContext) -> ToolOutput:
        return plans(ctx)

    with sync.AgentRun(keys=KEYS, on_conflict="raise") as run:
        run.start_run("t", "r")

        with pytest.raises(StateConflictError) as refused:
            run.step(plans, plots)

    assert refused.value.tools == ("plans", "plots")


def test_coroutine_functions_are_refused_when_they_are_given() -> None:
    async def later(given: Any) -> None:
        return None

    with sync.KeyedState() as state, sync.AgentRun() as run, sync.ProfileAccess() as access:
        run.start_run("t", "r")
        refusals: list[Any] = [
            lambda: state.add_hook(later),
            lambda: run.step(later),
            lambda: access.update(Score, "a", later),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        ]
        for refused in refusals:
            with pytest.raises(InvalidError, match="coroutine"):
                refused()


def test_changes_of_a_key_are_watched() -> None:
    with sync.KeyedState(keys=[Visits]) as state, state.watch(Visits, timeout_s=0) as changes:
        state.commit(MutationBatch().update(Visits, 3))

        assert [(each.old, each.new, each.revision) for each in changes] == [(None, 3, 1)]


def test_a_recorded_state_has_a_past() -> None:
    with sync.KeyedState(keys=[Visits], record=True) as state:
        for _ in range(3):
            state.commit(MutationBatch().update(Visits, 1))

        assert state.at("main~1").get(Visits) == 2
        assert [(each.old, each.new) for each in state.diff("main#1")] == [(1, 3)]
