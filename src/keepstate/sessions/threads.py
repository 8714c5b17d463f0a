"""Threads of messages, as in assistants' APIs: created by id, read by cursors.

A thread is in the space `thread/<id>`: a small document that counts its messages, one document for each
message by its number, and one for each message id. Messages are ordered by number, the order of their
commits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar, Unpack, cast

from keepstate.binding import Resource, StorageOptions, StoreBinding
from keepstate.engine.kernel.arguments import check_choice, check_text, check_text_keys, require_instance
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.sessions.namespace import make_deletion
from keepstate.sessions.thread_records import MessagePage, MessageRecord, Thread, ThreadMessage, ThreadRecord
from keepstate.values import limits

T = TypeVar("T")

Target = Space | Transaction

_ID_BYTES: Final = 200
_MOST: Final = 100
_AT_ONCE: Final = 300
_PARTS: Final = frozenset({"role", "content", "metadata", "id"})


class Threads(Resource):
    """Threads of messages in a store.

    Creating a thread or message with an id is idempotent: an existing one is returned unchanged.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the threads are in memory that this process shares.
        space: Instead: a space, or a transaction whose batch all changes join.
    """

    def __init__(self, **storage: Unpack[StorageOptions]) -> None:
        self._binding = self._closing = StoreBinding(storage)

    def __repr__(self) -> str:
        return f"<Threads in {self._binding!r}>"

    @property
    def messages(self) -> ThreadMessages:
        """The messages of the threads."""
        return ThreadMessages(self._binding)

    async def create(
        self,
        id: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Thread:
        """Create a thread, or return the existing one with this id.

        Args:
            id: Id of the thread; a new unique id by default.
            messages: The first messages: dicts of role and content, with optional metadata and id.
            metadata: Metadata to store with the thread.
        """
        records = [_make_record(self._binding, **_parts(message)) for message in _check_messages(messages)]
        if len({record.id for record in records}) < len(records):
            raise InvalidError("Two of the messages have the same id. Use a different id for each.")
        id = f"thread_{self._binding.clock.random_bytes(12).hex()}" if id is None else id
        docs = _ThreadDocuments(self._binding, id)
        noted = _check_metadata({} if metadata is None else metadata)
        await docs.finish_deletion()

        async def work(tx: Transaction) -> Thread:
            found = await docs.record(tx)
            if found is not None:
                return found.to_public(id)
            if await tx.documents.get(docs.thread) is not None:
                raise ConflictError(f"Thread {id!r} is being deleted. Create it again after the deletion.")
            thread = ThreadRecord(await _now_ms(tx), metadata=dict(noted))
            for record in records:
                await docs.add(tx, thread, record)
            await tx.documents.put(docs.thread, thread)
            return thread.to_public(id)

        return await docs.together(work, f"create thread {id}")

    async def retrieve(self, thread_id: str) -> Thread:
        """Return a thread.

        Raises:
            NotFoundError: The thread does not exist.
        """
        docs = _ThreadDocuments(self._binding, thread_id)
        return (await docs.require_thread(docs.target)).to_public(thread_id)

    async def update(self, thread_id: str, *, metadata: Mapping[str, Any]) -> Thread:
        """Replace the metadata of a thread.

        Raises:
            NotFoundError: The thread does not exist.
        """
        docs = _ThreadDocuments(self._binding, thread_id)
        noted = _check_metadata(metadata)

        async def work(tx: Transaction) -> Thread:
            record = await docs.require_thread(tx)
            record.metadata = noted
            await tx.documents.put(docs.thread, record)
            return record.to_public(thread_id)

        return await docs.together(work, f"update thread {thread_id}")

    async def delete(self, thread_id: str) -> bool:
        """Delete a thread with its messages, and return whether it existed.

        Other documents in the thread's space are not deleted.
        """
        self._binding.require_outside_transaction("deleting a thread")
        docs = _ThreadDocuments(self._binding, thread_id)

        async def mark(tx: Transaction) -> bool:
            record = await docs.record(tx)
            if record is None:
                return False
            record.is_going = True
            await tx.documents.put(docs.thread, record)
            return True

        was_there = await docs.together(mark, f"delete thread {thread_id}")
        await docs.finish_deletion()
        return was_there


class ThreadMessages:
    """The messages of threads; returned by `Threads.messages`."""

    def __init__(self, binding: StoreBinding) -> None:
        self._binding = binding

    def __repr__(self) -> str:
        return f"<ThreadMessages in {self._binding!r}>"

    async def create(
        self,
        thread_id: str,
        *,
        role: str,
        content: Any,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> ThreadMessage:
        """Add a message to a thread, or return the thread's existing message with this id.

        Args:
            thread_id: Id of the thread.
            role: Role of the speaker.
            content: Text, or parts as model APIs take them.
            metadata: Metadata to store with the message.
            id: Id of the message; a new unique id by default.

        Raises:
            NotFoundError: The thread does not exist.
        """
        docs = _ThreadDocuments(self._binding, thread_id)
        record = _make_record(self._binding, role=role, content=content, metadata=metadata, id=id)

        async def work(tx: Transaction) -> ThreadMessage:
            thread = await docs.require_thread(tx)
            added = await docs.add(tx, thread, record)
            if added is record:
                await tx.documents.put(docs.thread, thread)
            return added.to_public(thread_id)

        return await docs.together(work, f"add a message to thread {thread_id}")

    async def retrieve(self, thread_id: str, message_id: str) -> ThreadMessage:
        """Return a message.

        Raises:
            NotFoundError: The thread or the message does not exist.
        """
        docs = _ThreadDocuments(self._binding, thread_id)
        number = await docs.number(docs.target, message_id)
        found = await docs.target.documents.get(docs.message(number), type=MessageRecord)
        if found is None:
            raise docs.no_message(message_id)
        return found.to_public(thread_id)

    async def update(self, thread_id: str, message_id: str, *, metadata: Mapping[str, Any]) -> ThreadMessage:
        """Replace the metadata of a message.

        Raises:
            NotFoundError: The thread or the message does not exist.
        """
        docs = _ThreadDocuments(self._binding, thread_id)
        noted = _check_metadata(metadata)

        async def work(tx: Transaction) -> ThreadMessage:
            name = docs.message(await docs.number(tx, message_id))
            record = await tx.documents.get(name, type=MessageRecord)
            assert record is not None
            record.metadata = noted
            await tx.documents.put(name, record)
            return record.to_public(thread_id)

        return await docs.together(work, f"update message {message_id}")

    async def delete(self, thread_id: str, message_id: str) -> bool:
        """Delete a message, and return whether it existed.

        Raises:
            NotFoundError: The thread does not exist.
        """
        docs = _ThreadDocuments(self._binding, thread_id)

        async def work(tx: Transaction) -> bool:
            await docs.require_thread(tx)
            number = await tx.documents.get(docs.id(message_id), type=int)
            if number is None:
                return False
            await tx.documents.delete(docs.id(message_id))
            return await tx.documents.delete(docs.message(number))

        return await docs.together(work, f"delete message {message_id}")

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
            thread_id: Id of the thread.
            limit: Maximum number of messages, from 1 to 100.
            order: `desc` for the newest first, or `asc` for the oldest first.
            after: Id of a message: the page begins after it, in this order.
            before: Id of a message: the page ends before it, in this order.

        Raises:
            NotFoundError: The thread, or a message given as cursor, does not exist.
        """
        limits.admit_count("limit", limit, most=_MOST)
        check_choice("order", order, "asc", "desc")
        docs = _ThreadDocuments(self._binding, thread_id)
        thread = await docs.require_thread(docs.target)
        lower, upper = (after, before) if order == "asc" else (before, after)
        first = 0 if lower is None else await docs.number(docs.target, lower) + 1
        stop = thread.count if upper is None else await docs.number(docs.target, upper)
        numbers = range(first, stop)[:: 1 if order == "asc" else -1]
        is_previous = before is not None and after is None
        found = await docs.read_first(numbers[::-1] if is_previous else numbers, limit + 1)
        page = found[:limit]
        if is_previous:
            page.reverse()
        return MessagePage([record.to_public(thread_id) for record in page], len(found) > limit)


