"""Threads with messages, as assistants' APIs have them: made by id, read by cursors.

A thread stands in the space `thread/<id>`: a small document that counts its messages, a document for each
message by its number, and one for each message's id. The store's order is the order of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final, Literal, cast

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_text, check_text_keys
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.times import to_milliseconds
from keepstate.engine.space.joint_work import together
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.sessions.binding import Home
from keepstate.sessions.generations import removing
from keepstate.sessions.resource import Kept
from keepstate.sessions.thread_records import MessagePage, MessageRecord, Thread, ThreadMessage, ThreadRecord
from keepstate.stores.protocol import Store

Place = Space | Transaction

_ID_BYTES: Final = 200
_MOST: Final = 100
_AT_ONCE: Final = 300
_PARTS: Final = frozenset({"role", "content", "metadata", "id"})


class Threads(Kept):
    """Threads of messages, kept in a store.

    A call that is given an id may be repeated: a thread or message that is there already stays as it is and
    is returned.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` it is in memory that this process shares.
        space: Instead: a space, or a transaction whose batch all joins.
    """

    def __init__(
        self,
        *,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        _mode: Mode = "async",
    ) -> None:
        self._home = self._closing = Home(persistence, space, mode=_mode)

    def __repr__(self) -> str:
        return f"<Threads in {self._home!r}>"

    @property
    def messages(self) -> ThreadMessages:
        """The messages of the threads."""
        return ThreadMessages(self._home)

    async def create(
        self,
        id: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Thread:
        """Make a thread, or return the one that has this id.

        Args:
            id: What it is called; without it, something that nobody else has.
            messages: What it begins with: dicts of role, content, and metadata and id if they have some.
            metadata: What to note of it.
        """
        records = [_admit(self._home, **_parts(message)) for message in _admit_messages(messages)]
        if len({record.id for record in records}) < len(records):
            raise InvalidError("two of the messages have one id; each needs its own")
        id = f"thread_{self._home.clock.random_bytes(12).hex()}" if id is None else id
        folder = _Folder(self._home, id)
        noted = _admit_metadata(metadata)
        await folder.clear_remains()

        async def work(tx: Transaction) -> Thread:
            found = await folder.record(tx)
            if found is not None:
                return found.shown(id)
            if await tx.documents.get(folder.thread) is not None:
                raise ConflictError(f"thread {id!r} is being deleted; create it again when that is done")
            thread = ThreadRecord(await _now_ms(tx), metadata=dict(noted))
            for record in records:
                await folder.add(tx, thread, record)
            await tx.documents.put(folder.thread, thread)
            return thread.shown(id)

        return await together(folder.place, work, message=f"create thread {id}", turn=folder.thread)

    async def retrieve(self, thread_id: str) -> Thread:
        """Return a thread.

        Raises:
            NotFoundError: There is none of this id.
        """
        folder = _Folder(self._home, thread_id)
        return (await folder.known(folder.place)).shown(thread_id)

    async def update(self, thread_id: str, *, metadata: Mapping[str, Any]) -> Thread:
        """Note something else of a thread, in place of what was noted.

        Raises:
            NotFoundError: There is none of this id.
        """
        folder, noted = _Folder(self._home, thread_id), _admit_metadata(metadata, may_be_absent=False)

        async def work(tx: Transaction) -> Thread:
            record = await folder.known(tx)
            record.metadata = noted
            await tx.documents.put(folder.thread, record)
            return record.shown(thread_id)

        return await together(folder.place, work, message=f"update thread {thread_id}", turn=folder.thread)

    async def delete(self, thread_id: str) -> bool:
        """Remove a thread with its messages, and return whether it was there.

        What else is kept in the space of the thread stays.
        """
        self._home.require_outside_transaction("deleting a thread")
        folder = _Folder(self._home, thread_id)

        async def mark(tx: Transaction) -> bool:
            record = await folder.record(tx)
            if record is None:
                return False
            record.is_going = True
            await tx.documents.put(folder.thread, record)
            return True

        was_there = await together(
            folder.place, mark, message=f"delete thread {thread_id}", turn=folder.thread
        )
        await folder.clear_remains()
        return was_there


class ThreadMessages:
    """The messages of threads; made by `Threads.messages`."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def __repr__(self) -> str:
        return f"<ThreadMessages in {self._home!r}>"

    async def create(
        self,
        thread_id: str,
        *,
        role: str,
        content: Any,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> ThreadMessage:
        """Add a message to a thread, or return the one of the thread that has this id.

        Args:
            thread_id: Which thread.
            role: Who says it.
            content: What: a text, or parts as model APIs take them.
            metadata: What to note of it.
            id: What it is called; without it, something that nobody else has.

        Raises:
            NotFoundError: There is no such thread.
        """
        folder = _Folder(self._home, thread_id)
        record = _admit(self._home, role=role, content=content, metadata=metadata, id=id)

        async def work(tx: Transaction) -> ThreadMessage:
            thread = await folder.known(tx)
            added = await folder.add(tx, thread, record)
            if added is record:
                await tx.documents.put(folder.thread, thread)
            return added.shown(thread_id)

        return await together(
            folder.place, work, message=f"add a message to thread {thread_id}", turn=folder.thread
        )

    async def retrieve(self, thread_id: str, message_id: str) -> ThreadMessage:
        """Return a message.

        Raises:
            NotFoundError: The thread, or the message, is not there.
        """
        folder = _Folder(self._home, thread_id)
        number = await folder.number(folder.place, message_id)
        found = await folder.place.documents.get(folder.message(number), type=MessageRecord)
        if found is None:
            raise folder.no_message(message_id)
        return found.shown(thread_id)

    async def update(self, thread_id: str, message_id: str, *, metadata: Mapping[str, Any]) -> ThreadMessage:
        """Note something else of a message, in place of what was noted.

        Raises:
            NotFoundError: The thread, or the message, is not there.
        """
        folder, noted = _Folder(self._home, thread_id), _admit_metadata(metadata, may_be_absent=False)

        async def work(tx: Transaction) -> ThreadMessage:
            name = folder.message(await folder.number(tx, message_id))
            record = await tx.documents.get(name, type=MessageRecord)
            assert record is not None
            record.metadata = noted
            await tx.documents.put(name, record)
            return record.shown(thread_id)

        return await together(folder.place, work, message=f"update message {message_id}", turn=folder.thread)

    async def delete(self, thread_id: str, message_id: str) -> bool:
        """Remove a message, and return whether it was there.

        Raises:
            NotFoundError: There is no such thread.
        """
        folder = _Folder(self._home, thread_id)

        async def work(tx: Transaction) -> bool:
            await folder.known(tx)
            number = await tx.documents.get(folder.id(message_id), type=int)
            if number is None:
                return False
            await tx.documents.delete(folder.id(message_id))
            return await tx.documents.delete(folder.message(number))

        return await together(folder.place, work, message=f"delete message {message_id}", turn=folder.thread)

    async def list(
        self,
        thread_id: str,
        *,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
        before: str | None = None,
    ) -> MessagePage:
        """Return a page of messages.

        Args:
            thread_id: Which thread.
            limit: How many at the most, from 1 to 100.
            order: `desc` with the newest first, or `asc` with the oldest first.
            after: The id of a message: the page goes on behind it, in this order.
            before: The id of a message: the page ends in front of it, in this order.

        Raises:
            NotFoundError: The thread, or a message that was named, is not there.
        """
        if type(limit) is not int or not 0 < limit <= _MOST:
            raise InvalidError(f"`limit` is {limit!r}; give 1 to {_MOST}")
        if order not in ("asc", "desc"):
            raise InvalidError(f"`order` is {order!r}; give 'asc' or 'desc'")
        folder = _Folder(self._home, thread_id)
        thread = await folder.known(folder.place)
        lower, upper = (after, before) if order == "asc" else (before, after)
        first = 0 if lower is None else await folder.number(folder.place, lower) + 1
        stop = thread.count if upper is None else await folder.number(folder.place, upper)
        numbers = range(first, stop)[:: 1 if order == "asc" else -1]
        is_previous = before is not None and after is None
        found = await folder.some(numbers[::-1] if is_previous else numbers, limit + 1)
        page = found[:limit]
        if is_previous:
            page.reverse()
        return MessagePage([record.shown(thread_id) for record in page], len(found) > limit)


class _Folder:
    """The documents of one thread."""

    def __init__(self, home: Home, thread_id: str) -> None:
        self.place: Place = home.place("thread", thread_id)
        self.thread_id, self._begin = thread_id, f"{home.prefix('thread', thread_id)}chat/"
        self.thread = f"{self._begin}thread"

    def message(self, number: int) -> str:
        """Return the name of a message's document."""
        return f"{self._begin}message/{number:012d}"

    def id(self, message_id: str) -> str:
        """Return the name of the document that holds the number of a message."""
        return f"{self._begin}id/{_admit_id(message_id)}"

    async def record(self, place: Place) -> ThreadRecord | None:
        """Return the thread, or None."""
        found = await place.documents.get(self.thread, type=ThreadRecord)
        return None if found is None or found.is_going else found

    async def known(self, place: Place) -> ThreadRecord:
        """Return the thread, or raise `NotFoundError`."""
        found = await self.record(place)
        if found is None:
            raise NotFoundError(f"there is no thread {self.thread_id!r}; create it")
        return found

    async def number(self, place: Place, message_id: str) -> int:
        """Return the number of a message, or raise `NotFoundError`."""
        await self.known(place)
        number = await place.documents.get(self.id(message_id), type=int)
        if number is None:
            raise self.no_message(message_id)
        return number

    def no_message(self, message_id: str) -> NotFoundError:
        """Return the error that says so."""
        return NotFoundError(f"there is no message {message_id!r} in thread {self.thread_id!r}")

    async def add(self, tx: Transaction, thread: ThreadRecord, record: MessageRecord) -> MessageRecord:
        """Add a message and count it, or returns the one that has its id."""
        number = await tx.documents.get(self.id(record.id), type=int)
        if number is not None:
            known = await tx.documents.get(self.message(number), type=MessageRecord)
            assert known is not None
            return known
        record.created_ms = await _now_ms(tx)
        await tx.documents.put(self.message(thread.count), record)
        await tx.documents.put(self.id(record.id), thread.count)
        thread.count += 1
        return record

    async def some(self, numbers: Sequence[int], limit: int) -> list[MessageRecord]:
        """Return the first messages of these numbers that are there."""
        found: list[MessageRecord] = []
        begin, most = 0, limit
        while begin < len(numbers) and len(found) < limit:
            names = [self.message(number) for number in numbers[begin : begin + most]]
            entries = await self.place.documents.entries(*names)
            found += [entries[name].value for name in names if name in entries]
            begin, most = begin + most, min(2 * most, _AT_ONCE)  # where many were deleted, fewer round trips
        return found[:limit]

    async def clear_remains(self) -> None:
        """Remove what is left of a thread that is being deleted, and then its own document."""
        if not isinstance(self.place, Space):
            return
        found = await self.place.documents.get(self.thread, type=ThreadRecord)
        if found is None or not found.is_going:
            return
        message, is_going = f"delete thread {self.thread_id}", True
        while is_going:
            names = await self._some_names()

            async def work(tx: Transaction, names: list[str] = names) -> bool:
                now = await tx.documents.get(self.thread, type=ThreadRecord)
                if now is None or not now.is_going:
                    return False  # another has removed it, and somebody may have made it anew since
                await removing(names or [self.thread])(tx)
                return bool(names)

            is_going = await together(self.place, work, message=message, turn=self.thread)

    async def _some_names(self) -> list[str]:
        names: list[str] = []
        for part in ("id", "message"):
            async for name in self.place.documents.keys(f"{escape_pattern(f'{self._begin}{part}/')}*"):
                names.append(name)
                if len(names) == _AT_ONCE:
                    return names
        return names


async def _now_ms(tx: Transaction) -> int:
    return to_milliseconds(await tx.now())


def _admit(
    home: Home,
    *,
    role: object = None,
    content: object = None,
    metadata: Mapping[str, Any] | None = None,
    id: str | None = None,
) -> MessageRecord:
    if not check_text("role", role):
        raise InvalidError("`role` is empty; say who speaks, such as 'user'")
    name = f"msg_{home.clock.random_bytes(12).hex()}" if id is None else _admit_id(id)
    return MessageRecord(name, check_text("role", role), content, 0, _admit_metadata(metadata))


def _admit_metadata(metadata: object, *, may_be_absent: bool = True) -> dict[str, Any]:
    if metadata is None and may_be_absent:
        return {}
    if not isinstance(metadata, Mapping):
        raise InvalidError(f"`metadata` is {metadata!r}; give a dict")
    return check_text_keys("`metadata`", cast("Mapping[str, Any]", metadata))


def _admit_messages(messages: object) -> Sequence[object]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidError(f"`messages` is {messages!r}; give a list of dicts")
    given = cast("Sequence[object]", messages)
    if len(given) > _AT_ONCE:
        raise InvalidError(f"{len(given)} messages were given; at most {_AT_ONCE} with the thread")
    return given


def _parts(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not message.keys() <= _PARTS:  # pyright: ignore[reportUnknownMemberType]
        raise InvalidError(f"a message is {message!r}; give a dict of {', '.join(sorted(_PARTS))}")
    return dict(cast("Mapping[str, Any]", message))


def _admit_id(id: object) -> str:
    text = check_text("id", id)
    if not 0 < len(text.encode()) <= _ID_BYTES:
        raise InvalidError(f"the id of a message is {text[:40]!r}; it has 1 to {_ID_BYTES} bytes of UTF-8")
    return text
