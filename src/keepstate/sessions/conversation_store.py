"""One conversation: its documents, and atomic operations that add, edit, clear, read and summarise messages.

```
message/NUMBER     an original message; never changes
edit/NUMBER        the last edit of a message
context            the head of the context: counts, and the rows of the newest page
page/ERA/NUMBER    the rows of sixteen messages; written when the page is full
talk               clears, edits, and the messages that a fork shares; often absent
```

Adding a message writes the message and the head, however long the conversation and the context are. A fork
copies no message: up to its first own message it reads those of the conversation that it was forked from.

A summary is made by one caller at a time, because a model call takes long. The caller holds a lease, renewed
during the call, and stores the summary only if the messages are still due. If the conversation was cleared in
the meantime, the summary is discarded.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.names import unescape
from keepstate.sessions import context_fit
from keepstate.sessions.context_fit import Budget
from keepstate.sessions.messages import Message, check_message, links
from keepstate.sessions.namespace import Namespace, hold_lease
from keepstate.sessions.window import PageMissing, Window, WindowRecord
from keepstate.values import limits
from keepstate.values.schema import register

T = TypeVar("T")
Summarise: TypeAlias = Callable[[list[Message]], Awaitable[str | Message] | str | Message]
MESSAGES: Final = "message/"
EDITS: Final = "edit/"
RECORD: Final = "talk"
READ_AT_ONCE: Final = 100
PAGES_AT_ONCE: Final = 900
"""Pages are short, so that this many fit into one read together with the head."""
_DIGITS: Final = 12
"""Digits of a message's number, so that names sort in order."""


