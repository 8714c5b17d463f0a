"""Followers of a conversation: each change once, in order, and the deltas of a reply.

A follower compares the conversation with what it has told: the next number, the number of changes, and the
last event of the reply. Nothing is written for followers, and a position never expires, because it is these
numbers. Changes that came between two looks are told as their result.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Final, Literal

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.log_cursor import listen_about
from keepstate.engine.kernel.positions import Positions
from keepstate.engine.space.joint_work import read_ahead, run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import PrunedError
from keepstate.sessions.conversation_documents import ConversationDocuments, ConversationRecord
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.entries import Entry, EntryRecord
from keepstate.sessions.message_texts import text_of
from keepstate.sessions.replies import ActiveReply, ReplyStream, Superseded, active_in, require_space
from keepstate.values import limits

ChangeKind = Literal["message", "edited", "removed", "started", "delta", "stopped", "failed"]

_LONGEST_WAIT_S: Final = 5.0
_WAIT_FOR_REPLY_S: Final = 1.0
"""The longest wait while a reply is written, because the end of its lease gives no hint."""
_MESSAGES_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class ChatChange:
    """A change of a conversation.

    Attributes:
        kind: `message`, `edited` and `removed` for messages; `started` and `delta` for a reply that is being
            said; `stopped` and `failed` for the message that a reply became if it was not completed.
        number: The number of the message; None while a reply has none. A reply that was `started` is
            `removed` without a number if its message was removed before it was told.
        text: The text of the message; of a `delta`, only what is new; of `started`, all that was said so far.
        entry: The entry; None for `removed`, `started` and `delta`.
        id: The id of the message, or of the reply, which its message gets.
        position: An opaque text: `follow(after=position)` continues after this change, in any process.
    """

    kind: ChangeKind
    number: int | None
    text: str
    entry: Entry | None
    id: str | None
    position: str


@dataclass(frozen=True, slots=True)
class Told:
    """State of a follower: the numbers of a position."""

    life: int
    """Identifies the generation of the session."""
    begin: int = 0
    """The first message that was not cleared."""
    next: int = 0
    """The number of the next message."""
    changes: int = 0
    """The number of the last edit or removal."""
    event: int = 0
    """The number of the last event of the reply that was told; 0 without one."""


@dataclass(frozen=True, slots=True)
class _Present:
    """A conversation at one moment."""

    stream: ReplyStream
    record: ConversationRecord
    count: int
    last: int | None
    """The number of the last event of the reply's stream."""
    is_held: bool
    """Whether the writer of a reply lives."""

    @property
    def life(self) -> int:
        return int.from_bytes(sha256(self.stream.prefix.encode()).digest()[:8])


