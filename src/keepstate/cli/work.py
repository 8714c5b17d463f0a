"""Commands on work in progress: queue (the tasks of a space), worker, diagram (a state machine)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import fields_of, seconds, shown, text_of, write_json, write_table
from keepstate.cli.session import PLAIN, Session, import_named
from keepstate.engine.queue.attempts import Attempt
from keepstate.engine.queue.queue import Queue
from keepstate.engine.queue.tasks import TaskInfo, TaskState
from keepstate.errors import InvalidError, NotFoundError
from keepstate.sessions.machine import AgentStateMachine
from keepstate.sessions.table import Table, table_of

_LIMIT = 100
_HEADS = ("id", "priority", "attempt", "worker", "due", "error or result")
_MACHINE = ("STATES", "TRANSITIONS", "WAITING", "diagram")


async def queue(
    space: str,
    state: TaskState | None = None,
    *,
    after: Annotated[str | None, Parameter(help="Start after the task with this cursor.")] = None,
    limit: Annotated[int | None, Parameter(help="List at most N tasks, instead of 100.")] = None,
    requeue: Annotated[str | None, Parameter(help="Make the dead task of this id ready again.")] = None,
    show: Annotated[str | None, Parameter(help="Print the task of this id with its attempts.")] = None,
    cancel: Annotated[str | None, Parameter(help="Cancel the task of this id.")] = None,
    rerun: Annotated[str | None, Parameter(help="Run the ended task of this id again.")] = None,
    reason: Annotated[str, Parameter(help="The reason for --cancel.")] = "",
    session: Session = PLAIN,
) -> int:
    """Count the tasks of a space by state, or list those of one state.

    Args:
        space: The space.
        state: ready, waiting, claimed, done, dead or cancelled. Without it, the tasks are counted.
    """
    if state is None and (after is not None or limit is not None):
        raise InvalidError(
            "--after and --limit are for a list; name a state: ready, waiting, claimed, done, dead or "
            "cancelled"
        )
    given = {"--requeue": requeue, "--show": show, "--cancel": cancel, "--rerun": rerun}
    chosen = [name for name, id in given.items() if id is not None]
    if state is not None and chosen:
        raise InvalidError(f"{chosen[0]} is not for a list; leave out {state!r}")
    if len(chosen) > 1:
        raise InvalidError(f"{chosen[0]} and {chosen[1]} are two commands; give one of them")
    if reason and cancel is None:
        raise InvalidError("--reason is for --cancel; name a task to cancel")
    async with session.opened() as ks:
        tasks = ks.space(space).queue
        if show is not None:
            return await _show(tasks, show, space)
        if requeue is not None:
            await _requeue(tasks, requeue, space, session)
        if cancel is not None and not await tasks.cancel(cancel, reason=reason):
            raise NotFoundError(f"no task of {space!r} that has not ended has the id {cancel!r}")
        if rerun is not None:
            await tasks.rerun(rerun)
        if state is None:
            counts = await tasks.counts()
            if session.json:
                write_json(counts)
            for name, count in () if session.json else counts.items():
                shown().print(f"{name:<9} {count:>7}")
            return exits.OK
        found = await tasks.list(state, after=after, limit=_LIMIT if limit is None else limit)
    if session.json:
        for task in found:
            write_json(fields_of(task, *TaskInfo.__slots__))
    else:
        write_table(_HEADS, map(_row, found))
    return exits.OK


async def _requeue(tasks: Queue, id: str, space: str, session: Session) -> None:
    try:
        await tasks.requeue(id)
    except NotFoundError as error:
        see = session.command("queue", space, "dead")
        raise NotFoundError(f"no dead task of {space!r} has the id {id!r}; see: {see}") from error


async def _show(tasks: Queue, id: str, space: str) -> int:
    """Print a task with its payload and its attempts as JSON."""
    found = await tasks.get(id, payload=True)
    if found is None:
        raise NotFoundError(f"no task of {space!r} has the id {id!r}")
    attempts = [fields_of(each, *Attempt.__slots__) for each in await tasks.attempts(id)]
    write_json(fields_of(found, *TaskInfo.__slots__) | {"attempts": attempts})
    return exits.OK


async def worker(
    space: str,
    handlers: str,
    *,
    concurrency: Annotated[int, Parameter(help="Work on at most N tasks at once.")] = 10,
    lease_s: Annotated[float, Parameter(help="Let others have a task if this worker is dead for S s.")] = 60,
    timeout_s: Annotated[float | None, Parameter(help="Fail an attempt that takes longer.")] = None,
    drain_s: Annotated[float, Parameter(help="Let handlers end for S seconds after SIGTERM.")] = 30,
    idle_s: Annotated[float | None, Parameter(help="End after S seconds without a task.")] = None,
    session: Session = PLAIN,
) -> int:
    """Work on the tasks of a space until SIGTERM or Ctrl-C, and print what was done.

    Args:
        space: The space.
        handlers: MODULE:NAME of a function of a task, or of a dict of such functions by kind.
    """
    session.load()
    found = import_named(handlers, "MODULE:HANDLERS")
    async with session.opened() as ks:
        report = await ks.space(space).queue.run(
            found,
            concurrency=concurrency,
            lease_s=lease_s,
            timeout_s=timeout_s,
            drain_s=drain_s,
            idle_s=idle_s,
        )
    if session.json:
        write_json(asdict(report))
    else:
        shown().print(str(report), markup=False)
    return exits.OK


def _row(task: TaskInfo) -> tuple[object, ...]:
    attempt = f"{task.attempt} of {task.max_attempts}"
    end = task.error or ("" if task.result is None else text_of(task.result))
    return task.id, task.priority, attempt, task.worker or "", seconds(task.due_at), end


async def diagram(
    machine: str,
    *,
    id: Annotated[
        str | None, Parameter(help="Highlight the present state of the machine of this id.")
    ] = None,
    session: Session = PLAIN,
) -> int:
    """Print a state machine as a Mermaid state diagram.

    Args:
        machine: MODULE:CLASS, or MODULE:OBJECT.
    """
    session.load()
    found = import_named(machine, "MODULE:CLASS")
    if not all(hasattr(found, name) for name in _MACHINE):
        raise InvalidError(
            f"{machine} is {found!r}; name a subclass of AgentStateMachine, or an object of one"
        )
    if not isinstance(found, type) and id is not None:
        raise InvalidError("--id is for a class; an object has its own")
    if id is not None:
        drawn = await _draw(table_of(found), id, session)
    else:
        drawn = (table_of(found) if isinstance(found, type) else found).diagram()
    write_json({"diagram": drawn}) if session.json else shown().print(drawn, markup=False)
    return exits.OK


async def _draw(table: Table, id: str, session: Session) -> str:
    """Return the diagram of a stored machine."""
    parts: dict[str, Any] = fields_of(table, "states", "transitions", "waiting")
    async with session.opened() as ks:
        machine = AgentStateMachine(id, persistence=ks, **parts)
        if await anext(ks.space(f"machine/{id}").documents.keys(), None) is None:
            raise NotFoundError(f"there is no machine {id!r}; `keepstate spaces machine/` lists them")
        await machine.refresh()
        return machine.diagram()
