"""A batch of updates: collected without reading the state, applied together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple, Self, TypeVar

from keepstate.engine.kernel.arguments import check_revision, check_text, require_instance
from keepstate.errors import StateConflictError, StateError
from keepstate.typed.key import AnyKey, MergeStrategy, StateKey, check_key, copy_value

U = TypeVar("U")


class Removal(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"


UNSET: Final = Removal.UNSET
"""The update that removes the value of a key."""


class Operation(NamedTuple):
    """One update of one key, or the removal of its value."""

    key: AnyKey
    update: Any


class MutationBatch:
    """Updates to apply together, in order.

    Args:
        base_revision: The revision that the updates were computed from; None for updates that depend on none.
    """

    def __init__(self, base_revision: int | None = None, *, lineage: str | None = None) -> None:
        self._base = None if base_revision is None else check_revision("base_revision", base_revision)
        self._lineage = None if lineage is None else check_text("lineage", lineage)
        self._operations: list[Operation] = []

    @classmethod
    def with_base_revision(cls, revision: int) -> MutationBatch:
        """Return an empty batch with a base revision."""
        return cls(revision)

    def __repr__(self) -> str:
        base = "no revision" if self._base is None else f"revision {self._base}"
        return f"<MutationBatch of {sorted(self.touched_keys)} on {base}>"

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._operations)

    @property
    def base_revision(self) -> int | None:
        """The revision that the updates were computed from."""
        return self._base

    @property
    def lineage(self) -> str | None:
        """The lineage of the base revision. A restored state begins a new lineage."""
        return self._lineage

    @property
    def touched_keys(self) -> frozenset[str]:
        """The names of the keys that have updates."""
        return frozenset(operation.key.KEY for operation in self._operations)

    def is_empty(self) -> bool:
        """Return whether the batch has no updates."""
        return not self._operations

    def op_len(self) -> int:
        """Return the number of updates."""
        return len(self._operations)

    def update(self, key: type[StateKey[Any, U]], update: U) -> Self:
        """Add an update; the update is copied.

        Returns:
            This batch.
        """
        check_key(key)
        self._operations.append(Operation(key, copy_value(update, f"an update of {key.KEY!r}")))
        return self

    def unset(self, key: type[StateKey[Any, Any]]) -> Self:
        """Remove the value of a key, as if it had never been updated. Later updates begin at the default.

        A removal commutes with no other update, so the key counts as exclusive in this batch, whatever its
        strategy.

        Returns:
            This batch.
        """
        check_key(key)
        self._operations.append(Operation(key, UNSET))
        return self

    def extend(self, other: MutationBatch) -> Self:
        """Append the updates of a batch that was computed after this one.

        Returns:
            This batch.

        Raises:
            StateError: The batches were computed from different revisions; nothing is added.
        """
        require_instance("other", other, MutationBatch)
        base, lineage = self._common(other)
        self._base, self._lineage = base, lineage
        self._operations += list(other)
        return self

    def merge_parallel(self, other: MutationBatch) -> Self:
        """Append the updates of a batch that was computed in parallel.

        Returns:
            This batch.

        Raises:
            StateConflictError: Both touch a key that is exclusive, or that one of them unsets. The error
                names the key.
            StateError: The batches were computed from different revisions. Nothing is added in either case.
        """
        require_instance("other", other, MutationBatch)
        self._common(other)
        if (key := self.exclusive_overlap(other)) is not None:
            raise StateConflictError(
                f"Both batches update key {key!r}, which is exclusive or unset. Commit one, then compute the "
                "other again.",
                state_key=key,
            )
        return self.extend(other)

    def copy(self) -> MutationBatch:
        """Return an independent batch with the same updates."""
        return self.rebased(self)

    def rebased(self, other: MutationBatch) -> MutationBatch:
        """Return a copy with the base of another batch.

        An older base is safe, because more then counts as changed.
        """
        batch = MutationBatch(other.base_revision, lineage=other.lineage)
        batch._operations = list(self._operations)
        return batch

    def exclusive_overlap(self, other: MutationBatch) -> str | None:
        """Return the first exclusive key, by name, that both batches touch, or None."""
        mine = self.exclusive_keys()
        return min(mine & other.touched_keys, default=None) or min(
            self.touched_keys & other.exclusive_keys(), default=None
        )

    def exclusive_keys(self) -> frozenset[str]:
        """Return the names of exclusive and unset keys, which no parallel batch may update."""
        return frozenset(
            operation.key.KEY
            for operation in self._operations
            if operation.key.MERGE is MergeStrategy.EXCLUSIVE or operation.update is UNSET
        )

    def _common(self, other: MutationBatch) -> tuple[int | None, str | None]:
        if self._base is None or other.base_revision is None:
            return (other.base_revision, other.lineage) if self._base is None else (self._base, self._lineage)
        is_same = self._lineage is None or other.lineage is None or self._lineage == other.lineage
        if self._base != other.base_revision or not is_same:
            raise StateError(
                f"One batch was computed from revision {self._base}, the other from {other.base_revision}. "
                "Merge only batches of the same snapshot."
            )
        return self._base, self._lineage or other.lineage