class Follower:
    """Tells the changes of one conversation since a position.

    Args:
        store: The conversation.
        space: Its space.
        after: The position, the number of the last message that the caller has, or None for all messages.
        deltas: Whether to tell of replies before they are messages.
    """

    def __init__(
        self, store: ConversationStore, space: Space, after: str | int | None, *, deltas: bool
    ) -> None:
        self._store, self._space, self._after, self._deltas = store, space, after, deltas
        self._told: Told | None = None
        self._reply: ActiveReply | None = None
        self._is_over = False
        """Whether the reply was found to have ended, and the next look tells of its message."""
        self.wait_s = _LONGEST_WAIT_S

    async def begin(self) -> None:
        """Check the position.

        Raises:
            InvalidError: It is not a position of this conversation, or the number is not one.
        """
        opened = await self._space.executor.store()
        self._positions = Positions(opened, self._space.executor.stored_name, self._space.name)
        self._conversation = f"chat {self._store.namespace.prefix}{self._store.tail}".encode()
        if isinstance(self._after, str):
            self._told = Told(*self._positions.chat_in("after", self._after, self._conversation))
        elif self._after is not None:
            limits.admit_count("after", self._after, 0)

    async def look(self) -> tuple[list[ChatChange], bool]:
        """Return the next changes, and whether there may be more at once.

        Raises:
            HistoryLostError: The store has lost messages that were told.
        """
        now = await self._read()
        if now is None:
            return [], False
        told = self._begin_at(now)
        if told.next > now.count or told.changes > now.record.edits:
            raise self._positions.lost(0, f"message {told.next - 1} of {self._store!r}")
        changes = await self._tell_altered(now) + await self._tell_new(now)
        has_more = self._told is not None and self._told.next < now.count
        self.wait_s = _LONGEST_WAIT_S
        if has_more:
            return changes, True
        if now.last is None:
            return changes + self._tell_vanished(), False
        replied = await self._tell_reply(now)
        return (changes, True) if replied is None else (changes + replied, False)

    async def _read(self) -> _Present | None:
        """Read the conversation and the state of its reply at one revision; None if it does not exist."""
        namespace = self._store.namespace
        for expected in (namespace.expected(), None):
            prefix = await namespace.to_read() if expected is None else expected[0]
            if prefix is None:
                return None
            head = None if expected is None else expected[1]
            now = await run_in_transaction(
                self._space, partial(self._read_under, prefix, head), message="follow a conversation"
            )
            if now is not None:
                return now
        return None

    async def _read_under(self, prefix: str, head: str | None, tx: Transaction) -> _Present | None:
        """Read the conversation under a prefix; None if the document `head` does not confirm that prefix."""
        documents = self._store.at(tx, prefix)
        stream = ReplyStream(self._store, self._space, prefix)
        names = [documents.context_name, documents.record_name, *([] if head is None else [head])]
        await read_ahead(tx, documents=names, streams=[stream.name], leases=[stream.lease_name])
        if head is not None:
            found = await tx.documents.get(head)
            if not self._store.namespace.confirms(found, prefix):
                return None
        window, record = await documents.window_and_record()
        last = await tx.events.last(stream.name)
        is_held = await tx.leases.holder(stream.lease_name) is not None
        return _Present(stream, record, window.count, last, is_held)

    def _begin_at(self, now: _Present) -> Told:
        """Return what was told of the present generation, and forget the earlier ones."""
        if self._told is None and isinstance(self._after, int):
            self._told = Told(now.life, now.record.begin, min(self._after + 1, now.count), now.record.edits)
        if self._told is None or self._told.life != now.life:
            self._told, self._reply = Told(now.life, now.record.begin, 0, now.record.edits), None
        return self._told

    def _tell(
        self, kind: ChangeKind, number: int | None, text: str, entry: Entry | None, id: str | None, told: Told
    ) -> ChatChange:
        numbers = told.life, told.begin, told.next, told.changes, told.event
        self._told = told
        return ChatChange(kind, number, text, entry, id, self._positions.of_chat(self._conversation, numbers))

    # ---- messages

    async def _tell_altered(self, now: _Present) -> list[ChatChange]:
        """Tell of messages that were edited or removed after they were told."""
        told, record = self._told, now.record
        assert told is not None
        if (record.begin, record.edits) == (told.begin, told.changes):
            return []
        before = replace(record, removed=[each for each in record.removed if each[2] <= told.changes])
        before.begin = told.begin
        gone = set(before.numbers(told.begin, told.next))
        kept = set(record.numbers(told.begin, told.next))
        edited = {number for number, edit in record.edited.items() if edit > told.changes and number in kept}
        found = await self._documents(now).read_records(record, sorted(edited))
        changes: list[ChatChange] = []
        for number in sorted((gone - kept) | found.keys()):
            if number in found:
                changes.append(self._tell_entry("edited", number, found[number], told))
            else:
                changes.append(self._tell("removed", number, "", None, None, told))
        done = replace(told, begin=record.begin, changes=record.edits)
        if changes:  # only the last change completes the step
            last = changes[-1]
            changes[-1] = self._tell(last.kind, last.number, last.text, last.entry, last.id, done)
        self._told = done
        return changes

    async def _tell_new(self, now: _Present) -> list[ChatChange]:
        told = self._told
        assert told is not None
        numbers = now.record.first_numbers(told.next, now.count, _MESSAGES_AT_ONCE)
        found = await self._documents(now).read_records(now.record, numbers)
        changes: list[ChatChange] = []
        for number in numbers:
            if number not in found:
                continue
            status = found[number].entry(number).status
            is_reply = self._reply is not None and found[number].id == self._reply.id
            if is_reply:
                self._reply, self._is_over = None, False
            event = 0 if is_reply else (self._told or told).event
            after = replace(told, next=number + 1, event=event)
            changes.append(
                self._tell_entry("message" if status == "done" else status, number, found[number], after)
            )
        assert self._told is not None
        if len(numbers) < _MESSAGES_AT_ONCE:
            self._told = replace(self._told, next=now.count)
        return changes

    def _tell_entry(self, kind: ChangeKind, number: int, record: EntryRecord, told: Told) -> ChatChange:
        entry = record.entry(number)
        return self._tell(kind, number, text_of(entry.message), entry, entry.id, told)

    def _documents(self, now: _Present) -> ConversationDocuments:
        return self._store.at(self._space, now.stream.prefix)

    # ---- replies

    async def _tell_reply(self, now: _Present) -> list[ChatChange] | None:
        """Tell of the reply that is being said; None if it was ended meanwhile: another look is due."""
        assert now.last is not None and self._told is not None
        known = self._reply
        try:
            if known is not None and known.start <= now.last:
                news = await now.stream.events(known.last, now.last)
                if not news and known.last < now.last:
                    return None
                active: ActiveReply | None = known
            else:
                known, news = None, await now.stream.events(None, now.last)
                active = active_in(news)
        except PrunedError:
            # A reply that had ended before this look is told, unless its message was removed since.
            has_vanished, self._is_over = known is not None and self._is_over, known is not None
            return self._tell_vanished() if has_vanished else None
        if active is None:
            self._reply = None
            return []
        if not now.is_held:
            await self._fail(now.stream)
            return None
        self.wait_s = _WAIT_FOR_REPLY_S
        changes: list[ChatChange] = []
        if known is None and self._told.event < active.start:
            self._reply = active
            told = replace(self._told, event=active.last)
            if self._deltas:
                changes.append(self._tell("started", None, active.text, None, active.id, told))
            return changes
        for event in news:
            number = event.number or 0
            if number > self._told.event and self._deltas:
                told = replace(self._told, event=number)
                changes.append(self._tell("delta", None, event.data, None, active.id, told))
        last = (news[-1].number or 0) if news else active.last
        self._reply = replace(active, last=last)
        return changes

    def _tell_vanished(self) -> list[ChatChange]:
        """Tell that the reply that was told is gone: its message was removed from view before it was told."""
        known, self._reply, self._is_over = self._reply, None, False
        told = self._told
        if known is None or told is None or not self._deltas:
            return []
        return [self._tell("removed", None, "", None, known.id, replace(told, event=0))]

    async def _fail(self, stream: ReplyStream) -> None:
        """End a reply whose writer is dead, unless another process does."""
        active = await stream.read()
        if active is not None:
            try:
                await stream.end(active.last, active.addition("failed", {}), is_abandoned=True)
            except Superseded:
                return


async def follow(
    store: ConversationStore, after: str | int | None, *, deltas: bool
) -> AsyncGenerator[ChatChange]:
    """Yield the changes of a conversation; see `Conversation.follow`."""
    space = require_space(store)
    follower = Follower(store, space, after, deltas=deltas)
    await follower.begin()
    about = layout.DOCUMENTS, layout.HEADS, layout.LEASES
    executor = space.executor
    async with listen_about(await executor.store(), executor.stored_name, about, executor.clock) as hints:
        while True:
            changes, has_more = await follower.look()
            for change in changes:
                yield change
            if not has_more:
                await hints.wait(follower.wait_s)
