"""A transaction: the parts of a space, gathering one batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from keepstate.engine.kernel.arguments import check_attribution, check_message, require_instance
from keepstate.engine.kernel.executor import Executor, SpaceExecutor, TransactionExecutor, call_function
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.lease import Lease, fence, lease_lost_error
from keepstate.engine.space.parts import Parts
from keepstate.errors import ConflictError
from keepstate.stores.protocol import Applied


class Transaction(Parts):
    """What is done through it applies together when its block ends.

    It reads what it has itself written, and all else as of one revision. What it appends gets its place then.
    Tasks and threads may share it: their calls follow one another, and those still waiting at the end are
    refused. A function that it calls may use it in turn, in the same thread.

    Attributes:
        space: The name of the space.
        author: Who writes, or None.
        message: What it is for.
    """

    space: str
    author: str | None
    message: str

    def __init__(self, executor: TransactionExecutor) -> None:
        super().__init__(executor)
        self._gathering = executor
        self.space, self.author, self.message = executor.name, executor.author, executor.message

    def __repr__(self) -> str:
        return f"<Transaction on {self.space!r} {'ended' if self._gathering.ended else 'open'}>"

    @property
    def executor(self) -> TransactionExecutor:
        """Return the scope that its parts work in."""
        return self._gathering

    @property
    def revision(self) -> int:
        """The revision that it made, after the end; 0 before, and if it wrote nothing."""
        return self._gathering.revision

    def by(self, author: str | None = None, *, message: str | None = None) -> Transaction:
        """Return the same transaction for one who works in it; asks the store nothing.

        What is recorded of the transaction names all who changed documents in it, and what they did that for.

        Args:
            author: Who writes; without it, who writes here.
            message: What for.
        """
        who, text = check_attribution(self.author, author, "", message)
        return Transaction(self._gathering.by(who, text))


@asynccontextmanager
async def gathering(
    outer: SpaceExecutor, *, lease: Lease | None = None, message: str = ""
) -> AsyncGenerator[Transaction]:
    """Yield a transaction, and apply what it has gathered unless its block raises."""
    message = check_message(message)
    if lease is not None:
        require_instance("lease", lease, Lease)
    executor = TransactionExecutor(
        outer, Unit(await outer.store(), outer.stored_name, outer.name), message=message
    )
    if lease is not None:
        await fence(lease, outer, executor.unit)
    tx = Transaction(executor)
    try:
        try:
            yield tx
        finally:
            executor.end()
        applied = await _applied(executor, lease)
    except BaseException:  # also a cancellation; raised again
        executor.roll_back()
        raise
    if applied is not None and executor.unit.writes:
        executor.applied_at(applied.revision)


async def _applied(executor: TransactionExecutor, lease: Lease | None) -> Applied | None:
    try:
        return await executor.commit()
    except ConflictError as conflict:
        if lease is not None:
            if (lost := lease_lost_error(lease, conflict)) is not None:
                raise lost from conflict
            # Where the body has scanned, the next holder's own entry is the first thing that has changed.
            await lease.check()
        raise


def on_claim(
    executor: Executor, work: Callable[[Transaction, str, str | None], Any]
) -> Callable[[Unit, str, str | None], Awaitable[None]]:
    """Return the `on_claim` of `Queue.claim_with` that calls a function with the claim as a transaction.

    Args:
        executor: The scope of the space.
        work: Gets the transaction, the task's id and the worker that held it before; it may be a coroutine
            function.
    """

    async def joined(unit: Unit, task_id: str, former: str | None) -> None:
        inner = TransactionExecutor(executor, unit)
        try:
            await call_function(work, Transaction(inner), task_id, former)
        except BaseException:  # also a cancellation; raised again
            inner.roll_back()
            raise
        finally:
            inner.end()

    return joined
