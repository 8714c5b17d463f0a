"""Collections: documents of one type under a common prefix, each with an id.

A collection is a view of the documents of a space or transaction. It stores nothing of its own, so its
values are also documents: `prefix + id` is the name of one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from keepstate.engine.documents.documents import MISSING, Documents
from keepstate.engine.kernel.glob import escape_pattern

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Collection(Generic[T]):
    """The values of one type, by id.

    Attributes:
        documents: The documents of a space or transaction.
        prefix: Prefix of the names of the documents.
        check: Returns the name of an id, after checking it; by default the prefix and the id.
    """

    documents: Documents
    prefix: str
    check: Callable[[str], str] | None = None

    def name(self, id: str) -> str:
        """Return the name of the document with an id."""
        return self.prefix + id if self.check is None else self.check(id)

    async def get(self, id: str) -> T | None:
        """Return a copy of a value, or None if there is none with this id."""
        found: T | None = await self.documents.get(self.name(id))
        return found

    async def get_each(self, *ids: str) -> dict[str, T]:
        """Return the values that exist, by id, all at one revision and in one round trip."""
        names = {self.name(id): id for id in ids}
        entries = await self.documents.entries(*names)
        return {names[name]: entry.value for name, entry in entries.items()}

    async def put(self, id: str, value: T, *, ttl_s: float | None = None) -> None:
        """Write a value, which expires after `ttl_s` seconds."""
        await self.documents.put(self.name(id), value, ttl_s=ttl_s)

    async def update(
        self, id: str, patch: Mapping[str, Any] | Callable[[T], T], *, default: object = MISSING
    ) -> T:
        """Change a value, and return the new one. Concurrent updates lose no change."""
        changed: T = await self.documents.update(self.name(id), patch, default=default)
        return changed

    async def delete(self, id: str) -> bool:
        """Delete a value, and return whether it existed."""
        return await self.documents.delete(self.name(id))

    async def ids(self) -> AsyncIterator[str]:
        """Yield the ids of all values, in the order of their UTF-8 bytes. Reads no values."""
        async for name in self.documents.keys(escape_pattern(self.prefix) + "*"):
            yield name[len(self.prefix) :]

    async def items(self, after: str | None = None) -> AsyncIterator[tuple[str, T]]:
        """Yield ids with their values, in the order of their UTF-8 bytes, starting after the id `after`."""
        start = None if after is None else self.prefix + after
        async for name, value in self.documents.items(escape_pattern(self.prefix) + "*", after=start):
            yield name[len(self.prefix) :], value

    async def values(self) -> AsyncIterator[T]:
        """Yield all values, in the order of their ids."""
        async for _, value in self.items():  # noqa: PERF102 - this is the method itself
            yield value
