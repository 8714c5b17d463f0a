"""One conversation: atomic operations that add, edit, clear, read and summarise its messages.

A summary is made by one caller at a time, because a model call takes long. The caller holds a lease, renewed
during the call, and stores the summary only if the messages are still due. If the conversation was cleared in
the meantime, the summary is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from keepstate.engine.kernel.executor import call_function
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.sessions import context_fit
from keepstate.sessions.context_fit import Budget
from keepstate.sessions.conversation_documents import (
    PAGES_AT_ONCE,
    READ_AT_ONCE,
    ConversationDocuments,
    ConversationRecord,
    Summarise,
)
from keepstate.sessions.messages import Message, check_message, links
from keepstate.sessions.namespace import hold_lease
from keepstate.sessions.window import Window
from keepstate.values import limits

_log = logging.getLogger("keepstate.sessions")

T = TypeVar("T")


class ConversationStore(ConversationDocuments):
    """The operations of one conversation."""

    # ---- writing

    async def add(self, *messages: Mapping[str, Any], pinned: bool = False) -> list[int]:
        """Add messages atomically and return their numbers. Summarises what left the context, if that is due.

        Raises:
            InvalidError: A message is malformed, or system and pinned messages exceed the budget. Nothing is
                added.
        """
        plain = [check_message(message) for message in messages]

        async def work(tx: Transaction, prefix: str) -> tuple[list[int], bool]:
            return await self.add_in(tx, prefix, plain, pinned=pinned)

        numbers, is_due = await self.namespace.together(work, message="add a message")
        if is_due and self.rules.summarise is not None and self.namespace.space is not None:
            try:
                await self.summarise()
            except Exception:  # noqa: BLE001 - the message is added; the summary stays due
                _log.warning("Summarising %r failed; the next addition tries again", self, exc_info=True)
        return numbers

    async def add_in(
        self, tx: Transaction, prefix: str, plain: Sequence[Message], *, pinned: bool = False
    ) -> tuple[list[int], bool]:
        """Add messages in a transaction, and return their numbers and whether a summary is due."""
        window = await self.recount_if_needed(tx, prefix, await self.window(tx, prefix))

        def add(trial: Window) -> list[int]:
            return [context_fit.add(trial, message, self.rules.budget, pinned=pinned) for message in plain]

        numbers, window = await self.apply_change(tx, prefix, window, add)
        for number, message in zip(numbers, plain, strict=True):
            await tx.documents.put(self.message(prefix, number), message)
        await self.put_window(tx, prefix, window)
        return numbers, bool(window.due)

    async def edit(self, number: int, message: Mapping[str, Any] | str) -> None:
        """Replace a message, or only its text.

        Raises:
            InvalidError: The new message makes or answers other tool calls than the old one.
            NotFoundError: The message does not exist.
        """
        given = {} if isinstance(message, str) else check_message(message)

        async def work(tx: Transaction, prefix: str) -> None:
            record, window = await self.record(tx, prefix), await self.window(tx, prefix)
            if type(number) is not int or not record.begin <= number < window.count:
                raise _no_message(number, record, window)
            before = (await self.read(tx, prefix, record, [number]))[number]
            plain = given or {**before, "content": message}
            if links(before) != links(plain):
                raise InvalidError(
                    f"The edit of message {number} changes its tool calls or results. Keep them, and change "
                    "only the text."
                )
            await self.edit_in(tx, prefix, {number: plain}, record, window)

        await self.namespace.together(work, message=f"edit message {number}")

    async def edit_in(
        self,
        tx: Transaction,
        prefix: str,
        messages: Mapping[int, Message],
        record: ConversationRecord,
        window: Window,
    ) -> None:
        """Replace messages in a transaction, and update the conversation's record."""
        window = await self.recount_if_needed(tx, prefix, window)
        for number, message in messages.items():
            record.edits += 1
            record.edited[number] = record.edits
            await tx.documents.put(self.edit_name(prefix, number), message)

        def replace(trial: Window) -> None:
            for number, message in messages.items():
                context_fit.replace(trial, number, message, self.rules.budget)

        _, window = await self.apply_change(tx, prefix, window, replace)
        await self.put_record(tx, prefix, record)
        window = await self._fit_window(tx, prefix, record, window)
        await self.put_window(tx, prefix, window)

    async def clear(self) -> int:
        """Remove all messages from view and return their number. Later messages continue the numbering."""

        async def work(tx: Transaction, prefix: str) -> int:
            record, window = await self.record(tx, prefix), await self.window(tx, prefix)
            count = window.count
            had, record.begin = count - record.begin, count
            await self.put_record(tx, prefix, record)
            await self.put_window(tx, prefix, Window(count, first=count, era=window.era + 1))
            return had

        if await self.current_prefix() is None:
            return 0
        return await self.namespace.together(work, message="clear the conversation")

    async def summarise(self) -> bool:
        """Summarise the messages that left the context and are due; see `summaries`."""
        return await summarise_due(self)

    # ---- reading

    async def context(self, max_tokens: int | None = None) -> tuple[Window, dict[int, Message]]:
        """Return the context within its budget, or a smaller one, and its messages.

        Raises:
            InvalidError: System and pinned messages, or the shortest cut of the newest message, exceed the
                budget.
        """
        budget = self.rules.budget
        if max_tokens is not None:
            budget = Budget(max_tokens, budget.counter, None)
        window, found = await self._read_context()
        if window.counter != budget.counted_by:
            context_fit.recount(window, found, budget)
        if window.total_tokens > budget.max_tokens:  # the writer had a larger budget, or another counter
            context_fit.fit(window, found.get(window.newest, {}), budget, summarises=False)
        return window, found

    async def _read_context(self) -> tuple[Window, dict[int, Message]]:
        """Read the context and its messages as one consistent snapshot, under concurrent writes.

        Messages never change, so only an edit of one, or the end of the session, makes the read start again.
        """
        missing = None
        while (prefix := await self.current_prefix()) is not None:
            window, record = await self._read_whole_context(prefix)
            numbers = [row.number for row in window.entries]
            found = await self.read(self.namespace.target, prefix, record, numbers)
            if not record.edited.keys().isdisjoint(numbers):
                if (await self.record(self.namespace.target, prefix)).edits != record.edits:
                    continue
            if len(found) == len(numbers) or missing == (prefix, numbers):
                return window, found
            missing = prefix, numbers
        return Window(), {}

    async def _read_whole_context(self, prefix: str) -> tuple[Window, ConversationRecord]:
        """Read the context with all its pages, and the conversation's record, at one revision.

        Only the head says which pages are needed. The head and the pages are read together, again until they
        match.
        """
        context, record_name = self.context_name(prefix), self.record_name(prefix)
        names: dict[str, int] = {}
        while True:
            found, heads = dict[str, Any](), set[int]()
            for start in range(0, len(names) or 1, PAGES_AT_ONCE):
                part = list(names)[start : start + PAGES_AT_ONCE]
                entries = await self.namespace.target.documents.entries(context, record_name, *part)
                heads.add(entries[context].version if context in entries else 0)
                found |= {name: entry.value for name, entry in entries.items()}
            window = self.window_of(found.get(context))
            needed = [page for page in window.needed if page not in window.pages]
            needed_names = {self.page_name(prefix, window.era, page): page for page in needed}
            if len(heads) == 1 and needed_names.keys() <= names.keys():
                for name, page in needed_names.items():
                    window.load_page(page, found.get(name, ()))
                return window, found.get(record_name) or ConversationRecord()
            names = needed_names

    async def items(
        self, after: int | None = None, *, original: bool = False
    ) -> AsyncIterator[tuple[int, Message]]:
        """Yield all messages with their numbers, in order, starting after the message `after`."""
        if after is not None and (type(after) is not int or after < 0):
            raise InvalidError(f"`after` is {after!r}. Pass the number of a message, from 0.")
        prefix = await self.current_prefix()
        if prefix is None:
            return
        window, record = await self.read_window_and_record(prefix)
        begin = record.begin if after is None else max(record.begin, after + 1)
        if original:
            record = ConversationRecord(spans=record.spans)
        for start in range(begin, window.count, READ_AT_ONCE):
            numbers = range(start, min(start + READ_AT_ONCE, window.count))
            found = await self.read(self.namespace.target, prefix, record, numbers)
            for number in numbers:
                if number in found:
                    yield number, found[number]

    async def one(self, number: int, *, original: bool = False) -> Message:
        """Return a message, with its last edit unless `original` is set.

        Raises:
            NotFoundError: The message does not exist.
        """
        prefix = await self.current_prefix()
        window, record = (
            (Window(), ConversationRecord()) if prefix is None else await self.read_window_and_record(prefix)
        )
        if type(number) is not int or not record.begin <= number < window.count:
            raise _no_message(number, record, window)
        assert prefix is not None
        if original:
            record = ConversationRecord(spans=record.spans)
        return (await self.read(self.namespace.target, prefix, record, [number]))[number]

    async def count(self) -> int:
        """Return the number of messages."""
        prefix = await self.current_prefix()
        if prefix is None:
            return 0
        window, record = await self.read_window_and_record(prefix)
        return window.count - record.begin

    async def newest(self, limit: int) -> list[tuple[int, Message]]:
        """Return the newest messages with their numbers, in order."""
        prefix = await self.current_prefix()
        if prefix is None:
            return []
        window, record = await self.read_window_and_record(prefix)
        numbers = range(max(record.begin, window.count - limit), window.count)
        found = await self.read(self.namespace.target, prefix, record, numbers)
        return [(number, found[number]) for number in numbers if number in found]


