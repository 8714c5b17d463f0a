"""Operations on queues: the rules of one, and the tasks of all under a name."""

from __future__ import annotations

from typing import Annotated

import msgspec

from keepstate.engine.queue.rules import arguments_in
from keepstate.engine.queue.tasks import TaskState
from keepstate.server.operations.tasks import Kind, RequeueResult, Task, TaskTotals, show_task
from keepstate.server.operations.values import Body, Delay, Done, Seconds
from keepstate.server.table import (
    Call,
    Cursor,
    InSpace,
    Instant,
    Operation,
    PageLimit,
    Text,
    UnderQuery,
)

Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class QueueLimit(Body, frozen=True, kw_only=True):
    """A bound on the tasks that run at once, or that start in `per_s` seconds."""

    running: Count | None = None
    starts: Count | None = None
    per_s: Seconds = 1.0
    kind: Kind | None = None
    each_key: bool = False


class ErrorRule(Body, frozen=True, kw_only=True):
    """The pauses after an error, and the names of classes of errors after which a task is dead at once."""

    first_s: Delay = 1.0
    factor: Annotated[float, msgspec.Meta(ge=1, le=1_000)] = 2.0
    longest_s: Seconds = 300.0
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    never: Annotated[tuple[Text, ...], msgspec.Meta(max_length=100)] = ()


class QueueRetry(ErrorRule, frozen=True, kw_only=True):
    """The rules for errors of a queue, with others for some classes of errors by their names."""

    rules: Annotated[dict[Text, ErrorRule], msgspec.Meta(max_length=100)] = msgspec.field(
        default_factory=dict[Text, ErrorRule]
    )


class QueueRules(Body, frozen=True, kw_only=True):
    """The limits, the aging and the retries of a queue, instead of those set before."""

    limits: Annotated[tuple[QueueLimit, ...], msgspec.Meta(max_length=20)] = ()
    aging_s: Seconds | None = None
    retry: QueueRetry | None = None


class QueueSummary(msgspec.Struct, frozen=True):
    """A queue: its pauses, limits, aging and retries, and the number of its tasks in each state."""

    is_paused: bool
    paused_kinds: list[str]
    limits: tuple[QueueLimit, ...]
    aging_s: float | None
    retry: QueueRetry | None
    counts: dict[TaskState, int]


class KindRequest(Body, frozen=True, kw_only=True):
    """A kind of tasks; without one, all."""

    kind: Kind | None = None


class QueueTotals(msgspec.Struct, frozen=True):
    """The number of queues that have a task or a schedule."""

    count: int


class DeadTask(msgspec.Struct, frozen=True):
    """A dead task, and its space."""

    space: str
    task: Task


class DeadPage(msgspec.Struct, frozen=True):
    """A page of dead tasks; `next` continues behind it, as `after`."""

    items: list[DeadTask]
    next: str | None


class RequeueAllRequest(KindRequest, frozen=True, kw_only=True):
    """Dead tasks to make ready again: of a kind, or since a time; without both, all."""

    since: Instant | None = None
    limit: PageLimit = 1_000


class DeadQuery(UnderQuery, frozen=True, kw_only=True):
    """A listing of the dead tasks of several spaces."""

    after: Cursor | None = None
    limit: PageLimit = 100


async def get_queue(call: Call, query: InSpace) -> QueueSummary:
    """Return the rules of a queue, and the number of its tasks."""
    queue = call.space(query).queue
    rules = await queue.rules()
    shown = msgspec.convert(rules, QueueRules, from_attributes=True)
    return QueueSummary(
        rules.is_paused,
        list(rules.paused_kinds),
        shown.limits,
        shown.aging_s,
        shown.retry,
        await queue.counts(),
    )


async def configure_queue(call: Call, query: InSpace, body: QueueRules) -> Done:
    """Set the limits, the aging and the retries of a queue."""
    await call.space(query).queue.configure(**arguments_in(msgspec.to_builtins(body)))
    return Done()


