"""Free capacity of a queue's limits at one moment, less what the present round of claims takes of it.

`Capacity` only chooses. The batch of the claims checks that each slot is still free and that no bucket has
changed, so a limit holds whatever other processes claim at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import corrupt_error, describe
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.rules import LimitRule, QueueRules
from keepstate.engine.queue.slots import counter_name, free_numbers, number_in, slot_key, slot_name
from keepstate.stores.protocol import ABSENT, Entry, Store
from keepstate.values import limits
from keepstate.values.key import pack, unpack

if TYPE_CHECKING:
    from keepstate.engine.kernel.executor import Executor

_SCANNED_RUNNING: Final = 2_048
"""The largest limit whose slots are all scanned. Of a larger one, some numbers are tried by chance."""
_TRIED: Final = 128
_NS: Final = 1_000_000
"""Nanoseconds in a millisecond."""
_MOST_CHECKED: Final = 500
"""Number of slots that a batch checks to prove that a limit is reached."""


class Block(msgspec.Struct, frozen=True):
    """The reason for which a task cannot start now.

    Attributes:
        counter: The name of the counter of the key that is at its limit; None if the limit is not of a key.
        slots: The slots that are taken, whose presence proves it.
        until_ms: The time of the next start; None if a task has to end first.
        bucket: The key and the version of the bucket that tells this time.
        is_final: Whether only a change of rules can end it.
    """

    counter: bytes | None = None
    slots: tuple[Entry, ...] = ()
    until_ms: int | None = None
    bucket: tuple[bytes, int] | None = None
    is_final: bool = False


class _Slots:
    """The slots of one counter: those that are taken, and numbers that are free."""

    def __init__(self, taken: tuple[Entry, ...], free: Iterator[int]) -> None:
        self.taken, self._free = taken, free
        self._next = next(free, None)
        self.is_untouched = True

    @property
    def is_full(self) -> bool:
        return self._next is None

    def take(self) -> int:
        assert self._next is not None
        number, self._next = self._next, next(self._free, None)
        self.is_untouched = False
        return number


class _Bucket:
    """The starts of one counter. `full_at_ns` is the time at which all starts are back."""

    def __init__(self, limit: LimitRule, key: bytes, entry: Entry | None) -> None:
        self.key, self.version = key, ABSENT if entry is None else entry.version
        self.starts = limit.starts or 0
        self.interval_ns = -(-limit.per_ms * _NS // self.starts) if self.starts else 0
        self.full_at_ns = 0 if entry is None else _time_in(entry)
        self.is_changed = False

    def until_ms(self, now_ms: int) -> int:
        """Return the time of the next start, which the store's clock tells in whole milliseconds."""
        return (max(self.full_at_ns, now_ms * _NS) - self.interval_ns * (self.starts - 1)) // _NS

    def take(self, now_ms: int) -> None:
        self.full_at_ns = max(self.full_at_ns, now_ms * _NS) + self.interval_ns
        self.is_changed = True


