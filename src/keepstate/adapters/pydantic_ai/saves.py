"""One save of a conversation: its record and its new entries, in as many batches as they need.

All batches but the last write entries in staged lines, which no conversation uses. The last one writes the
record and uses them, so a save is visible as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from keepstate.adapters.base import read_each
from keepstate.adapters.pydantic_ai.entries import (
    RECORDS,
    NewEntry,
    conversations_in,
    dump_entries,
    microseconds,
)
from keepstate.adapters.pydantic_ai.lines import (
    Lines,
    Place,
    entry_name,
    place_of,
    release_name,
)
from keepstate.adapters.pydantic_values import dump, in_batches
from keepstate.engine.space.space import Transaction
from keepstate.errors import InvalidError, MissingExtraError
from keepstate.names import segment

try:
    from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord
except ImportError as error:
    raise MissingExtraError.of("pydantic-ai", "pydantic-ai-slim from 2.66 on") from error

_STAGED_US: Final = 3_600_000_000
"""The time for which a save that takes several batches may go on; an older one was interrupted."""


class Save:
    """One save: a record and its new entries, serialized before anything is written."""

    def __init__(
        self,
        record: ConversationRecord,
        entries: Sequence[ConversationEntry],
        expected_revision: str | None,
    ) -> None:
        self._id = record.conversation_id
        what = f"the record of conversation {self._id!r}"
        self._record: dict[str, Any] = dump(RECORDS, [record], what)[0]
        self._head_id, self._branches = record.head_id, [*record.branches]
        self._scope = None if record.scope is None else segment(record.scope)
        self._updated_us = microseconds(record.updated_at)
        self._expected = expected_revision
        self._entries = dump_entries(entries, self._id)
        self._staged: list[str] = []
        """The lines that earlier batches have begun, which no conversation uses yet."""

    def early_batches(self) -> list[list[NewEntry]]:
        """Take all entries but those that fit into the last batch, and return them in batches."""
        batches = in_batches((entry, entry.size_bytes) for entry in self._entries)
        self._entries = batches.pop()
        return batches

    async def stage(self, tx: Transaction, entries: Sequence[NewEntry]) -> None:
        """Write entries in lines of their own, which no conversation uses before the last batch."""
        places = await self._find(tx, entries, None)
        lines = Lines(tx)
        await lines.load([*self._staged, *(line for line, _ in places.values())])
        if not all(map(lines.has, self._staged)):
            raise ConversationConflict(self._id)  # the save has taken longer than an hour
        begun = await lines.append(entries, places, only=self._staged)
        await lines.store()
        for line in begun:
            await tx.documents.put(release_name(line), microseconds(await tx.now()) + _STAGED_US)
        self._staged += [line for line in begun if line not in self._staged]

    async def complete(self, tx: Transaction) -> None:
        """Write the record and the other entries, and use what was staged."""
        conversations, name = conversations_in(tx), segment(self._id)
        found = await read_each(
            tx.documents, [conversations.name(name), *self._unknown(self._entries, self._head_id)]
        )
        entry = found.get(conversations.name(name))
        stored: dict[str, Any] | None = None if entry is None else entry.value
        if (None if stored is None else stored["record"]["revision"]) != self._expected:
            raise ConversationConflict(self._id)
        known = {} if stored is None else {id: place_of(place) for id, place in stored["places"].items()}
        places = await self._find(tx, self._entries, self._head_id, known)
        lines = Lines(tx)
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

    def _unknown(self, entries: Sequence[NewEntry], head_id: str | None) -> list[str]:
        """Return the names of the entries that a batch needs to know of: new ones, parents and the head."""
        own = [entry.id for entry in entries]
        others = [entry.parent_id for entry in entries] + [head_id]
        return [entry_name(id) for id in dict.fromkeys([*own, *others]) if id is not None]

    async def _find(
        self,
        tx: Transaction,
        entries: Sequence[NewEntry],
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
        names = {entry_name(id): id for id in [*own, *(wanted - own)]}
        if known is not None:
            # The record uses these, so they exist.
            names = {name: id for name, id in names.items() if id in own or id not in known}
        found = await read_each(tx.documents, [*names])
        places = {id: known[id] for id in wanted if known is not None and id in known}
        places |= {names[name]: place_of(entry.value) for name, entry in found.items()}
        for id in own & places.keys():
            raise InvalidError(f"entry {id!r} of conversation {self._id!r} exists; give a new entry a new id")
        if wanted - own - places.keys():
            raise ConversationConflict(self._id)
        return places
