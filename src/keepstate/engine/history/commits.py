"""What is told of a history: its commits, and how two of them differ."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from keepstate.engine.history.paths import Steps, shown
from keepstate.engine.history.record import CommitRecord
from keepstate.engine.kernel.times import to_datetime


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
        classes: Registered classes, `profile@2`, whose objects may stand in the state: all that stand in it,
            and that stood in one before it.
    """

    id: str
    number: int | None
    parents: tuple[str, ...]
    branch: str | None
    created_at: datetime
    author: str | None
    message: str
    generation: int
    classes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, the time as ISO 8601."""
        return {
            "id": self.id,
            "number": self.number,
            "parents": list(self.parents),
            "branch": self.branch,
            "created_at": self.created_at.isoformat(),
            "author": self.author,
            "message": self.message,
            "generation": self.generation,
            "classes": list(self.classes),
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
        request = " (order of keys)" if self.kind == "reordered" else ""
        return f"{sign} {shown(self.path)}{request}"


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


@dataclass(frozen=True, slots=True)
class Blame:
    """Who gave a part of a state the value that it has.

    Attributes:
        commit: The commit that did.
        is_exact: Whether that is sure; else an earlier one may have, which was pruned.
    """

    commit: Commit
    is_exact: bool


@dataclass(frozen=True, slots=True)
class HistoryStats:
    """How large a history is.

    Attributes:
        branches: How many branches there are.
        tags: How many tags.
        commits: How many commits are kept, those that nothing leads to included.
        objects: How many objects their states share.
        size_bytes: Of commits and objects as they are stored, names included.
    """

    branches: int
    tags: int
    commits: int
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found when every byte of a history was compared with its name.

    Attributes:
        commits: How many commits branches and tags lead to.
        objects: How many objects those have.
        problems: What is damaged or missing, in words; empty if all is as it was written.
    """

    commits: int
    objects: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """What pruning did.

    Attributes:
        commits: How many commits were let go of.
        removed: How many commits and objects were deleted, those included that nothing had led to before.
    """

    commits: int
    removed: int


def commit_of(
    id: bytes, record: CommitRecord, number: int | None = None, branch: str | None = None
) -> Commit:
    """Return what is told of a stored commit."""
    return Commit(
        id.hex(),
        number,
        tuple(parent.hex() for parent in record.parents),
        branch,
        to_datetime(record.created_ms),
        record.author,
        record.message,
        record.generation,
        tuple(record.classes),
    )
