"""The messages of one conversation as documents, and which of them are in its context.

```
message/NUMBER     a message as it was said; never changes
edit/NUMBER        what stands in its place since it was edited
context            the head of the context: counts, and which of the newest messages are in it
page/ERA/NUMBER    which of sixteen others are in it; written when they are full
talk               what of it was cleared or edited, and where a fork's first messages stand; often absent
```

Adding a message writes the message and the head, however long the conversation and the context are. A fork
copies no message: those up to the one at which it began are the ones of the conversation that it was forked
from.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import NotFoundError
from keepstate.home import unquoted
from keepstate.sessions import context_fit
from keepstate.sessions.context_fit import Budget
from keepstate.sessions.messages import Message
from keepstate.sessions.site import Site
from keepstate.sessions.window import PageMissing, Window, WindowRecord
from keepstate.values import limits
from keepstate.values.schema import register

T = TypeVar("T")
Summarise: TypeAlias = Callable[[list[Message]], Awaitable[str | Message] | str | Message]
MESSAGES: Final = "message/"
EDITS: Final = "edit/"
TALK: Final = "talk"
READ_AT_ONCE: Final = 100
PAGES_AT_ONCE: Final = 900
"""They are short, and stand in one read with the head."""
_DIGITS: Final = 12
"""Of a message's number, so that names stand in order."""