def check_limit(max_tokens: int | None) -> None:
    """Raise `InvalidError` unless the budget is None or a positive integer."""
    if max_tokens is not None:
        limits.admit_count("max_tokens", max_tokens)


def _no_message(number: object, record: ConversationRecord, window: Window) -> NotFoundError:
    return NotFoundError(
        f"Message {number!r} does not exist. The numbers are {record.begin} to {window.count - 1}."
    )


_LEASE_S: Final = 120.0
"""Seconds until the lease expires without renewal: after a crash, no summary is made for that time."""


class _Obsolete(Exception):  # noqa: N818 - nothing went wrong
    """The messages to summarise are no longer due; nothing is written."""


async def summarise_due(conversation: ConversationDocuments) -> bool:
    """Summarise the messages that left the context and are due, and return whether any were.

    Raises:
        InvalidError: There is no `summarise` function, or the conversation is inside a transaction.
    """
    summarise, space = conversation.rules.summarise, conversation.namespace.space
    if summarise is None or space is None:
        why = (
            "has no summarise function. Pass summarise=."
            if space
            else "is inside a transaction. Summarise outside."
        )
        raise InvalidError(f"{conversation!r} {why}")
    prefix = await conversation.current_prefix()
    if prefix is None:
        return False
    made, name = 0, f"{conversation.context_name(prefix)}/summary"
    async with AsyncExitStack() as stack:
        try:
            lease = await stack.enter_async_context(hold_lease(space, name, lease_s=_LEASE_S, turn_s=0))
        except ConflictError:
            return False  # another caller makes the summary
        while await _summarise_next(conversation, space, prefix, lease, summarise):
            made += 1
    return made > 0


