"""Operations on schedules: put, list, pause, resume, delete, and run now."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from keepstate.engine.queue import schedules
from keepstate.errors import NotFoundError
from keepstate.server.operations.documents import DeletionResult
from keepstate.server.operations.tasks import Kind, PutTask
from keepstate.server.operations.values import Body, Delay, Seconds, read_value, show
from keepstate.server.table import Call, Cursor, InSpace, Instant, Label, Operation, PageLimit


class Schedule(msgspec.Struct, frozen=True):
    """A schedule. Its payload is None in listings."""

    name: str
    cron: str | None
    every_s: float | None
    zone: str
    kind: str
    key: str | None
    payload: Any
    jitter_s: float
    missed: Literal["skip", "last", "all"]
    missed_within_s: float
    overlap: Literal["skip", "queue", "allow"]
    until: Instant | None
    is_paused: bool
    next_at: Instant | None
    last_at: Instant | None
    last_id: str | None
    skipped_at: Instant | None
    skipped: Literal["missed", "overlap"] | None
    put_at: Instant


class SchedulePage(msgspec.Struct, frozen=True):
    """A page of schedules; `next` continues behind it, as `after`."""

    items: list[Schedule]
    next: str | None


class NewSchedule(Body, frozen=True, kw_only=True):
    """A schedule: `cron` with its zone, or `every_s`."""

    cron: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] | None = None
    every_s: Seconds | None = None
    zone: Annotated[str, msgspec.Meta(min_length=1, max_length=200)] = "UTC"
    kind: Kind = ""
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    key: Label | None = None
    jitter_s: Delay = 0
    missed: Literal["skip", "last", "all"] = "last"
    missed_within_s: Seconds = 3600.0
    overlap: Literal["skip", "queue", "allow"] = "skip"
    until: Instant | None = None


class ScheduleTimes(msgspec.Struct, frozen=True):
    """The times of the next ticks, without jitter."""

    items: list[datetime]


class PauseResult(msgspec.Struct, frozen=True):
    """The result of a pause or its end: whether it changed something."""

    changed: bool


class SchedulesQuery(InSpace, frozen=True, kw_only=True):
    """A listing of schedules."""

    after: Cursor | None = None
    limit: PageLimit = 100


class ScheduleQuery(InSpace, frozen=True, kw_only=True):
    """A schedule."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=160)]


class TimesQuery(ScheduleQuery, frozen=True, kw_only=True):
    """The next times of a schedule."""

    limit: PageLimit = 5


async def list_schedules(call: Call, query: SchedulesQuery) -> SchedulePage:
    """Return one page of schedules."""
    page = await call.space(query).schedules.list(after=query.after, limit=query.limit)
    return SchedulePage([_schedule(each) for each in page], page.next)


async def get_schedule(call: Call, query: ScheduleQuery) -> Schedule:
    """Return a schedule with its payload."""
    found = await call.space(query).schedules.get(query.name, payload=True)
    if found is None:
        raise NotFoundError(f"schedule {query.name!r} does not exist in space {query.space!r}")
    return _schedule(found)


async def put_schedule(call: Call, query: ScheduleQuery, body: NewSchedule) -> Schedule:
    """Add or change a schedule."""
    given = msgspec.structs.asdict(body) | {"payload": read_value(body.payload)}
    return _schedule(await call.space(query).schedules.put(query.name, **given))


async def delete_schedule(call: Call, query: ScheduleQuery) -> DeletionResult:
    """Delete a schedule. Its tasks remain."""
    return DeletionResult(await call.space(query).schedules.delete(query.name))


async def pause_schedule(call: Call, query: ScheduleQuery) -> PauseResult:
    """Let a schedule put no more tasks."""
    return PauseResult(await call.space(query).schedules.pause(query.name))


async def resume_schedule(call: Call, query: ScheduleQuery) -> PauseResult:
    """Let a schedule put tasks again."""
    return PauseResult(await call.space(query).schedules.resume(query.name))


async def run_schedule(call: Call, query: ScheduleQuery) -> PutTask:
    """Put a task of a schedule now."""
    put = await call.space(query).schedules.run_now(query.name)
    return PutTask(put.id, put.added, put.state)


async def list_times(call: Call, query: TimesQuery) -> ScheduleTimes:
    """Return the times of the next ticks."""
    return ScheduleTimes([*await call.space(query).schedules.next(query.name, query.limit)])


def _schedule(found: schedules.Schedule) -> Schedule:
    return Schedule(
        found.name,
        found.cron,
        found.every_s,
        found.zone,
        found.kind,
        found.key,
        show(found.payload),
        found.jitter_s,
        found.missed,
        found.missed_within_s,
        found.overlap,
        found.until,
        found.paused,
        found.next_at,
        found.last_at,
        found.last_id,
        found.skipped_at,
        found.skipped,
        found.put_at,
    )


OPERATIONS = (
    Operation(
        method="GET", path="/v1/schedules", name="listSchedules", summary="List schedules.", right="read",
        query=SchedulesQuery, run=list_schedules, answer=SchedulePage,
    ),
    Operation(
        method="GET", path="/v1/schedule", name="getSchedule", summary="Read a schedule with its payload.",
        right="read", query=ScheduleQuery, run=get_schedule, answer=Schedule,
    ),
    Operation(
        method="PUT", path="/v1/schedule", name="putSchedule", summary="Add or change a schedule.",
        right="write", query=ScheduleQuery, run=put_schedule, answer=Schedule, body=NewSchedule,
    ),
    Operation(
        method="DELETE", path="/v1/schedule", name="deleteSchedule",
        summary="Delete a schedule. Its tasks remain.", right="write", query=ScheduleQuery,
        run=delete_schedule, answer=DeletionResult,
    ),
    Operation(
        method="POST", path="/v1/schedule/pause", name="pauseSchedule",
        summary="Let a schedule put no more tasks.", right="write", query=ScheduleQuery,
        run=pause_schedule, answer=PauseResult,
    ),
    Operation(
        method="POST", path="/v1/schedule/resume", name="resumeSchedule",
        summary="Let a schedule put tasks again.", right="write", query=ScheduleQuery,
        run=resume_schedule, answer=PauseResult,
    ),
    Operation(
        method="POST", path="/v1/schedule/run", name="runSchedule",
        summary="Put a task of a schedule now.", right="write", query=ScheduleQuery, run=run_schedule,
        answer=PutTask,
    ),
    Operation(
        method="GET", path="/v1/schedule/next", name="listTimes",
        summary="List the next times of a schedule.", right="read", query=TimesQuery, run=list_times,
        answer=ScheduleTimes,
    ),
)  # fmt: skip
