"""The current memories of one place, indexed in memory, which follow the space by its log.

A search first catches up: one read tells whether anything has changed, and only changed memories are read.
Invariant: the index is derived. It is built from the documents, and never consulted about what exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from keepstate.engine.documents.documents import DocumentEntry
from keepstate.engine.documents.watch import list_changed_names
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.unreadable import IfUnreadable, Unreadable
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError
from keepstate.memories.memory import (
    FACT,
    FOLDER,
    HEAD,
    VECTOR,
    Head,
    folder_of,
    id_in,
    matches,
    read_listed_memory,
)
from keepstate.memories.words import WordIndex
from keepstate.values import limits
from keepstate.values.vectors import NUMBER_BYTES, VectorMatrix

_AT_ONCE: Final = 200


class LocalIndex:
    """The words, the data and the vectors of the current memories under a prefix.

    Args:
        space: The space.
        prefix: The prefix of the names of the documents.
        has_matrix: Whether vectors are searched here, and not by an index of the caller.

    Attributes:
        head: The document that names the model of the vectors.
        words: The words by id.
        embedded: The ids of memories with a vector of the present model.
        pending: The ids of memories without one.
        data: The data by id.
        unreadable: The ids of memories that this process cannot read. They are in the index with what it can
            tell of them in builtin form.
        unreadable_vectors: The ids of memories whose vectors it cannot read. They are pending.
    """

    def __init__(self, space: Space, prefix: str, *, has_matrix: bool) -> None:
        self._space, self._prefix, self._has_matrix = space, prefix, has_matrix
        self._head_key = layout.named_key(layout.DOCUMENTS, prefix + HEAD)
        self._at: tuple[int, int | None] | None = None
        self._clear(None)

    def _clear(self, head: Head | None) -> None:
        self.head = head
        self.words = WordIndex()
        self.data: dict[str, dict[str, Any]] = {}
        self.embedded, self.pending = set[str](), set[str]()
        self.unreadable, self.unreadable_vectors = set[str](), set[str]()
        self._matrix: VectorMatrix | None = None

    async def catch_up(self) -> None:
        """Apply all changes of the space so far. Cost: one read, and the memories that have changed."""
        head, revision, losses = await self._read_head()
        known = self._at
        changed = None
        if known is not None and known[0] <= revision and known[1] == losses and head == self.head:
            if known[0] == revision:
                return
            changed = await list_changed_names(self._space.executor, self._prefix + FOLDER, known[0])
        self._at = None  # an interrupted call loads everything again
        if changed is None:
            await self._load(head)
        else:
            names, revision = changed
            await self.refresh({id for name in names if (id := id_in(self._prefix, name)) is not None})
        self._at = revision, losses

    async def _read_head(self) -> tuple[Head | None, int, int | None]:
        async def work(unit: Unit) -> tuple[int, int | None]:
            await unit.get(self._head_key)
            return unit.revision or 0, unit.losses.known

        (revision, losses), _ = await self._space.executor.run(work)
        head: Head | None = await self._space.documents.get(self._prefix + HEAD)
        return head, revision, losses

    async def _load(self, head: Head | None) -> None:
        self._clear(head)
        id, fact = "", None
        prefix = self._prefix + FOLDER
        async for name, value in self._space.documents.items(prefix=prefix, unreadable="raw"):
            found = id_in(self._prefix, name)
            if found is not None and name.endswith(VECTOR):
                if found == id:  # the vector of a memory follows its fact
                    self._put(id, fact, value)
                    fact = None
            elif found is not None:
                if fact is not None:
                    self._put(id, fact, None)
                id, fact = found, value
        if fact is not None:
            self._put(id, fact, None)

    async def refresh(self, ids: Iterable[str]) -> None:
        """Read some memories again."""
        listed = sorted(ids)
        for start in range(0, len(listed), _AT_ONCE):
            some = listed[start : start + _AT_ONCE]
            names = [folder_of(self._prefix, id) + kind for id in some for kind in (FACT, VECTOR)]
            found = await read_entries(self._space, names, "raw")
            for id in some:
                folder = folder_of(self._prefix, id)
                fact, vector = found.get(folder + FACT), found.get(folder + VECTOR)
                if fact is None:
                    self.discard(id)
                else:
                    self._put(id, fact.value, None if vector is None else vector.value)

    def _put(self, id: str, fact: Any, vector: Mapping[str, Any] | Unreadable | None) -> None:
        self.discard(id)
        memory = read_listed_memory(id, fact, None, "raw")
        if memory is None or memory.status != "current":
            return
        if memory.unreadable is not None:
            self.unreadable.add(id)
        if isinstance(vector, Unreadable):
            self.unreadable_vectors.add(id)
            vector = None
        self.words.put(id, memory.text)
        self.data[id] = memory.data
        packed = packed_vector(vector, self.head)
        if packed is None:
            self.pending.add(id)
            return
        self.embedded.add(id)
        if self._has_matrix:
            if self._matrix is None:
                self._matrix = VectorMatrix(len(packed))
            self._matrix.put(id, packed)

    def discard(self, id: str) -> None:
        """Remove a memory, if it is there."""
        self.words.discard(id)
        self.data.pop(id, None)
        self.embedded.discard(id)
        self.pending.discard(id)
        self.unreadable.discard(id)
        self.unreadable_vectors.discard(id)
        if self._matrix is not None:
            self._matrix.discard(id)

    def select(self, where: Mapping[str, Any], *, skip_unreadable: bool = False) -> set[str] | None:
        """Return the ids of memories with these data; None means all."""
        if skip_unreadable and self.unreadable:
            chosen = self.select(where)
            return (set(self.data) if chosen is None else chosen) - self.unreadable
        if not where:
            return None
        # One comparison that is usually false goes ahead, because 50,000 calls take longer than a search.
        (key, value), absent = next(iter(where.items())), object()
        return {
            id for id, data in self.data.items() if data.get(key, absent) == value and matches(data, where)
        }

    def nearest(self, query: bytes, limit: int, allowed: set[str] | None) -> list[tuple[str, float]]:
        """Return the ids with the nearest vectors.

        Raises:
            InvalidError: There are more than 50,000 vectors.
        """
        if self._matrix is None:
            return []
        if len(self._matrix) > limits.MEMORIES_MATRIX:
            raise InvalidError(
                f"Space {self._space.name!r} has {len(self._matrix):,} memories with vectors. Without an "
                f"index at most {limits.MEMORIES_MATRIX:,} are searched. Pass a VectorIndex as `index`, and "
                "call reembed()."
            )
        return [(id, min(1.0, max(-1.0, score))) for id, score in self._matrix.nearest(query, limit, allowed)]


def packed_vector(vector: Mapping[str, Any] | None, head: Head | None) -> bytes | None:
    """Return a stored vector, if it is one of the model and of the size that the head names."""
    if vector is None or head is None or head["dims"] is None or vector.get("model") != head["model"]:
        return None
    packed: object = vector.get("vector")
    is_right = isinstance(packed, bytes) and len(packed) == head["dims"] * NUMBER_BYTES
    return packed if is_right and isinstance(packed, bytes) else None


async def read_entries(
    space: Space, names: Sequence[str], unreadable: IfUnreadable = "raise"
) -> dict[str, DocumentEntry[Any]]:
    """Return documents by name, in as few reads as the limits allow."""
    try:
        return await space.documents.entries(*names, unreadable=unreadable) if names else {}
    except InvalidError:  # too many bytes for one read
        if len(names) <= 1:
            raise
        half = len(names) // 2
        begin = await read_entries(space, names[:half], unreadable)
        return begin | await read_entries(space, names[half:], unreadable)
