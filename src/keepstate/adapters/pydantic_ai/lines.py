"""Lines of messages: where each entry is, what uses it, and the release of what nothing uses.

A line is a run of messages in which each follows the one before, from a depth, the number of messages in
front of it in its history. The layout of the documents is in `conversations`.

Invariants: `uses` counts the conversations that end or have left a branch at a depth, and the lines that
branch off there. No conversation reaches the messages behind the deepest use. Every transaction that adds or
removes a use writes the line, so a sweep never deletes what a save or fork has just used.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from keepstate.adapters.base import read_each
from keepstate.adapters.pydantic_ai.entries import NewEntry, microseconds
from keepstate.engine.documents.documents import Documents
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import MissingExtraError, NotFoundError
from keepstate.names import segment
from keepstate.values import limits

try:
    from pydantic_ai.conversation_store import ConversationConflict
except ImportError as error:
    raise MissingExtraError.of("pydantic-ai", "pydantic-ai-slim from 2.66 on") from error

REACH: Final = 64
"""The largest number of places in the path of a line; a longer one continues in the path of the last line."""
_READ_AT_ONCE: Final = limits.READ_KEYS
_DELETED_AT_ONCE: Final = 200

Place = tuple[str, int]
"""A line, and the depth of an entry in it."""


@dataclass(slots=True)
class Line:
    """One line as a transaction knows it; see the head of the module."""

    first: int
    last: int
    uses: dict[int, int] = field(default_factory=dict[int, int])
    parent: Place | None = None
    is_staged: bool = False

    @property
    def reach(self) -> int:
        """The deepest entry that something uses; below `first` if there is none."""
        return max(self.uses, default=self.first - 1)

    def stored(self) -> dict[str, Any]:
        """Return the value of the document."""
        return {
            "first": self.first,
            "last": self.last,
            "uses": [[depth, count] for depth, count in sorted(self.uses.items())],
            "parent": None if self.parent is None else [*self.parent],
            "is_staged": self.is_staged,
        }


class Lines:
    """The lines that a transaction reads and writes."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._lines: dict[str, Line] = {}
        self._before: dict[str, Any] = {}
        self._shrunk: set[str] = set()

    def has(self, line: str) -> bool:
        """Return whether a loaded line exists."""
        return line in self._lines

    async def load(self, lines: Iterable[str]) -> None:
        """Read lines that are not known yet."""
        names = {line_name(line): line for line in lines if line not in self._lines}
        for name, entry in (await read_each(self._tx.documents, [*names])).items():
            stored = entry.value
            uses = dict(stored["uses"])
            parent = None if stored["parent"] is None else place_of(stored["parent"])
            line = Line(stored["first"], stored["last"], uses, parent, stored["is_staged"])
            self._lines[names[name]], self._before[names[name]] = line, line.stored()

    async def append(
        self,
        entries: Sequence[NewEntry],
        places: dict[str, Place],
        *,
        only: Sequence[str] | None = None,
    ) -> list[str]:
        """Write entries, and add their places.

        Args:
            entries: The entries, each after its parent.
            places: The places of their parents, whose lines are loaded.
            only: The lines that may be continued: by default all. Then new lines are staged.

        Returns:
            The lines that were begun.
        """
        begun: list[str] = []
        for entry in entries:
            parent = None if entry.parent_id is None else places[entry.parent_id]
            if parent is not None and self._may_continue(parent, only, begun):
                line, depth = parent[0], parent[1] + 1
                self._lines[line].last = depth
            else:
                line, depth = digest(entry.id), 0 if parent is None else parent[1] + 1
                self._lines[line] = Line(depth, depth, parent=parent, is_staged=only is not None)
                begun.append(line)
                if parent is not None:
                    await self._branch_off(line, parent, is_used=only is None)
            places[entry.id] = line, depth
            await self._tx.documents.put(entry_name(entry.id), [line, depth])
            await self._tx.documents.put(message_name(line, depth), [entry.id, entry.message])
        return begun

    def _has_place(self, place: Place) -> bool:
        line = self._lines.get(place[0])
        return line is not None and line.first <= place[1] <= line.last

    def _may_continue(self, parent: Place, only: Sequence[str] | None, begun: Sequence[str]) -> bool:
        return self._lines[parent[0]].last == parent[1] and (
            only is None or parent[0] in only or parent[0] in begun
        )

    async def _branch_off(self, line: str, parent: Place, *, is_used: bool) -> None:
        path = await self._tx.documents.get(path_name(parent[0]), [])
        await self._tx.documents.put(path_name(line), [[*parent], *path[: REACH - 1]])
        if is_used:
            self.add_use(parent, 1)

    async def use_staged(self, staged: Sequence[str], conversation_id: str) -> None:
        """Let staged lines use the places that they branch off from.

        Raises:
            ConversationConflict: One of these places does not exist any more.
        """
        parents = [parent for line in staged if (parent := self._lines[line].parent) is not None]
        await self.load(line for line, _ in parents)
        for parent in parents:
            if not self._has_place(parent):
                raise ConversationConflict(conversation_id)
            self.add_use(parent, 1)
        for line in staged:
            self._lines[line].is_staged = False
            self._shrunk.add(line)  # unless something uses all of it now
            await self._tx.documents.delete(release_name(line))

    def add_use(self, place: Place, number: int) -> None:
        """Change the number of uses of a place."""
        line, depth = self._lines[place[0]], place[1]
        count = line.uses.get(depth, 0) + number
        if count:
            line.uses[depth] = count
        else:
            line.uses.pop(depth, None)
            self._shrunk.add(place[0])

    async def store(self) -> None:
        """Write the lines that have changed, and note those whose end is not used any more."""
        for name, line in self._lines.items():
            if (stored := line.stored()) != self._before.get(name):
                await self._tx.documents.put(line_name(name), stored)
            is_new = name not in self._before and not line.is_staged
            if line.reach < line.last and (is_new or name in self._shrunk):
                await self._tx.documents.put(release_name(name), 0)

    async def shorten(self, id: str) -> tuple[int, str | None]:
        """Delete entries from the unused end of a loaded line; see `release`."""
        documents, line = self._tx.documents, self._lines[id]
        begin = max(line.first, line.reach + 1, line.last - _DELETED_AT_ONCE + 1)
        names = [message_name(id, depth) for depth in range(begin, line.last + 1)]
        found = await read_each(documents, names)
        for name, entry in found.items():
            await documents.delete(entry_name(entry.value[0]))
            await documents.delete(name)
        line.last = begin - 1
        if line.last >= line.first:
            await self.store()
            return len(found), id
        del self._lines[id]
        for name in (line_name(id), path_name(id), release_name(id)):
            await documents.delete(name)
        if line.parent is None or line.is_staged:
            return len(found), None
        await self.load([line.parent[0]])
        self.add_use(line.parent, -1)
        await self.store()
        return len(found), line.parent[0]


