"""Commands on tasks: count, list and show them; pause, resume and requeue queues; cancel and rerun a task.

`counts`, `dead`, `pause`, `resume` and `requeue` are for one space, or with --under for all spaces below a
name. The others are for one task of one space.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter

from keepstate.cli import exits
from keepstate.cli.display import (
    counted,
    fields_of,
    plain,
    said,
    text_of,
    utc,
    write_indented,
    write_json,
    write_lines,
    write_table,
)
from keepstate.cli.maintenance import read_since
from keepstate.cli.session import PLAIN, Session, nearest, read_value, require_space
from keepstate.engine.queue.attempts import Attempt
from keepstate.engine.queue.queue import Queue
from keepstate.engine.queue.rules import arguments_in
from keepstate.engine.queue.step_records import Step
from keepstate.engine.queue.tasks import TaskInfo, TaskState
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.queues import Queues, SpaceTask
from keepstate.errors import InvalidError, KeepstateError, NotFoundError, TransitionError
from keepstate.names import ALL, OWN

_LIMIT: Final = 100
_MOST_REQUEUED: Final = 1_000
_REQUEUED_AT_ONCE: Final = 100
_SHOWN_FAILURES: Final = 10
_HEADS: Final = ("id", "priority", "attempt", "worker", "due", "error or result")
_MOST_PAUSED: Final = 10
"""The largest number of paused queues that `counts` names."""

UNDER = Parameter(help="All spaces under this name instead of one; with '' all spaces.")
TENANTS = Parameter(negative="", help="With --under: the spaces of all tenants.")

app = App(
    name="queue",
    help="Count, list and show tasks; pause, resume and requeue queues; cancel and rerun tasks.",
    help_format="markdown",
)


@app.command
async def counts(
    space: str | None = None,
    *,
    under: Annotated[str | None, UNDER] = None,
    tenants: Annotated[bool, TENANTS] = False,
    session: Session = PLAIN,
) -> int:
    """Count the tasks by state, and name the queues that are paused.

    Args:
        space: The space.
    """
    async with _opened(space, under, session, tenants=tenants) as (ks, queue):
        found = await queue.counts()
        paused = [row async for row in _paused_queues(ks, space, under, tenants=tenants)]
    if session.json:
        rows = [{"tenant": tenant, "space": name, "kinds": kinds} for tenant, name, kinds in paused]
        numbers: dict[str, object] = {str(state): number for state, number in found.items()}
        write_json({**numbers, "paused": rows})
        return exits.OK
    write_lines(f"{name:<9} {number:>7}" for name, number in found.items())
    for tenant, name, kinds in paused[:_MOST_PAUSED]:
        whose = f"tenant {tenant!r}, " if tenants and tenant is not None else ""
        write_lines([f"paused    {whose}{name}: {'all kinds' if kinds is None else ', '.join(kinds)}"])
    if len(paused) > _MOST_PAUSED:
        write_lines([f"paused    {len(paused) - _MOST_PAUSED:,} more; --json lists all"])
    return exits.OK


async def _paused_queues(
    ks: Keepstate, space: str | None, under: str | None, *, tenants: bool
) -> AsyncGenerator[tuple[str | None, str, list[str] | None]]:
    """Yield tenant, space and paused kinds of each paused queue; None for the kinds if all are paused."""
    if space is not None:
        pairs = [(ks.tenant_id, space)]
    elif tenants:
        pairs = [pair async for pair in ks.spaces(under or "", tenant=ALL)]
    else:
        pairs = [(ks.tenant_id, name) async for name in ks.spaces(under or "")]
    for tenant, name in pairs:
        handle = ks if tenant is None or tenant == ks.tenant_id else ks.tenant(tenant)
        rules = await handle.space(name).queue.rules()
        if rules.is_paused or rules.paused_kinds:
            yield tenant, name, None if rules.is_paused else list(rules.paused_kinds)


@app.command
async def dead(
    space: str | None = None,
    *,
    after: Annotated[str | None, Parameter(help="Start after the task with this cursor.")] = None,
    limit: Annotated[int, Parameter(help="List at most N tasks.")] = _LIMIT,
    under: Annotated[str | None, UNDER] = None,
    tenants: Annotated[bool, TENANTS] = False,
    session: Session = PLAIN,
) -> int:
    """List the dead tasks of a space, or of all spaces below a name, with their errors.

    Args:
        space: The space.
    """
    async with _opened(space, under, session, tenants=tenants) as (ks, queue):
        if isinstance(queue, Queues):
            page = await queue.dead(after=after, limit=limit)
            found, cursor = list(page), page.next
        else:
            tasks = await queue.dead(after=after, limit=limit)
            found = [SpaceTask(ks.tenant_id, str(space), task) for task in tasks]
            cursor = tasks[-1].cursor if len(tasks) == limit else None
    if session.json:
        for each in found:
            place = {"tenant": each.tenant, "space": each.space}
            write_json(place | fields_of(each.task, *TaskInfo.__slots__))
        if cursor is not None:
            write_json({"next": cursor})
        return exits.OK
    heads = ("space", "id", "kind", "attempt", "died", "error")
    rows = (_dead_row(each, with_tenant=tenants) for each in found)
    write_table(("tenant", *heads) if tenants else heads, rows)
    if cursor is not None:
        where = (space,) if under is None else ("--under", under)
        words = ("queue", "dead", *map(str, where), *(["--tenants"] if tenants else []))
        said().print(plain(f"there are more: {session.command(*words, '--after', cursor)}"))
    return exits.OK


@app.command(name="list")
async def list_(
    space: str,
    state: TaskState | None = None,
    *,
    after: Annotated[str | None, Parameter(help="Start after the task with this cursor.")] = None,
    limit: Annotated[int | None, Parameter(help="List at most N tasks, instead of 100.")] = None,
    session: Session = PLAIN,
) -> int:
    """List the tasks of a space, or those of one state.

    Args:
        space: The space.
        state: ready, waiting, claimed, done, dead or cancelled.
    """
    async with session.opened() as ks:
        await require_space(ks, space)
        found = await ks.space(space).queue.list(state, after=after, limit=_LIMIT if limit is None else limit)
    if session.json:
        for task in found:
            write_json(fields_of(task, *TaskInfo.__slots__))
    else:
        write_table(_HEADS, map(_row, found))
    return exits.OK


@app.command
async def show(space: str, id: str, *, session: Session = PLAIN) -> int:
    """Print a task with its payload, holder, progress, attempts and steps, as JSON.

    Args:
        space: The space.
        id: The id of the task.
    """
    async with session.opened() as ks:
        queue = ks.space(space).queue
        found = await queue.get(id, payload=True)
        if found is None:
            raise await _unknown(queue, space, id, session)
        attempts = [fields_of(each, *Attempt.__slots__) for each in await queue.attempts(id)]
        steps = [fields_of(each, *Step.__slots__) for each in await queue.steps(id)]
    task = fields_of(found, *TaskInfo.__slots__)
    (write_json if session.json else write_indented)(task | {"attempts": attempts, "steps": steps})
    return exits.OK


@app.command
async def pause(
    space: str | None = None,
    *,
    kind: Annotated[str | None, Parameter(help="Pause only tasks of this kind.")] = None,
    under: Annotated[str | None, UNDER] = None,
    tenants: Annotated[bool, TENANTS] = False,
    session: Session = PLAIN,
) -> int:
    """Claim no more tasks, in no process, until resume. Tasks that are held go on.

    Args:
        space: The space.
    """

    async def change(queue: Queue | Queues) -> int:
        return _write_changed("paused", await queue.pause(kind), session)

    return await _with_queues(change, space, under, session, tenants=tenants)


@app.command
async def resume(
    space: str | None = None,
    *,
    kind: Annotated[str | None, Parameter(help="Resume only tasks of this kind.")] = None,
    under: Annotated[str | None, UNDER] = None,
    tenants: Annotated[bool, TENANTS] = False,
    session: Session = PLAIN,
) -> int:
    """Let workers claim tasks again. A kind that was paused by itself is resumed by its name only.

    Args:
        space: The space.
    """

    async def change(queue: Queue | Queues) -> int:
        return _write_changed("resumed", await queue.resume(kind), session)

    return await _with_queues(change, space, under, session, tenants=tenants)


@app.command
async def configure(space: str, rules: str | None = None, *, session: Session = PLAIN) -> int:
    """Set limits, aging and retries of a queue, instead of those set before. Without RULES, print them.

    Args:
        space: The space.
        rules: JSON with limits, aging_s and retry, each optional; {} for none of them.
    """
    given = None if rules is None else arguments_in(read_value(rules))
    async with session.opened() as ks:
        queue = ks.space(space).queue
        if given is not None:
            await queue.configure(**given)
        found = msgspec.json.decode(msgspec.json.encode(await queue.rules()))
    shown = {name: found[name] for name in ("limits", "aging_s", "retry")}
    (write_json if session.json else write_indented)(shown)
    return exits.OK


@app.command
async def requeue(
    space: str | None = None,
    *id: str,
    kind: Annotated[str | None, Parameter(help="Only tasks of this kind.")] = None,
    since: Annotated[
        str | None, Parameter(help="Only tasks that died since then: 90s, 30m, 12h, 30d, or a time.")
    ] = None,
    limit: Annotated[int, Parameter(help="Requeue at most N tasks.")] = _MOST_REQUEUED,
    under: Annotated[str | None, UNDER] = None,
    tenants: Annotated[bool, TENANTS] = False,
    session: Session = PLAIN,
) -> int:
    """Make dead tasks ready again, with all their attempts, and print their number.

    Args:
        space: The space.
        id: The tasks. Without an id: those of --kind and --since, or with neither, all dead ones.
    """
    if id and (kind is not None or since is not None):
        raise InvalidError("give the ids of tasks, or --kind and --since")
    moment = read_since("1970-01-01T00:00:00Z" if since is None else since)

    async def change(queue: Queue | Queues) -> int:
        failures: dict[str, KeepstateError] = {}
        if isinstance(queue, Queue) and id:
            number = await _requeue_each(queue, id, failures)
        else:
            number = await queue.requeue(kind=kind, since=moment, limit=limit)
        session.write({"requeued": number}, f"{counted(number, 'task')} requeued")
        return _write_failures(failures, session.command("queue", "list", str(space), "dead"))

    return await _with_queues(change, space, under, session, tenants=tenants)


async def _requeue_each(queue: Queue, ids: Sequence[str], failures: dict[str, KeepstateError]) -> int:
    """Requeue dead tasks in batches; in a batch with one that cannot be, one by one. Return their number."""
    done: list[str] = []
    with _counting("requeued", done):
        for start in range(0, len(ids), _REQUEUED_AT_ONCE):
            some = ids[start : start + _REQUEUED_AT_ONCE]
            try:
                await queue.requeue(*some)
            except (NotFoundError, TransitionError):
                done += await _requeue_alone(queue, some, failures)
            else:
                done += some
    return len(done)


async def _requeue_alone(queue: Queue, ids: Sequence[str], failures: dict[str, KeepstateError]) -> list[str]:
    """Requeue dead tasks one by one, and return the ids of those that could be."""
    done: list[str] = []
    for id in ids:
        try:
            await queue.requeue(id)
        except NotFoundError:
            failures[id] = NotFoundError("no dead task has this id")
        except TransitionError as error:
            failures[id] = error
        else:
            done.append(id)
    return done


@contextmanager
def _counting(what: str, done: Sequence[str]) -> Generator[None]:
    """Say what was done before an error that ends a command."""
    try:
        yield
    except KeepstateError:
        said().print(plain(f"keepstate: {counted(len(done), 'task')} {what} before this error:"))
        raise


def _write_failures(failures: Mapping[str, KeepstateError], see: str) -> int:
    """Print the first failures, and return the exit code."""
    for id, error in [*failures.items()][:_SHOWN_FAILURES]:
        said().print(plain(f"keepstate: {id!r}: {error.message}"))
    if (more := len(failures) - _SHOWN_FAILURES) > 0:
        said().print(plain(f"keepstate: and {more:,} more"))
    if failures:
        said().print(plain(f"keepstate: {counted(len(failures), 'task')} left as before; see: {see}"))
    return exits.FAILED if failures else exits.OK


@app.command
async def cancel(
    space: str,
    *id: str,
    reason: Annotated[str, Parameter(help="The reason; stored with the task.")] = "",
    session: Session = PLAIN,
) -> int:
    """Cancel tasks that have not ended, also while workers hold them. Exit with 1 if one has ended.

    Args:
        space: The space.
        id: The ids of the tasks.
    """
    if not id:
        raise InvalidError("queue cancel needs the ids of tasks")
    failures: dict[str, KeepstateError] = {}
    async with session.opened() as ks:
        await require_space(ks, space)
        queue, done = ks.space(space).queue, list[str]()
        with _counting("cancelled", done):
            for each in id:
                if is_cancelled := await queue.cancel(each, reason=reason):
                    done.append(each)
                else:
                    failures[each] = NotFoundError("no task that has not ended has this id")
                if is_cancelled or session.json:
                    session.write({"task": each, "cancelled": is_cancelled}, f"{each} cancelled")
    return _write_failures(failures, session.command("queue", "list", space))


@app.command
async def rerun(
    space: str,
    id: str,
    *,
    from_step: Annotated[
        str | None, Parameter(help="Keep the steps before this one; by default, keep none.")
    ] = None,
    as_id: Annotated[
        str | None, Parameter(help="Run a copy under this id, whatever the state of the task.")
    ] = None,
    session: Session = PLAIN,
) -> int:
    """Run an ended task again, with the same payload.

    Args:
        space: The space.
        id: The id of the task.
    """
    async with session.opened() as ks:
        queue = ks.space(space).queue
        found = await queue.get(id)
        if found is None:
            raise await _unknown(queue, space, id, session)
        if as_id is None and found.state not in ("done", "dead", "cancelled"):
            raise InvalidError(f"task {id!r} is {found.state}; give --as-id to run a copy of it")
        if from_step is not None:
            await _require_step(queue, space, id, from_step, session)
        put = await queue.rerun(id, from_step=from_step, as_id=as_id)
    if not put.added:
        raise InvalidError(f"a task of {space!r} has the id {put.id!r} already; give another --as-id")
    session.write({"task": put.id, "state": put.state}, f"{put.id} {put.state}")
    return exits.OK


async def _require_step(queue: Queue, space: str, id: str, step: str, session: Session) -> None:
    known = [each.name for each in await queue.steps(id)]
    if step not in known:
        see = session.command("queue", "show", space, id)
        raise NotFoundError(f"task {id!r} has no step {step!r}; {nearest(step, known)}see: {see}")


async def _with_queues(
    work: Callable[[Queue | Queues], Awaitable[int]],
    space: str | None,
    under: str | None,
    session: Session,
    *,
    tenants: bool,
) -> int:
    """Call a function with the queue of a space, or with those of all spaces under a name."""
    async with _opened(space, under, session, tenants=tenants) as (_, queue):
        return await work(queue)


@asynccontextmanager
async def _opened(
    space: str | None, under: str | None, session: Session, *, tenants: bool
) -> AsyncGenerator[tuple[Keepstate, Queue | Queues]]:
    """Open the store, and yield it with the queue of a space, or with those of all spaces under a name."""
    if (space is None) == (under is None):
        raise InvalidError("name one space, or all below a name by --under NAME; --under '' is all spaces")
    if tenants and under is None:
        raise InvalidError("--tenants is for --under; a space has one tenant: give --tenant")
    if tenants and session.tenant is not None:
        raise InvalidError("--tenants is for all tenants; give no --tenant")
    async with session.opened() as ks:
        if space is None:
            yield ks, ks.queues(under or "", tenant=ALL if tenants else OWN)
            return
        await require_space(ks, space)
        yield ks, ks.space(space).queue


def _write_changed(what: str, number: int | None, session: Session) -> int:
    number = 1 if number is None else number
    session.write({what: number}, f"{counted(number, 'queue')} {what}")
    return exits.OK


async def _unknown(queue: Queue, space: str, id: str, session: Session) -> NotFoundError:
    hint = nearest(id, [task.id for task in await queue.list(limit=_LIMIT)])
    see = session.command("queue", "list", space)
    return NotFoundError(f"no task of {space!r} has the id {id!r}; {hint}see: {see}")


def _dead_row(found: SpaceTask, *, with_tenant: bool) -> tuple[object, ...]:
    task, attempt = found.task, f"{found.task.attempt} of {found.task.max_attempts}"
    row = (found.space, task.id, task.kind, attempt, utc(task.due_at), task.error or "")
    return ("-" if found.tenant is None else repr(found.tenant), *row) if with_tenant else row


def _row(task: TaskInfo) -> tuple[object, ...]:
    attempt = f"{task.attempt} of {task.max_attempts}"
    end = task.error or ("" if task.result is None else text_of(task.result))
    return task.id, task.priority, attempt, task.worker or "", utc(task.due_at), end
