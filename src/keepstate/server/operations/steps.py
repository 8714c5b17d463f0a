"""Operations on the steps of tasks: a worker elsewhere remembers, waits, spawns and asks by single requests.

A request proves the claim by the id of the task and the token. If its answer is `waiting`, the task has been
returned to the queue, and the worker ends its attempt. Names of steps are used once in an attempt.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Literal

import msgspec

from keepstate.engine.queue.queue import Claim, Task
from keepstate.engine.queue.step_control import NOT_DONE
from keepstate.engine.queue.step_memory import NO_DEFAULT
from keepstate.engine.queue.step_records import Answer, StepKind, StepState
from keepstate.errors import InvalidError, Suspended
from keepstate.server.operations.approvals import Question
from keepstate.server.operations.tasks import HeldTask, NewTask, TaskQuery
from keepstate.server.operations.values import Body, Delay, Done, read_value, show
from keepstate.server.table import Call, InSpace, Instant, Label, Operation


class StepRow(msgspec.Struct, frozen=True):
    """A step that a task has begun or done."""

    name: str
    kind: StepKind
    state: StepState
    at: Instant
    attempt: int
    due_at: Instant | None
    size_bytes: int


class StepList(msgspec.Struct, frozen=True):
    """The steps of a task, in the order of recording."""

    items: list[StepRow]


class StepOutcome(msgspec.Struct, frozen=True):
    """A step after a request.

    `new`: run it, then record its result. `done`: its result. `waiting`: the task has been returned to the
    queue, and the attempt ends. `timeout`: no message came in time.
    """

    state: Literal["new", "done", "waiting", "timeout"]
    result: Any = None


class StepAnswer(msgspec.Struct, frozen=True):
    """The answer to the question of a step, with what the person saw."""

    value: Any
    approved: bool
    by: str | None
    at: Instant
    note: str
    subject: Any


class HeldStep(HeldTask, frozen=True, kw_only=True):
    """A step of a claimed task."""

    name: Label


class BeginRequest(HeldStep, frozen=True, kw_only=True):
    """A step to begin. With `once`, a step whose end is unknown is not run again."""

    once: bool = False


class RecordRequest(HeldStep, frozen=True, kw_only=True):
    """The result of a step."""

    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class SleepRequest(HeldStep, frozen=True, kw_only=True):
    """A time to wait: seconds from the first request, or an instant."""

    seconds: Delay | None = None
    until: Instant | None = None


class ReceiveRequest(HeldStep, frozen=True, kw_only=True):
    """A wish for a message of the step's name, and the seconds to wait from the first request on."""

    timeout_s: Delay | None = None


class SpawnRequest(HeldStep, frozen=True, kw_only=True):
    """A task to put once. Without an id it gets that of this task, `/` and the name of the step."""

    task: NewTask


class AwaitRequest(HeldTask, frozen=True, kw_only=True):
    """Tasks whose results to wait for."""

    ids: Annotated[list[Label], msgspec.Meta(min_length=1, max_length=100)]


class AskRequest(HeldStep, frozen=True, kw_only=True):
    """A question to ask once, and the answer if none comes in time. Its id is that of the step."""

    question: Question
    default: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class SettleRequest(Body, frozen=True, kw_only=True):
    """The result of a step whose end is unknown; without `result`, it was not done and runs again."""

    id: Label
    name: Label
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class StepQuery(TaskQuery, frozen=True, kw_only=True):
    """A step of a task."""

    name: Label


async def list_steps(call: Call, query: TaskQuery) -> StepList:
    """Return the steps of a task."""
    found = await call.space(query).queue.steps(query.id)
    return StepList(
        [
            StepRow(each.name, each.kind, each.state, each.at, each.attempt, each.due_at, each.size_bytes)
            for each in found
        ]
    )


async def get_step(call: Call, query: StepQuery) -> StepOutcome:
    """Return the result of a step; `new` while it has none."""
    found = await call.space(query).queue.step_result(query.id, query.name)
    return StepOutcome("done" if found.is_done else "new", show(found.value))


async def begin_step(call: Call, query: InSpace, body: BeginRequest) -> StepOutcome:
    """Return the recorded result of a step, or let the caller run it."""
    queue = call.space(query).queue
    found = await queue.begin_step(Claim(body.id, body.token), body.name, once=body.once)
    return StepOutcome("done" if found.is_done else "new", show(found.value))


async def record_step(call: Call, query: InSpace, body: RecordRequest) -> StepOutcome:
    """Record the result of a step, unless it is recorded, and return the recorded one."""
    queue = call.space(query).queue
    found = await queue.record_step(Claim(body.id, body.token), body.name, read_value(body.result))
    return StepOutcome("done", show(found.value))


async def sleep_step(call: Call, query: InSpace, body: SleepRequest) -> StepOutcome:
    """Wait for a time; above 5 seconds without a worker."""
    task = await _held(call, query, body)
    return await _wait(task, task.sleep(body.name, body.seconds, until=body.until))


