"""What is told of a history: its commits, and how two of them differ."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from keepstate.engine.history.paths import Steps, shown
from keepstate.engine.history.record import CommitRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Commit:
    """An immutable moment of a state.

    Attributes:
        id: Names it by its content, everywhere; 40 hexadecimal digits.
        number: Its place, from 1, among the first parents of the head that it was read through; None if it
            is none of them.
        parents: The ids of the commits before it; a merge has two.
        branch: The branch that it was read through, or None.
        created_at: When it was made, UTC.
        author: Who made it, or None.
        message: What for.
        generation: One more than the highest of its parents'.
    """

    id: str
    number: int | None
    parents: tuple[str, ...]
    branch: str | None
    created_at: datetime
    author: str | None
    message: str
    generation: int

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, the time as ISO 8601."""
        return {
            "id": self.id,
            "number": self.number,
            "parents": list(self.parents),
            "branch": self.branch,
            "created_at": self.created_at.isoformat(),
            "author": self.author,
            "message": self.message,
            "generation": self.generation,
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which two states differ.

    Attributes:
        path: Where: keys, and places of lists in the new state; of what was removed, in the old one.
        kind: What happened. `reordered` tells of a dict's keys.
        old: The value before; None if it was added.
        new: The value after; None if it was removed.
    """

    path: Steps
    kind: Literal["added", "removed", "changed", "reordered"]
    old: Any
    new: Any

    def __str__(self) -> str:
        sign = {"added": "+", "removed": "-"}.get(self.kind, "~")
        return f"{sign} {shown(self.path)}"


@dataclass(frozen=True, slots=True)
class Branch:
    """A name that moves along with its commits.

    Attributes:
        name: Its name.
        head: The id of its last commit.
        number: How many commits lead to it, by first parents.
    """

    name: str
    head: str
    number: int


@dataclass(frozen=True, slots=True)
class Tag:
    """A name that stays on its commit.

    Attributes:
        name: Its name.
        commit: The id of the commit.
    """

    name: str
    commit: str


def commit_of(
    id: bytes, record: CommitRecord, number: int | None = None, branch: str | None = None
) -> Commit:
    """Returns what is told of a stored commit."""
    return Commit(
        id.hex(),
        number,
        tuple(parent.hex() for parent in record.parents),
        branch,
        _EPOCH + timedelta(milliseconds=record.created_ms),
        record.author,
        record.message,
        record.generation,
    )


def milliseconds_of(moment: datetime) -> int:
    """Returns an aware time as records hold it."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)
