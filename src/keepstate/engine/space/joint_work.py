"""Work on several parts that applies as one batch, on a space or as part of a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from keepstate.engine.documents.write_rules import read_rules
from keepstate.engine.kernel import layout, store_abilities
from keepstate.engine.kernel.arguments import check_message
from keepstate.engine.kernel.executor import ATTEMPTS
from keepstate.engine.kernel.locks import apply_update
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.space import Space, Transaction, begin_transaction
from keepstate.errors import InvalidError

T = TypeVar("T")


async def run_in_transaction(
    target: Space | Transaction,
    work: Callable[[Transaction], Awaitable[T]],
    *,
    lease: Lease | None = None,
    message: str = "",
    attempts: int | None = None,
    turn: str | None = None,
    supposes: bool = False,
) -> T:
    """Run work in a transaction of its own on a space, or as part of a transaction, and return its result.

    Args:
        target: The space or transaction.
        work: A function of the transaction. On a space it is called again after a conflict.
        lease: Apply the transaction only if this lease is still held.
        message: The purpose of the transaction.
        attempts: The largest number of calls. None means 64 without `turn`. With `turn`, the work is retried
            until that is hopeless, as an update of a document is.
        turn: The name of what the work changes. Work of this process with the same name runs one after the
            other, because concurrent runs would only cause conflicts.
        supposes: Whether the work is first tried on what this process knows of the space; see `Executor.run`.
            Never for work that is a function of the caller.

    Raises:
        AttemptsExhaustedError: Every attempt ended in a conflict. Nothing was applied.
        LeaseLostError: The lease is no longer held. Nothing was applied.
    """
    if isinstance(target, Transaction):
        if lease is not None:
            raise InvalidError(f"{target!r} can check a lease only where it begins; pass the lease there")
        return await target.executor.run_exclusively(lambda: work(target))

    alone, purpose = target.executor, check_message(message)
    store = await alone.store()
    # An observer hears of each run, and what a run on suppositions meets is not to leave the process.
    is_observed = alone.home.observation is not None
    supposes = is_first = supposes and lease is None and store.capabilities.shared and not is_observed

    async def attempt(unit: Unit) -> tuple[T]:
        async with begin_transaction(alone, lease=lease, message=message, unit=unit) as tx:
            answer = await work(tx)
        return (answer,)

    async def once() -> T:
        nonlocal is_first
        if is_first:
            is_first = False
            if (done := await alone.try_supposing(attempt, purpose)) is not None:
                return done[0]
        unit = Unit(store, alone.stored_name, alone.name, purpose=purpose)
        unit.is_learned = supposes
        done = await attempt(unit)
        alone.learn(unit)
        return done[0]

    if turn is None:
        return await alone.retry(once, ATTEMPTS if attempts is None else attempts)
    mark = b"joint/" + turn.encode()  # not the beginning of a key, so it differs from every document
    return await alone.in_turn(mark, lambda: alone.retry(once, attempts))


def require_recorded(target: Space | Transaction) -> Space | Transaction:
    """Return the space with its changes of documents recorded, or a transaction that records.

    Raises:
        InvalidError: The transaction was begun on a space that was opened without `record=True`.
    """
    if isinstance(target, Space):
        alone = target.executor
        return Space(
            alone.home, target.name, author=target.author, message=alone.message, record=True, meta=alone.meta
        )
    if not target.executor.record:
        raise InvalidError(f"{target!r} records nothing; begin it on space({target.space!r}, record=True)")
    return target


async def is_recorded(target: Space | Transaction) -> bool:
    """Return whether every change of the documents is recorded in the history."""
    found = await target.executor.read_once(layout.RULES)
    return found is not None and read_rules(found[0]).is_recorded


async def apply_change(tx: Transaction, name: str, change: Callable[[Any], Any], value: object) -> Any:
    """Return the result of a caller's function, awaited if necessary, for the value of a document.

    Raises:
        InvalidError: The function has written that document itself, and would be called forever.
    """
    executor = tx.executor
    key = layout.named_key(layout.DOCUMENTS, name)
    return await apply_update(executor.unit.store, executor.stored_name, key, change, value)


async def keyed_name(target: Space | Transaction, content: bytes) -> bytes | None:
    """Return the name of content in an encrypted store, None in any other; see `store_abilities`."""
    executor = target.executor
    return store_abilities.keyed_name(await executor.store(), executor.stored_name, content)


async def content_name(target: Space | Transaction, content: bytes) -> bytes:
    """Return the name of content: a digest, which an encrypted store keys."""
    executor = target.executor
    return store_abilities.content_name(await executor.store(), executor.stored_name, content)


def on_rollback(target: Space | Transaction, undo: Callable[[], None]) -> None:
    """Call `undo` if finished work is not applied: never on a space, where it is applied already."""
    target.executor.on_rollback(undo)


async def read_ahead(
    tx: Space | Transaction,
    *,
    documents: Sequence[str] = (),
    task_ids: Sequence[str] = (),
    streams: Sequence[str] = (),
    leases: Sequence[str] = (),
) -> None:
    """Read, in one round trip, the entries that the work of a transaction will need.

    The transaction then depends on all of them, even if the work does not use them.

    Args:
        tx: The transaction.
        documents: The names of documents.
        task_ids: The ids of tasks, whose payloads are read too.
        streams: The names of streams, whose last events are asked for.
        leases: The names of leases.
    """
    keys = [layout.named_key(layout.DOCUMENTS, name) for name in documents]
    keys += [layout.stream_key(layout.HEADS, name) for name in streams]
    keys += [layout.named_key(layout.LEASES, name) for name in leases]
    keys += [key(task_id) for task_id in task_ids for key in (tasks.task_key, tasks.payload_key)]
    await tx.executor.run(lambda unit: unit.read(*keys))
