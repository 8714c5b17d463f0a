"""A task on a state with versions: its steps are commits, and each event says which."""

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstate import (
    ConflictError,
    Disk,
    InvalidError,
    Live,
    StoreFullError,
    TaskFailedError,
    Versioned,
    events,
    view,
)
from keepstate.workspace import (
    ActionEvent,
    Agent,
    AgentTask,
    ErrorEvent,
    FailEvent,
    Memory,
    OutputEvent,
    SuccessEvent,
    TaskEvent,
    TaskStartEvent,
)
from tests.workspace.conftest import Place


class Script:
    """A policy that takes its steps from a list."""

    def __init__(self, *steps: str) -> None:
        self._steps: Iterator[str] = iter(steps)
        self.shown: list[str] = []

    def __call__(self, task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
        self.shown.append(shown)
        return next(self._steps)


def scripted(*steps: str, name: str = "ana") -> Any:
    """Return a task that is carried out in these steps."""

    @Agent(name, policy=Script(*steps)).task
    def work(n: Any = 0) -> Any:
        """Do the work."""

    return work


def kinds(state: Any) -> list[type[TaskEvent]]:
    return [type(event) for event in events(state)]


# ---- commits and events


def test_each_step_is_an_action_its_output_and_a_commit(place: Place) -> None:
    state = place()
    scripted("x = [1]\nprint('one')\nprint('two')", "x.append(2)", "pass", "task_success(x)")(3, state=state)

    assert kinds(state) == [
        TaskStartEvent, ActionEvent, OutputEvent, ActionEvent, ActionEvent, ActionEvent, SuccessEvent
    ]  # fmt: skip
    start, first, output, second, third, last, success = events(state)
    line = [start.commit_hash, first.commit_hash, second.commit_hash, third.commit_hash, last.commit_hash]
    assert state.history() == line[::-1] and len(set(line)) == 5
    assert [each.commit_before for each in (first, output, second, third, last, success)] == [
        line[0], line[0], line[1], line[2], line[3], line[3]
    ]  # fmt: skip
    assert (output.commit_hash, success.commit_hash) == (first.commit_hash, last.commit_hash)
    assert (start.commit_before, start.agent_name, start.task_name) == (None, "ana", "work")
    assert isinstance(output, OutputEvent) and output.parts == ["one\n", "two\n"]
    assert state.checkout(first.commit_hash)["x"] == [1] and state.checkout(line[2])["x"] == [1, 2]
    assert state.checkout("main#2").commit.author == "ana"
    assert state.checkout("main#2").commit.message == "work, step 1"
    assert state.checkout(".events/main").commit.author == "ana"
    assert events(place()) == events(state)


def test_what_happened_is_no_variable_and_stays_when_the_state_goes_back(anywhere: Place) -> None:
    state = anywhere()
    scripted("x = 1", "x = 2\ntask_success()")(state=state)
    task_events = events(state)
    assert list(state) == ["x"] and len(state) == 1 and dict(state) == {"x": 2}

    state.rollback(steps=2)
    assert dict(state) == {} and events(state) == task_events
    assert list(state.checkout("main~1")) == ["x"]
    again = anywhere()
    again["y"] = 1
    again.commit()
    assert events(again) == task_events


def test_a_moment_is_viewed_with_what_had_happened_until_then(anywhere: Place) -> None:
    state = anywhere()
    scripted("x = 1\nprint('first')", "x = 2\nprint('second')\ntask_success()")(state=state)
    first = next(event for event in events(state) if isinstance(event, ActionEvent))
    past = state.checkout(first.commit_hash or "")

    assert view(past, focus="full") == {"x": 1} and view(state, focus="full") == {"x": 2}
    assert kinds(past) == [TaskStartEvent, ActionEvent, OutputEvent]
    text = view(past)
    assert "x = 1" in text and "printed: first" in text and "second" not in text
    assert "printed: second" in view(state)
    with pytest.raises(InvalidError, match="'full' or 'recent'"):
        view(past, focus="all")  # type: ignore[call-overload]


def test_a_moment_has_nothing_of_what_came_later_and_changed_nothing(anywhere: Place) -> None:
    state = anywhere()

    @Agent().task
    def look(n: int, state: Any) -> int:
        return n

    scripted("x = 1", "task_success(x)")(state=state)
    look(2, state=state)
    last = next(event for event in events(state) if isinstance(event, SuccessEvent))
    past = state.checkout(last.commit_hash or "")

    assert state.current_commit == last.commit_hash
    assert len(events(state)) == 6 and events(past) == events(state)[:4]
    assert "look" in view(state) and "look" not in view(past)


def test_a_step_that_exits_is_committed(anywhere: Place) -> None:
    state = anywhere()
    scripted("x = 1\nexit()", "task_success(x)")(state=state)

    assert kinds(state)[1:3] == [ActionEvent, ErrorEvent]
    assert dict(state.checkout("main#2")) == {"x": 1}


def test_a_policy_sees_what_its_steps_did(anywhere: Place) -> None:
    policy = Script("x = 41\nprint('seen')", "task_success(x + 1)")

    @Agent(policy=policy).task
    def work() -> int: ...  # type: ignore[empty-body]

    assert work(state=anywhere()) == 42
    assert "Variables: none" in policy.shown[0]
    assert "x = 41" in policy.shown[1] and "printed: seen" in policy.shown[1]


def test_a_body_commits_what_it_changed_and_nothing_else(anywhere: Place) -> None:
    state = anywhere()

    @Agent("ana").task
    def add(n: int, state: Versioned) -> int:
        state.setdefault("seen", []).append(n)
        return len(state["seen"])

    @Agent("eva").task
    def look(state: Versioned) -> int:
        return len(state["seen"])

    assert [add(1, state=state), add(2, state=state)] == [1, 2]
    before = state.history()
    assert look(state=state) == 2
    assert state.history() == before
    assert dict(anywhere()) == {"seen": [1, 2]}
    assert kinds(state) == [TaskStartEvent, SuccessEvent] * 3
    assert [event.commit_hash for event in events(state)[-2:]] == [before[0]] * 2
    assert events(state)[1].commit_before == events(state)[0].commit_hash
    assert all(event.commit_hash for event in events(state))


def test_what_was_not_committed_before_a_task_is_committed_with_its_start(anywhere: Place) -> None:
    state = anywhere()
    state["given"] = 1
    scripted("del given\ntask_success()")(state=state)

    start = events(state)[0]
    assert state.checkout(start.commit_hash or "") == {"given": 1}
    assert dict(state) == dict(anywhere()) == {}


def test_events_have_the_objects_that_they_were_given(anywhere: Place) -> None:
    state, given = anywhere(), {"deep": [1, (2, 3)]}
    scripted("n['deep'].append(4)\ntask_success(n)")(given, state=state)

    start, _, success = events(anywhere())
    assert isinstance(start, TaskStartEvent) and isinstance(success, SuccessEvent)
    assert start.inputs == {"n": {"deep": [1, (2, 3)]}}
    assert success.result == {"deep": [1, (2, 3), 4]}
    given["deep"].append(9)
    assert events(state)[-1] == success


# ---- what cannot be stored


def test_a_cursor_is_used_within_a_step_and_not_kept(place: Place) -> None:
    state = place()
    connection = sqlite3.connect(":memory:")
    work = scripted(
        "rows = n.execute('select 1 union select 2').fetchall()",
        "cursor = n.execute('select 3')\nmore = cursor.fetchall()\nrows.append((9,))",
        "task_success('cursor' in globals())",
    )

    assert work(connection, state=state) is False
    assert dict(place()) == {"rows": [(1,), (2,), (9,)], "more": [(3,)]}
    start = events(state)[0]
    [error] = [event for event in events(state) if isinstance(event, ErrorEvent)]
    assert error.recoverable and error.error.startswith("cursor was not stored after this step: cursor: ")
    assert isinstance(start, TaskStartEvent) and "sqlite3.Connection" in start.inputs["n"]
    connection.close()


def test_a_variable_that_became_unstorable_has_its_last_value_again(anywhere: Place) -> None:
    state = anywhere()
    state["x"], state["l"] = 1, [1]
    state.commit()
    work = scripted(
        "import threading\nx = threading.Lock()\nl.append(threading.Lock())\ny = 2",
        "task_success((x, l, y))",
    )

    assert work(state=state) == (1, [1], 2)
    assert {name: anywhere()[name] for name in ("x", "l", "y")} == {"x": 1, "l": [1], "y": 2}
    assert kinds(state).count(ErrorEvent) == 2


def test_a_body_that_leaves_something_unstorable_raises(anywhere: Place) -> None:
    state = anywhere()

    @Agent().task
    def work(state: Versioned) -> None:
        state["good"], state["bad"] = 1, threading.Lock()

    with pytest.raises(InvalidError, match="bad"):
        work(state=state)
    del state["bad"]
    state.commit()
    assert dict(anywhere()) == {"good": 1}


def test_a_result_that_cannot_be_stored_is_returned_all_the_same(anywhere: Place) -> None:
    state, lock = anywhere(), threading.Lock()

    @Agent().task
    def work() -> Any:
        return lock

    assert work(state=state) is lock
    [_, success] = events(state)
    assert isinstance(success, SuccessEvent) and success.result == repr(lock)


# ---- ends


def test_a_body_that_fails_is_told_and_what_it_changed_can_be_looked_at(anywhere: Place) -> None:
    state = anywhere()

    @Agent().task
    def work(state: Versioned) -> None:
        state["x"], state["lock"] = 1, threading.Lock()
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        work(state=state)
    assert kinds(state) == [TaskStartEvent, ErrorEvent, ErrorEvent]
    assert state.checkout(events(state)[-1].commit_hash or "") == {"x": 1}


def test_a_body_that_exits_is_told_and_what_it_changed_is_kept(anywhere: Place) -> None:
    state = anywhere()

    @Agent().task
    def work(state: Versioned) -> None:
        state["x"] = 1
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        work(state=state)
    assert kinds(state) == [TaskStartEvent, ErrorEvent]
    assert state.checkout("main") == {"x": 1}


def test_an_error_of_a_body_is_told_whatever_it_is(anywhere: Place) -> None:
    state = anywhere()

    @Agent().task
    def work() -> None:
        raise ConflictError("somewhere else")

    with pytest.raises(ConflictError, match="somewhere else"):
        work(state=state)
    assert kinds(state) == [TaskStartEvent, ErrorEvent]


def test_a_task_that_gives_up_has_told_so(anywhere: Place) -> None:
    state = anywhere()
    with pytest.raises(TaskFailedError, match="'work' failed: no data"):
        scripted("x = 1\ntask_fail('no data')")(state=state)

    assert kinds(state) == [TaskStartEvent, ActionEvent, FailEvent]
    assert dict(anywhere()) == {"x": 1}


def test_a_full_disk_ends_the_task_and_keeps_what_was(tmp_path: Path) -> None:
    state = Versioned(Disk(tmp_path, size_limit=20_000))
    state["x"] = 1
    state.commit()
    with pytest.raises(StoreFullError):
        scripted("import random\nx = random.randbytes(100_000)", "task_success()")(state=state)

    state.close()
    with Versioned(Disk(tmp_path)) as again:
        assert dict(again) == {"x": 1}


def test_an_error_of_a_body_is_raised_also_where_nothing_can_be_kept(tmp_path: Path) -> None:
    @Agent().task
    def work(state: Versioned) -> None:
        state["large"] = bytes(range(256)) * 100 + os.urandom(50_000)
        raise KeyError("gone")

    with Versioned(Disk(tmp_path, size_limit=20_000)) as state, pytest.raises(KeyError, match="gone"):
        work(state=state)


# ---- others


def test_a_task_begins_with_what_others_have_committed(anywhere: Place) -> None:
    state, other = anywhere(), anywhere()
    state["l"] = [1]
    state.commit()
    other["l"].append(2)
    other.commit()
    scripted("l.append(3)\ntask_success()")(state=state)

    assert dict(anywhere()) == {"l": [1, 2, 3]}


def test_a_step_that_others_overtook_raises_or_merges_by_choice(anywhere: Place) -> None:
    other = anywhere()

    def interfered(**options: Any) -> tuple[int, Versioned]:
        state = anywhere(**options)

        def policy(task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
            other.discard()
            other["theirs"] = other.get("theirs", 0) + 1
            other.commit()
            return "mine = globals().get('mine', 0) + 1\nif mine % 2 == 0: task_success(theirs)"

        @Agent(policy=policy).task
        def work() -> int: ...  # type: ignore[empty-body]

        return work(state=state), state

    with pytest.raises(ConflictError, match="another caller has committed"):
        interfered()
    result, merged = interfered(on_conflict="merge")
    assert result == 2  # what the step before was merged with
    assert dict(merged) == dict(anywhere()) == {"mine": 2, "theirs": 3}


def test_events_of_two_states_on_one_branch_are_all_kept(anywhere: Place) -> None:
    one, other = anywhere(on_conflict="merge"), anywhere(on_conflict="merge")
    for state, name in ((one, "ana"), (other, "eva"), (one, "ana"), (other, "eva")):
        scripted(f"by_{name} = 1\ntask_success()", name=name)(state=state)

    assert events(one) == events(other) == events(anywhere())
    assert [event.agent_name for event in events(one) if isinstance(event, SuccessEvent)] == [
        "ana", "eva", "ana", "eva"
    ]  # fmt: skip


def test_a_branch_has_what_happened_before_and_brings_along_what_happens(anywhere: Place) -> None:
    state = anywhere()
    scripted("x = 1\ntask_success()", name="ana")(state=state)
    trial = state.branch("trial")
    scripted("y = 2\ntask_success()", name="eva")(state=trial)
    scripted("z = 3\ntask_success()", name="zoe")(state=state)

    def who(state: Versioned) -> list[str]:
        return [event.agent_name for event in events(state) if isinstance(event, SuccessEvent)]

    assert (who(trial), who(state)) == (["ana", "eva"], ["ana", "zoe"])
    state.merge(trial)
    assert sorted(who(state)) == ["ana", "eva", "zoe"] and who(trial) == ["ana", "eva"]
    assert dict(state) == {"x": 1, "y": 2, "z": 3}


# ---- colours, and the rest of the world


def test_an_async_task_commits_off_the_loop() -> None:
    threads = set[str]()

    class Slow(Memory):
        """Takes a while for each head, and notes in which thread."""

        def cas(self, key: str, expected: bytes | None, value: bytes) -> bool:
            threads.add(threading.current_thread().name)
            time.sleep(0.05)
            return super().cas(key, expected, value)

    async def policy(task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
        await asyncio.sleep(0)
        return "x = globals().get('x', 0) + 1\nif x == 3: task_success(x)"

    agent, state, ticks = Agent(policy=policy), Versioned(Slow()), 0

    @agent.task
    async def work() -> int: ...  # type: ignore[empty-body]

    @agent.task
    async def body(state: Versioned) -> int:
        await asyncio.sleep(0)
        state["y"] = 1
        return int(state["x"])

    async def run() -> tuple[int, int]:
        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        answers = await work(state=state), await body(state=state)
        ticking.cancel()
        return answers

    assert asyncio.run(run()) == (3, 3)
    assert threading.current_thread().name not in threads
    assert ticks > 10
    assert dict(state) == {"x": 3, "y": 1}


def test_a_state_works_inside_a_running_loop_as_in_a_notebook(anywhere: Place) -> None:
    async def cell() -> dict[str, Any]:
        state = anywhere()
        state["x"] = 1
        state.commit()
        scripted("x += 1\ntask_success()")(state=state)
        return dict(anywhere())

    assert asyncio.run(cell()) == {"x": 2}


def test_all_of_it_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something asked the network")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    for state in (Live(), Versioned(), Versioned(Disk(tmp_path))):
        scripted("x = 1\nprint(x)", "task_success(x)")(state=state)
        assert "x = 1" in view(state) and len(events(state)) == 5


def test_an_executor_of_ones_own_runs_the_steps_and_is_committed(anywhere: Place) -> None:
    ran = list[str]()

    def executor(source: str, namespace: dict[str, Any]) -> None:
        ran.append(source)
        namespace["made"] = source.upper()
        namespace["task_success"](1)

    state = anywhere()

    @Agent(policy=lambda *_: "whatever", executor=executor).task
    def work() -> int: ...  # type: ignore[empty-body]

    assert work(state=state) == 1 and ran == ["whatever"]
    assert dict(anywhere()) == {"made": "WHATEVER"}
