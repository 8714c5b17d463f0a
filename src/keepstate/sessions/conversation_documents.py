"""The documents of one conversation: its messages, and the state of its context.

```
message/NUMBER     an original message; never changes
edit/NUMBER        the last edit of a message
context            the head of the context: counts, and the rows of the newest page
page/ERA/NUMBER    the rows of sixteen messages; written when the page is full
talk               clears, edits, and the messages that a fork shares; often absent
```

Adding a message writes the message and the head, however long the conversation and the context are. A fork
copies no message: up to its first own message it reads those of the conversation that it was forked from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import NotFoundError
from keepstate.names import unescape
from keepstate.sessions import context_fit
from keepstate.sessions.context_fit import Budget
from keepstate.sessions.messages import Message
from keepstate.sessions.namespace import Namespace
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
