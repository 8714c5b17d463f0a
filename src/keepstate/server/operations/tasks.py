"""Operations on tasks: put, list, claim, end and change them.

A worker is stateless between two requests: it proves its claim by the id of the task and the token.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from keepstate.engine.documents.documents import MISSING
from keepstate.engine.queue.queue import Claim, Queue
from keepstate.engine.queue.tasks import TaskInfo, TaskState
from keepstate.engine.space.space import Transaction
from keepstate.errors import NotFoundError
from keepstate.server.limits import LONGEST_WAIT_S
from keepstate.server.operations.values import Body, Delay, Done, Seconds, read_value, show, write_once
from keepstate.server.table import Call, Cursor, InSpace, Instant, Label, Note, Operation, PageLimit

Wait = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_WAIT_S)]
Token = Annotated[int, msgspec.Meta(ge=0)]
Kind = Annotated[str, msgspec.Meta(max_length=200)]
Priority = Annotated[int, msgspec.Meta(ge=-1_000_000, le=1_000_000)]


class Task(msgspec.Struct, frozen=True):
    """A task. `cursor` continues a listing of this state behind it; None outside of listings."""

    id: str
    state: TaskState
    kind: str
    key: str | None
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    error: str | None
    put_at: Instant
    due_at: Instant
    began_at: Instant | None
    expires_at: Instant | None
    waits_for: list[str]
    cancelled_by: str | None
    payload: Any
    result: Any
    progress: Any
    cursor: str | None
    traceparent: str | None


class TaskPage(msgspec.Struct, frozen=True):
    """A page of tasks; `next` continues behind it, as `after`, or as `before` with `reverse`."""

    items: list[Task]
    next: str | None


class NewTask(Body, frozen=True, kw_only=True):
    """A task to put."""

    payload: msgspec.Raw
    id: Label | None = None
    kind: Kind = ""
    key: Label | None = None
    priority: Priority = 0
    delay_s: Delay = 0
    at: Instant | None = None
    after: Annotated[tuple[Label, ...], msgspec.Meta(max_length=100)] = ()
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 5
    expires_s: Seconds | None = None
    keep_s: Seconds | None = 604_800.0
    if_present: Literal["keep", "replace", "raise"] = "keep"


class PutTask(msgspec.Struct, frozen=True):
    """The task that has the id now. `added` is False if there was one already, which was kept."""

    id: str
    added: bool
    state: TaskState


class ClaimRequest(Body, frozen=True, kw_only=True):
    """A wish for tasks. The worker is stored with the name of the key in front of it."""

    lease_s: Seconds
    worker: Label | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=100)] = 1
    wait_s: Wait = 0
    kinds: Annotated[list[Kind], msgspec.Meta(min_length=1, max_length=100)] | None = None


class ClaimedTask(msgspec.Struct, frozen=True):
    """A claimed task. Its id and token prove the claim until `lease_s` seconds after the last heartbeat."""

    id: str
    token: int
    attempt: int
    kind: str
    key: str | None
    worker: str | None
    lease_s: float
    payload: Any


class ClaimedTasks(msgspec.Struct, frozen=True):
    """The claimed tasks; none if there were none in time."""

    items: list[ClaimedTask]


class HeldTask(Body, frozen=True, kw_only=True):
    """The proof that the caller holds a task."""

    id: Label
    token: Token


class CompleteRequest(HeldTask, frozen=True, kw_only=True):
    """The result of a task."""

    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class FailRequest(HeldTask, frozen=True, kw_only=True):
    """The error of an attempt. Without `retry_in_s`, its queue decides: 1, 2, 4 … seconds at first."""

    error: Annotated[str, msgspec.Meta(max_length=65_536)]
    retry_in_s: Delay | None = None
    is_final: bool = False


class HeartbeatRequest(HeldTask, frozen=True, kw_only=True):
    """A new lease from now on, and how far the work is."""

    lease_s: Seconds
    progress: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class CancelRequest(Body, frozen=True, kw_only=True):
    """A task to cancel, and the reason."""

    id: Label
    reason: Note = ""


class ChangeResult(msgspec.Struct, frozen=True):
    """The result of a change of a task: whether there was such a task."""

    existed: bool


class RequeueRequest(Body, frozen=True, kw_only=True):
    """Dead tasks to make ready again: by their ids, or of a kind or since a time, those that died first."""

    ids: Annotated[tuple[Label, ...], msgspec.Meta(max_length=100)] = ()
    kind: Kind | None = None
    since: Instant | None = None
    limit: PageLimit = 1_000


class RerunRequest(Body, frozen=True, kw_only=True):
    """An ended task to run again. `result` replaces that of the step `from_step`, which is then kept."""

    id: Label
    from_step: Label | None = None
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    as_id: Label | None = None


class LaterRequest(HeldTask, frozen=True, kw_only=True):
    """A claimed task to return for some seconds."""

    seconds: Delay


class RequeueResult(msgspec.Struct, frozen=True):
    """A number of tasks."""

    count: int


class TaskMessage(Body, frozen=True, kw_only=True):
    """A message to a task that waits for one of this name, or will."""

    id: Label
    name: Label
    value: msgspec.Raw
    send_id: Label | None = None


class TaskAttempt(msgspec.Struct, frozen=True):
    """An attempt at a task."""

    number: int
    worker: str | None
    began_at: Instant | None
    ended_at: Instant | None
    error: str | None


class AttemptList(msgspec.Struct, frozen=True):
    """The last attempts at a task, in order."""

    items: list[TaskAttempt]


class Result(msgspec.Struct, frozen=True):
    """The result of a task."""

    result: Any


class TaskTotals(msgspec.Struct, frozen=True):
    """The number of tasks in each state, all at one revision."""

    counts: dict[TaskState, int]


class TasksQuery(InSpace, frozen=True, kw_only=True):
    """A listing of tasks: of a state by time, without one by id."""

    state: TaskState | None = None
    id_prefix: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    after: Cursor | None = None
    before: Cursor | None = None
    reverse: bool = False
    limit: PageLimit = 100
    payloads: bool = False


class TaskQuery(InSpace, frozen=True, kw_only=True):
    """A task."""

    id: Label


class ResultQuery(TaskQuery, frozen=True, kw_only=True):
    """A task, and the seconds to wait for its end."""

    wait_s: Wait = 0


async def list_tasks(call: Call, query: TasksQuery) -> TaskPage:
    """Return one page of tasks."""
    found = await call.space(query).queue.list(
        query.state,
        id_prefix=query.id_prefix,
        after=query.after,
        before=query.before,
        reverse=query.reverse,
        limit=query.limit,
        payloads=query.payloads,
        unreadable="raw",
    )
    more = found[-1].cursor if len(found) == query.limit else None
    return TaskPage([show_task(info) for info in found], more)


async def get_task(call: Call, query: TaskQuery) -> Task:
    """Return a task with its payload."""
    info = await call.space(query).queue.get(query.id, payload=True)
    if info is None:
        raise NotFoundError(f"task {query.id!r} does not exist in space {query.space!r}")
    return show_task(info)


async def put_task(call: Call, query: InSpace, body: NewTask) -> PutTask:
    """Put a task."""

    async def work(tx: Transaction) -> PutTask:
        return await put_in(tx.queue, body)

    return (await write_once(call, call.space(query), "putTask", work, PutTask))[0]


async def put_in(queue: Queue, new: NewTask) -> PutTask:
    """Put a task into a queue."""
    put = await queue.put(
        read_value(new.payload),
        id=new.id,
        kind=new.kind,
        key=new.key,
        priority=new.priority,
        delay_s=new.delay_s,
        at=new.at,
        after=new.after,
        max_attempts=new.max_attempts,
        expires_s=new.expires_s,
        keep_s=new.keep_s,
        if_present=new.if_present,
    )
    return PutTask(put.id, put.added, put.state)


async def remove_task(call: Call, query: TaskQuery) -> ChangeResult:
    """Delete a task that has ended."""
    return ChangeResult(await call.space(query).queue.remove(query.id))


async def count_tasks(call: Call, query: InSpace) -> TaskTotals:
    """Return the number of tasks in each state."""
    return TaskTotals(await call.space(query).queue.counts())


async def get_result(call: Call, query: ResultQuery) -> Result:
    """Return the result of a task, once there is one."""
    try:
        return Result(show(await call.space(query).queue.result(query.id, wait_s=query.wait_s)))
    except TimeoutError:
        raise NotFoundError(
            f"task {query.id!r} has no result after {query.wait_s:g} s; ask again, with wait_s"
        ) from None


async def list_attempts(call: Call, query: TaskQuery) -> AttemptList:
    """Return the attempts at a task."""
    found = await call.space(query).queue.attempts(query.id)
    return AttemptList(
        [TaskAttempt(each.number, each.worker, each.began_at, each.ended_at, each.error) for each in found]
    )


async def claim_tasks(call: Call, query: InSpace, body: ClaimRequest) -> ClaimedTasks:
    """Claim tasks, and wait for one if there are none."""
    worker = call.author if body.worker is None else f"{call.author}/{body.worker}"
    found = await call.space(query).queue.claim(
        worker, lease_s=body.lease_s, count=body.count, wait_s=body.wait_s, kinds=body.kinds
    )
    return ClaimedTasks(
        [
            ClaimedTask(
                task.id, task.token, task.attempt, task.kind, task.key, task.worker, task.lease_s,
                show(task.payload),
            )
            for task in found
        ]
    )  # fmt: skip


async def complete_task(call: Call, query: InSpace, body: CompleteRequest) -> Done:
    """Complete a task. Again under the same claim, nothing happens."""
    await call.space(query).queue.complete(Claim(body.id, body.token), read_value(body.result))
    return Done()


async def fail_task(call: Call, query: InSpace, body: FailRequest) -> Done:
    """Return a task to the queue as failed."""
    await call.space(query).queue.fail(
        Claim(body.id, body.token), body.error, body.retry_in_s, is_final=body.is_final
    )
    return Done()


async def heartbeat_task(call: Call, query: InSpace, body: HeartbeatRequest) -> Done:
    """Renew the lease of a task."""
    await call.space(query).queue.heartbeat(
        Claim(body.id, body.token), body.lease_s, progress=read_value(body.progress)
    )
    return Done()


async def release_task(call: Call, query: InSpace, body: HeldTask) -> Done:
    """Return a task to the queue as if it had not been claimed."""
    await call.space(query).queue.release(Claim(body.id, body.token))
    return Done()


async def cancel_task(call: Call, query: InSpace, body: CancelRequest) -> ChangeResult:
    """Cancel a task that has not ended."""
    queue = call.space(query).queue
    return ChangeResult(await queue.cancel(body.id, by=call.author, reason=body.reason))


async def requeue_tasks(call: Call, query: InSpace, body: RequeueRequest) -> RequeueResult:
    """Make dead tasks ready again."""
    found = await call.space(query).queue.requeue(
        *body.ids, kind=body.kind, since=body.since, limit=body.limit
    )
    return RequeueResult(found)


async def rerun_task(call: Call, query: InSpace, body: RerunRequest) -> PutTask:
    """Run an ended task again, or a copy of any task."""
    edit = MISSING if isinstance(body.result, msgspec.UnsetType) else read_value(body.result)
    put = await call.space(query).queue.rerun(
        body.id, from_step=body.from_step, result=edit, as_id=body.as_id
    )
    return PutTask(put.id, put.added, put.state)


async def postpone_task(call: Call, query: InSpace, body: LaterRequest) -> Done:
    """Return a task to the queue for some seconds."""
    await call.space(query).queue.suspend(Claim(body.id, body.token), body.seconds)
    return Done()


async def send_message(call: Call, query: InSpace, body: TaskMessage) -> ChangeResult:
    """Send a message to a task."""
    queue = call.space(query).queue
    return ChangeResult(await queue.send(body.id, body.name, read_value(body.value), send_id=body.send_id))


def show_task(info: TaskInfo) -> Task:
    """Return a task as it is sent."""
    return Task(
        info.id,
        info.state,
        info.kind,
        info.key,
        info.priority,
        info.attempt,
        info.max_attempts,
        info.worker,
        info.error,
        info.put_at,
        info.due_at,
        info.began_at,
        info.expires_at,
        list(info.waits_for),
        info.cancelled_by,
        show(info.payload),
        show(info.result),
        show(info.progress),
        info.cursor,
        info.traceparent,
    )


OPERATIONS = (
    Operation(
        method="GET", path="/v1/tasks", name="listTasks", summary="List tasks.", right="read",
        query=TasksQuery, run=list_tasks, answer=TaskPage,
    ),
    Operation(
        method="POST", path="/v1/tasks", name="putTask", summary="Put a task.", right="write",
        query=InSpace, run=put_task, answer=PutTask, body=NewTask, takes_key=True,
    ),
    Operation(
        method="GET", path="/v1/tasks/counts", name="countTasks",
        summary="Count the tasks in each state.", right="read", query=InSpace, run=count_tasks,
        answer=TaskTotals,
    ),
    Operation(
        method="POST", path="/v1/tasks/claim", name="claimTasks",
        summary="Claim tasks, and wait up to 20 seconds for one.", right="work", query=InSpace,
        run=claim_tasks, answer=ClaimedTasks, body=ClaimRequest, is_wait=True,
    ),
    Operation(
        method="POST", path="/v1/tasks/requeue", name="requeueTasks",
        summary="Make dead tasks ready again.", right="write", query=InSpace, run=requeue_tasks,
        answer=RequeueResult, body=RequeueRequest,
    ),
    Operation(
        method="POST", path="/v1/task/rerun", name="rerunTask",
        summary="Run an ended task again, from a step and with an edited result if wanted.", right="write",
        query=InSpace, run=rerun_task, answer=PutTask, body=RerunRequest,
    ),
    Operation(
        method="POST", path="/v1/task/later", name="postponeTask",
        summary="Return a claimed task for some seconds, without using an attempt.", right="work",
        query=InSpace, run=postpone_task, answer=Done, body=LaterRequest,
    ),
    Operation(
        method="GET", path="/v1/task", name="getTask", summary="Read a task with its payload.",
        right="read", query=TaskQuery, run=get_task, answer=Task,
    ),
    Operation(
        method="DELETE", path="/v1/task", name="removeTask", summary="Delete a task that has ended.",
        right="write", query=TaskQuery, run=remove_task, answer=ChangeResult,
    ),
    Operation(
        method="GET", path="/v1/task/result", name="getResult",
        summary="Read the result of a task, and wait up to 20 seconds for it.", right="read",
        query=ResultQuery, run=get_result, answer=Result, is_wait=True,
    ),
    Operation(
        method="GET", path="/v1/task/attempts", name="listAttempts",
        summary="List the last attempts at a task.", right="read", query=TaskQuery, run=list_attempts,
        answer=AttemptList,
    ),
    Operation(
        method="POST", path="/v1/task/complete", name="completeTask",
        summary="Complete a claimed task with a result.", right="work", query=InSpace,
        run=complete_task, answer=Done, body=CompleteRequest,
    ),
    Operation(
        method="POST", path="/v1/task/fail", name="failTask",
        summary="Return a claimed task to the queue as failed.", right="work", query=InSpace,
        run=fail_task, answer=Done, body=FailRequest,
    ),
    Operation(
        method="POST", path="/v1/task/heartbeat", name="heartbeatTask",
        summary="Renew the lease of a claimed task.", right="work", query=InSpace, run=heartbeat_task,
        answer=Done, body=HeartbeatRequest,
    ),
    Operation(
        method="POST", path="/v1/task/release", name="releaseTask",
        summary="Return a claimed task to the queue as if it had not been claimed.", right="work",
        query=InSpace, run=release_task, answer=Done, body=HeldTask,
    ),
    Operation(
        method="POST", path="/v1/task/cancel", name="cancelTask",
        summary="Cancel a task that has not ended.", right="write", query=InSpace, run=cancel_task,
        answer=ChangeResult, body=CancelRequest,
    ),
    Operation(
        method="POST", path="/v1/task/send", name="sendMessage", summary="Send a message to a task.",
        right="write", query=InSpace, run=send_message, answer=ChangeResult, body=TaskMessage,
    ),
)  # fmt: skip
