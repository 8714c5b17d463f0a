"""`KeepstateConversationStore`: the conversations of Pydantic AI in any keepstate store.

Messages are stored once, in lines. A line is a run of messages in which each follows the one before, from a
depth, the number of messages in front of it in its history. A save continues the line of its parent if that
is the last of the line, and otherwise begins a line that branches off. So a history is the ends of a few
lines, and the names of all its messages follow from their depths.

```
conversation/<id>        {"id", "record", "places": {entry id: [line, depth]}, "scope", "updated_us"}
entry/<entry id>         [line, depth]
message/<line>/<depth>   [entry id, message]
path/<line>              [[line, depth], …]: where the line branches off, then where that one does, up to 64
line/<line>              {"first", "last", "uses": [[depth, count], …], "parent", "is_staged"}
release/<line>           time in microseconds from which the unused end of the line may be deleted
erasing/<digest>         an erasure of a scope that has not ended
```

Invariants: `uses` counts the conversations that end or have left a branch at a depth, and the lines that
branch off there. No conversation reaches the messages behind the deepest use. Every transaction that adds or
removes a use writes the line, so a sweep never deletes what a save or fork has just used.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Final

from keepstate.adapters.base import Adapter, read_each
from keepstate.engine.documents.collection import Collection
from keepstate.engine.documents.documents import Documents
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, MissingExtraError, NotFoundError
from keepstate.names import DEFAULT_URL, segment
from keepstate.stores.protocol import Store
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.stores.wrappers.encrypted import KeyRing

try:
    from pydantic import ConfigDict, TypeAdapter
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.messages import ModelMessagesTypeAdapter
    from pydantic_core import PydanticSerializationError
except ImportError as error:
    install = "pip install 'keepstate[pydantic-ai]'"
    raise MissingExtraError(
        f"this needs pydantic-ai-slim from 2.66 on: {install}", install=install
    ) from error

_RECORDS: Final = TypeAdapter(
    list[ConversationRecord], config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
)
_REACH: Final = 64
"""The largest number of places in the path of a line; a longer one continues in the path of the last line."""
_AT_ONCE: Final = 400
"""The largest number of entries in a batch. Each is two writes and a check."""
_BATCH_BYTES: Final = 4 << 20
_READ_AT_ONCE: Final = limits.READ_KEYS
_DELETED_AT_ONCE: Final = 200
_STAGED_US: Final = 3_600_000_000
"""The time for which a save that takes several batches may go on; an older one was interrupted."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Place = tuple[str, int]
"""A line, and the depth of an entry in it."""


