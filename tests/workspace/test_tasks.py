"""Tasks remember on a live state, run as written, or are carried out by a policy step by step."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from keepstate import InvalidError, Live, TaskFailedError, events, view
from keepstate.workspace import (
    ActionEvent,
    Agent,
    AgentTask,
    ErrorEvent,
    FailEvent,
    OutputEvent,
    SuccessEvent,
    TaskStartEvent,
)


class Script:
    """A policy that takes its steps from a list, and keeps what it was shown."""

    def __init__(self, *steps: str | tuple[str, str]) -> None:
        self._steps: Iterator[str | tuple[str, str]] = iter(steps)
        self.seen: list[tuple[str, dict[str, Any], str]] = []

    def __call__(self, task: AgentTask, inputs: dict[str, Any], shown: str) -> str | tuple[str, str]:
        self.seen.append((task.name, inputs, shown))
        return next(self._steps)


def kinds(state: Live) -> list[type]:
    return [type(event) for event in events(state)]


def test_a_body_is_run_as_it_is_and_its_state_remembers() -> None:
    agent, state = Agent("ana"), Live()

    @agent.task
    def add(data: list[int], state: Live) -> int:
        state["total"] = state.get("total", 0) + sum(data)
        return int(state["total"])

    assert add([1, 2, 3], state=state) == 6
    assert add([4], state=state) == 10
    assert dict(state) == {"total": 10}
    assert kinds(state) == [TaskStartEvent, SuccessEvent] * 2


def test_what_happened_is_no_variable() -> None:
    agent, state = Agent("ana"), Live()
    agent.task(lambda: 3)(state=state)

    assert list(state) == [] and len(state) == 0
    [start, success] = events(state)
    assert isinstance(start, TaskStartEvent) and isinstance(success, SuccessEvent)
    assert success.result == 3
    assert start.commit_hash is None and start.timestamp.tzinfo is not None


def test_an_empty_body_is_carried_out_by_the_policy() -> None:
    policy = Script("total = sum(data)\nprint('sum is', total)", "task_success({'total': total})")
    agent, state = Agent("ana", policy=policy), Live()

    @agent.task
    def analyze(data: list[float]) -> dict[str, float]:  # type: ignore[empty-body]
        """Analyze the data."""

    assert analyze([1.5, 2.5], state=state) == {"total": 4.0}
    assert dict(state) == {"total": 4.0}
    assert kinds(state) == [TaskStartEvent, ActionEvent, OutputEvent, ActionEvent, SuccessEvent]
    assert [event.parts for event in events(state) if isinstance(event, OutputEvent)] == [["sum is 4.0\n"]]
    assert policy.seen[0][:2] == ("analyze", {"data": [1.5, 2.5]})
    assert "Analyze the data." in policy.seen[0][2]
    assert "sum is 4.0" in policy.seen[1][2]


def test_variables_of_one_task_are_there_in_the_next() -> None:
    policy = Script("seen = [*data]\ntask_success()", "seen.append(4)\nshown = seen\ntask_success(len(seen))")
    agent, state = Agent(policy=policy), Live()

    @agent.task
    def look(data: list[int]) -> object:
        pass

    look([1], state=state)
    look([], state=state)

    assert state["seen"] == [1, 4]


def test_a_task_without_state_forgets() -> None:
    policy = Script("x = 1\ntask_success(x)", "task_success(x)", "task_success('x' in globals())")
    agent = Agent(policy=policy)

    @agent.task
    def once() -> object: ...

    assert once() == 1
    assert once() is False  # the second step raised a NameError, and the third looked


def test_a_step_that_raises_is_told_and_another_is_asked_for() -> None:
    policy = Script("a = 1\nb = 1 / 0", "task_success(a)")
    agent, state = Agent(policy=policy), Live()

    @agent.task
    def divide() -> int: ...  # type: ignore[empty-body]

    assert divide(state=state) == 1
    [error] = [event for event in events(state) if isinstance(event, ErrorEvent)]
    assert error.error == "ZeroDivisionError: division by zero (line 2)" and error.recoverable
    assert "ZeroDivisionError" in policy.seen[1][2]


@pytest.mark.parametrize("leaving", ["exit()", "quit(3)", "raise SystemExit('done')"])
def test_a_step_that_exits_ends_itself_alone(leaving: str) -> None:
    policy = Script(f"a = 1\nprint('one')\n{leaving}", "task_success(a)")
    agent, state = Agent(policy=policy), Live()

    @agent.task
    def leave() -> int: ...  # type: ignore[empty-body]

    assert leave(state=state) == 1
    assert kinds(state) == [
        TaskStartEvent, ActionEvent, OutputEvent, ErrorEvent, ActionEvent, SuccessEvent
    ]  # fmt: skip
    assert "(line 3); to end the task call task_success(value)" in policy.seen[1][2]
    assert not sys.stdin.closed


def test_an_interrupt_of_a_step_ends_the_task() -> None:
    agent, state = Agent(policy=Script("raise KeyboardInterrupt")), Live()

    @agent.task
    def wait() -> int: ...  # type: ignore[empty-body]

    with pytest.raises(KeyboardInterrupt):
        wait(state=state)

    assert kinds(state) == [TaskStartEvent]


def test_what_the_policy_thought_is_told_with_its_step() -> None:
    policy = Script(("x = 2", "Two is enough."), "task_success(x)")
    agent, state = Agent(policy=policy), Live()

    @agent.task
    def choose() -> int:  # type: ignore[empty-body]
        """Choose."""

    assert choose(state=state) == 2
    actions = [event for event in events(state) if isinstance(event, ActionEvent)]
    assert [(each.code, each.thinking) for each in actions] == [
        ("x = 2", "Two is enough."), ("task_success(x)", ""),
    ]  # fmt: skip
    assert "  thought: Two is enough.\n    ran:\n    x = 2" in policy.seen[1][2]


def test_a_result_that_does_not_fit_is_told_to_the_policy() -> None:
    policy = Script("task_success('many')", "task_success(3)")
    agent, state = Agent(policy=policy), Live()

    @agent.task
    def count() -> int: ...  # type: ignore[empty-body]

    assert count(state=state) == 3
    assert "the result has the wrong type" in policy.seen[1][2]


def test_a_task_that_gives_up_raises() -> None:
    agent, state = Agent(policy=Script("try:\n    task_fail('no data')\nexcept Exception:\n    pass")), Live()

    @agent.task
    def find() -> int: ...  # type: ignore[empty-body]

    with pytest.raises(TaskFailedError, match="'find' failed: no data") as failure:
        find(state=state)

    assert failure.value.task == "find"
    assert kinds(state)[-1] is FailEvent


def test_a_policy_that_comes_to_no_end_is_stopped() -> None:
    agent, state = Agent(policy=lambda *_: "pass", max_steps=3), Live()

    @agent.task
    def wander() -> int: ...  # type: ignore[empty-body]

    with pytest.raises(TaskFailedError, match="no end after 3 steps"):
        wander(state=state)

    assert kinds(state).count(ActionEvent) == 3


def test_an_error_of_a_body_is_told_and_raised() -> None:
    agent, state = Agent(), Live()

    @agent.task
    def fail() -> int:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        fail(state=state)

    assert kinds(state) == [TaskStartEvent, ErrorEvent]


def test_an_async_task_is_awaited_and_may_have_an_async_policy() -> None:
    async def policy(task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
        await asyncio.sleep(0)
        return "task_success(n + 1)"

    agent, state = Agent(policy=policy), Live()

    @agent.task
    async def step(n: int) -> int: ...  # type: ignore[empty-body]

    @agent.task
    async def body(n: int) -> int:
        await asyncio.sleep(0)
        return n * 2

    async def run() -> tuple[int, int]:
        return await step(1, state=state), await body(4, state=state)

    assert asyncio.run(run()) == (2, 8)


def test_an_executor_of_ones_own_runs_the_steps() -> None:
    ran = list[str]()

    def executor(source: str, namespace: dict[str, Any]) -> None:
        ran.append(source)
        namespace["task_success"](namespace["n"])

    agent = Agent(policy=lambda *_: "whatever", executor=executor)

    @agent.task
    def echo(n: int) -> int: ...  # type: ignore[empty-body]

    assert echo(5) == 5
    assert ran == ["whatever"]


def test_functions_and_imports_of_a_step_serve_the_next() -> None:
    policy = Script(
        "import math\ndef area(r):\n    return math.pi * r * r", "del area\ntask_success(math.floor(4.5))"
    )
    agent, state = Agent(policy=policy), Live()

    @agent.task
    def work() -> int: ...  # type: ignore[empty-body]

    assert work(state=state) == 4
    assert dict(state) == {"math": math}


def test_inputs_are_no_variables_until_a_step_makes_them_so() -> None:
    agent, state = Agent(policy=Script("a = a + 1\ntask_success(a + b)")), Live()

    @agent.task
    def add(a: int, b: int = 5) -> int: ...  # type: ignore[empty-body]

    assert add(1, state=state) == 7
    assert dict(state) == {"a": 2}


@pytest.mark.parametrize("wrong", [{}, 3, "live"])
def test_a_state_that_is_none_is_refused(wrong: Any) -> None:
    task = Agent().task(lambda: 1)

    with pytest.raises(InvalidError, match="Pass a Live"):
        task(state=wrong)


def test_wrong_arguments_are_told_with_the_signature() -> None:
    @Agent().task
    def add(a: int) -> int:
        return a

    with pytest.raises(InvalidError, match=r"task add\(a: .* was called wrongly: too many"):
        add(1, 2)


def test_an_empty_task_needs_a_policy_and_a_plain_one_no_coroutine() -> None:
    async def policy(task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
        return "task_success()"

    def empty() -> None:
        """Only asks."""

    with pytest.raises(InvalidError, match="no policy"):
        Agent().task(empty)
    with pytest.raises(InvalidError, match="its policy is async"):
        Agent(policy=policy).task(empty)


def test_a_generator_is_no_task() -> None:
    def plain() -> Iterator[int]:
        yield 1

    async def waiting() -> AsyncIterator[int]:
        yield 1

    for function in (plain, waiting):
        with pytest.raises(InvalidError, match="end before its body runs"):
            Agent().task(function)


def test_a_policy_that_returns_no_source_is_told() -> None:
    agent = Agent(policy=lambda *_: 3)  # type: ignore[arg-type,return-value]

    @agent.task
    def ask() -> None:
        pass

    with pytest.raises(InvalidError, match=r"returned 3\. Return the source"):
        ask()


def test_a_view_is_all_of_it_or_what_is_recent() -> None:
    state = Live()
    state["x"] = 1

    assert view(state, focus="full") == {"x": 1}
    assert view(state) == "Variables:\n  x = 1"
    assert view(Live()) == "Variables: none"
    with pytest.raises(InvalidError, match="'full' or 'recent'"):
        view(state, focus="all")  # type: ignore[call-overload]
    with pytest.raises(InvalidError, match="is not a state"):
        view(3)  # type: ignore[call-overload]


def test_a_recent_view_leaves_out_what_is_older_first_and_keeps_to_its_length() -> None:
    agent, state = Agent(policy=Script(*(f"print('step {n}')" for n in range(50)), "task_success()")), Live()

    @agent.task
    def walk() -> None: ...

    walk(state=state)
    shown = view(state, max_chars=300)

    assert len(shown) <= 300
    assert "step 49" in shown and "step 1'" not in shown and "…" in shown


def test_a_value_that_cannot_be_shown_spoils_no_view() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise RuntimeError("not now")

    state = Live()
    state["shy"], state["long"] = Shy(), "x" * 1_000

    assert "not now" in view(state)
    assert len(view(state)) < 400


@pytest.mark.parametrize(
    "value", [[*range(10_000)], (*range(10_000),), dict.fromkeys(range(10_000)), "x" * 10_000, b"x" * 10_000]
)
def test_of_a_long_value_the_beginning_is_shown(value: Any) -> None:
    state = Live()
    state["value"] = value

    assert view(state) == f"Variables:\n  value = {repr(value)[:199]}…"


def test_a_live_state_keeps_what_it_is_given() -> None:
    state, cursor = Live(), object()
    state["cursor"] = cursor

    assert state["cursor"] is cursor
    del state["cursor"]
    assert "cursor" not in state
    with pytest.raises(KeyError):
        state["cursor"]
    with pytest.raises(InvalidError, match="Use a str"):
        state[3] = 1  # type: ignore[index]


def test_what_keeps_no_events_is_refused() -> None:
    with pytest.raises(InvalidError, match="has no events"):
        events({})  # type: ignore[arg-type]
