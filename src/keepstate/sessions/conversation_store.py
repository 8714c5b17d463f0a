"""One conversation: atomic operations that add, edit, clear, read and summarise its messages.

A summary is made by one caller at a time, because a model call takes long. The caller holds a lease, renewed
during the call, and stores the summary only if the messages are still due. If the conversation was cleared in
the meantime, the summary is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.space import Space, Transaction
from keepstate.engine.usage.amounts import Usage
from keepstate.engine.usage.spends import Spend
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.sessions import context_fit
from keepstate.sessions.context_fit import TokenBudget
from keepstate.sessions.conversation_documents import (
    PAGES_AT_ONCE,
    READ_AT_ONCE,
    ContextRules,
    ConversationDocuments,
    ConversationRecord,
    Summarise,
    absent_fork,
)
from keepstate.sessions.entries import Addition, Entry, message_in
from keepstate.sessions.forms.given import GivenMessage, check_message
from keepstate.sessions.message_texts import with_text
from keepstate.sessions.messages import Message, links
from keepstate.sessions.namespace import Namespace, hold_lease
from keepstate.sessions.past_documents import open_past
from keepstate.sessions.window import Window
from keepstate.values import limits

_log = logging.getLogger("keepstate.sessions")
_EXPECTED: Final = 256
"""Number of messages that a read of the context tries to read with it."""

T = TypeVar("T")


class ConversationStore:
    """The operations of one conversation.

    Args:
        namespace: The namespace of the documents.
        rules: The rules of the context.
        tail: Further prefix of the document names, after the prefix of the namespace.
    """

    def __init__(self, namespace: Namespace, rules: ContextRules, tail: str = "") -> None:
        self.namespace, self.rules, self.tail = namespace, rules, tail
        self._expected: list[int] = []
        """Messages that the context had last, or that were added since: a read of the context tries them."""

    def __repr__(self) -> str:
        return f"{self.tail or 'conversation'} in space {self.namespace.target.executor.name!r}"

    def at(self, target: Space | Transaction, prefix: str) -> ConversationDocuments:
        """Return the documents under a prefix of the namespace."""
        return ConversationDocuments(self.namespace, self.rules, self.tail, target, prefix)

    async def current(self) -> ConversationDocuments | None:
        """Return the documents under the current prefix, or None if there are none."""
        prefix = await self.namespace.to_read()
        if prefix is None and self.tail:
            raise absent_fork(self.namespace, self.tail)
        return None if prefix is None else self.at(self.namespace.target, prefix)

    async def _at_moment(self, ref: Revision) -> ConversationDocuments | None:
        """Return the documents at an earlier moment, which can only be read; None if there were none."""
        past = await open_past(self.namespace.target, ref)
        prefix = await self.namespace.prefix_in(past.documents)
        return None if prefix is None else self.at(cast("Space", past), prefix)

    async def together(
        self,
        work: Callable[[ConversationDocuments], Awaitable[T]],
        *,
        message: str,
        lease: Lease | None = None,
    ) -> T:
        """Apply work on the documents as one batch, and return its result."""
        return await self.namespace.together(
            lambda tx, prefix: work(self.at(tx, prefix)), message=message, lease=lease
        )

    # ---- writing

    async def add(
        self, *additions: Addition, pinned: bool = False, source: Usage | Spend | None = None
    ) -> list[int]:
        """Add messages atomically and return their numbers. Summarises what left the context, if that is due.

        What a model used for them, or the spend that has recorded it, is counted in the same batch.

        A message with an id that was used before is not added again: its number is returned.

        Raises:
            InvalidError: System and pinned messages exceed the budget. Nothing is added.
        """

        async def work(documents: ConversationDocuments) -> tuple[list[int], bool, list[int]]:
            id = additions[0].id
            if id is not None and (known := await documents.number_of(id)) is not None:
                return [known], False, self._expected
            added = await documents.add(additions, pinned=pinned)
            if source is not None:
                ledger = documents.target.usage.account(self.namespace.prefix)
                await (ledger.record(source) if isinstance(source, Usage) else ledger.settle(source))
            return added

        numbers, is_due, self._expected = await self.together(work, message="add a message")
        if is_due and self.rules.summarise is not None and self.namespace.space is not None:
            try:
                await self.summarise()
            except Exception:  # noqa: BLE001 - the message is added; the summary stays due
                _log.warning("Summarising %r failed; the next addition tries again", self, exc_info=True)
        return numbers

    async def edit(self, number: int, message: GivenMessage | str) -> None:
        """Replace a message, or only its text.

        Raises:
            InvalidError: The new message makes or answers other tool calls than the old one.
            NotFoundError: The message does not exist.
        """
        text = message if isinstance(message, str) else None
        given = {} if text is not None else check_message(message)

        async def work(documents: ConversationDocuments) -> None:
            record, window = await documents.record(), await documents.window()
            if not record.holds(number, window.count):
                raise _no_message(number, record, window)
            before = (await documents.read(record, [number]))[number]
            plain = given if text is None else with_text(before, text)
            if links(before) != links(plain):
                raise InvalidError(
                    f"The edit of message {number} changes its tool calls or results. Keep them, and change "
                    "only the text."
                )
            await documents.edit({number: plain}, record, window)

        await self.together(work, message=f"edit message {number}")

    async def remove(self, limit: int) -> list[Entry]:
        """Remove the newest messages from view, and return them in order."""

        async def work(documents: ConversationDocuments) -> list[Entry]:
            record, window = await documents.record(), await documents.window()
            numbers = record.last_numbers(window.count, limit)
            found = await documents.read_records(record, numbers)
            if numbers:
                await documents.put_window(await documents.remove(numbers, record, window))
            return [found[number].entry(number) for number in numbers if number in found]

        return [] if await self.current() is None else await self.together(work, message="pop messages")

    async def delete(self, number: int) -> None:
        """Remove a message from view.

        Raises:
            NotFoundError: The message does not exist.
        """

        async def work(documents: ConversationDocuments) -> None:
            record, window = await documents.record(), await documents.window()
            if not record.holds(number, window.count):
                raise _no_message(number, record, window)
            await documents.put_window(await documents.remove([number], record, window))

        await self.together(work, message=f"delete message {number}")

    async def replace(self, first: int, additions: Sequence[Addition]) -> list[int]:
        """Remove the messages from a number on from view, and add others; return the numbers of these.

        Raises:
            InvalidError: System and pinned messages exceed the budget. Nothing is changed.
            NotFoundError: The message does not exist.
        """

        async def work(documents: ConversationDocuments) -> list[int]:
            record, window = await documents.record(), await documents.window()
            if not record.holds(first, window.count):
                raise _no_message(first, record, window)
            numbers = record.numbers(first, window.count)
            window = await documents.remove(numbers, record, window)
            if not additions:
                await documents.put_window(window)
                return []
            return (await documents.add(additions, window=window))[0]

        return await self.together(work, message=f"replace the messages from {first} on")

    async def clear(self) -> int:
        """Remove all messages from view and return their number. Later messages continue the numbering."""

        async def work(documents: ConversationDocuments) -> int:
            record, window = await documents.record(), await documents.window()
            count = window.count
            had, record.begin = count - record.begin - record.count_removed(), count
            await documents.put_record(record)
            await documents.put_window(Window(count, first=count, era=window.era + 1))
            return had

        if await self.current() is None:
            return 0
        return await self.together(work, message="clear the conversation")

    async def summarise(self) -> bool:
        """Summarise the messages that left the context and are due; see `summarise_due`."""
        return await summarise_due(self)

    # ---- reading

    async def context(self, max_tokens: int | None = None) -> tuple[Window, dict[int, Message]]:
        """Return the context within its budget, or a smaller one, and its messages.

        Raises:
            InvalidError: System and pinned messages, or the shortest cut of the newest message, exceed the
                budget.
        """
        _, window, found = await self.read_context()
        self.fit(window, found, max_tokens)
        return window, found

    def fit(self, window: Window, found: dict[int, Message], max_tokens: int | None = None) -> None:
        """Reduce a context to its budget, or to a smaller one.

        Raises:
            InvalidError: System and pinned messages, or the shortest cut of the newest message, exceed the
                budget.
        """
        budget = self.rules.budget
        if max_tokens is not None:
            budget = TokenBudget(max_tokens, budget.counter, None)
        if window.counter != budget.counted_by:
            context_fit.recount(window, found, budget)
        if window.total_tokens > budget.max_tokens:  # the writer had a larger budget, or another counter
            context_fit.fit(window, found.get(window.newest, {}), budget, summarises=False)

    async def read_context(self) -> tuple[str | None, Window, dict[int, Message]]:
        """Read the context and its messages as one consistent snapshot, under concurrent writes.

        Returns:
            The prefix of the documents, None if there are none; the context; and its messages by number.
        """
        read = await self._read_expected() or await self._read_current()
        self._expected = list(read[2])
        return read

    async def _read_expected(self) -> tuple[str, Window, dict[int, Message]] | None:
        """Read the context in one call, if all that it needs is where this process has seen it last.

        Otherwise returns None, except that messages which were added since are read in a second call.
        """
        expected = self.namespace.expected()
        if expected is None:
            return None
        prefix, head = expected
        documents, plain = self.at(self.namespace.target, prefix), ConversationRecord()
        names = {documents.message_name(plain, number): number for number in self._expected[-_EXPECTED:]}
        context, record_name = documents.context_name, documents.record_name
        entries = await documents.target.documents.entries(head, context, record_name, *names)
        values = {name: entry.value for name, entry in entries.items()}
        if not self.namespace.confirms(values.get(head), prefix) or context not in values:
            return None
        window = documents.window_of(values[context])
        record: ConversationRecord = values.get(record_name) or plain
        if record.edited or record.spans or any(page not in window.pages for page in window.needed):
            return None
        found = {names[name]: message_in(value) for name, value in values.items() if name in names}
        numbers = [row.number for row in window.entries]
        found |= await documents.read(record, [number for number in numbers if number not in found])
        if any(number not in found for number in numbers):
            return None  # the session has ended meanwhile
        return prefix, window, {number: found[number] for number in numbers}

    async def _read_current(self) -> tuple[str | None, Window, dict[int, Message]]:
        """Read the context and its messages, whatever was known of them.

        Messages never change, so only an edit of one, or the end of the session, makes the read start again.
        """
        missing = None
        while (documents := await self.current()) is not None:
            window, record = await _read_whole_context(documents)
            numbers = [row.number for row in window.entries]
            found = await documents.read(record, numbers)
            if not record.edited.keys().isdisjoint(numbers):
                if (await documents.record()).edits != record.edits:
                    continue
            if len(found) == len(numbers) or missing == (documents.prefix, numbers):
                return documents.prefix, window, found
            missing = documents.prefix, numbers
        return None, Window(), {}

    async def items(
        self, after: int | None = None, *, original: bool = False
    ) -> AsyncIterator[tuple[int, Message]]:
        """Yield all messages with their numbers, in order, starting after the message `after`."""
        if after is not None:
            limits.admit_count("after", after, 0)
        documents = await self.current()
        if documents is None:
            return
        window, record = await documents.window_and_record()
        begin = record.begin if after is None else max(record.begin, after + 1)
        if original:
            record = replace(record, edited={})
        for start in range(begin, window.count, READ_AT_ONCE):
            numbers = record.numbers(start, min(start + READ_AT_ONCE, window.count))
            found = await documents.read(record, numbers)
            for number in numbers:
                if number in found:
                    yield number, found[number]

    async def one(self, number: int, *, original: bool = False) -> Message:
        """Return a message, with its last edit unless `original` is set.

        Raises:
            NotFoundError: The message does not exist.
        """
        documents = await self.current()
        if documents is None:
            raise _no_message(number, ConversationRecord(), Window())
        window, record = await documents.window_and_record()
        if not record.holds(number, window.count):
            raise _no_message(number, record, window)
        if original:
            record = replace(record, edited={})
        return (await documents.read(record, [number]))[number]

    async def count(self) -> int:
        """Return the number of messages."""
        documents = await self.current()
        if documents is None:
            return 0
        window, record = await documents.window_and_record()
        return window.count - record.begin - record.count_removed()

    async def newest(self, limit: int) -> list[tuple[int, Message]]:
        """Return the newest messages with their numbers, in order."""
        documents = await self.current()
        if documents is None:
            return []
        window, record = await documents.window_and_record()
        numbers = record.last_numbers(window.count, limit)
        found = await documents.read(record, numbers)
        return [(number, found[number]) for number in numbers if number in found]

    async def page(
        self,
        after: int | None,
        before: int | None,
        limit: int,
        unreadable: IfUnreadable,
        ref: Revision | None = None,
    ) -> Page[Entry]:
        """Return a page of entries in order: the first after a number, otherwise the last before one."""
        documents = await self.current() if ref is None else await self._at_moment(ref)
        if documents is None:
            return Page()
        window, record = await documents.window_and_record()
        end = window.count if before is None else min(before, window.count)
        if after is None:
            numbers = record.last_numbers(end, limit)
        else:
            numbers = record.first_numbers(after + 1, end, limit)
        found = await documents.read_records(record, numbers, unreadable)
        if not numbers:
            return Page()
        return Page(
            [found[number].entry(number) for number in numbers if number in found],
            next=str(numbers[-1]) if record.first_numbers(numbers[-1] + 1, window.count, 1) else None,
            previous=str(numbers[0]) if record.last_numbers(numbers[0], 1) else None,
        )


async def _read_whole_context(documents: ConversationDocuments) -> tuple[Window, ConversationRecord]:
    """Read the context with all its pages, and the conversation's record, at one revision.

    Only the head says which pages are needed. The head and the pages are read together, again until they
    match.
    """
    context, record_name = documents.context_name, documents.record_name
    names: dict[str, int] = {}
    while True:
        found, heads = dict[str, Any](), set[int]()
        for start in range(0, len(names) or 1, PAGES_AT_ONCE):
            part = list(names)[start : start + PAGES_AT_ONCE]
            entries = await documents.target.documents.entries(context, record_name, *part)
            heads.add(entries[context].version if context in entries else 0)
            found |= {name: entry.value for name, entry in entries.items()}
        window = documents.window_of(found.get(context))
        needed = [page for page in window.needed if page not in window.pages]
        needed_names = {documents.page_name(window.era, page): page for page in needed}
        if len(heads) == 1 and needed_names.keys() <= names.keys():
            for name, page in needed_names.items():
                window.load_page(page, found.get(name, ()))
            return window, found.get(record_name) or ConversationRecord()
        names = needed_names


def check_limit(max_tokens: int | None) -> None:
    """Raise `InvalidError` unless the budget is None or a positive integer."""
    if max_tokens is not None:
        limits.admit_count("max_tokens", max_tokens)


def _no_message(number: object, record: ConversationRecord, window: Window) -> NotFoundError:
    if record.begin >= window.count:
        return NotFoundError(f"Message {number!r} does not exist: there are no messages.")
    was = type(number) is int and record.begin <= number < window.count
    why = "was removed." if was else f"does not exist. The numbers are {record.begin} to {window.count - 1}."
    return NotFoundError(f"Message {number!r} {why}")


_LEASE_S: Final = 120.0
"""Seconds until the lease expires without renewal: after a crash, no summary is made for that time."""


class _Obsolete(Exception):  # noqa: N818 - nothing went wrong
    """The messages to summarise are no longer due; nothing is written."""


async def summarise_due(conversation: ConversationStore) -> bool:
    """Summarise the messages that left the context and are due, and return whether any were.

    Raises:
        InvalidError: There is no `summarise` function, or the conversation is inside a transaction.
    """
    summarise, space = conversation.rules.summarise, conversation.namespace.space
    if summarise is None:
        raise InvalidError(f"{conversation!r} has no summarise function. Pass summarise=.")
    if space is None:
        raise InvalidError(f"{conversation!r} is inside a transaction. Summarise outside.")
    documents = await conversation.current()
    if documents is None:
        return False
    made = 0
    async with AsyncExitStack() as stack:
        try:
            name = f"{documents.context_name}/summary"
            lease = await stack.enter_async_context(hold_lease(space, name, lease_s=_LEASE_S, turn_s=0))
        except ConflictError:
            return False  # another caller makes the summary
        while await _summarise_next(conversation, documents, lease, summarise):
            made += 1
    return made > 0


async def _summarise_next(
    conversation: ConversationStore, documents: ConversationDocuments, lease: Lease, summarise: Summarise
) -> bool:
    """Summarise the first due messages with the summary so far, and return whether there were any."""
    window, record = await documents.window(), await documents.record()
    budget = conversation.rules.budget
    numbers = window.due_numbers[: budget.summarise_first]
    if not numbers:
        return False
    originals = await documents.read(record, numbers)
    given = [originals[number] for number in numbers if number in originals]
    answer = await call_function(summarise, [*([window.summary] if window.summary else []), *given])
    summary = check_message({"role": "system", "content": answer} if isinstance(answer, str) else answer)

    async def work(inside: ConversationDocuments) -> None:
        def put(trial: Window) -> None:
            context_fit.summarise(trial, summary, numbers, budget)

        if inside.prefix != documents.prefix:
            raise _Obsolete  # the session has ended
        now = await inside.window()
        if now.era != window.era or not set(numbers).issubset(now.due_numbers):
            raise _Obsolete  # the conversation was cleared
        _, now = await inside.apply_change(await inside.recount_if_needed(now), put)
        await inside.put_window(now)

    try:
        await conversation.together(work, lease=lease, message="summarise")
    except _Obsolete:
        return False
    return True