class Capacity:
    """Capacity of the limits of a queue at one moment.

    Args:
        executor: The executor of the space.
        store: The store of the space.
        rules: The rules of the queue.
        now_ms: A time of the space that is not later than now.

    Attributes:
        next_ms: The earliest time at which a limit of starts allows what it refused; None without one.
    """

    def __init__(self, executor: Executor, store: Store, rules: QueueRules, now_ms: int) -> None:
        self._executor, self._store, self._rules = executor, store, rules
        self._now_ms = now_ms
        self._slots: dict[bytes, _Slots] = {}
        self._buckets: dict[bytes, _Bucket] = {}
        self.next_ms: int | None = None

    async def load(self, tasks: Iterable[tuple[str, str | None]]) -> None:
        """Read what is taken of the limits that count tasks of these kinds and keys."""
        slots: dict[bytes, LimitRule] = {}
        buckets: dict[bytes, LimitRule] = {}
        for kind, key in tasks:
            for limit in self._rules.limits_of(kind, key):
                counter = _counter(limit, key)
                if limit.running is not None and counter not in self._slots:
                    slots[counter] = limit
                if limit.starts is not None and counter not in self._buckets:
                    buckets[counter] = limit
        if slots:
            loaded = await self._executor.runner.gather(
                [partial(self._load_slots, counter, limit) for counter, limit in slots.items()]
            )
            for counter, found in zip(slots, loaded, strict=True):
                if isinstance(found, BaseException):
                    raise found
                self._slots[counter] = found
        names = list(buckets)
        for begin in range(0, len(names), limits.READ_KEYS):
            some = names[begin : begin + limits.READ_KEYS]
            keys = [layout.BUCKETS + counter for counter in some]
            reading = await self._store.read(self._executor.stored_name, keys)
            for counter, place, entry in zip(some, keys, reading.entries, strict=True):
                self._buckets[counter] = _Bucket(buckets[counter], place, entry)

    async def _load_slots(self, counter: bytes, limit: LimitRule) -> _Slots:
        running = limit.running or 0
        if running > _SCANNED_RUNNING:
            above = await self._scan_slots(counter, slot_key(slot_name(counter, running - 1)))
            numbers, _ = free_numbers(running, map(number_in, (entry.key for entry in above)))
            if numbers:
                clock = self._executor.clock
                tried = {int(clock.spread() * len(numbers)) for _ in range(_TRIED)}
                keys = [slot_key(slot_name(counter, number)) for number in tried]
                reading = await self._store.read(self._executor.stored_name, keys)
                free = [
                    number
                    for number, entry in zip(tried, reading.entries, strict=True)
                    if entry is None and number in numbers
                ]
                if free:
                    return _Slots((), iter(free))
        taken = await self._scan_slots(counter, None)
        numbers, occupied = free_numbers(running, map(number_in, (entry.key for entry in taken)))
        begin = int(self._executor.clock.spread() * len(numbers))
        free_ones = (
            number for number in (*numbers[begin:], *numbers[:begin]) if number not in occupied
        )  # from a random place, so that two processes seldom choose the same
        return _Slots(tuple(taken), free_ones)

    async def _scan_slots(self, counter: bytes, after: bytes | None) -> list[Entry]:
        found: list[Entry] = []
        while True:
            page = await self._store.scan(
                self._executor.stored_name, slot_key(counter), after=after, limit=limits.PAGE_ROWS
            )
            found += page.entries
            if page.next is None:
                return found
            after = page.next

    def block_of(self, kind: str, key: str | None) -> Block | None:
        """Return the reason for which a task cannot start now; None if it can.

        A limit of all keys comes first, because it blocks the other tasks of the kind too.
        """
        found: Block | None = None
        for limit in sorted(self._rules.limits_of(kind, key), key=lambda limit: limit.each_key):
            block = self._block_by(limit, key)
            if block is not None and found is None:
                found = block
            if block is not None and not limit.each_key:
                break
        return found

    def is_closed(self, limit: LimitRule) -> bool:
        """Return whether a limit of all keys lets no task start now."""
        return self._block_by(limit, None) is not None

    def _block_by(self, limit: LimitRule, key: str | None) -> Block | None:
        counter = _counter(limit, key)
        name = counter if limit.each_key else None
        if 0 in (limit.running, limit.starts):
            return Block(name, is_final=True)
        if limit.running is not None and (slots := self._slots[counter]).is_full:
            return Block(name, slots.taken if slots.is_untouched else (), is_final=False)
        if limit.starts is None:
            return None
        bucket = self._buckets[counter]
        until_ms = bucket.until_ms(self._now_ms)
        if until_ms <= self._now_ms:
            return None
        if self.next_ms is None or until_ms < self.next_ms:
            self.next_ms = until_ms
        return Block(
            name, until_ms=until_ms, bucket=None if bucket.is_changed else (bucket.key, bucket.version)
        )

    def take(self, kind: str, key: str | None) -> tuple[bytes, ...]:
        """Take the capacity that a task needs, and return the names of its slots. Nothing may block it."""
        names: list[bytes] = []
        for limit in self._rules.limits_of(kind, key):
            counter = _counter(limit, key)
            if limit.running is not None:
                names.append(slot_name(counter, self._slots[counter].take()))
            if limit.starts is not None:
                self._buckets[counter].take(self._now_ms)
        return tuple(names)

    def write(self, unit: Unit) -> None:
        """Write the buckets from which starts were taken."""
        for bucket in self._buckets.values():
            if bucket.is_changed:
                unit.check(bucket.key, version=bucket.version)
                left_ms = -(-bucket.full_at_ns // _NS) - self._now_ms
                unit.put(bucket.key, pack(bucket.full_at_ns), ttl_ms=min(max(left_ms, 1), limits.TTL_MS))


def write_slots(unit: Unit, names: Iterable[bytes]) -> None:
    """Write the slots of a claimed task, if they are free when the batch is applied."""
    for name in names:
        unit.check(slot_key(name), version=ABSENT)
        unit.put(slot_key(name), b"")


def is_provable(block: Block) -> bool:
    """Return whether a batch can require that the block still holds, so that the line can leave its turn."""
    if block.counter is None:
        return False
    return block.is_final or block.bucket is not None or 0 < len(block.slots) <= _MOST_CHECKED


def require_block(unit: Unit, block: Block) -> None:
    """Make a unit commit only while the block holds. The rules are checked by the caller."""
    for slot in block.slots:
        unit.check(slot.key, version=slot.version)
    if block.bucket is not None:
        unit.check(block.bucket[0], version=block.bucket[1])


def _counter(limit: LimitRule, key: str | None) -> bytes:
    return counter_name(limit.id, key if limit.each_key else None)


def _time_in(entry: Entry) -> int:
    match unpack(entry.value):
        case (int(at_ns),):
            return at_ns
        case _:
            raise corrupt_error(describe(entry.key), "it does not contain a time")