class KeepstateConversationStore(Adapter, ConversationStore):
    """Pydantic AI's `ConversationStore` on a keepstate store.

    All conversations of a store are in one space, because a fork shares the messages of another conversation.
    A save is one batch up to 400 messages. A larger one writes the others first, and the record last; nothing
    of it is visible before. A deletion is visible at once, and then deletes the messages that no other
    conversation reaches, in batches. The next deletion completes an interrupted one.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        name: The name of the conversations, to keep those of several applications apart.
        owner: The person whose conversations these are, if they belong to one. `erase` drops their space.
        tenant: The tenant of the space, if any.
        author: The author in recorded changes.
        encryption: The keys that encrypt values.
        record: Keep every moment of the space in its history.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "pydantic"

    def __init__(
        self,
        store: str | PathLike[str] | Store | Keepstate = DEFAULT_URL,
        *,
        name: str = "main",
        owner: str | None = None,
        tenant: str | None = None,
        author: str | None = None,
        encryption: KeyRing | None = None,
        record: bool = False,
    ) -> None:
        super().__init__(store, tenant=tenant, author=author, encryption=encryption, record=record)
        self._bound = self.space(name, owner=owner)

    # ---- records

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None if it does not exist."""
        found = await self._bound.call(lambda space: _conversations(space).get(segment(conversation_id)))
        return None if found is None else _record_in(found)

    async def read_records(
        self, *, scope: str | None = None, limit: int | None = None
    ) -> Sequence[ConversationRecord]:
        """Return the records, the latest `updated_at` first, all at one revision.

        Cost: three round trips, whatever the number of other conversations.

        Args:
            scope: Only the conversations of this scope.
            limit: The largest number of records.

        Raises:
            InvalidError: `limit` is negative.
        """
        if limit is not None:
            limits.admit_count("limit", limit, least=0)
            if limit == 0:
                return []
        index = ("updated",) if scope is None else ("scope", segment(scope))

        async def work(space: Space) -> list[dict[str, Any]]:
            return [*await _conversations(space).by(*index, reverse=True, limit=limit or limits.COUNT - 1)]

        # Two scopes have different segments, and a damaged one is not shown to another scope.
        records = _RECORDS.validate_python([found["record"] for found in await self._bound.call(work)])
        return [record for record in records if scope is None or record.scope == scope]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Store a record and new entries together, if the stored record has the expected revision.

        Args:
            record: The record.
            new_entries: The entries, each after its parent, with ids that the store does not have.
            expected_revision: The revision of the stored record; None if there must not be one.

        Raises:
            ConversationConflict: The stored record has another revision, or the head, a branch or the parent
                of an entry does not exist any more. Nothing was changed.
            InvalidError: An entry has the id of another one, or a value that Pydantic AI cannot serialize.
        """
        save = _Save(record, new_entries, expected_revision)
        for entries in save.early_batches():
            await self._bound.transact(partial(save.stage, entries=entries), turn=record.conversation_id)
        await self._bound.transact(save.complete, turn=record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation, and then the entries that no other conversation reaches.

        Raises:
            ConversationConflict: The stored record has another revision, or does not exist.
        """

        async def work(tx: Transaction) -> None:
            stored = await _conversations(tx).get(segment(conversation_id))
            if stored is None or stored["record"]["revision"] != expected_revision:
                raise ConversationConflict(conversation_id)
            lines = _Lines(tx)
            places = _places_in(stored)
            await lines.load(line for line, _ in places)
            for place in places:
                lines.add_use(place, -1)
            await _conversations(tx).delete(segment(conversation_id))
            await lines.store()

        await self._bound.transact(work, turn=conversation_id)
        await self.sweep()

    # ---- entries

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """Return one entry.

        Raises:
            NotFoundError: It does not exist; also a LookupError.
        """
        return (await self.read_history(entry_id, limit=1))[0]

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """Return the entries up to a head, in order, or the last `limit` of them.

        Cost: a round trip for the head, and one for each 999 entries. A history that was branched more than
        64 times takes one more for each 64 of them.

        Raises:
            NotFoundError: The head or an entry before it does not exist; also a LookupError.
        """
        if head_id is None or limit == 0:
            return []
        found = await self._bound.call(lambda space: _read_history(space.documents, head_id, limit))
        messages = ModelMessagesTypeAdapter.validate_python([message for _, message in found])
        entries: list[ConversationEntry] = []
        parent_id: str | None = None
        for (id, _), message in zip(found, messages, strict=True):
            entries.append(ConversationEntry(id=id, parent_id=parent_id, message=message))
            parent_id = id
        # One more was read if there is one: the first of them tells the parent of the second.
        return entries if limit is None else entries[-limit:]

    # ---- upkeep

    async def sweep(self) -> int:
        """Delete the entries that no conversation reaches, in batches, and return their number.

        `delete` does it too. Call it after a process was killed while it deleted a conversation, or saved
        more than 400 messages at once; of such a save, an hour later.
        """
        count = 0
        while lines := await self._bound.call(_released):
            for line in lines:
                todo: str | None = line
                while todo is not None:
                    applied = await self._bound.transact(partial(_release, id=todo), turn=todo)
                    deleted, todo = applied.value
                    count += deleted
        return count

    async def erase(self, owner: str) -> Erased:
        """Erase the conversations of a person: their own spaces, and the conversations of their scope here.

        In the space of this store, conversations of the scope `owner` are deleted, with the entries that no
        other conversation reaches, and the log and the history of the space, so that no earlier moment of it
        can be read. What another scope has forked from them is a part of that other conversation, and stays.
        An interrupted call is completed by the next one. The counts are exact if nothing else is written.
        """
        erased = await super().erase(owner)
        before = await self._bound.call(Space.size)
        records = await self.read_records(scope=owner)
        mark = f"erasing/{_digest(owner)}"
        if records:
            await self._bound.transact(lambda tx: tx.documents.put(mark, True))
        elif await self._bound.call(lambda space: space.documents.get(mark)) is None:
            return erased
        for record in records:
            await self.delete(record.conversation_id, scope=owner)
        await self.sweep()  # also what an interrupted call has left
        # No document has this prefix: the call removes the log and the history.
        rest = await self._bound.call(lambda space: space.expunge("erased/"))
        await self._bound.transact(lambda tx: tx.documents.delete(mark))
        after = await self._bound.call(Space.size)
        return Erased(
            erased.spaces + 1,
            erased.entries + max(0, before.entries - after.entries),
            erased.size_bytes + max(0, before.size_bytes - after.size_bytes),
            [*erased.archives, *rest.archives],
            rest.not_reached,
        )


