"""The log of executions, and which of them run: each with the time until which somebody is at it.

A process that dies leaves its executions running. They are stale when their time is over, which a heartbeat
moves on; until then nobody else may start them, and nothing removes them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from keepstate.managers.binding import Folder
from keepstate.managers.names import ending, segment
from keepstate.managers.tools.keys import ascending, inverted
from keepstate.managers.tools.records import ToolExecution, ToolExecutionStatus


@dataclass(frozen=True, slots=True)
class Logged:
    """An execution as it stands in the log.

    Attributes:
        execution: Itself.
        place: The name of its document in the log.
        since_ms: Since when its last attempt runs, by the store's clock.
        until_ms: Until when somebody is at it; None if nobody has said.
    """

    execution: ToolExecution
    place: str
    since_ms: int
    until_ms: int | None = None

    def is_stale(self, now_ms: int) -> bool:
        """Return whether it runs, and nobody is at it any more."""
        is_running = self.execution.status is ToolExecutionStatus.RUNNING
        return is_running and self.until_ms is not None and self.until_ms <= now_ms


def new_place(folder: Folder, execution: ToolExecution, now_ms: int) -> str:
    """Return where in the log an execution goes that begins now."""
    id = ending(execution.execution_id)
    return folder.name("log", segment(execution.tool_name), inverted(now_ms), id)


async def find(folder: Folder, execution_id: str) -> Logged | None:
    """Return an execution, or None if there is none of this id."""
    known: dict[str, Any] | None = await folder.space.documents.get(folder.name("run", execution_id))
    if known is None:
        return None
    execution: ToolExecution | None = await folder.space.documents.get(known["place"])
    if execution is None:
        return None
    return Logged(execution, known["place"], known["since_ms"], known.get("until_ms"))


async def put(folder: Folder, before: Logged | None, now: Logged) -> None:
    """Write an execution in place of what stood there before."""
    documents, id = folder.space.documents, now.execution.execution_id
    if before is not None and before.until_ms is not None:
        await documents.delete(_open_place(folder, before))
    if now.until_ms is not None:
        await documents.put(_open_place(folder, now), id)
    known = {"place": now.place, "since_ms": now.since_ms, "until_ms": now.until_ms}
    await documents.put(folder.name("run", id), known)
    await documents.put(now.place, now.execution)


async def remove(folder: Folder, logged: Logged) -> None:
    """Remove an execution."""
    await folder.space.documents.delete(logged.place)
    await folder.space.documents.delete(folder.name("run", logged.execution.execution_id))
    if logged.until_ms is not None:
        await folder.space.documents.delete(_open_place(folder, logged))


async def stale(folder: Folder, before_ms: int) -> AsyncIterator[tuple[str, str]]:
    """Yield executions at which nobody was from then on: when that time came, as text, and their ids."""
    async for name, execution_id in folder.values("open"):
        until = name.partition("/")[0]
        if until > ascending(before_ms):  # the earliest stand first
            return
        yield until, execution_id


def _open_place(folder: Folder, logged: Logged) -> str:
    return folder.name("open", ascending(logged.until_ms or 0), ending(logged.execution.execution_id))
