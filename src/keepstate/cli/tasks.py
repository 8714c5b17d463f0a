"""The tasks of a space: queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from keepstate.cli import exits
from keepstate.cli.session import Session, plain, shown, text_of, write_json
from keepstate.engine.queue.queue import Queue
from keepstate.engine.queue.tasks import TaskInfo, TaskState
from keepstate.errors import InvalidError, NotFoundError

_PLAIN = Session()
_LIMIT = 100


async def queue(
    space: str,
    state: TaskState | None = None,
    *,
    after: Annotated[str | None, Parameter(help="Go on behind the task with this cursor.")] = None,
    limit: Annotated[int | None, Parameter(help="How many tasks at the most; 100 if not given.")] = None,
    requeue: Annotated[str | None, Parameter(help="Give the dead task of this id another chance.")] = None,
    session: Session = _PLAIN,
) -> int:
    """Count the tasks of a space by state, or list those of one state.

    Args:
        space: The space.
        state: ready, waiting, claimed, done or dead; without it they are counted.
    """
    if state is None and (after is not None or limit is not None):
        raise InvalidError(
            "--after and --limit are for a list; name a state: ready, waiting, claimed, done or dead"
        )
    if state is not None and requeue is not None:
        raise InvalidError(f"--requeue is not for a list; leave out {state!r}")
    async with session.opened() as ks:
        tasks = ks.space(space).queue
        if requeue is not None:
            await _requeue(tasks, requeue, space, session)
        if state is None:
            counts = await tasks.counts()
            if session.json:
                write_json(counts)
            else:
                for name, count in counts.items():
                    shown().print(f"{name:<8} {count:>8}")
            return exits.OK
        _show(await tasks.list(state, after=after, limit=_LIMIT if limit is None else limit), session)
    return exits.OK


async def _requeue(tasks: Queue, id: str, space: str, session: Session) -> None:
    try:
        await tasks.requeue(id)
    except NotFoundError as error:
        see = session.command("queue", space, "dead")
        raise NotFoundError(f"no dead task of {space!r} has the id {id!r}; see: {see}") from error


def _show(found: Sequence[TaskInfo], session: Session) -> None:
    if session.json:
        for task in found:
            write_json({name: getattr(task, name) for name in TaskInfo.__slots__})
        return
    table = Table("id", "priority", "attempt", "worker", "due", "error or result", box=None, pad_edge=False)
    for task in found:
        said = task.error or ("" if task.result is None else text_of(task.result))
        table.add_row(
            plain(task.id),
            str(task.priority),
            f"{task.attempt} of {task.max_attempts}",
            plain(task.worker or ""),
            task.due_at.isoformat(sep=" ", timespec="seconds"),
            plain(said),
        )
    if found:
        shown().print(table)
