"""Stores broken on purpose, for the chaos to find out: each function breaks all stores of its process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import count

import msgspec

from keepstate.engine.kernel.unit import Unit
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Applied, Batch, Conflict, Outcome, Reading

Apply = Callable[[StoreBase, Batch], Awaitable[Outcome]]
_EVERY = 20


def drop_checks() -> None:
    """Apply a batch whether its checks hold or not."""

    async def apply(store: StoreBase, batch: Batch, right: Apply) -> Outcome:
        return await right(store, msgspec.structs.replace(batch, checks=()))

    _break(apply)


def acknowledge_and_forget() -> None:
    """Now and then answers as if it had applied a batch."""
    numbers = count(1)

    async def apply(store: StoreBase, batch: Batch, right: Apply) -> Outcome:
        if next(numbers) % _EVERY:
            return await right(store, batch)
        reading = await store.read(batch.space, [])
        return Applied(reading.revision + 1, reading.now_ms)

    _break(apply)


def apply_the_half() -> None:
    """Now and then leaves out a batch's last write."""
    numbers = count(1)

    async def apply(store: StoreBase, batch: Batch, right: Apply) -> Outcome:
        if len(batch.writes) > 1 and next(numbers) % _EVERY == 0:
            batch = msgspec.structs.replace(batch, writes=batch.writes[:-1])
        return await right(store, batch)

    _break(apply)


def apply_twice() -> None:
    """Now and then sends a batch again under another name, as who has no tokens does after a lost reply."""
    numbers = count(1)

    async def apply(store: StoreBase, batch: Batch, right: Apply) -> Outcome:
        outcome = await right(store, batch)
        if isinstance(outcome, Applied) and next(numbers) % _EVERY == 0:
            await right(store, msgspec.structs.replace(batch, checks=(), at=None, token=None))
        return outcome

    _break(apply)


def apply_what_was_refused() -> None:
    """Now and then writes what it then tells to have refused."""
    numbers = count(1)

    async def apply(store: StoreBase, batch: Batch, right: Apply) -> Outcome:
        outcome = await right(store, batch)
        if isinstance(outcome, Conflict) and next(numbers) % _EVERY == 0:
            await right(store, msgspec.structs.replace(batch, checks=(), at=None, token=None))
        return outcome

    _break(apply)


def read_from_a_cache() -> None:
    """Now and then answers a read with what it read before under the same keys."""
    right, known, numbers = StoreBase.read, dict[tuple[object, ...], Reading](), count(1)

    async def read(
        self: StoreBase, space: str, keys: Sequence[bytes], *, at_ms: int | None = None
    ) -> Reading:
        place = (space, at_ms, *keys)
        if keys and place in known and next(numbers) % _EVERY == 0:
            return known[place]
        known[place] = await right(self, space, keys, at_ms=at_ms)
        return known[place]

    StoreBase.read = read  # type: ignore[method-assign]


def guard_scans_by_revision_alone() -> None:
    """Remember no expiry of the entries that a transaction has found."""
    Unit._note_expiry = lambda self, entries: None  # type: ignore[method-assign]


def _break(broken: Callable[[StoreBase, Batch, Apply], Awaitable[Outcome]]) -> None:
    original = StoreBase.apply_checked

    async def right(store: StoreBase, batch: Batch) -> Outcome:
        return (await original(store, [batch], store.check_batches([batch])))[0]

    async def apply(self: StoreBase, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        return [await broken(self, batch, right) for batch in batches]

    StoreBase.apply_checked = apply  # type: ignore[method-assign]
