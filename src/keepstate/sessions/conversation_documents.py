"""The documents of one conversation: its messages, and the state of its context.

```
message/NUMBER     an original message, with its time, author, id and meta; never changes
edit/NUMBER        the last edit of a message
id/ID              the number of the message with an id
context            the head of the context: counts, and the rows of the newest page
page/ERA/NUMBER    the rows of sixteen messages; written when the page is full
talk               clears, edits, removals, and the messages that a fork shares; often absent
```

Adding a message writes the message and the head, however long the conversation and the context are. A fork
copies no message: up to its first own message it reads those of the conversation that it was forked from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, TypeVar, cast

from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.kernel.unreadable import IfUnreadable, Unreadable
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import NotFoundError
from keepstate.names import unescape
from keepstate.sessions import context_fit
from keepstate.sessions.context_fit import TokenBudget
from keepstate.sessions.entries import Addition, EntryRecord, id_segment, message_in, record_of
from keepstate.sessions.messages import Message
from keepstate.sessions.namespace import Namespace
from keepstate.sessions.window import PageMissing, Window, WindowRecord
from keepstate.values import limits
from keepstate.values.schema import register

T = TypeVar("T")
Summarise: TypeAlias = Callable[[list[Message]], Awaitable[str | Message] | str | Message]
MESSAGES: Final = "message/"
EDITS: Final = "edit/"
IDS: Final = "id/"
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
    removed: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Messages that were removed, as half-open ranges in order, each with the number of its change.

    Changes are counted by `edits`. The documents stay, because forks may share them.
    """
    told: tuple[int, int, int] | None = None
    """The counts of messages and changes of which `merge_back` has told, and the number of its message."""

    def holds(self, number: object, count: int) -> bool:
        """Return whether a message of this number exists, of so many that were added."""
        return type(number) is int and self.begin <= number < count and not self._is_removed(number)

    def numbers(self, first: int, end: int) -> list[int]:
        """Return the numbers of the existing messages from `first`, below `end`."""
        return self.first_numbers(first, end, max(1, end))

    def first_numbers(self, first: int, end: int, limit: int) -> list[int]:
        """Return the numbers of the first existing messages from `first`, below `end`."""
        found: list[int] = []
        number = max(first, self.begin)
        while number < end and len(found) < limit:
            at = bisect_right(self.removed, number, key=_begin_of) - 1
            if at >= 0 and number < self.removed[at][1]:
                number = self.removed[at][1]
                continue
            found.append(number)
            number += 1
        return found

    def last_numbers(self, end: int, limit: int) -> list[int]:
        """Return the numbers of the last existing messages below `end`, in order."""
        found: list[int] = []
        number = end - 1
        while number >= self.begin and len(found) < limit:
            at = bisect_right(self.removed, number, key=_begin_of) - 1
            if at >= 0 and number < self.removed[at][1]:
                number = self.removed[at][0] - 1
                continue
            found.append(number)
            number -= 1
        return found[::-1]

    def count_removed(self) -> int:
        """Return the number of removed messages that were not cleared."""
        return sum(max(0, end - max(begin, self.begin)) for begin, end, _ in self.removed)

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove existing messages, given in order."""
        self.edits += 1
        for number in numbers:
            last = self.removed[-1] if self.removed else None
            if last is not None and last[1:] == (number, self.edits):
                self.removed[-1] = last[0], number + 1, self.edits
            else:
                self.removed.append((number, number + 1, self.edits))
        self.removed.sort()

    def _is_removed(self, number: int) -> bool:
        at = bisect_right(self.removed, number, key=_begin_of) - 1
        return at >= 0 and number < self.removed[at][1]


def _begin_of(removed: tuple[int, int, int]) -> int:
    return removed[0]


@dataclass(frozen=True, slots=True)
class ContextRules:
    """The rules of a context.

    Attributes:
        budget: The limits of the context.
        summarise: Summarises messages; None drops them.
    """

    budget: TokenBudget
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
    return ContextRules(TokenBudget(max_tokens, counter, over, summarise_first), summarise)


@dataclass(frozen=True, slots=True)
class ConversationDocuments:
    """The documents of one conversation, in a space or transaction.

    Attributes:
        namespace: The namespace of the documents.
        rules: The rules of the context.
        tail: Further prefix of the document names, after the prefix of the namespace.
        target: The space, or a transaction that joins all reads and writes.
        prefix: The current prefix of the namespace.
    """

    namespace: Namespace
    rules: ContextRules
    tail: str
    target: Space | Transaction
    prefix: str

    # ---- names

    @property
    def context_name(self) -> str:
        """The document name of the context's head."""
        return f"{self.prefix}{self.tail}context"

    @property
    def record_name(self) -> str:
        """The document name of the conversation's record."""
        return f"{self.prefix}{self.tail}{RECORD}"

    def page_name(self, era: int, page: int) -> str:
        """Return the document name of one page of the context."""
        return f"{self.prefix}{self.tail}page/{era}/{page:0{_DIGITS}d}"

    def message_name(self, record: ConversationRecord, number: int) -> str:
        """Return the document name of a message: of its last edit, or where the original is."""
        if number in record.edited:
            return f"{self.prefix}{self.tail}{EDITS}{number:0{_DIGITS}d}"
        tail = next((tail for tail, upto in record.spans if number < upto), self.tail)
        return f"{self.prefix}{tail}{MESSAGES}{number:0{_DIGITS}d}"

    # ---- the context

    def window_of(self, record: WindowRecord | None) -> Window:
        """Return the context of a stored head, or an empty context without one."""
        if record is None and self.tail:
            raise absent_fork(self.namespace, self.tail)
        return Window.of(record)

    async def window(self) -> Window:
        """Read the context."""
        return self.window_of(await self.target.documents.get(self.context_name, type=WindowRecord))

    async def window_and_record(self) -> tuple[Window, ConversationRecord]:
        """Read the context and the conversation's record, in one round trip."""
        entries = await self.target.documents.entries(self.context_name, self.record_name)
        found = {name: entry.value for name, entry in entries.items()}
        return self.window_of(found.get(self.context_name)), found.get(
            self.record_name
        ) or ConversationRecord()

    async def put_window(self, window: Window) -> None:
        """Write the head of the context, and the pages that changed."""
        puts, deletes = window.page_changes()
        for page in puts:
            await self.target.documents.put(self.page_name(window.era, page), window.encode_page(page))
        for page in deletes:
            await self.target.documents.delete(self.page_name(window.era, page))
        await self.target.documents.put(self.context_name, window.record())

    async def load(self, window: Window, pages: Iterable[int]) -> None:
        """Read the pages of the context that were not read yet."""
        wanted = [page for page in pages if page not in window.pages]
        for start in range(0, len(wanted), READ_AT_ONCE):
            part = wanted[start : start + READ_AT_ONCE]
            names = {self.page_name(window.era, page): page for page in part}
            entries = await self.target.documents.entries(*names)
            for name, page in names.items():
                window.load_page(page, entries[name].value if name in entries else ())

    async def apply_change(self, window: Window, change: Callable[[Window], T]) -> tuple[T, Window]:
        """Apply a change to a copy of the context, and return its result and the copy.

        Pages that the change needs are read on demand.
        """
        ahead = 1
        while True:
            trial = window.copy()
            try:
                return change(trial), trial
            except PageMissing as missing:
                await self.load(window, range(missing.page, missing.page + ahead))
                ahead *= 2

    async def recount_if_needed(self, window: Window) -> Window:
        """Return the context with tokens counted by the counter of these rules."""
        if window.counter == self.rules.budget.counted_by or not (window.size or window.summary):
            return window
        record = await self.record()
        await self.load(window, window.needed)
        found = await self.read(record, [row.number for row in window.entries])
        context_fit.recount(window, found, self.rules.budget)
        return await self._fit_window(record, window)

    async def _fit_window(self, record: ConversationRecord, window: Window) -> Window:
        if window.total_tokens <= self.rules.budget.max_tokens:
            return window
        found = await self.read(record, [window.newest] if window.newest >= 0 else [])

        def fit(trial: Window) -> None:
            context_fit.fit(trial, found.get(window.newest, {}), self.rules.budget)

        return (await self.apply_change(window, fit))[1]

    # ---- the record and the messages

    async def record(self) -> ConversationRecord:
        """Read the conversation's record."""
        return await self.target.documents.get(
            self.record_name, ConversationRecord(), type=ConversationRecord
        )

    async def put_record(self, record: ConversationRecord) -> None:
        """Write the conversation's record."""
        await self.target.documents.put(self.record_name, record)

    async def read(self, record: ConversationRecord, numbers: Sequence[int]) -> dict[int, Message]:
        """Read messages by number, with their last edits."""
        found: dict[int, Message] = {}
        for start in range(0, len(numbers), READ_AT_ONCE):
            part = numbers[start : start + READ_AT_ONCE]
            names = {self.message_name(record, number): number for number in part}
            entries = await self.target.documents.entries(*names)
            found |= {names[name]: message_in(entry.value) for name, entry in entries.items()}
        return found

    async def read_records(
        self, record: ConversationRecord, numbers: Sequence[int], unreadable: IfUnreadable = "raise"
    ) -> dict[int, EntryRecord]:
        """Read messages by number, with all that is stored with them; each with its last edit.

        With `skip`, a message is left out if its original or its last edit cannot be read.
        """
        found: dict[int, EntryRecord] = {}
        original = replace(record, edited={})
        for start in range(0, len(numbers), READ_AT_ONCE):
            part = numbers[start : start + READ_AT_ONCE]
            names = {self.message_name(original, number): number for number in part}
            edits = {self.message_name(record, number): number for number in part if number in record.edited}
            raw: IfUnreadable = "raise" if unreadable == "raise" else "raw"
            entries = await self.target.documents.entries(*names, *edits, unreadable=raw)
            values = {name: entry.value for name, entry in entries.items()}
            for name, number in names.items():
                if name in values:
                    found[number] = record_of(values[name])
            for name, number in edits.items():
                if number in found and name in values:  # otherwise the session has ended
                    found[number] = _edited(found[number], values[name])
        if unreadable == "skip":
            return {number: each for number, each in found.items() if each.unreadable is None}
        return found

    async def number_of(self, id: str) -> int | None:
        """Return the number of the message with an id, or None. Reads the context with it."""
        entries = await self.target.documents.entries(self.context_name, self.id_name(id))
        return entries[self.id_name(id)].value if self.id_name(id) in entries else None

    def id_name(self, id: str) -> str:
        """Return the document name of an id."""
        return f"{self.prefix}{self.tail}{IDS}{id_segment(id)}"

    async def remove(self, numbers: Sequence[int], record: ConversationRecord, window: Window) -> Window:
        """Remove existing messages, given in order; return the context, which is not written yet."""
        window = await self.recount_if_needed(window)
        shown = {*window.fixed, *range(window.first, window.count)}
        messages = await self.read(record, [number for number in numbers if number in shown])
        _, window = await self.apply_change(window, lambda trial: context_fit.remove(trial, messages))
        window.mark_done(numbers)
        record.remove(numbers)
        await self.put_record(record)
        return window

    async def add(
        self, additions: Sequence[Addition], *, pinned: bool = False, window: Window | None = None
    ) -> tuple[list[int], bool, list[int]]:
        """Add messages.

        Args:
            additions: The messages, and what is stored with them.
            pinned: Never let the messages leave the context.
            window: The context, if this transaction has changed it before.

        Returns:
            Their numbers; whether a summary is due; and the messages of the context, as far as its pages were
            read.
        """
        window = await self.recount_if_needed(await self.window() if window is None else window)

        def add(trial: Window) -> list[int]:
            return [_add(trial, each, self.rules.budget, pinned=pinned) for each in additions]

        numbers, window = await self.apply_change(window, add)
        # The store's time may be supposed here, and is then some time ago.
        now_ms = max(to_milliseconds(await self.target.now()), self.target.clock.now_ms())
        for number, addition in zip(numbers, additions, strict=True):
            said = addition.record(now_ms, self.target.author)
            await self.target.documents.put(self.message_name(ConversationRecord(), number), said.stored())
            if said.id is not None:
                await self.target.documents.put(self.id_name(said.id), number)
        await self.put_window(window)
        return numbers, bool(window.due), [number for page in window.pages.values() for number in page]

    async def edit(self, messages: Mapping[int, Message], record: ConversationRecord, window: Window) -> None:
        """Replace messages, and update the conversation's record."""
        window = await self.recount_if_needed(window)
        for number, message in messages.items():
            record.edits += 1
            record.edited[number] = record.edits
            await self.put_edit(number, message)

        def replace(trial: Window) -> None:
            for number, message in messages.items():
                context_fit.replace(trial, number, message, self.rules.budget)

        _, window = await self.apply_change(window, replace)
        await self.put_record(record)
        await self.put_window(await self._fit_window(record, window))

    async def put_edit(self, number: int, message: Message) -> None:
        """Write a message's last edit."""
        await self.target.documents.put(f"{self.prefix}{self.tail}{EDITS}{number:0{_DIGITS}d}", message)


def _add(window: Window, addition: Addition, budget: TokenBudget, *, pinned: bool) -> int:
    if not addition.is_shown:
        return window.next_number()
    return context_fit.add(window, addition.message, budget, pinned=pinned)


def absent_fork(namespace: Namespace, tail: str) -> NotFoundError:
    """Return the error for a fork that does not exist."""
    name = unescape(tail.split("/")[1])
    space = namespace.target.executor.name
    return NotFoundError(f"Fork {name!r} does not exist in space {space!r}. Create it with fork().")


def _edited(record: EntryRecord, edit: Any) -> EntryRecord:
    """Return a record with its last edit, which may not be readable."""
    if not isinstance(edit, Unreadable):
        return replace(record, message=edit)
    message = cast("Message", edit.value) if isinstance(edit.value, dict) else {}
    return replace(record, message=message, unreadable=edit)
