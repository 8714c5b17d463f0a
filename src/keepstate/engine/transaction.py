"""A transaction: the parts of a space, gathering one batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from keepstate.engine.admission import admit_instance, admit_text
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
        message: What it is for.
        revision: The revision that it made, after the end; 0 before, and if it wrote nothing.
    """

    space: str
    revision: int

    def __init__(self, scope: TransactionScope, *, message: str = "") -> None:
        super().__init__(scope)
        self._gathering = scope
        self.space, self.message, self.revision = scope.name, message, 0

    def __repr__(self) -> str:
        return f"<Transaction on {self.space!r} {'ended' if self._gathering.ended else 'open'}>"


@asynccontextmanager
async def gathering(
    outer: SpaceScope, *, lease: Lease | None = None, message: str = ""
) -> AsyncGenerator[Transaction]:
    """Yields a transaction, and applies what it has gathered unless its block raises."""
    message = admit_text("message", message)
    if lease is not None:
        admit_instance("lease", lease, Lease)
    scope = TransactionScope(outer, Unit(await outer.store(), outer.stored_name, outer.name))
    if lease is not None:
        await fence(lease, outer, scope.unit)
    tx = Transaction(scope, message=message)
    try:
        try:
            yield tx
        finally:
            scope.ended = True
        applied = await _applied(scope, lease)
    except BaseException:
        scope.take_back()
        raise
    if applied is not None and scope.unit.writes:
        tx.revision = applied.revision


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
        scope.ended = True