class _ThreadDocuments:
    """The documents of one thread."""

    def __init__(self, binding: StoreBinding, thread_id: str) -> None:
        self.target, prefix = binding.locate("thread", thread_id)
        self.thread_id, self._begin = thread_id, f"{prefix}chat/"
        self.thread = f"{self._begin}thread"

    async def together(self, work: Callable[[Transaction], Awaitable[T]], message: str) -> T:
        """Apply work as one batch and return its result; calls of one process run one after another."""
        return await run_in_transaction(self.target, work, message=message, turn=self.thread)

    def message(self, number: int) -> str:
        """Return the document name of a message."""
        return f"{self._begin}message/{number:012d}"

    def id(self, message_id: str) -> str:
        """Return the name of the document that maps a message id to its number."""
        return f"{self._begin}id/{_check_id(message_id)}"

    async def record(self, target: Target) -> ThreadRecord | None:
        """Return the thread's record, or None."""
        found = await target.documents.get(self.thread, type=ThreadRecord)
        return None if found is None or found.is_going else found

    async def require_thread(self, target: Target) -> ThreadRecord:
        """Return the thread's record, or raise `NotFoundError`."""
        found = await self.record(target)
        if found is None:
            raise NotFoundError(f"Thread {self.thread_id!r} does not exist. Create it with create().")
        return found

    async def number(self, target: Target, message_id: str) -> int:
        """Return the number of a message, or raise `NotFoundError`."""
        await self.require_thread(target)
        number = await target.documents.get(self.id(message_id), type=int)
        if number is None:
            raise self.no_message(message_id)
        return number

    def no_message(self, message_id: str) -> NotFoundError:
        """Return the error for a missing message."""
        return NotFoundError(f"Message {message_id!r} does not exist in thread {self.thread_id!r}.")

    async def add(self, tx: Transaction, thread: ThreadRecord, record: MessageRecord) -> MessageRecord:
        """Add a message and count it, or return the existing message with its id."""
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

    async def read_first(self, numbers: Sequence[int], limit: int) -> list[MessageRecord]:
        """Return the first existing messages of these numbers, up to the limit."""
        found: list[MessageRecord] = []
        begin, most = 0, limit
        while begin < len(numbers) and len(found) < limit:
            names = [self.message(number) for number in numbers[begin : begin + most]]
            entries = await self.target.documents.entries(*names)
            found += [entries[name].value for name in names if name in entries]
            begin += most
            most = min(2 * most, _AT_ONCE)  # larger reads where many messages were deleted
        return found[:limit]

    async def finish_deletion(self) -> None:
        """Finish an interrupted deletion: delete the thread's messages, and then its own document."""
        if not isinstance(self.target, Space):
            return
        found = await self.target.documents.get(self.thread, type=ThreadRecord)
        if found is None or not found.is_going:
            return
        message, is_going = f"delete thread {self.thread_id}", True
        while is_going:
            names = await self._some_names()

            async def work(tx: Transaction, names: list[str] = names) -> bool:
                now = await tx.documents.get(self.thread, type=ThreadRecord)
                if now is None or not now.is_going:
                    return False  # another call finished the deletion, and the thread may exist again
                await make_deletion(names or [self.thread])(tx)
                return bool(names)

            is_going = await self.together(work, message)

    async def _some_names(self) -> list[str]:
        names: list[str] = []
        for part in ("id", "message"):
            async for name in self.target.documents.keys(f"{escape_pattern(f'{self._begin}{part}/')}*"):
                names.append(name)
                if len(names) == _AT_ONCE:
                    return names
        return names