async def find_released(space: Space) -> list[str]:
    """Return the lines whose unused end may be deleted now."""
    now_us = microseconds(await space.now())
    marks = space.documents.items(prefix=release_name(""))
    return [name.removeprefix(release_name("")) async for name, due_us in marks if due_us <= now_us]


async def release(tx: Transaction, id: str) -> tuple[int, str | None]:
    """Delete the unused end of a line: at most 200 entries of it, the last ones first.

    Returns:
        The number of deleted entries, and the line to continue with: the same one, or its parent once it is
        gone.
    """
    documents, lines = tx.documents, Lines(tx)
    stored = await documents.get(line_name(id))
    if stored is None or stored["last"] <= max((depth for depth, _ in stored["uses"]), default=-1):
        await documents.delete(release_name(id))
        return 0, None
    await lines.load([id])
    return await lines.shorten(id)


# ---- reading


async def read_path(documents: Documents, head_id: str, limit: int | None) -> list[tuple[str, Any]]:
    """Return ids and messages up to a head: all, or one more than the limit if there are as many."""
    stored = await documents.get(entry_name(head_id))
    if stored is None:
        raise NotFoundError(f"entry {head_id!r} does not exist; its conversation was deleted or changed")
    path, is_known = [place_of(stored)], False
    depth = path[0][1]
    lowest = 0 if limit is None else max(0, depth - limit)
    latest_first: list[tuple[str, Any]] = []
    while depth >= lowest:
        bottom = path_name(path[-1][0])
        page = range(depth, max(lowest - 1, depth - _READ_AT_ONCE + 1), -1)  # and one more for the path
        names = [message_name(line, at) for line, at in _along(path, page)]
        found = await read_each(documents, names if is_known else [bottom, *names])
        below = -1
        if not is_known:
            further = [place_of(place) for place in found[bottom].value] if bottom in found else []
            path += further
            is_known = len(further) < REACH
            below = further[0][1] if further else -1
        for name in names:
            if depth == below:
                break  # the others are in the lines that are known now
            if name not in found:
                raise NotFoundError(
                    f"an entry before {head_id!r} does not exist; its conversation was deleted or changed"
                )
            latest_first.append(tuple(found[name].value))
            depth -= 1
    latest_first.reverse()
    return latest_first


def _along(path: Sequence[Place], depths: Iterable[int]) -> Iterator[Place]:
    """Yield the places of depths, the deepest first, in the lines of a path."""
    at = 0
    for depth in depths:
        while at + 1 < len(path) and depth <= path[at + 1][1]:
            at += 1
        yield path[at][0], depth


# ---- names and values


def entry_name(id: str) -> str:
    """Return the name of the document with the place of an entry."""
    return f"entry/{segment(id)}"


def message_name(line: str, depth: int) -> str:
    """Return the name of the document of a message."""
    return f"message/{line}/{depth}"


def line_name(line: str) -> str:
    """Return the name of the document of a line."""
    return f"line/{line}"


def path_name(line: str) -> str:
    """Return the name of the document with the path of a line."""
    return f"path/{line}"


def release_name(line: str) -> str:
    """Return the name of the document that releases the unused end of a line."""
    return f"release/{line}"


def digest(text: str) -> str:
    """Return 72 bits of a digest in 12 letters: the id of the line that an entry begins, and other names."""
    return urlsafe_b64encode(sha256(text.encode("utf-8", "surrogatepass")).digest()[:9]).decode()


def place_of(stored: Sequence[Any]) -> Place:
    """Return a stored place."""
    line, depth = stored
    return line, depth


def places_in(stored: Mapping[str, Any]) -> set[Place]:
    """Return the places that a stored conversation uses."""
    return {place_of(place) for place in stored["places"].values()}
