"""The stored document of a machine, and the view of one object: the data that it read, and its own changes.

Values are equal if their encodings are equal, so True differs from 1 and arrays can be compared. Pure, except
for the encoder that is passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from keepstate.errors import ConflictError, InvalidError
from keepstate.values.schema import register

Data: TypeAlias = dict[str, Any]
Encode: TypeAlias = Callable[[object], bytes]
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class View:
    """A machine as it was read, and a copy of its data for the user to change.

    Both are in one object, so that a reader never mixes two versions.
    """

    base: MachineRecord
    data: Data = field(default_factory=dict[str, Any])


def merge_data(id: str, base: Data, mine: Data, theirs: Data, encode: Encode) -> Data:
    """Merge the changes of two sides since a common base, key by key.

    Raises:
        ConflictError: Both sides changed the same key to different values.
    """
    changes = _changes(base, mine, encode)
    for key, own in changes.items():
        before, other = base.get(key, _ABSENT), theirs.get(key, _ABSENT)
        if not (_is_same(other, before, encode) or _is_same(other, own, encode)):
            raise ConflictError(
                f"Another writer changed data[{key!r}] of machine {id!r}. Call refresh() and try again."
            )
    return _apply(changes, theirs)


def carry_changes(since: Data, now: Data, onto: Data, encode: Encode) -> Data:
    """Apply the changes made between `since` and `now` to `onto`; they win, because they are the latest."""
    return _apply(_changes(since, now, encode), onto)


def _apply(changes: Data, onto: Data) -> Data:
    return {key: value for key, value in {**onto, **changes}.items() if value is not _ABSENT}


def _changes(before: Data, after: Data, encode: Encode) -> Data:
    """Return the new values of the keys that differ, `_ABSENT` for a removed one."""
    pairs = {key: (before.get(key, _ABSENT), after.get(key, _ABSENT)) for key in {**before, **after}}
    return {key: new for key, (old, new) in pairs.items() if not _is_same(old, new, encode)}


def _is_same(one: object, other: object, encode: Encode) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return one is other
    try:
        return encode(one) == encode(other)
    except InvalidError:
        return False  # such a value counts as changed, and writing it raises an error with its path


Action: TypeAlias = Callable[[Data], object]


@register("keepstate.Machine")
@dataclass
class MachineRecord:
    """The stored document of a machine."""

    state: str
    data: dict[Any, Any] = field(default_factory=dict[str, Any])  # other keys can be read and repaired
    number: int = 0
    """The number of transitions so far."""
    answer: list[Any] = field(default_factory=list[Any])
    """The user's answer while the machine waits, and the event that follows; empty without an answer."""
    asked: list[Any] = field(default_factory=list[Any])
    """The approval that was asked last: its id, how often the state has asked, and the events that follow a
    yes, a no, and a closing without an answer; empty without one."""


@dataclass(frozen=True, slots=True)
class Transition:
    """One transition of a machine.

    Attributes:
        number: Number of the transition, from 1.
        state: The state before it.
        event: The event that caused it.
        target: The state after it.
        at: Time of the transition, by the clock of the writing process.
    """

    number: int
    state: str
    event: str
    target: str
    at: datetime
