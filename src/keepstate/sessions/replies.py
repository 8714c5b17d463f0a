"""Replies: messages that are being said, which other processes follow and stop.

A reply is a stream of events, outside the documents and so outside the history: its start, and its deltas in
groups. One batch ends a reply: it adds the message and hides the events. That batch requires the last event
that the ending process has read. So of the writer, a caller of `stop` and a follower that finds the writer
dead, exactly one ends a reply. The writer lives as long as it holds the reply's lease.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from keepstate._runner import Lock, Signal
from keepstate.engine.events.record import Event, to_number
from keepstate.engine.events.truncation import append_after, finish_drop, hide_stream
from keepstate.engine.kernel.arguments import (
    check_author,
    check_duration_ms,
    check_name,
    check_text,
    require_instance,
)
from keepstate.engine.kernel.shield import finish_despite_cancel
from keepstate.engine.space.joint_work import read_ahead
from keepstate.engine.space.space import Space, Transaction
from keepstate.engine.usage.spends import Spend
from keepstate.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    KeepstateError,
    LeaseLostError,
    PrunedError,
)
from keepstate.names import shorten
from keepstate.sessions.conversation_documents import ConversationDocuments
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.entries import Addition, Status
from keepstate.sessions.namespace import hold_lease
from keepstate.values.key import Stamp

_log = logging.getLogger("keepstate.sessions")

_NAME: Final = "reply"
_AT_ONCE: Final = 256
_PENDING_CHARS: Final = 1 << 18
"""A writer with more characters that are not stored yet waits."""
_IDLE_ROUNDS: Final = 10
"""A writer that says nothing looks after so many rounds whether its reply was ended."""


class Superseded(Exception):  # noqa: N818 - nothing went wrong
    """The reply has gone on, or was ended, since it was read; nothing is written."""


@dataclass(frozen=True, slots=True)
class ActiveReply:
    """A reply that is being said.

    Attributes:
        id: The id of the reply, and of its message.
        author: Its author, or None.
        start: The number of its first event.
        last: The number of the last event that was read.
        text: The text so far.
    """

    id: str
    author: str | None
    start: int
    last: int
    text: str

    def extended(self, deltas: list[Event]) -> ActiveReply:
        """Return the reply with the deltas that follow."""
        if not deltas:
            return self
        text = self.text + "".join(delta.data for delta in deltas)
        return replace(self, last=deltas[-1].number or 0, text=text)

    def addition(self, status: Status, meta: dict[str, Any], text: str | None = None) -> Addition:
        """Return the message that the reply becomes. Without text, and if it failed, no model sees it."""
        said = self.text if text is None else text
        message = {"role": "assistant", "content": said}
        is_shown = bool(said) and status != "failed"
        return Addition(message, self.id, self.author, meta, status, is_shown=is_shown)


class ReplyStream:
    """The stream and the lease of the replies of one conversation.

    Args:
        store: The conversation.
        space: Its space.
        prefix: The current prefix of its namespace.
    """

    def __init__(self, store: ConversationStore, space: Space, prefix: str) -> None:
        self.store, self.space, self.prefix = store, space, prefix
        self.lease_name = f"{prefix}{store.tail}{_NAME}"
        self.name = shorten(self.lease_name)

    @classmethod
    async def of(cls, store: ConversationStore) -> ReplyStream | None:
        """Return the stream of an existing conversation, or None.

        Raises:
            InvalidError: The conversation is inside a transaction.
        """
        space = require_space(store)
        documents = await store.current()
        return None if documents is None else cls(store, space, documents.prefix)

    async def events(self, after: int | None = None, upto: int | None = None) -> list[Event]:
        """Return the events after a number, up to another one.

        Raises:
            PrunedError: The reply of `after` was ended.
        """
        found: list[Event] = []
        while True:
            page = await self.space.events.read(stream=self.name, after=after, limit=_AT_ONCE)
            found += [event for event in page if upto is None or (event.number or 0) <= upto]
            if len(page) < _AT_ONCE or len(found) % _AT_ONCE:
                return found
            after = page[-1].number

    async def read(self) -> ActiveReply | None:
        """Return the reply that is being said, or None."""
        while True:
            try:
                return active_in(await self.events())
            except PrunedError:  # it was ended between two pages
                continue

    async def read_on(self, active: ActiveReply) -> ActiveReply | None:
        """Return a reply that was read before with what was said since, or the one that follows it, or None.

        The cost does not grow with the reply, so a caller that ends it keeps up with a writer.
        """
        try:
            return active.extended(await self.events(active.last))
        except PrunedError:
            return await self.read()

    async def is_over(self) -> bool:
        """Return whether the session has ended since, so that no message can be added any more."""
        return await self.store.namespace.to_read() != self.prefix

    async def start(self, id: str, author: str | None) -> ActiveReply:
        """Begin a reply under the lease, after ending one whose writer is dead.

        Raises:
            ConflictError: The session has ended meanwhile.
        """
        active = await self.read()
        while active is not None:
            try:
                await self.end(active.last, active.addition("failed", {}))
            except Superseded:
                if await self.is_over():
                    raise ConflictError(
                        f"The session of {self.store!r} has ended meanwhile. Begin the reply again.",
                        space=self.space.name,
                    ) from None
                active = await self.read_on(active)
            else:
                active = await self.read()
        number = await self.space.events.append({"id": id, "author": author}, stream=self.name)
        return ActiveReply(id, author, number, number, "")

    async def end(
        self, last: int, addition: Addition, *, is_abandoned: bool = False, spend: Spend | None = None
    ) -> None:
        """End the reply whose last event has this number, and add its message, in one batch.

        Args:
            last: The number.
            addition: The message.
            is_abandoned: Whether the reply's lease must be free.
            spend: What the message has used, to be counted with it.

        Raises:
            Superseded: The reply has another last event, was ended, or has a living writer.
        """

        async def work(documents: ConversationDocuments) -> tuple[Transaction, int]:
            tx = documents.target
            if documents.prefix != self.prefix or not isinstance(tx, Transaction):
                raise Superseded  # the session has ended
            leases = [self.lease_name] if is_abandoned else []
            await read_ahead(tx, documents=[documents.context_name], streams=[self.name], leases=leases)
            if await tx.events.last(self.name) != last:
                raise Superseded
            if is_abandoned and await tx.leases.holder(self.lease_name) is not None:
                raise Superseded
            await documents.add([addition])
            if spend is not None:
                await tx.usage.account(self.store.namespace.prefix).settle(spend)
            return tx, await hide_stream(tx.executor, self.name)

        tx, index = await self.store.together(work, message="end a reply")
        number = to_number(Stamp(tx.revision, index))
        try:
            await finish_drop(self.space.executor, self.name, number)
        except KeepstateError as error:  # the events are hidden, and the next reply deletes them
            _log.warning("The deltas of a reply in %r could not be deleted yet: %s", self.space, error)

    async def append(self, last: int, text: str) -> int:
        """Append a delta after the event of a number, and return its number.

        Raises:
            ConflictError: The reply has another last event, or was ended.
        """
        return await append_after(self.space.executor, self.name, last, text)


def active_in(events: list[Event]) -> ActiveReply | None:
    """Return the reply of all events of a stream, or None."""
    starts = [index for index, event in enumerate(events) if isinstance(event.data, dict)]
    if not starts:
        return None
    first, *deltas = events[starts[-1] :]
    text = "".join(event.data for event in deltas)
    last = deltas[-1] if deltas else first
    return ActiveReply(first.data["id"], first.data["author"], first.number or 0, last.number or 0, text)


def require_space(store: ConversationStore) -> Space:
    """Return the space of a conversation.

    Raises:
        InvalidError: The conversation is inside a transaction.
    """
    if store.namespace.space is None:
        raise InvalidError(f"{store!r} is inside a transaction. Reply, stop and follow outside of it.")
    return store.namespace.space


class Reply:
    """A reply that this process writes; see `Conversation.reply`.

    Attributes:
        id: The id of the reply, and of the message that it becomes.
        meta: Notes that are stored with the message; fill it before the block ends.
    """

    id: str
    meta: dict[str, Any]

    def __init__(self, stream: ReplyStream, active: ActiveReply, flush_s: float, spend: Spend | None) -> None:
        self.id, self.meta, self._spend = active.id, {}, spend
        self._stream, self._active, self._flush_s = stream, active, flush_s
        self._runner = stream.space.runner
        self._lock = Lock()
        self._said, self._pending, self._size = "", list[str](), 0
        self._last = active.last
        self._stopped, self._lost = False, False

    def __repr__(self) -> str:
        return f"<Reply {self.id!r} of {self._stream.store!r}>"

    @property
    def text(self) -> str:
        """The text so far."""
        with self._lock:
            return self._said + "".join(self._pending)

    @property
    def stopped(self) -> bool:
        """True once `stop` has ended the reply. What is written after that is not part of it."""
        return self._stopped

    async def write(self, delta: str) -> None:
        """Add a piece of text. Followers get it within `flush_s` seconds.

        Raises:
            InvalidError: The piece is not text.
            LeaseLostError: The reply was ended as failed, because this process could not renew its lease.
        """
        check_text("delta", delta)
        if self._lost:
            raise self._lost_error()
        with self._lock:
            if delta and not self._stopped:
                self._pending.append(delta)
                self._size += len(delta)
        await self._runner.sleep(0)
        while self._size > _PENDING_CHARS and not (self._stopped or self._lost):
            await self._runner.sleep(self._flush_s / 4)

    async def _store_repeatedly(self, signal: Signal) -> None:
        """Store pending text, until the signal or the end of the reply."""
        idle = 0
        while not await signal.wait(self._flush_s):
            idle = 0 if self._pending else idle + 1
            try:
                if self._pending:
                    await self._store_pending()
                elif idle % _IDLE_ROUNDS == 0:
                    await self._find_end()
            except KeepstateError as error:
                _log.warning("Text of %r could not be stored, and is tried again: %s", self, error)
            if self._stopped or self._lost:
                return

    async def _store_pending(self) -> None:
        with self._lock:
            count, text = len(self._pending), "".join(self._pending)
        try:
            self._last = await self._stream.append(self._last, text)
        except ConflictError:
            return await self._find_end()
        with self._lock:
            del self._pending[:count]
            self._said, self._size = self._said + text, self._size - len(text)
        return None

    async def _find_end(self) -> None:
        """Find out whether the reply or its session has ended, or an unconfirmed append was applied."""
        if await self._stream.is_over():
            self._lost = True
            return
        if await self._stream.space.events.last(self._stream.name) == self._last:
            return
        active = await self._stream.read()
        if active is not None and active.start == self._active.start:
            with self._lock:
                whole = self._said + "".join(self._pending)
                self._said, rest = active.text, whole[len(active.text) :]
                self._pending, self._size = [rest] if rest else [], len(rest)
            self._last = active.last
            return
        documents = await self._stream.store.current()
        if documents is not None and documents.prefix == self._stream.prefix:
            number = await documents.number_of(self.id)
            if number is not None:
                found = await documents.read_records(await documents.record(), [number])
                status = found[number].entry(number).status if number in found else "stopped"
                self._stopped = status == "stopped"
        self._lost = not self._stopped

    async def _end(self, status: Status) -> None:
        """End the reply with all that was said, unless it was ended already.

        Raises:
            LeaseLostError: It was ended as failed by another process, and `status` is not `failed`.
        """
        while not (self._stopped or self._lost):
            addition = self._active.addition(status, dict(self.meta), self.text)
            if self._spend is not None:
                addition = replace(addition, usage=tuple(self._spend.uses))
            try:
                return await self._stream.end(self._last, addition, spend=self._spend)
            except Superseded:
                await self._find_end()
        if self._lost and await self._stream.is_over():
            await self._stream.space.events.drop(self._stream.name)  # no message can come of it any more
        if self._lost and status != "failed":
            raise self._lost_error()
        return None

    def _lost_error(self) -> LeaseLostError:
        return LeaseLostError(
            f"{self!r} was ended as failed: its lease expired, or the session has ended. What was stored "
            "before the lease expired is kept. Begin another reply",
            space=self._stream.space.name,
            name=self._stream.lease_name,
            token=0,
        )


async def require_new_id(documents: ConversationDocuments, store: ConversationStore, id: str) -> None:
    """Check that no message has the id of a new reply, except for a reply that failed.

    So the next attempt may use the id again, whether a follower or the attempt itself ended the dead reply.

    Raises:
        AlreadyExistsError: A message has the id.
    """
    number = await documents.number_of(id)
    if number is None:
        return
    found = await documents.read_records(await documents.record(), [number])
    if number not in found or found[number].entry(number).status != "failed":
        raise AlreadyExistsError(f"Message {number} of {store!r} has the id {id!r}. Choose another id.")


@asynccontextmanager
async def speak(
    store: ConversationStore,
    id: str | None,
    author: str | None,
    flush_s: float,
    lease_s: float,
    spend: Spend | None,
) -> AsyncGenerator[Reply]:
    """Yield a reply, and end it with the block; see `Conversation.reply`."""
    space = require_space(store)
    name = space.clock.random_bytes(8).hex() if id is None else check_name("id", id)
    check_author(author)
    check_duration_ms("flush_s", flush_s)
    if spend is not None:
        require_instance("spend", spend, Spend)

    async def begin(documents: ConversationDocuments) -> str:
        await require_new_id(documents, store, name)
        return documents.prefix

    stream = ReplyStream(store, space, await store.together(begin, message="begin a reply"))
    holding = hold_lease(space, stream.lease_name, lease_s=lease_s, turn_s=0)
    try:
        await holding.__aenter__()
    except ConflictError as error:
        raise ConflictError(
            f"A reply is being written in {store!r}. Wait for its end, or call stop().",
            space=space.name,
            key=error.key,
            actual=error.actual,
        ) from error
    try:
        async with _writing(stream, name, author, flush_s, spend) as reply:
            yield reply
    finally:
        await holding.__aexit__(None, None, None)


@asynccontextmanager
async def _writing(
    stream: ReplyStream, id: str, author: str | None, flush_s: float, spend: Spend | None
) -> AsyncGenerator[Reply]:
    runner = stream.space.runner
    reply = Reply(stream, await stream.start(id, author or stream.space.author), flush_s, spend)
    try:
        storing = runner.start(reply._store_repeatedly, f"deltas of {reply!r}")  # pyright: ignore[reportPrivateUsage]
        try:
            yield reply
        finally:
            await storing.stop()
    except BaseException as error:
        try:
            await finish_despite_cancel(runner, lambda: reply._end("failed"))  # pyright: ignore[reportPrivateUsage]
        except KeepstateError as failure:
            error.add_note(f"{reply!r} could not be ended, and fails once its lease expires: {failure}")
        raise
    await finish_despite_cancel(runner, lambda: reply._end("done"))  # pyright: ignore[reportPrivateUsage]


async def stop(store: ConversationStore, by: str) -> bool:
    """End the reply that is being said as stopped, and return whether there was one."""
    check_name("by", by)
    stream = await ReplyStream.of(store)
    active = None if stream is None else await stream.read()
    while stream is not None and active is not None:
        try:
            await stream.end(active.last, active.addition("stopped", {"stopped_by": by}))
            return True
        except Superseded:  # it went on meanwhile
            active = None if await stream.is_over() else await stream.read_on(active)
    return False