async def pause_queue(call: Call, query: InSpace, body: KindRequest) -> Done:
    """Let no task of a queue be claimed."""
    await call.space(query).queue.pause(body.kind)
    return Done()


async def resume_queue(call: Call, query: InSpace, body: KindRequest) -> Done:
    """Let the tasks of a queue be claimed again."""
    await call.space(query).queue.resume(body.kind)
    return Done()


async def count_queues(call: Call, query: UnderQuery) -> TaskTotals:
    """Return the number of tasks in each state, of all queues under a name."""
    return TaskTotals(await call.ks.queues(call.under(query)).counts())


async def list_dead(call: Call, query: DeadQuery) -> DeadPage:
    """Return one page of the dead tasks of all queues under a name."""
    page = await call.ks.queues(call.under(query)).dead(
        after=query.after, limit=query.limit, unreadable="raw"
    )
    for row in page:
        call.require_reached(row.space)
    return DeadPage([DeadTask(row.space, show_task(row.task)) for row in page], page.next)


async def pause_queues(call: Call, query: UnderQuery, body: KindRequest) -> QueueTotals:
    """Let no task of the queues under a name be claimed."""
    return QueueTotals(await call.ks.queues(call.under(query)).pause(body.kind))


async def resume_queues(call: Call, query: UnderQuery, body: KindRequest) -> QueueTotals:
    """Let the tasks of the queues under a name be claimed again."""
    return QueueTotals(await call.ks.queues(call.under(query)).resume(body.kind))


async def requeue_queues(call: Call, query: UnderQuery, body: RequeueAllRequest) -> RequeueResult:
    """Make dead tasks of the queues under a name ready again."""
    queues = call.ks.queues(call.under(query))
    return RequeueResult(await queues.requeue(kind=body.kind, since=body.since, limit=body.limit))


OPERATIONS = (
    Operation(
        method="GET", path="/v1/queue", name="getQueue",
        summary="Show the rules of a queue, and the number of its tasks.", right="read", query=InSpace,
        run=get_queue, answer=QueueSummary,
    ),
    Operation(
        method="PUT", path="/v1/queue", name="configureQueue",
        summary="Set the limits, the aging and the retries of a queue.", right="write", query=InSpace,
        run=configure_queue, answer=Done, body=QueueRules,
    ),
    Operation(
        method="POST", path="/v1/queue/pause", name="pauseQueue",
        summary="Let no task of a queue be claimed.", right="write", query=InSpace, run=pause_queue,
        answer=Done, body=KindRequest,
    ),
    Operation(
        method="POST", path="/v1/queue/resume", name="resumeQueue",
        summary="Let the tasks of a queue be claimed again.", right="write", query=InSpace,
        run=resume_queue, answer=Done, body=KindRequest,
    ),
    Operation(
        method="GET", path="/v1/queues/counts", name="countQueues",
        summary="Count the tasks of all queues in each state.", right="read", query=UnderQuery,
        run=count_queues, answer=TaskTotals,
    ),
    Operation(
        method="GET", path="/v1/queues/dead", name="listDead",
        summary="List the dead tasks of all queues.", right="read", query=DeadQuery, run=list_dead,
        answer=DeadPage,
    ),
    Operation(
        method="POST", path="/v1/queues/pause", name="pauseQueues",
        summary="Let no task of all queues be claimed.", right="write", query=UnderQuery,
        run=pause_queues, answer=QueueTotals, body=KindRequest,
    ),
    Operation(
        method="POST", path="/v1/queues/resume", name="resumeQueues",
        summary="Let the tasks of all queues be claimed again.", right="write", query=UnderQuery,
        run=resume_queues, answer=QueueTotals, body=KindRequest,
    ),
    Operation(
        method="POST", path="/v1/queues/requeue", name="requeueQueues",
        summary="Make dead tasks of all queues ready again.", right="write", query=UnderQuery,
        run=requeue_queues, answer=RequeueResult, body=RequeueAllRequest,
    ),
)  # fmt: skip
