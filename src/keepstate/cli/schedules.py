"""Command on schedules: list the schedules of a space, and pause, resume, run or delete one."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import answer, fields_of, utc, write_json, write_table
from keepstate.cli.session import PLAIN, Session, nearest
from keepstate.engine.queue.schedules import Schedule, Schedules
from keepstate.errors import InvalidError, NotFoundError

_AT_ONCE = 100
_HEADS = ("name", "times", "kind", "next", "last task", "skipped")
_FIELDS = tuple(name for name in Schedule.__slots__ if name != "payload")


async def schedules(
    space: str,
    name: str | None = None,
    *,
    pause: Annotated[bool, Parameter(negative="", help="Put no more tasks of NAME.")] = False,
    resume: Annotated[bool, Parameter(negative="", help="Put tasks of NAME again.")] = False,
    run: Annotated[bool, Parameter(negative="", help="Put a task of NAME now.")] = False,
    delete: Annotated[bool, Parameter(negative="", help="Delete NAME; its tasks remain.")] = False,
    next: Annotated[int | None, Parameter(help="Print the next N times of NAME.")] = None,
    session: Session = PLAIN,
) -> int:
    """List the schedules of a space, or show, pause, resume, run or delete one.

    Args:
        space: The space.
        name: A schedule. Without it, all are listed.
    """
    if sum((pause, resume, run, delete, next is not None)) > 1:
        raise InvalidError("give one of --pause, --resume, --run, --delete and --next")
    if name is None and (pause or resume or run or delete or next is not None):
        raise InvalidError("name the schedule: schedules SPACE NAME")
    async with session.opened() as ks:
        found = ks.space(space).schedules
        if name is None:
            await _show(await _all(found), session)
            return exits.OK
        await _known(found, name, space, session)
        if next is not None:
            for moment in await found.next(name, next):
                session.write(answer({"at": moment}), utc(moment))
        elif delete:
            await found.delete(name)
            session.write({"schedule": name, "deleted": True}, f"{name} deleted")
        elif run:
            put = await found.run_now(name)
            session.write({"task": put.id, "added": put.added}, put.id)
        else:
            if pause:
                await found.pause(name)
            elif resume:
                await found.resume(name)
            await _show([await _known(found, name, space, session)], session)
    return exits.OK


async def _known(found: Schedules, name: str, space: str, session: Session) -> Schedule:
    schedule = await found.get(name)
    if schedule is None:
        hint = nearest(name, [each.name for each in await found.list(limit=_AT_ONCE)])
        see = session.command("schedules", space)
        raise NotFoundError(f"space {space!r} has no schedule {name!r}; {hint}see: {see}")
    return schedule


async def _all(found: Schedules) -> list[Schedule]:
    rows: list[Schedule] = []
    after = None
    while True:
        page = await found.list(after=after, limit=_AT_ONCE)
        rows += page
        if (after := page.next) is None:
            return rows


async def _show(rows: list[Schedule], session: Session) -> None:
    if session.json:
        for schedule in rows:
            write_json(fields_of(schedule, *_FIELDS))
        return
    write_table(_HEADS, map(_row, rows))


def _row(schedule: Schedule) -> tuple[object, ...]:
    times = f"every {schedule.every_s:g} s" if schedule.cron is None else f"{schedule.cron} {schedule.zone}"
    comes = "paused" if schedule.paused else "ended"
    skipped = f"{schedule.skipped} {utc(schedule.skipped_at)}" if schedule.skipped_at else ""
    return (
        *(schedule.name, times, schedule.kind),
        utc(schedule.next_at) if schedule.next_at else comes,
        *(schedule.last_id or "", skipped),
    )
