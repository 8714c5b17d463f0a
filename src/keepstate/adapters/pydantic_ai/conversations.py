"""`KeepstateConversationStore`: the conversations of Pydantic AI in any keepstate store.

Messages are stored once, in lines. A line is a run of messages in which each follows the one before, from a
depth, the number of messages in front of it in its history. A save continues the line of its parent if that
is the last of the line, and otherwise begins a line that branches off. So a history is the ends of a few
lines, and the names of all its messages follow from their depths. See `lines` for their invariants.

```
conversation/<id>        {"id", "record", "places": {entry id: [line, depth]}, "scope", "updated_us"}
entry/<entry id>         [line, depth]
message/<line>/<depth>   [entry id, message]
path/<line>              [[line, depth], …]: where the line branches off, then where that one does, up to 64
line/<line>              {"first", "last", "uses": [[depth, count], …], "parent", "is_staged"}
release/<line>           time in microseconds from which the unused end of the line may be deleted
erasing/<digest>         an erasure of a scope that has not ended
```
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from keepstate.adapters.base import OneSpaceAdapter
from keepstate.adapters.pydantic_ai.entries import RECORDS, conversations_in, record_in
from keepstate.adapters.pydantic_ai.lines import Lines, digest, find_released, places_in, read_path, release
from keepstate.adapters.pydantic_ai.saves import Save
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import MissingExtraError
from keepstate.names import segment
from keepstate.values import limits

try:
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
    from pydantic_ai.messages import ModelMessagesTypeAdapter
except ImportError as error:
    raise MissingExtraError.of("pydantic-ai", "pydantic-ai-slim from 2.66 on") from error


class KeepstateConversationStore(OneSpaceAdapter, ConversationStore):
    """Pydantic AI's `ConversationStore` on a keepstate store.

    All conversations of a store are in one space, because a fork shares the messages of another conversation.
    A save is one batch up to 400 messages. A larger one writes the others first, and the record last; nothing
    of it is visible before. A deletion is visible at once, and then deletes the messages that no other
    conversation reaches, in batches. The next deletion completes an interrupted one.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        name: The name of the conversations, to keep those of several applications apart.
        owner: The person whose conversations these are, if they belong to one. `erase` drops their space.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "pydantic"

    # ---- records

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """Return the record of a conversation, or None if it does not exist."""
        found = await self._bound.call(lambda space: conversations_in(space).get(segment(conversation_id)))
        return None if found is None else record_in(found)

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
            return [*await conversations_in(space).by(*index, reverse=True, limit=limit or limits.COUNT - 1)]

        # Two scopes have different segments, and a damaged one is not shown to another scope.
        records = RECORDS.validate_python([found["record"] for found in await self._bound.call(work)])
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
        save = Save(record, new_entries, expected_revision)
        for entries in save.early_batches():
            await self._bound.transact(partial(save.stage, entries=entries), turn=record.conversation_id)
        await self._bound.transact(save.complete, turn=record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation, and then the entries that no other conversation reaches.

        Raises:
            ConversationConflict: The stored record has another revision, or does not exist.
        """

        async def work(tx: Transaction) -> None:
            stored = await conversations_in(tx).get(segment(conversation_id))
            if stored is None or stored["record"]["revision"] != expected_revision:
                raise ConversationConflict(conversation_id)
            lines = Lines(tx)
            places = places_in(stored)
            await lines.load(line for line, _ in places)
            for place in places:
                lines.add_use(place, -1)
            await conversations_in(tx).delete(segment(conversation_id))
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
        found = await self._bound.call(lambda space: read_path(space.documents, head_id, limit))
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
        while lines := await self._bound.call(find_released):
            for line in lines:
                todo: str | None = line
                while todo is not None:
                    applied = await self._bound.transact(partial(release, id=todo), turn=todo)
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
        mark = f"erasing/{digest(owner)}"
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