# ---- saving


@dataclass(slots=True)
class _Entry:
    """An entry to write: as plain values, with the approximate size of its message."""

    id: str
    parent_id: str | None
    message: Any
    size_bytes: int


class _Save:
    """One save: a record and its new entries, serialized before anything is written."""

    def __init__(
        self,
        record: ConversationRecord,
        entries: Sequence[ConversationEntry],
        expected_revision: str | None,
    ) -> None:
        self._id = record.conversation_id
        what = f"the record of conversation {self._id!r}"
        self._record: dict[str, Any] = _dump(_RECORDS, [record], what)[0]
        self._head_id, self._branches = record.head_id, [*record.branches]
        self._scope = None if record.scope is None else segment(record.scope)
        self._updated_us = _microseconds(record.updated_at)
        self._expected = expected_revision
        self._entries = _dump_entries(entries, self._id)
        self._staged: list[str] = []
        """The lines that earlier batches have begun, which no conversation uses yet."""

    def early_batches(self) -> list[list[_Entry]]:
        """Take all entries but those that fit into the last batch, and return them in batches."""
        batches: list[list[_Entry]] = [[]]
        size_bytes = 0
        for entry in self._entries:
            if len(batches[-1]) == _AT_ONCE or size_bytes + entry.size_bytes > _BATCH_BYTES:
                batches.append([])
                size_bytes = 0
            batches[-1].append(entry)
            size_bytes += entry.size_bytes
        self._entries = batches.pop()
        return batches

    async def stage(self, tx: Transaction, entries: Sequence[_Entry]) -> None:
        """Write entries in lines of their own, which no conversation uses before the last batch."""
        places = await self._find(tx, entries, None)
        lines = _Lines(tx)
        await lines.load([*self._staged, *(line for line, _ in places.values())])
        if not all(map(lines.has, self._staged)):
            raise ConversationConflict(self._id)  # the save has taken longer than an hour
        begun = await lines.append(entries, places, only=self._staged)
        await lines.store()
        for line in begun:
            await tx.documents.put(_release_name(line), _microseconds(await tx.now()) + _STAGED_US)
        self._staged += [line for line in begun if line not in self._staged]

    async def complete(self, tx: Transaction) -> None:
        """Write the record and the other entries, and use what was staged."""
        conversations, name = _conversations(tx), segment(self._id)
        found = await read_each(
            tx.documents, [conversations.name(name), *self._unknown(self._entries, self._head_id)]
        )
        entry = found.get(conversations.name(name))
        stored: dict[str, Any] | None = None if entry is None else entry.value
        if (None if stored is None else stored["record"]["revision"]) != self._expected:
            raise ConversationConflict(self._id)
        known = {} if stored is None else {id: _place(place) for id, place in stored["places"].items()}
        places = await self._find(tx, self._entries, self._head_id, known)
        lines = _Lines(tx)
        before = set(known.values())
        await lines.load([*self._staged, *(line for line, _ in {*places.values(), *before})])
        if not all(map(lines.has, self._staged)):
            raise ConversationConflict(self._id)
        await lines.append(self._entries, places)
        await lines.use_staged(self._staged, self._id)
        ends = {id: places[id] for id in (self._head_id, *self._branches) if id is not None}
        after = set(ends.values())
        for place in after - before:
            lines.add_use(place, 1)
        for place in before - after:
            lines.add_use(place, -1)
        await lines.store()
        value = {
            "id": self._id,
            "record": self._record,
            "places": {id: [*place] for id, place in ends.items()},
            "scope": self._scope,
            "updated_us": self._updated_us,
        }
        await conversations.put(name, value)

    def _unknown(self, entries: Sequence[_Entry], head_id: str | None) -> list[str]:
        """Return the names of the entries that a batch needs to know of: new ones, parents and the head."""
        own = [entry.id for entry in entries]
        others = [entry.parent_id for entry in entries] + [head_id]
        return [_entry_name(id) for id in dict.fromkeys([*own, *others]) if id is not None]

    async def _find(
        self,
        tx: Transaction,
        entries: Sequence[_Entry],
        head_id: str | None,
        known: Mapping[str, Place] | None = None,
    ) -> dict[str, Place]:
        """Return the places of stored entries that a batch names.

        Raises:
            ConversationConflict: One of them was released by another writer.
            InvalidError: A new entry has the id of a stored one.
        """
        own = {entry.id for entry in entries}
        branches = [] if known is None else self._branches
        wanted = {id for id in (head_id, *branches, *(each.parent_id for each in entries)) if id is not None}
        names = {_entry_name(id): id for id in [*own, *(wanted - own)]}
        if known is not None:
            # The record uses these, so they exist.
            names = {name: id for name, id in names.items() if id in own or id not in known}
        found = await read_each(tx.documents, [*names])
        places = {id: known[id] for id in wanted if known is not None and id in known}
        places |= {names[name]: _place(entry.value) for name, entry in found.items()}
        for id in own & places.keys():
            raise InvalidError(f"entry {id!r} of conversation {self._id!r} exists; give a new entry a new id")
        if wanted - own - places.keys():
            raise ConversationConflict(self._id)
        return places