async def _now_ms(tx: Transaction) -> int:
    return to_milliseconds(await tx.now())


def _make_record(
    binding: StoreBinding,
    *,
    role: object = None,
    content: object = None,
    metadata: Mapping[str, Any] | None = None,
    id: str | None = None,
) -> MessageRecord:
    if not check_text("role", role):
        raise InvalidError("`role` is empty. Pass a role such as 'user'.")
    name = f"msg_{binding.clock.random_bytes(12).hex()}" if id is None else _check_id(id)
    noted = _check_metadata({} if metadata is None else metadata)
    return MessageRecord(name, check_text("role", role), content, 0, noted)


def _check_metadata(metadata: object) -> dict[str, Any]:
    require_instance("metadata", metadata, Mapping)
    return check_text_keys("`metadata`", cast("Mapping[str, Any]", metadata))


def _check_messages(messages: object) -> Sequence[object]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidError(f"`messages` is {messages!r}. Pass a list of dicts.")
    given = cast("Sequence[object]", messages)
    if len(given) > _AT_ONCE:
        raise InvalidError(f"create() got {len(given)} messages. Pass at most {_AT_ONCE}.")
    return given


def _parts(message: object) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not message.keys() <= _PARTS:  # pyright: ignore[reportUnknownMemberType]
        raise InvalidError(f"A message is {message!r}. Pass a dict of {', '.join(sorted(_PARTS))}.")
    return dict(cast("Mapping[str, Any]", message))


def _check_id(id: object) -> str:
    text = check_text("id", id)
    if not 0 < len(text.encode()) <= _ID_BYTES:
        raise InvalidError(f"A message id is {text[:40]!r}. Ids have 1 to {_ID_BYTES} bytes of UTF-8.")
    return text
