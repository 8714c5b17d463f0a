"""Commits, branches, differences and other facts about a history, as callers see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from keepstate.engine.history.paths import Steps, format_path
from keepstate.engine.history.record import CommitRecord
from keepstate.engine.kernel.stored import to_datetime
from keepstate.values.notebooks import ShownAsTable


@dataclass(frozen=True, slots=True)
class Commit(ShownAsTable):
    """An immutable, committed state.

    Attributes:
        id: The digest of its content, the same everywhere; 40 hexadecimal digits.
        number: Its number, from 1, in the line of first parents of the branch that it was read through; None
            if it is not in that line.
        parents: The ids of its parents; a merge has two.
        branch: The branch that it was read through, or None.
        created_at: The time of the commit, in UTC.
        author: The author, or None.
        message: The commit message.
        generation: One more than the highest generation of its parents.
        classes: The registered classes, such as `profile@2`, whose objects the state may contain: those in
            the state, and those in the states before it.
        meta: The notes on it, by key.
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
    meta: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the commit as plain values, with the time in ISO 8601."""
        return asdict(self) | {
            "parents": list(self.parents),
            "created_at": self.created_at.isoformat(),
            "classes": list(self.classes),
            "meta": dict(self.meta),
        }


@dataclass(frozen=True, slots=True)
class Difference(ShownAsTable):
    """One difference between two states.

    Attributes:
        path: The path in the new state. Of a removed value, the path that it would have: the index of the
            item that now follows.
        old_path: The path in the old state. Of an added value, the path that it would have had.
        kind: The kind of difference. `reordered` means that the keys which a dict has in both states are in
            another relative order.
        old: The old value; None if the value was added. For `reordered`, a list of all keys.
        new: The new value; None if the value was removed. For `reordered`, a list of all keys.
    """

    path: Steps
    old_path: Steps
    kind: Literal["added", "removed", "changed", "reordered"]
    old: Any
    new: Any

    def __str__(self) -> str:
        sign = {"added": "+", "removed": "-"}.get(self.kind, "~")
        order = " (order of keys)" if self.kind == "reordered" else ""
        path = self.old_path if self.kind == "removed" else self.path
        return f"{sign} {format_path(path)}{order}"


@dataclass(frozen=True, slots=True)
class Branch(ShownAsTable):
    """A name that moves to each new commit.

    Attributes:
        name: The name.
        head: The id of the last commit.
        number: The number of the last commit, by first parents.
    """

    name: str
    head: str
    number: int


@dataclass(frozen=True, slots=True)
class Tag(ShownAsTable):
    """A name that does not move.

    Attributes:
        name: The name.
        commit: The id of the commit.
    """

    name: str
    commit: str


@dataclass(frozen=True, slots=True)
class Blame(ShownAsTable):
    """The commit that gave a part of a state its value.

    Attributes:
        commit: The commit.
        is_exact: Whether the commit is certain. If not, it may be an earlier commit that was pruned.
    """

    commit: Commit
    is_exact: bool


@dataclass(frozen=True, slots=True)
class HistoryStats(ShownAsTable):
    """The size of a history.

    Attributes:
        branches: The number of branches.
        tags: The number of tags.
        commits: The number of stored commits, including those that no branch or tag leads to.
        objects: The number of objects that their states share.
        size_bytes: The stored size of commits and objects, including their names.
    """

    branches: int
    tags: int
    commits: int
    objects: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Verified(ShownAsTable):
    """The result of comparing every byte of a history with its name.

    Attributes:
        commits: The number of commits that branches and tags lead to.
        objects: The number of their objects.
        problems: Descriptions of what is damaged or missing; empty if the history is intact.
    """

    commits: int
    objects: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pruned(ShownAsTable):
    """The result of pruning.

    Attributes:
        commits: The number of dropped commits.
        removed: The number of deleted commits and objects, including those that no branch or tag led to
            before.
    """

    commits: int
    removed: int


def commit_of(
    id: bytes, record: CommitRecord, number: int | None = None, branch: str | None = None
) -> Commit:
    """Return a stored commit as callers see it."""
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
        dict(record.meta),
    )
