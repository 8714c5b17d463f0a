"""The log of executions, and the running ones with the end of their leases.

A process that dies leaves its executions in `RUNNING`. They are stale after the end of their lease, which a
heartbeat extends. Until then they cannot be started again and are not removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from keepstate.managers.binding import Namespace
from keepstate.managers.names import to_last_segment, to_segment
from keepstate.managers.tools.keys import to_ascending, to_inverted
from keepstate.managers.tools.records import ToolExecution, ToolExecutionStatus


@dataclass(frozen=True, slots=True)
class LoggedExecution:
    """An execution in the log.

    Attributes:
        execution: The execution.
        key: The name of its document in the log.
        since_ms: Start of its last attempt, by the store's clock.
        until_ms: End of its lease, by the store's clock; None without a lease.
    """

    execution: ToolExecution
    key: str
    since_ms: int
    until_ms: int | None = None

    def is_stale(self, now_ms: int) -> bool:
        """Return whether the execution is running and its lease has ended."""
        is_running = self.execution.status is ToolExecutionStatus.RUNNING
        return is_running and self.until_ms is not None and self.until_ms <= now_ms


def new_key(namespace: Namespace, execution: ToolExecution, now_ms: int) -> str:
    """Return the name in the log of an execution that starts now."""
    id = to_last_segment(execution.execution_id)
    return namespace.name("log", to_segment(execution.tool_name), to_inverted(now_ms), id)


async def find(namespace: Namespace, execution_id: str) -> LoggedExecution | None:
    """Return an execution, or None if there is none with this id."""
    known: dict[str, Any] | None = await namespace.get("run", execution_id)
    if known is None:
        return None
    execution: ToolExecution | None = await namespace.space.documents.get(known["place"])
    if execution is None:
        return None
    return LoggedExecution(execution, known["place"], known["since_ms"], known.get("until_ms"))


async def put(namespace: Namespace, before: LoggedExecution | None, now: LoggedExecution) -> None:
    """Replace an execution in the log."""
    documents, id = namespace.space.documents, now.execution.execution_id
    if before is not None and before.until_ms is not None:
        await documents.delete(_open_key(namespace, before))
    if now.until_ms is not None:
        await documents.put(_open_key(namespace, now), id)
    known = {"place": now.key, "since_ms": now.since_ms, "until_ms": now.until_ms}
    await documents.put(namespace.name("run", id), known)
    await documents.put(now.key, now.execution)


async def remove(namespace: Namespace, logged: LoggedExecution) -> None:
    """Remove an execution."""
    await namespace.space.documents.delete(logged.key)
    await namespace.delete("run", logged.execution.execution_id)
    if logged.until_ms is not None:
        await namespace.space.documents.delete(_open_key(namespace, logged))


async def find_stale(namespace: Namespace, before_ms: int) -> AsyncIterator[tuple[str, str]]:
    """Yield executions whose leases ended by a time: the end of the lease as text, and the id."""
    async for name, execution_id in namespace.collection("open").items():
        until = name.partition("/")[0]
        if until > to_ascending(before_ms):  # the earliest come first
            return
        yield until, execution_id


def _open_key(namespace: Namespace, logged: LoggedExecution) -> str:
    return namespace.name(
        "open", to_ascending(logged.until_ms or 0), to_last_segment(logged.execution.execution_id)
    )