@register("keepstate.Talk")
@dataclass
class ConversationRecord:
    """What is known of a conversation beside its messages and context."""

    begin: int = 0
    """The first message that was not cleared."""
    edited: dict[int, int] = field(default_factory=dict[int, int])
    """The messages that were edited, each with the number of its last edit."""
    edits: int = 0
    spans: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Where messages stand that are not its own: what names begin with, up to which number."""
    parent: str | None = None
    """What names of the conversation begin with that it was forked from, if it is a fork."""
    own_base: dict[int, int] = field(default_factory=dict[int, int])
    """Which of its edits the conversation has that it was forked from."""
    parent_base: dict[int, int] = field(default_factory=dict[int, int])
    """Which edits of that conversation it knows."""
    merged: int = 0
    """The first message that no merge has taken."""


@dataclass(frozen=True, slots=True)
class ContextRules:
    """How a context is kept.

    Attributes:
        budget: What it may hold.
        summarise: Makes a summary of messages; None drops them.
    """

    budget: Budget
    summarise: Summarise | None = None


def rules_of(
    max_tokens: int,
    counter: Callable[[Message], int],
    summarise: Summarise | None,
    summarise_over: int,
    summarise_first: int,
    *,
    is_blocking: bool,
) -> ContextRules:
    """Return the rules that a caller has asked for.

    Raises:
        InvalidError: One of them is no number from 1, or no function of this colour.
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
    """The documents of one conversation at a site.

    Args:
        site: Where it is kept.
        rules: How its context is kept.
        tail: What the names of its documents go on with, behind what the site says.
    """

    def __init__(self, site: Site, rules: ContextRules, tail: str = "") -> None:
        self.site, self.rules, self.tail = site, rules, tail

    def __repr__(self) -> str:
        return f"{self.tail or 'the conversation'} in {self.site.place!r}"

    async def present(self) -> str | None:
        """Return what names begin with; None if nothing is there."""
        prefix = await self.site.to_read()
        if prefix is None and self.tail:
            raise self._absent()
        return prefix

    def _absent(self) -> NotFoundError:
        name = unquoted(self.tail.split("/")[1])
        return NotFoundError(f"there is no fork {name!r} in {self.site.place!r}; make it by fork()")

    def window_of(self, record: WindowRecord | None) -> Window:
        """Return the context of a stored head; of none, the empty context."""
        if record is None and self.tail:
            raise self._absent()
        return Window.of(record)

    def message(self, prefix: str, number: int) -> str:
        """Return the name of a message's document, if it is not one of another conversation."""
        return f"{prefix}{self.tail}{MESSAGES}{number:0{_DIGITS}d}"

    def edit_name(self, prefix: str, number: int) -> str:
        """Return the name of what stands in a message's place."""
        return f"{prefix}{self.tail}{EDITS}{number:0{_DIGITS}d}"

    def context_name(self, prefix: str) -> str:
        """Return the name of the document of the context's head."""
        return f"{prefix}{self.tail}context"

    def page_name(self, prefix: str, era: int, page: int) -> str:
        """Return the name of the document of one page of the context."""
        return f"{prefix}{self.tail}page/{era}/{page:0{_DIGITS}d}"

    def talk(self, prefix: str) -> str:
        """Return the name of the document of what is known beside the context."""
        return f"{prefix}{self.tail}{TALK}"

    async def standing(self, prefix: str) -> tuple[Window, ConversationRecord]:
        """Return the context and what is known beside it, in one round trip."""
        context, talk = self.context_name(prefix), self.talk(prefix)
        entries = await self.site.place.documents.entries(context, talk)
        found = {name: entry.value for name, entry in entries.items()}
        return self.window_of(found.get(context)), found.get(talk) or ConversationRecord()

    async def window(self, place: Space | Transaction, prefix: str) -> Window:
        """Return the context."""
        return self.window_of(await place.documents.get(self.context_name(prefix), type=WindowRecord))

    async def put_window(self, tx: Transaction, prefix: str, window: Window) -> None:
        """Write the head of the context, and its pages where that is needed."""
        puts, deletes = window.writes()
        for page in puts:
            await tx.documents.put(self.page_name(prefix, window.era, page), window.stored(page))
        for page in deletes:
            await tx.documents.delete(self.page_name(prefix, window.era, page))
        await tx.documents.put(self.context_name(prefix), window.record())

    async def load(
        self, place: Space | Transaction, prefix: str, window: Window, pages: Iterable[int]
    ) -> None:
        """Read pages of the context that were not read yet."""
        wanted = [page for page in pages if page not in window.pages]
        for start in range(0, len(wanted), READ_AT_ONCE):
            names = {
                self.page_name(prefix, window.era, page): page
                for page in wanted[start : start + READ_AT_ONCE]
            }
            entries = await place.documents.entries(*names)
            for name, page in names.items():
                window.take(page, entries[name].value if name in entries else ())

    async def worked(
        self, tx: Transaction, prefix: str, window: Window, change: Callable[[Window], T]
    ) -> tuple[T, Window]:
        """Return what a change returned, and the context that it made; reads the pages that it asks for."""
        ahead = 1
        while True:
            trial = window.copy()
            try:
                return change(trial), trial
            except PageMissing as missing:
                await self.load(tx, prefix, window, range(missing.page, missing.page + ahead))
                ahead *= 2

    async def counted(self, tx: Transaction, prefix: str, window: Window) -> Window:
        """Return a context whose tokens were counted by the counter of these rules."""
        if window.counter == self.rules.budget.counted_by or not (window.size or window.summary):
            return window
        record = await self.record(tx, prefix)
        await self.load(tx, prefix, window, window.needed)
        found = await self.read(tx, prefix, record, [row.number for row in window.entries])
        context_fit.recount(window, found, self.rules.budget)
        return await self._fitted(tx, prefix, record, window)

    async def _fitted(
        self, tx: Transaction, prefix: str, record: ConversationRecord, window: Window
    ) -> Window:
        if window.tokens <= self.rules.budget.max_tokens:
            return window
        found = await self.read(tx, prefix, record, [window.newest] if window.newest >= 0 else [])

        def fit(trial: Window) -> None:
            context_fit.fit(trial, found.get(window.newest, {}), self.rules.budget)

        return (await self.worked(tx, prefix, window, fit))[1]

    async def record(self, place: Space | Transaction, prefix: str) -> ConversationRecord:
        """Return what is known of the conversation."""
        return await place.documents.get(self.talk(prefix), ConversationRecord(), type=ConversationRecord)

    async def put_record(self, tx: Transaction, prefix: str, record: ConversationRecord) -> None:
        """Write what is known of the conversation."""
        await tx.documents.put(self.talk(prefix), record)

    async def read(
        self, place: Space | Transaction, prefix: str, record: ConversationRecord, numbers: Sequence[int]
    ) -> dict[int, Message]:
        """Return messages by number, as they stand now."""
        found: dict[int, Any] = {}
        for start in range(0, len(numbers), READ_AT_ONCE):
            names = {
                self._stands(prefix, record, number): number
                for number in numbers[start : start + READ_AT_ONCE]
            }
            entries = await place.documents.entries(*names)
            found |= {names[name]: entry.value for name, entry in entries.items()}
        return found

    def _stands(self, prefix: str, record: ConversationRecord, number: int) -> str:
        if number in record.edited:
            return self.edit_name(prefix, number)
        for tail, upto in record.spans:
            if number < upto:
                return f"{prefix}{tail}{MESSAGES}{number:0{_DIGITS}d}"
        return self.message(prefix, number)