@register("keepstate.Talk")
@dataclass
class ConversationRecord:
    """The state of a conversation besides its messages and context."""

    begin: int = 0
    """The first message that was not cleared."""
    edited: dict[int, int] = field(default_factory=dict[int, int])
    """The number of the last edit, by edited message."""
    edits: int = 0
    spans: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Messages shared with other conversations: name prefix, and the number at which each span ends."""
    parent: str | None = None
    """The name prefix of the parent conversation; None if this is not a fork."""
    own_base: dict[int, int] = field(default_factory=dict[int, int])
    """The edits of this fork that its parent has already."""
    parent_base: dict[int, int] = field(default_factory=dict[int, int])
    """The edits of the parent that this fork was made or merged with."""
    merged: int = 0
    """The first message that no merge has copied to the parent."""


@dataclass(frozen=True, slots=True)
class ContextRules:
    """The rules of a context.

    Attributes:
        budget: The limits of the context.
        summarise: Summarises messages; None drops them.
    """

    budget: Budget
    summarise: Summarise | None = None


def make_rules(
    max_tokens: int,
    counter: Callable[[Message], int],
    summarise: Summarise | None,
    summarise_over: int,
    summarise_first: int,
    *,
    is_blocking: bool,
) -> ContextRules:
    """Validate the options of a caller and return them as rules.

    Raises:
        InvalidError: A number is not a positive integer, or a function does not fit the mode.
    """
    limits.admit_count("max_tokens", max_tokens)
    limits.admit_count("summarise_over", summarise_over)
    limits.admit_count("summarise_first", summarise_first)
    reject_coroutine_function(counter)
    if summarise is not None and (is_blocking or not callable(summarise)):
        reject_coroutine_function(summarise)
    over = None if summarise is None else summarise_over
    return ContextRules(Budget(max_tokens, counter, over, summarise_first), summarise)


class ConversationDocuments:
    """The documents of one conversation in a namespace.

    Args:
        namespace: The namespace of the documents.
        rules: The rules of the context.
        tail: Further prefix of the document names, after the prefix of the namespace.
    """

    def __init__(self, namespace: Namespace, rules: ContextRules, tail: str = "") -> None:
        self.namespace, self.rules, self.tail = namespace, rules, tail

    def __repr__(self) -> str:
        return f"{self.tail or 'conversation'} in {self.namespace.target!r}"

    async def current_prefix(self) -> str | None:
        """Return the current prefix of the namespace, or None if there are no documents."""
        prefix = await self.namespace.to_read()
        if prefix is None and self.tail:
            raise self._absent()
        return prefix

    def _absent(self) -> NotFoundError:
        name = unescape(self.tail.split("/")[1])
        return NotFoundError(
            f"Fork {name!r} does not exist in {self.namespace.target!r}. Create it with fork()."
        )

    def window_of(self, record: WindowRecord | None) -> Window:
        """Return the context of a stored head, or an empty context without one."""
        if record is None and self.tail:
            raise self._absent()
        return Window.of(record)

    def message(self, prefix: str, number: int) -> str:
        """Return the document name of an own, unedited message."""
        return f"{prefix}{self.tail}{MESSAGES}{number:0{_DIGITS}d}"

    def edit_name(self, prefix: str, number: int) -> str:
        """Return the document name of a message's last edit."""
        return f"{prefix}{self.tail}{EDITS}{number:0{_DIGITS}d}"

    def context_name(self, prefix: str) -> str:
        """Return the document name of the context's head."""
        return f"{prefix}{self.tail}context"

    def page_name(self, prefix: str, era: int, page: int) -> str:
        """Return the document name of one page of the context."""
        return f"{prefix}{self.tail}page/{era}/{page:0{_DIGITS}d}"

    def record_name(self, prefix: str) -> str:
        """Return the document name of the conversation's record."""
        return f"{prefix}{self.tail}{RECORD}"

    async def read_window_and_record(self, prefix: str) -> tuple[Window, ConversationRecord]:
        """Read the context and the conversation's record, in one round trip."""
        context, record_name = self.context_name(prefix), self.record_name(prefix)
        entries = await self.namespace.target.documents.entries(context, record_name)
        found = {name: entry.value for name, entry in entries.items()}
        return self.window_of(found.get(context)), found.get(record_name) or ConversationRecord()

    async def window(self, target: Space | Transaction, prefix: str) -> Window:
        """Read the context."""
        return self.window_of(await target.documents.get(self.context_name(prefix), type=WindowRecord))

    async def put_window(self, tx: Transaction, prefix: str, window: Window) -> None:
        """Write the head of the context, and the pages that changed."""
        puts, deletes = window.page_changes()
        for page in puts:
            await tx.documents.put(self.page_name(prefix, window.era, page), window.encode_page(page))
        for page in deletes:
            await tx.documents.delete(self.page_name(prefix, window.era, page))
        await tx.documents.put(self.context_name(prefix), window.record())

    async def load(
        self, target: Space | Transaction, prefix: str, window: Window, pages: Iterable[int]
    ) -> None:
        """Read the pages of the context that were not read yet."""
        wanted = [page for page in pages if page not in window.pages]
        for start in range(0, len(wanted), READ_AT_ONCE):
            names = {
                self.page_name(prefix, window.era, page): page
                for page in wanted[start : start + READ_AT_ONCE]
            }
            entries = await target.documents.entries(*names)
            for name, page in names.items():
                window.load_page(page, entries[name].value if name in entries else ())

    async def apply_change(
        self, tx: Transaction, prefix: str, window: Window, change: Callable[[Window], T]
    ) -> tuple[T, Window]:
        """Apply a change to a copy of the context, and return its result and the copy.

        Pages that the change needs are read on demand.
        """
        ahead = 1
        while True:
            trial = window.copy()
            try:
                return change(trial), trial
            except PageMissing as missing:
                await self.load(tx, prefix, window, range(missing.page, missing.page + ahead))
                ahead *= 2

    async def recount_if_needed(self, tx: Transaction, prefix: str, window: Window) -> Window:
        """Return the context with tokens counted by the counter of these rules."""
        if window.counter == self.rules.budget.counted_by or not (window.size or window.summary):
            return window
        record = await self.record(tx, prefix)
        await self.load(tx, prefix, window, window.needed)
        found = await self.read(tx, prefix, record, [row.number for row in window.entries])
        context_fit.recount(window, found, self.rules.budget)
        return await self._fit_window(tx, prefix, record, window)

    async def _fit_window(
        self, tx: Transaction, prefix: str, record: ConversationRecord, window: Window
    ) -> Window:
        if window.total_tokens <= self.rules.budget.max_tokens:
            return window
        found = await self.read(tx, prefix, record, [window.newest] if window.newest >= 0 else [])

        def fit(trial: Window) -> None:
            context_fit.fit(trial, found.get(window.newest, {}), self.rules.budget)

        return (await self.apply_change(tx, prefix, window, fit))[1]

    async def record(self, target: Space | Transaction, prefix: str) -> ConversationRecord:
        """Read the conversation's record."""
        return await target.documents.get(
            self.record_name(prefix), ConversationRecord(), type=ConversationRecord
        )

    async def put_record(self, tx: Transaction, prefix: str, record: ConversationRecord) -> None:
        """Write the conversation's record."""
        await tx.documents.put(self.record_name(prefix), record)

    async def read(
        self, target: Space | Transaction, prefix: str, record: ConversationRecord, numbers: Sequence[int]
    ) -> dict[int, Message]:
        """Read messages by number, with their last edits."""
        found: dict[int, Any] = {}
        for start in range(0, len(numbers), READ_AT_ONCE):
            names = {
                self._message_name(prefix, record, number): number
                for number in numbers[start : start + READ_AT_ONCE]
            }
            entries = await target.documents.entries(*names)
            found |= {names[name]: entry.value for name, entry in entries.items()}
        return found

    def _message_name(self, prefix: str, record: ConversationRecord, number: int) -> str:
        if number in record.edited:
            return self.edit_name(prefix, number)
        for tail, upto in record.spans:
            if number < upto:
                return f"{prefix}{tail}{MESSAGES}{number:0{_DIGITS}d}"
        return self.message(prefix, number)


_log = logging.getLogger("keepstate.sessions")


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
