"""The items of one conversation, as documents below the prefix of its generation.

```
items            the numbers of the items, and of the documents that are not packed yet
item/<number>    a list of items, of which the first has this number
```

Each call adds documents. On an embedded store, the documents of 64 calls are then packed into one, so that
thousands of items are read as dozens of documents, which the codec compresses. Packing writes each item a
second time, and the log has the replaced documents; so it is done where logs are kept short.

An item is stored as the plain data that JSON makes of it, as the frameworks' own stores do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

import msgspec

from keepstate.engine.history.revisions import Revision
from keepstate.engine.space.space import Space, Transaction
from keepstate.sessions.namespace import HEAD as GENERATIONS
from keepstate.sessions.namespace import HeadRecord, generation_prefix

HEAD: Final = "items"
ITEMS: Final = "item/"
_DIGITS: Final = 12
"""Digits of a number, so that names sort in order."""
_CALLS: Final = 64
"""Number of unpacked documents at which they are packed."""
_PACKED_BYTES: Final = 1 << 20
"""Size up to which documents are packed: larger ones are read fast enough."""
_PIECE: Final = 256
"""Number of items of a document."""
_PIECES: Final = 400
"""Number of documents that a call adds, as a batch has at most 1,000 writes."""
_IN_PIECES_BYTES: Final = 4 << 20
"""Size up to which a call is stored in pieces. A batch has 8 MiB; a larger document is stored before it."""


@dataclass(slots=True)
class Head:
    """The numbers of the items of a session.

    Attributes:
        next: The number of the next item. The first item has number 0.
        packed: The number of the first item that is not packed.
        calls: The number of documents from there on.
        size_bytes: Their size, as JSON.
    """

    next: int = 0
    packed: int = 0
    calls: int = 0
    size_bytes: int = 0


class ItemBatch(list[Any]):
    """The items of one call as plain data, with their size as JSON.

    Args:
        items: The items of the framework.

    Raises:
        TypeError: An item has a value that JSON does not have.
        ValueError: An item contains itself.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        texts = [json.dumps(item) for item in items]
        super().__init__(map(json.loads, texts))
        self.size_bytes = sum(map(len, texts))


class ItemDocuments:
    """The items of a session in a transaction.

    Args:
        tx: The transaction.
        prefix: The prefix of the generation.
    """

    def __init__(self, tx: Transaction, prefix: str) -> None:
        self._documents, self._prefix = tx.documents, prefix

    async def head(self) -> Head:
        """Return the numbers of the items."""
        return msgspec.convert(await self._documents.get(self._prefix + HEAD, {}), Head)

    async def read(self, limit: int | None = None) -> list[Any]:
        """Return all items, or the last ones up to a limit, in order."""
        if limit is None:
            found = self._documents.items(prefix=self._prefix + ITEMS)
            return [item async for _, items in found for item in items]
        last = await self._last(await self.head(), limit)
        return [item for _, items in last for item in items][-limit:]

    async def add(self, items: ItemBatch, *, packs: bool = False) -> None:
        """Add items. With `packs`, many small documents become a few large ones before that."""
        head = await self.head()
        if packs and head.calls >= _CALLS:
            await self._pack(head)
        whole = items.size_bytes > _IN_PIECES_BYTES
        at_once = len(items) if whole else max(_PIECE, -(-len(items) // _PIECES))
        for begin in range(0, len(items), at_once):
            await self._documents.put(self._name(head.next), items[begin : begin + at_once])
            head.next += len(items[begin : begin + at_once])
            head.calls += 1
        head.size_bytes += items.size_bytes
        await self._put(head)

    async def pop(self) -> Any:
        """Remove and return the last item; None if there is none."""
        head = await self.head()
        for number, items in await self._last(head, 1):
            item = items.pop()
            if items:
                await self._documents.put(self._name(number), items)
            else:
                await self._documents.delete(self._name(number))
                head.calls -= number >= head.packed
            head.next -= 1
            head.packed = min(head.packed, head.next)
            await self._put(head)
            return item
        return None

    async def _last(self, head: Head, count: int) -> list[tuple[int, list[Any]]]:
        """Return the last documents that have this number of items, with their numbers, in order."""
        begin, found, missing = len(self._prefix + ITEMS), list[tuple[int, list[Any]]](), count
        before: str | None = None
        at_once = max(1, min(count, head.calls))
        while missing > 0:
            some = self._documents.items(
                prefix=self._prefix + ITEMS, before=before, reverse=True, limit=at_once
            )
            before = None
            async for name, items in some:
                before = name
                if missing > 0:
                    found.append((int(name[begin:]), items))
                    missing -= len(items)
            if before is None:
                break
            at_once = max(1, missing // _CALLS)  # documents before these are packed, or of large items
        return found[::-1]

    async def _pack(self, head: Head) -> None:
        if head.size_bytes <= _PACKED_BYTES:
            last = await self._last(head, head.next - head.packed)
            for number, _ in last[1:]:
                await self._documents.delete(self._name(number))
            await self._documents.put(self._name(head.packed), [item for _, items in last for item in items])
        head.packed, head.calls, head.size_bytes = head.next, 0, 0

    async def _put(self, head: Head) -> None:
        await self._documents.put(self._prefix + HEAD, asdict(head))

    def _name(self, number: int) -> str:
        return f"{self._prefix}{ITEMS}{number:0{_DIGITS}}"


async def items_at(space: Space, at: Revision) -> list[Any]:
    """Return the items of a recorded space at a moment.

    Raises:
        NotFoundError: There is no such moment, or nothing was recorded.
    """
    documents = await space.at(at)
    head = documents.get(GENERATIONS)
    if not isinstance(head, HeadRecord):
        return []
    prefix = generation_prefix("", head.life) + ITEMS
    names = sorted(name for name in documents if name.startswith(prefix))
    return [item for name in names for item in cast("list[Any]", documents[name])]