async def receive_message(call: Call, query: InSpace, body: ReceiveRequest) -> StepOutcome:
    """Return the first message of a name, or wait for it without a worker."""
    task = await _held(call, query, body)
    try:
        return await _wait(task, task.receive(body.name, timeout_s=body.timeout_s))
    except TimeoutError:
        return StepOutcome("timeout")


async def spawn_task(call: Call, query: InSpace, body: SpawnRequest) -> StepOutcome:
    """Put another task once, and return its id."""
    task, new = await _held(call, query, body), body.task
    given: dict[str, Any] = {
        name: getattr(new, name) for name in new.__struct_fields__ if name not in ("payload", "kind", "id")
    }
    if new.id is not None:
        given["id"] = new.id
    return StepOutcome("done", await task.spawn(body.name, read_value(new.payload), kind=new.kind, **given))


async def await_results(call: Call, query: InSpace, body: AwaitRequest) -> StepOutcome:
    """Return the results of other tasks, or wait for them without a worker."""
    task = await _held(call, query, body)
    return await _wait(task, task.results(*body.ids))


async def ask_step(call: Call, query: InSpace, body: AskRequest) -> StepOutcome:
    """Ask people once and return the answer, or wait for it without a worker."""
    task, asked = await _held(call, query, body), body.question
    if asked.id is not None or asked.task is not None:
        raise InvalidError("the question of a step has the id and the task of the step; leave them out")
    default = NO_DEFAULT if isinstance(body.default, msgspec.UnsetType) else read_value(body.default)
    return await _wait(
        task,
        task.ask(
            body.name,
            asked.question,
            default=default,
            subject=read_value(asked.subject),
            schema=read_value(asked.schema),
            to=asked.to,
            need=asked.need,
            expires_s=asked.expires_s,
        ),
    )


async def settle_step(call: Call, query: InSpace, body: SettleRequest) -> Done:
    """Tell the result of a step whose end is unknown."""
    result = NOT_DONE if isinstance(body.result, msgspec.UnsetType) else read_value(body.result)
    await call.space(query).queue.settle(body.id, body.name, result)
    return Done()


async def _held(call: Call, query: InSpace, held: HeldTask) -> Task:
    return await call.space(query).queue.attach(Claim(held.id, held.token))


async def _wait(task: Task, waiting: Awaitable[Any]) -> StepOutcome:
    """Return the result of a step that may wait. If it does, the task returns to the queue."""
    try:
        found = await waiting
    except Suspended as suspension:
        await task.suspend(suspension)
        return StepOutcome("waiting")
    if isinstance(found, Answer):
        found = StepAnswer(
            show(found.value), found.approved, found.by, found.at, found.note, show(found.subject)
        )
        return StepOutcome("done", found)
    return StepOutcome("done", show(found))


OPERATIONS = (
    Operation(
        method="GET", path="/v1/task/steps", name="listSteps", summary="List the steps of a task.",
        right="read", query=TaskQuery, run=list_steps, answer=StepList,
    ),
    Operation(
        method="GET", path="/v1/task/step", name="getStep", summary="Read the result of a step.",
        right="read", query=StepQuery, run=get_step, answer=StepOutcome,
    ),
    Operation(
        method="POST", path="/v1/task/step/begin", name="beginStep",
        summary="Begin a step of a claimed task, or read its recorded result.", right="work",
        query=InSpace, run=begin_step, answer=StepOutcome, body=BeginRequest,
    ),
    Operation(
        method="POST", path="/v1/task/step/record", name="recordStep",
        summary="Record the result of a step of a claimed task.", right="work", query=InSpace,
        run=record_step, answer=StepOutcome, body=RecordRequest,
    ),
    Operation(
        method="POST", path="/v1/task/step/sleep", name="sleepStep",
        summary="Let a claimed task wait for a time.", right="work", query=InSpace, run=sleep_step,
        answer=StepOutcome, body=SleepRequest,
    ),
    Operation(
        method="POST", path="/v1/task/step/receive", name="receiveMessage",
        summary="Receive a message for a claimed task, or let it wait for one.", right="work",
        query=InSpace, run=receive_message, answer=StepOutcome, body=ReceiveRequest,
    ),
    Operation(
        method="POST", path="/v1/task/step/spawn", name="spawnTask",
        summary="Put another task once, as a step of a claimed task.", right="work", also=("write",),
        query=InSpace, run=spawn_task, answer=StepOutcome, body=SpawnRequest,
    ),
    Operation(
        method="POST", path="/v1/task/step/await", name="awaitResults",
        summary="Read the results of other tasks, or let a claimed task wait for them.", right="work",
        also=("read",), query=InSpace, run=await_results, answer=StepOutcome, body=AwaitRequest,
    ),
    Operation(
        method="POST", path="/v1/task/step/ask", name="askStep",
        summary="Ask people once, as a step of a claimed task, or let it wait for the answer.",
        right="work", also=("write",), query=InSpace, run=ask_step, answer=StepOutcome, body=AskRequest,
    ),
    Operation(
        method="POST", path="/v1/task/step/settle", name="settleStep",
        summary="Tell the result of a step whose end is unknown.", right="write", query=InSpace,
        run=settle_step, answer=Done, body=SettleRequest,
    ),
)  # fmt: skip
