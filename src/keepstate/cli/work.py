"""Commands on work in progress: worker (on the tasks of one space or many), diagram (a state machine)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from keepstate._deferral import defer_imports
from keepstate.cli import exits
from keepstate.cli.display import fields_of, log_to_stderr, plain, said, shown, write_json
from keepstate.cli.session import PLAIN, Session, import_named
from keepstate.errors import InvalidError, NotFoundError
from keepstate.sessions.machine import AgentStateMachine
from keepstate.sessions.table import Table, table_of

if TYPE_CHECKING:
    from keepstate.engine.space import deliveries as _deliveries
else:
    defer_imports(globals(), _deliveries="keepstate.engine.space.deliveries")

_MACHINE = ("STATES", "TRANSITIONS", "WAITING", "diagram")


async def worker(
    space: str,
    handlers: str | None = None,
    *,
    under: Annotated[
        str | None, Parameter(help="Serve all spaces of this name and below it, in turns, instead of SPACE.")
    ] = None,
    concurrency: Annotated[int, Parameter(help="Work on at most N tasks at once.")] = 10,
    lease_s: Annotated[
        float, Parameter(help="Let another worker take a task S seconds after this one died.")
    ] = 60,
    timeout_s: Annotated[float | None, Parameter(help="Fail an attempt that takes longer.")] = None,
    drain_s: Annotated[float, Parameter(help="Let handlers end for S seconds after SIGTERM.")] = 30,
    idle_s: Annotated[float | None, Parameter(help="End after S seconds without a task.")] = None,
    session: Session = PLAIN,
) -> int:
    """Work on the tasks of a space, or of many, until SIGTERM or Ctrl-C, and print what was done.

    Args:
        space: The space. With --under, give HANDLERS in its place.
        handlers: MODULE:NAME of a function of a task, or of a dict of such functions by kind.
    """
    if under is not None and handlers is not None:
        raise InvalidError(f"give the space {space!r} or --under {under!r}, not both")
    named = space if under is not None else handlers
    if named is None:
        raise InvalidError(
            f"give the handlers after the space {space!r}, as MODULE:HANDLERS, or --under for many spaces"
        )
    session.load()
    found = import_named(named, "MODULE:HANDLERS")
    log_to_stderr()
    async with session.opened() as ks:
        options: dict[str, Any] = {
            "concurrency": concurrency, "lease_s": lease_s, "timeout_s": timeout_s, "drain_s": drain_s,
            "idle_s": idle_s,
        }  # fmt: skip
        where = f"in {space}" if under is None else f"under {under!r}"
        said().print(plain(f"working on tasks {where} of {ks.url}; errors are logged here; Ctrl-C stops"))
        if under is not None:
            report = await ks.queues(under).run(found, **options)
        else:
            async with _deliveries.Deliveries(ks, space).running():
                report = await ks.space(space).queue.run(found, **options)
    if session.json:
        write_json(asdict(report))
    else:
        shown().print(str(report), markup=False)
    return exits.OK


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