def _dump(adapter: TypeAdapter[Any], values: Sequence[object], what: str) -> Any:
    try:
        return adapter.dump_python(values, mode="json")
    except PydanticSerializationError as error:
        raise InvalidError(
            f"{what} cannot be stored: {error}. Give values that Pydantic AI serializes"
        ) from error


def _dump_entries(entries: Sequence[ConversationEntry], conversation_id: str) -> list[_Entry]:
    dumped: list[_Entry] = []
    for entry in entries:
        what = f"entry {entry.id!r} of conversation {conversation_id!r}"
        message = _dump(ModelMessagesTypeAdapter, [entry.message], what)[0]
        size_bytes = len(ModelMessagesTypeAdapter.dump_json([entry.message]))
        # A larger message is stored in parts, outside of the batch.
        dumped.append(_Entry(entry.id, entry.parent_id, message, min(size_bytes, limits.VALUE_BYTES)))
    if len({entry.id for entry in dumped}) < len(dumped):
        raise InvalidError(f"two new entries of conversation {conversation_id!r} have the same id")
    return dumped


# ---- lines


@dataclass(slots=True)
class _Line:
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


class _Lines:
    """The lines that a transaction reads and writes."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._lines: dict[str, _Line] = {}
        self._before: dict[str, Any] = {}
        self._shrunk: set[str] = set()

    def has(self, line: str) -> bool:
        """Return whether a loaded line exists."""
        return line in self._lines

    async def load(self, lines: Iterable[str]) -> None:
        """Read lines that are not known yet."""
        names = {_line_name(line): line for line in lines if line not in self._lines}
        for name, entry in (await read_each(self._tx.documents, [*names])).items():
            stored = entry.value
            uses = dict(stored["uses"])
            parent = None if stored["parent"] is None else _place(stored["parent"])
            line = _Line(stored["first"], stored["last"], uses, parent, stored["is_staged"])
            self._lines[names[name]], self._before[names[name]] = line, line.stored()

    async def append(
        self,
        entries: Sequence[_Entry],
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
                line, depth = _digest(entry.id), 0 if parent is None else parent[1] + 1
                self._lines[line] = _Line(depth, depth, parent=parent, is_staged=only is not None)
                begun.append(line)
                if parent is not None:
                    await self._branch_off(line, parent, is_used=only is None)
            places[entry.id] = line, depth
            await self._tx.documents.put(_entry_name(entry.id), [line, depth])
            await self._tx.documents.put(_message_name(line, depth), [entry.id, entry.message])
        return begun

    def _has_place(self, place: Place) -> bool:
        line = self._lines.get(place[0])
        return line is not None and line.first <= place[1] <= line.last

    def _may_continue(self, parent: Place, only: Sequence[str] | None, begun: Sequence[str]) -> bool:
        return self._lines[parent[0]].last == parent[1] and (
            only is None or parent[0] in only or parent[0] in begun
        )

    async def _branch_off(self, line: str, parent: Place, *, is_used: bool) -> None:
        path = await self._tx.documents.get(_path_name(parent[0]), [])
        await self._tx.documents.put(_path_name(line), [[*parent], *path[: _REACH - 1]])
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
            await self._tx.documents.delete(_release_name(line))

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
                await self._tx.documents.put(_line_name(name), stored)
            is_new = name not in self._before and not line.is_staged
            if line.reach < line.last and (is_new or name in self._shrunk):
                await self._tx.documents.put(_release_name(name), 0)

    async def shorten(self, id: str) -> tuple[int, str | None]:
        """Delete entries from the unused end of a loaded line; see `_release`."""
        documents, line = self._tx.documents, self._lines[id]
        begin = max(line.first, line.reach + 1, line.last - _DELETED_AT_ONCE + 1)
        names = [_message_name(id, depth) for depth in range(begin, line.last + 1)]
        found = await read_each(documents, names)
        for name, entry in found.items():
            await documents.delete(_entry_name(entry.value[0]))
            await documents.delete(name)
        line.last = begin - 1
        if line.last >= line.first:
            await self.store()
            return len(found), id
        del self._lines[id]
        for name in (_line_name(id), _path_name(id), _release_name(id)):
            await documents.delete(name)
        if line.parent is None or line.is_staged:
            return len(found), None
        await self.load([line.parent[0]])
        self.add_use(line.parent, -1)
        await self.store()
        return len(found), line.parent[0]


async def _released(space: Space) -> list[str]:
    """Return the lines whose unused end may be deleted now."""
    now_us = _microseconds(await space.now())
    marks = space.documents.items(prefix=_release_name(""))
    return [name.removeprefix(_release_name("")) async for name, due_us in marks if due_us <= now_us]


async def _release(tx: Transaction, id: str) -> tuple[int, str | None]:
    """Delete the unused end of a line: at most 200 entries of it, the last ones first.

    Returns:
        The number of deleted entries, and the line to continue with: the same one, or its parent once it is
        gone.
    """
    documents, lines = tx.documents, _Lines(tx)
    stored = await documents.get(_line_name(id))
    if stored is None or stored["last"] <= max((depth for depth, _ in stored["uses"]), default=-1):
        await documents.delete(_release_name(id))
        return 0, None
    await lines.load([id])
    return await lines.shorten(id)


# ---- reading


async def _read_history(documents: Documents, head_id: str, limit: int | None) -> list[tuple[str, Any]]:
    """Return ids and messages up to a head: all, or one more than the limit if there are as many."""
    stored = await documents.get(_entry_name(head_id))
    if stored is None:
        raise NotFoundError(f"entry {head_id!r} does not exist; its conversation was deleted or changed")
    path, is_known = [_place(stored)], False
    depth = path[0][1]
    lowest = 0 if limit is None else max(0, depth - limit)
    latest_first: list[tuple[str, Any]] = []
    while depth >= lowest:
        bottom = _path_name(path[-1][0])
        page = range(depth, max(lowest - 1, depth - _READ_AT_ONCE + 1), -1)  # and one more for the path
        names = [_message_name(line, at) for line, at in _along(path, page)]
        found = await read_each(documents, names if is_known else [bottom, *names])
        below = -1
        if not is_known:
            further = [_place(place) for place in found[bottom].value] if bottom in found else []
            path += further
            is_known = len(further) < _REACH
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


def _conversations(target: Space | Transaction) -> Collection[dict[str, Any]]:
    return target.collection("conversation", dict[str, Any], index={"updated": _by_time, "scope": _by_scope})


def _by_time(stored: Mapping[str, Any]) -> tuple[int]:
    return (stored["updated_us"],)


def _by_scope(stored: Mapping[str, Any]) -> tuple[str, int] | None:
    return None if stored["scope"] is None else (stored["scope"], stored["updated_us"])


def _entry_name(id: str) -> str:
    return f"entry/{segment(id)}"


def _message_name(line: str, depth: int) -> str:
    return f"message/{line}/{depth}"


def _line_name(line: str) -> str:
    return f"line/{line}"


def _path_name(line: str) -> str:
    return f"path/{line}"


def _release_name(line: str) -> str:
    return f"release/{line}"


def _digest(text: str) -> str:
    """Return 72 bits of a digest in 12 letters: the id of the line that an entry begins, and other names."""
    return urlsafe_b64encode(sha256(text.encode("utf-8", "surrogatepass")).digest()[:9]).decode()


def _place(stored: Sequence[Any]) -> Place:
    line, depth = stored
    return line, depth


def _places_in(stored: Mapping[str, Any]) -> set[Place]:
    return {_place(place) for place in stored["places"].values()}


def _record_in(stored: Mapping[str, Any]) -> ConversationRecord:
    return _RECORDS.validate_python([stored["record"]])[0]


def _microseconds(time: datetime) -> int:
    """Return a time as microseconds since 1970; one without a zone is in UTC."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)
