"""Slots: entries that show how many tasks run under a limit.

A claim under a limit of `running` tasks writes a slot with a number that no other task has, and its batch
requires that this number is free. The end of the claim, in whatever way it ends, deletes the slot without a
read. Claims and ends of several processes therefore do not contend for a counter.

A limit that was lowered, or that came when tasks were running already, has slots with numbers of `running`
and more. `free_numbers` leaves out as many of the lower numbers. Such slots only disappear, so that no two
claims exceed the limit together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.stored import corrupt_error
from keepstate.engine.kernel.unit import Unit
from keepstate.values.key import pack, unpack

_LONGEST: Final = 200
_SPREAD_BYTES: Final = 6


def short_name(*segments: str | int) -> bytes:
    """Return a name for a path that fits into keys: packed, or a digest if it is long."""
    packed = pack(*segments)
    return packed if len(packed) <= _LONGEST else pack(sha256(packed).digest())


def counter_name(limit: int, key: str | None) -> bytes:
    """Return the name under which the slots of a limit stand, or those of one key of it."""
    return pack(limit) if key is None else pack(limit) + short_name(key)


def slot_name(counter: bytes, number: int) -> bytes:
    """Return the name of a slot."""
    return counter + pack(number)


def slot_key(name: bytes) -> bytes:
    """Return the key of a slot, given its name."""
    return layout.SLOTS + name


def number_in(key: bytes) -> int:
    """Return the number in the key of a slot."""
    number = unpack(key[len(layout.SLOTS) :])[-1]
    if type(number) is not int:
        raise corrupt_error(f"key {key.hex()}", "it does not end with the number of a slot")
    return number


def overflow_number(running: int, task_id: str) -> int:
    """Return the number of the slot of a task that ran before its limit came."""
    return running + int.from_bytes(sha256(task_id.encode()).digest()[:_SPREAD_BYTES])


def free_numbers(running: int, taken: Iterable[int]) -> tuple[range, set[int]]:
    """Return the numbers that may be taken: those of a range that are not in the set."""
    occupied = set(taken)
    above = sum(number >= running for number in occupied)
    end = running
    while end > 0 and end + above > running:
        end -= 1
        above += end in occupied
    return range(end if end + above <= running else 0), occupied


def release_slots(unit: Unit, names: Sequence[bytes]) -> None:
    """Delete the slots of a task. Lines that wait for a slot of its key are looked at by the next claim."""
    for name in names:
        unit.delete(slot_key(name))
        segments = unpack(name)
        if len(segments) > 2:  # a slot of one key
            unit.put(layout.FREED + name[: -len(pack(segments[-1]))], b"")
