"""A transaction: the parts of a space, gathering one batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from keepstate.engine.admission import admit_by, admit_instance, admit_message
from keepstate.engine.lease import Lease, fence, loss_in
from keepstate.engine.parts import Parts
from keepstate.engine.scope import SpaceScope, TransactionScope, called
from keepstate.engine.unit import Unit
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

    def __init__(self, scope: TransactionScope) -> None:
        super().__init__(scope)
        self._gathering = scope
        self.space, self.author, self.message = scope.name, scope.author, scope.message

    def __repr__(self) -> str:
        return f"<Transaction on {self.space!r} {'ended' if self._gathering.ended else 'open'}>"

    @property
    def revision(self) -> int:
        """Returns the revision that it made, after the end; 0 before, and if it wrote nothing."""
        return self._gathering.revision

    def by(self, author: str | None = None, *, message: str | None = None) -> Transaction:
        """Returns the same transaction for one who works in it; asks the store nothing.

        What is recorded of the transaction names all who changed documents in it, and what they did that for.

        Args:
            author: Who writes; without it, who writes here.
            message: What for.
        """
        who, text = admit_by(self.author, author, "", message)
        return Transaction(self._gathering.by(who, text))


@asynccontextmanager
async def gathering(
    outer: SpaceScope, *, lease: Lease | None = None, message: str = ""
) -> AsyncGenerator[Transaction]:
    """Yields a transaction, and applies what it has gathered unless its block raises."""
    message = admit_message(message)
    if lease is not None:
        admit_instance("lease", lease, Lease)
    scope = TransactionScope(outer, Unit(await outer.store(), outer.stored_name, outer.name), message=message)
    if lease is not None:
        await fence(lease, outer, scope.unit)
    tx = Transaction(scope)
    try:
        try:
            yield tx
        finally:
            scope.end()
        applied = await _applied(scope, lease)
    except BaseException:
        scope.take_back()
        raise
    if applied is not None and scope.unit.writes:
        scope.applied_at(applied.revision)


async def _applied(scope: TransactionScope, lease: Lease | None) -> Applied | None:
    try:
        return await scope.commit()
    except ConflictError as conflict:
        if lease is not None:
            if (lost := loss_in(lease, conflict)) is not None:
                raise lost from conflict
            # Where the body has scanned, the next holder's own entry is the first thing that has changed.
            await lease.check()
        raise


async def join(outer: SpaceScope, unit: Unit, work: Callable[[Transaction], Any]) -> None:
    """Lets a caller's function do more in a unit that another work of the space has begun."""
    scope = TransactionScope(outer, unit)
    try:
        await called(work, Transaction(scope))
    except BaseException:
        scope.take_back()
        raise
    finally:
        scope.end()