async def _summarise_next(
    conversation: ConversationDocuments, space: Space, prefix: str, lease: Lease, summarise: Summarise
) -> bool:
    """Summarise the first due messages with the summary so far, and return whether there were any."""
    window, record = await conversation.window(space, prefix), await conversation.record(space, prefix)
    budget = conversation.rules.budget
    numbers = window.due_numbers[: budget.summarise_first]
    if not numbers:
        return False
    originals = await conversation.read(space, prefix, record, numbers)
    given = [originals[number] for number in numbers if number in originals]
    answer = await call_function(summarise, [*([window.summary] if window.summary else []), *given])
    summary = check_message({"role": "system", "content": answer} if isinstance(answer, str) else answer)

    async def work(tx: Transaction, now_prefix: str) -> None:
        def put(trial: Window) -> None:
            context_fit.summarise(trial, summary, numbers, budget)

        if now_prefix != prefix:
            raise _Obsolete  # the session has ended
        now = await conversation.window(tx, prefix)
        if now.era != window.era or not set(numbers).issubset(now.due_numbers):
            raise _Obsolete  # the conversation was cleared
        _, now = await conversation.apply_change(
            tx, prefix, await conversation.recount_if_needed(tx, prefix, now), put
        )
        await conversation.put_window(tx, prefix, now)

    try:
        await conversation.namespace.together(work, lease=lease, message="summarise")
    except _Obsolete:
        return False
    return True
