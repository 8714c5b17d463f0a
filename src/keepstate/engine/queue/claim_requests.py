"""Requests of workers for tasks, and the claims that wait for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from keepstate._runner import Promise, Signal
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import (
    CorruptError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    UnsupportedError,
)
from keepstate.stores.protocol import Entry

if TYPE_CHECKING:
    from keepstate.engine.kernel.executor import Executor

UNREADABLE: Final = CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""Permanent errors of a payload: for example, its class is not registered, or has a newer version."""


Won = tuple[TaskRecord, Any, bytes]
"""The record of a claimed task, its payload, and the payload as it is stored."""
Claimed = tuple[TaskRecord, Any, bytes, int]
"""The same, and the revision of the claim, 0 inside a transaction."""
Match = Callable[[str, Any], bool]
"""Returns whether a worker can do a task, given its id and payload."""
TaskFilter = Callable[[str, Any, Mapping[str, Any]], bool]
"""As `Match`, but also takes the requested documents that exist, by name."""
OnClaim = Callable[[Unit, str, str | None], Awaitable[None]]
"""Adds writes to the claiming batch. Takes its unit, the task's id, and the task's previous worker."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A worker's request for tasks.

    Attributes:
        worker: The name of the worker.
        lease_ms: The duration of the lease.
        losses: The detector of losses that make the claims invalid.
        count: The largest number of tasks to claim.
        wait_s: Seconds to wait for the first task.
        match: Returns whether to claim a task.
        documents: The names of the documents that `match` takes, and that `on_claim` reads without cost.
        on_claim: Adds writes to the claiming batch.
        kinds: The kinds of tasks to claim; None for all.
    """

    worker: str
    lease_ms: int
    losses: LossDetector
    count: int = 1
    wait_s: float = 0
    match: TaskFilter | None = None
    documents: Sequence[str] = ()
    on_claim: OnClaim | None = None
    kinds: frozenset[str] | None = None

    @property
    def is_shared(self) -> bool:
        """True if one batch may claim for this request and for others."""
        return self.match is None and self.on_claim is None


WriteClaim: TypeAlias = Callable[
    [Unit, TaskRecord, int, ClaimRequest, Sequence[bytes]], Awaitable[TaskRecord]
]
"""Moves a task to claimed. Takes the unit, the record and its version, the request, and the task's slots."""


class PendingClaim:
    """One claim that waits for tasks.

    Attributes:
        request: The worker's request.
        found: The tasks claimed so far.
        first_error: The error of the first ready task that this process cannot read; None without any.
    """

    def __init__(self, request: ClaimRequest, promise: Promise[None] | None, ended: Signal) -> None:
        self.request, self.promise, self.ended = request, promise, ended
        self.found: list[Claimed] = []
        self.first_error: KeepstateError | None = None
        self.error: BaseException | None = None
        self.is_over = self.is_abandoned = False

    @property
    def left(self) -> int:
        """The number of tasks that it still wants."""
        return self.request.count - len(self.found)

    def finish(self, error: BaseException | None = None) -> None:
        """End the claim; a later call does nothing."""
        if self.is_over:
            return
        self.error, self.is_over = error, True
        if self.promise is not None:
            self.promise.give(None)


def accepts(ticket: PendingClaim, kind: str) -> bool:
    """Return whether a claim wants tasks of a kind."""
    return ticket.request.kinds is None or kind in ticket.request.kinds


def ready_record(executor: Executor, stored: Entry | None, index: Entry) -> tasks.TaskRecord | None:
    """Return the record of a task if it still belongs to this entry of the ready index."""
    if stored is None:
        return None
    record = tasks.decode_record(stored.value, f"task {tasks.id_in(index)!r} of {executor.name!r}")
    stands = record.state == "ready" and tasks.index_key(record, stored.version) == index.key
    return record if stands else None
