"""State machines: diagram."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.session import Session, shown, write_json
from keepstate.errors import InvalidError, NotFoundError
from keepstate.sessions.machine import AgentStateMachine
from keepstate.sessions.table import Table, table_of

_PLAIN = Session()


async def diagram(
    machine: str,
    *,
    id: Annotated[str | None, Parameter(help="Set off the present state of the machine of this id.")] = None,
    session: Session = _PLAIN,
) -> int:
    """Print a state machine as a Mermaid state diagram.

    Args:
        machine: MODULE:CLASS, or MODULE:OBJECT.
    """
    session.load()
    found = _imported(machine)
    if not isinstance(found, Table):
        if id is not None:
            raise InvalidError("--id is for a class; an object has its own")
        drawn: str = found.diagram()
    elif id is None:
        drawn = found.diagram()
    else:
        table: dict[str, Any] = {
            "states": found.states,
            "transitions": found.transitions,
            "waiting": found.waiting,
        }
        async with session.opened() as ks:
            kept = AgentStateMachine(id, persistence=ks, **table)
            documents = ks.space(f"machine/{id}").documents
            if await anext(documents.keys(), None) is None:
                raise NotFoundError(f"there is no machine {id!r}; `keepstate spaces machine/` lists them")
            await kept.refresh()
            drawn = kept.diagram()
    write_json({"diagram": drawn}) if session.json else shown().print(drawn, markup=False)
    return exits.OK


def _imported(name: str) -> Any:
    """Return a machine, or the table of a class of machines; both in either colour."""
    module, colon, attribute = name.partition(":")
    if not colon:
        raise InvalidError(f"{name!r} names no machine; write MODULE:CLASS")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = getattr(import_module(module), attribute)
    except Exception as error:  # whatever the application's own module raises
        raise InvalidError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if not all(hasattr(found, told) for told in ("STATES", "TRANSITIONS", "WAITING", "diagram")):
        raise InvalidError(f"{name} is {found!r}; name a class below AgentStateMachine, or an object of one")
    return table_of(found) if isinstance(found, type) else found
