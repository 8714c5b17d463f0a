"""Work on several parts that applies as one batch, whether a space was given for it or a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from keepstate.engine.kernel import content_names, layout
from keepstate.engine.kernel.executor import ATTEMPTS
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.update_lock import apply_update, serialized
from keepstate.engine.queue import tasks
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError

T = TypeVar("T")


async def together(
    place: Space | Transaction,
    work: Callable[[Transaction], Awaitable[T]],
    *,
    lease: Lease | None = None,
    message: str = "",
    attempts: int | None = None,
    turn: str | None = None,
) -> T:
    """Return what the work returned, once what it did is applied; or joins the transaction that was given.

    Args:
        place: Where to work.
        work: Does it by the transaction; on a space it is called again when it met a conflict.
        lease: Applies only while this lease is held.
        message: Says what the transaction is for.
        attempts: The most calls. None means 64 without `turn`; with `turn` it retries until that is hopeless,
            as an update of a document does.
        turn: Names what it changes. Work of one process on the same comes one after the other, for it would
            make each other's void.

    Raises:
        AttemptsExhaustedError: Every attempt ended in a conflict; nothing was applied.
        LeaseLostError: The lease is no longer held; nothing was applied.
    """
    if isinstance(place, Transaction):
        if lease is not None:
            raise InvalidError(f"{place!r} is fenced where it begins: give the lease there")
        return await place.executor.run_exclusively(lambda: work(place))

    async def once() -> T:
        async with place.transaction(lease=lease, message=message) as tx:
            return await work(tx)

    alone = place.executor
    if turn is None:
        return await alone.retry(once, ATTEMPTS if attempts is None else attempts)
    mark = b"together/" + turn.encode()  # no key begins so: documents take turns of their own
    return await serialized(
        await alone.store(), alone.stored_name, mark, alone.runner, lambda: alone.retry(once, attempts)
    )


def recorded(place: Space | Transaction) -> Space | Transaction:
    """Return a space that keeps every moment of its documents, or the transaction of one.

    Raises:
        InvalidError: The transaction was begun on a space that was not asked to.
    """
    if isinstance(place, Space):
        alone = place.executor
        home = place.executor.home
        return Space(home, place.name, author=place.author, message=alone.message, record=True)
    if not place.executor.record:
        raise InvalidError(f"{place!r} records nothing; begin it on space({place.space!r}, record=True)")
    return place


async def is_recorded(place: Space | Transaction) -> bool:
    """Whether every moment of the documents is kept."""

    async def work(unit: Unit) -> bool:
        return await unit.get(layout.RECORDED) is not None

    return (await place.executor.run(work))[0]


async def computed(tx: Transaction, name: str, change: Callable[[Any], Any], value: object) -> Any:
    """Return what a caller's function, awaited if it has to be, makes of the value of a document.

    Raises:
        InvalidError: The function has written that document itself, and would be called for ever.
    """
    executor = tx.executor
    key = layout.named_key(layout.DOCUMENTS, name)
    return await apply_update(executor.unit.store, executor.stored_name, key, change, value)


async def keyed_name(place: Space | Transaction, content: bytes) -> bytes | None:
    """Return the name of content in an encrypted store, None in any other; see `content_names`."""
    executor = place.executor
    return content_names.keyed_name(await executor.store(), executor.stored_name, content)


async def content_name(place: Space | Transaction, content: bytes) -> bytes:
    """Return the name of content: a digest, which an encrypted store keys."""
    executor = place.executor
    return content_names.content_name(await executor.store(), executor.stored_name, content)


def on_rollback(place: Space | Transaction, undo: Callable[[], None]) -> None:
    """Call `undo` if work that was just done does not apply: never on a space, where it has applied."""
    place.executor.on_rollback(undo)


async def read_ahead(
    tx: Space | Transaction, *, documents: Sequence[str] = (), task_ids: Sequence[str] = ()
) -> None:
    """Read at once what the work of a transaction will ask for, and so in one round trip.

    The transaction then depends on all of it, whether it asks or not.

    Args:
        tx: The transaction.
        documents: The names of documents.
        task_ids: Tasks, with what they are about.
    """
    keys = [layout.named_key(layout.DOCUMENTS, name) for name in documents]
    keys += [key(task_id) for task_id in task_ids for key in (tasks.task_key, tasks.payload_key)]

    async def work(unit: Unit) -> None:
        await unit.read(*keys)

    await tx.executor.run(work)
