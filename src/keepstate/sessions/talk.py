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

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from keepstate.engine.scope import refuse_coroutine_function
from keepstate.engine.space import Space
from keepstate.engine.transaction import Transaction
from keepstate.errors import InvalidError, NotFoundError
from keepstate.home import unquoted
from keepstate.sessions import fitting, summaries
from keepstate.sessions.fitting import Budget
from keepstate.sessions.messages import Message, admit, links
from keepstate.sessions.site import Site
from keepstate.sessions.window import PageMissing, Window, WindowRecord
from keepstate.values import limits
from keepstate.values.schema import register

_log = logging.getLogger("keepstate.sessions")

T = TypeVar("T")
Summarise: TypeAlias = Callable[[list[Message]], Awaitable[str | Message] | str | Message]
MESSAGES: Final = "message/"
EDITS: Final = "edit/"
TALK: Final = "talk"
_READ_AT_ONCE: Final = 100
_PAGES_AT_ONCE: Final = 900
"""They are short, and stand in one read with the head."""
_DIGITS: Final = 12
"""Of a message's number, so that names stand in order."""


@register("keepstate.Talk")
@dataclass
class TalkRecord:
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
    """Returns the rules that a caller has asked for.

    Raises:
        InvalidError: One of them is no number from 1, or no function of this colour.
    """
    limits.admit_count("max_tokens", max_tokens)
    limits.admit_count("summarise_over", summarise_over)
    limits.admit_count("summarise_first", summarise_first)
    refuse_coroutine_function(counter)
    if summarise is not None and (is_blocking or not callable(summarise)):
        refuse_coroutine_function(summarise)
    over = None if summarise is None else summarise_over
    return ContextRules(Budget(max_tokens, counter, over, summarise_first), summarise)


class Talk:
    """One conversation at a site.

    Args:
        site: Where it is kept.
        rules: How its context is kept.
        tail: What the names of its documents go on with, behind what the site says.
    """

    def __init__(self, site: Site, rules: ContextRules, tail: str = "") -> None:
        self.site, self.rules, self.tail = site, rules, tail

    def __repr__(self) -> str:
        return f"{self.tail or 'the conversation'} in {self.site.place!r}"

    # ---- writing

    async def add(self, *messages: Mapping[str, Any], pinned: bool = False) -> list[int]:
        """Adds messages together, and returns their numbers; summarises what left the context, if it is due.

        Raises:
            InvalidError: One is no message, or system and pinned messages pass the budget; nothing is added.
        """
        plain = [admit(message) for message in messages]

        async def work(tx: Transaction, prefix: str) -> tuple[list[int], bool]:
            return await self.added(tx, prefix, plain, pinned=pinned)

        numbers, is_due = await self.site.together(work, message="add a message")
        if is_due and self.rules.summarise is not None and self.site.space is not None:
            try:
                await self.summarise()
            except Exception:  # noqa: BLE001 - the message is added; the summary stays due
                _log.warning("a summary of %r failed and stays due", self, exc_info=True)
        return numbers

    async def added(
        self, tx: Transaction, prefix: str, plain: Sequence[Message], *, pinned: bool = False
    ) -> tuple[list[int], bool]:
        """Adds messages in a transaction; returns their numbers, and whether a summary is due."""
        window = await self.counted(tx, prefix, await self.window(tx, prefix))

        def add(trial: Window) -> list[int]:
            return [fitting.add(trial, message, self.rules.budget, pinned=pinned) for message in plain]

        numbers, window = await self.worked(tx, prefix, window, add)
        for number, message in zip(numbers, plain, strict=True):
            await tx.documents.put(self.message(prefix, number), message)
        await self.put_window(tx, prefix, window)
        return numbers, bool(window.spans)

    async def edit(self, number: int, message: Mapping[str, Any] | str) -> None:
        """Puts another message, or another text, in the place of one.

        Raises:
            InvalidError: It makes or answers other tool calls than that.
            NotFoundError: There is no such message.
        """
        given = {} if isinstance(message, str) else admit(message)

        async def work(tx: Transaction, prefix: str) -> None:
            record, window = await self.record(tx, prefix), await self.window(tx, prefix)
            if type(number) is not int or not record.begin <= number < window.count:
                raise _no_message(number, record, window)
            before = (await self.read(tx, prefix, record, [number]))[number]
            plain = given or {**before, "content": message}
            if links(before) != links(plain):
                raise InvalidError(
                    f"message {number} makes or answers other tool calls; edit what it says, and keep these"
                )
            await self.edited(tx, prefix, {number: plain}, record, window)

        await self.site.together(work, message=f"edit message {number}")

    async def edited(
        self,
        tx: Transaction,
        prefix: str,
        messages: Mapping[int, Message],
        record: TalkRecord,
        window: Window,
    ) -> None:
        """Puts messages in the place of others in a transaction, with what is known of the conversation."""
        window = await self.counted(tx, prefix, window)
        for number, message in messages.items():
            record.edits += 1
            record.edited[number] = record.edits
            await tx.documents.put(self.edit_name(prefix, number), message)

        def replace(trial: Window) -> None:
            for number, message in messages.items():
                fitting.replace(trial, number, message, self.rules.budget)

        _, window = await self.worked(tx, prefix, window, replace)
        await self.put_record(tx, prefix, record)
        window = await self._fitted(tx, prefix, record, window)
        await self.put_window(tx, prefix, window)

    async def clear(self) -> int:
        """Lets the conversation begin anew, and returns how many messages it had; numbers go on."""

        async def work(tx: Transaction, prefix: str) -> int:
            record, window = await self.record(tx, prefix), await self.window(tx, prefix)
            count = window.count
            had, record.begin = count - record.begin, count
            await self.put_record(tx, prefix, record)
            await self.put_window(tx, prefix, Window(count, first=count, era=window.era + 1))
            return had

        if await self.present() is None:
            return 0
        return await self.site.together(work, message="clear the conversation")

    async def summarise(self) -> bool:
        """Summarises what has left the context and is due for it; see `summaries`."""
        return await summaries.summarised(self)

    # ---- reading

    async def context(self, max_tokens: int | None = None) -> tuple[Window, dict[int, Message]]:
        """Returns the context within its budget, or a smaller one, and the messages in it.

        Raises:
            InvalidError: System and pinned messages, or the least of the newest one, pass the budget.
        """
        budget = self.rules.budget
        if max_tokens is not None:
            budget = Budget(max_tokens, budget.counter, None)
        window, found = await self._of_one_moment()
        if window.counter != budget.counted_by:
            fitting.recount(window, found, budget)
        if window.tokens > budget.max_tokens:  # whoever added had a larger budget, or counted otherwise
            fitting.fit(window, found.get(window.newest, {}), budget, summarises=False)
        return window, found

    async def _of_one_moment(self) -> tuple[Window, dict[int, Message]]:
        """Returns the context and the messages in it as they were together, however many write meanwhile.

        Messages never change. So only an edit of one, and the end of the session's life, let it begin anew.
        """
        missing = None
        while (prefix := await self.present()) is not None:
            window, record = await self._whole(prefix)
            numbers = [row.number for row in window.entries]
            found = await self.read(self.site.place, prefix, record, numbers)
            if not record.edited.keys().isdisjoint(numbers):
                if (await self.record(self.site.place, prefix)).edits != record.edits:
                    continue
            if len(found) == len(numbers) or missing == (prefix, numbers):
                return window, found
            missing = prefix, numbers
        return Window(), {}

    async def _whole(self, prefix: str) -> tuple[Window, TalkRecord]:
        """Returns the context with all of its pages, and what is known beside it, of one revision.

        Which pages are needed only the head says. So both are read together, again until they fit.
        """
        context, talk = self.context_name(prefix), self.talk(prefix)
        names: dict[str, int] = {}
        while True:
            found, heads = dict[str, Any](), set[int]()
            for start in range(0, len(names) or 1, _PAGES_AT_ONCE):
                part = list(names)[start : start + _PAGES_AT_ONCE]
                entries = await self.site.place.documents.entries(context, talk, *part)
                heads.add(entries[context].version if context in entries else 0)
                found |= {name: entry.value for name, entry in entries.items()}
            window = self._window_of(found.get(context))
            needed = [page for page in window.needed if page not in window.pages]
            needed_names = {self._page(prefix, window.era, page): page for page in needed}
            if len(heads) == 1 and needed_names.keys() <= names.keys():
                for name, page in needed_names.items():
                    window.take(page, found.get(name, ()))
                return window, found.get(talk) or TalkRecord()
            names = needed_names

    async def items(
        self, after: int | None = None, *, original: bool = False
    ) -> AsyncIterator[tuple[int, Message]]:
        """Yields all messages with their numbers, in order, behind that of `after`."""
        if after is not None and (type(after) is not int or after < 0):
            raise InvalidError(f"`after` is {after!r}; give the number of a message, from 0")
        prefix = await self.present()
        if prefix is None:
            return
        window, record = await self.standing(prefix)
        begin = record.begin if after is None else max(record.begin, after + 1)
        if original:
            record = TalkRecord(spans=record.spans)
        for start in range(begin, window.count, _READ_AT_ONCE):
            numbers = range(start, min(start + _READ_AT_ONCE, window.count))
            found = await self.read(self.site.place, prefix, record, numbers)
            for number in numbers:
                if number in found:
                    yield number, found[number]

    async def one(self, number: int, *, original: bool = False) -> Message:
        """Returns a message; as it was first said.

        Raises:
            NotFoundError: There is no such message.
        """
        prefix = await self.present()
        window, record = (Window(), TalkRecord()) if prefix is None else await self.standing(prefix)
        if type(number) is not int or not record.begin <= number < window.count:
            raise _no_message(number, record, window)
        assert prefix is not None
        if original:
            record = TalkRecord(spans=record.spans)
        return (await self.read(self.site.place, prefix, record, [number]))[number]

    async def count(self) -> int:
        """Returns how many messages there are."""
        prefix = await self.present()
        if prefix is None:
            return 0
        window, record = await self.standing(prefix)
        return window.count - record.begin

    async def newest(self, limit: int) -> list[tuple[int, Message]]:
        """Returns the newest messages with their numbers, in order."""
        prefix = await self.present()
        if prefix is None:
            return []
        window, record = await self.standing(prefix)
        numbers = range(max(record.begin, window.count - limit), window.count)
        found = await self.read(self.site.place, prefix, record, numbers)
        return [(number, found[number]) for number in numbers if number in found]

    # ---- its documents

    async def present(self) -> str | None:
        """Returns what names begin with; None if nothing is there."""
        prefix = await self.site.to_read()
        if prefix is None and self.tail:
            raise self._absent()
        return prefix

    def _absent(self) -> NotFoundError:
        name = unquoted(self.tail.split("/")[1])
        return NotFoundError(f"there is no fork {name!r} in {self.site.place!r}; make it by fork()")

    def _window_of(self, record: WindowRecord | None) -> Window:
        if record is None and self.tail:
            raise self._absent()
        return Window.of(record)

    def message(self, prefix: str, number: int) -> str:
        """Returns the name of a message's document, if it is not one of another conversation."""
        return f"{prefix}{self.tail}{MESSAGES}{number:0{_DIGITS}d}"

    def edit_name(self, prefix: str, number: int) -> str:
        """Returns the name of what stands in a message's place."""
        return f"{prefix}{self.tail}{EDITS}{number:0{_DIGITS}d}"

    def context_name(self, prefix: str) -> str:
        """Returns the name of the document of the context's head."""
        return f"{prefix}{self.tail}context"

    def _page(self, prefix: str, era: int, page: int) -> str:
        return f"{prefix}{self.tail}page/{era}/{page:0{_DIGITS}d}"

    def talk(self, prefix: str) -> str:
        """Returns the name of the document of what is known beside the context."""
        return f"{prefix}{self.tail}{TALK}"

    async def standing(self, prefix: str) -> tuple[Window, TalkRecord]:
        """Returns the context and what is known beside it, in one round trip."""
        context, talk = self.context_name(prefix), self.talk(prefix)
        entries = await self.site.place.documents.entries(context, talk)
        found = {name: entry.value for name, entry in entries.items()}
        return self._window_of(found.get(context)), found.get(talk) or TalkRecord()

    async def window(self, place: Space | Transaction, prefix: str) -> Window:
        """Returns the context."""
        return self._window_of(await place.documents.get(self.context_name(prefix), type=WindowRecord))

    async def put_window(self, tx: Transaction, prefix: str, window: Window) -> None:
        """Writes the head of the context, and its pages where that is needed."""
        puts, deletes = window.writes()
        for page in puts:
            await tx.documents.put(self._page(prefix, window.era, page), window.stored(page))
        for page in deletes:
            await tx.documents.delete(self._page(prefix, window.era, page))
        await tx.documents.put(self.context_name(prefix), window.record())

    async def load(
        self, place: Space | Transaction, prefix: str, window: Window, pages: Iterable[int]
    ) -> None:
        """Reads pages of the context that were not read yet."""
        wanted = [page for page in pages if page not in window.pages]
        for start in range(0, len(wanted), _READ_AT_ONCE):
            names = {
                self._page(prefix, window.era, page): page for page in wanted[start : start + _READ_AT_ONCE]
            }
            entries = await place.documents.entries(*names)
            for name, page in names.items():
                window.take(page, entries[name].value if name in entries else ())

    async def worked(
        self, tx: Transaction, prefix: str, window: Window, change: Callable[[Window], T]
    ) -> tuple[T, Window]:
        """Returns what a change returned, and the context that it made; reads the pages that it asks for."""
        ahead = 1
        while True:
            trial = window.copy()
            try:
                return change(trial), trial
            except PageMissing as missing:
                await self.load(tx, prefix, window, range(missing.page, missing.page + ahead))
                ahead *= 2

    async def counted(self, tx: Transaction, prefix: str, window: Window) -> Window:
        """Returns a context whose tokens were counted by the counter of these rules."""
        if window.counter == self.rules.budget.counted_by or not (window.size or window.summary):
            return window
        record = await self.record(tx, prefix)
        await self.load(tx, prefix, window, window.needed)
        found = await self.read(tx, prefix, record, [row.number for row in window.entries])
        fitting.recount(window, found, self.rules.budget)
        return await self._fitted(tx, prefix, record, window)

    async def _fitted(self, tx: Transaction, prefix: str, record: TalkRecord, window: Window) -> Window:
        if window.tokens <= self.rules.budget.max_tokens:
            return window
        found = await self.read(tx, prefix, record, [window.newest] if window.newest >= 0 else [])

        def fit(trial: Window) -> None:
            fitting.fit(trial, found.get(window.newest, {}), self.rules.budget)

        return (await self.worked(tx, prefix, window, fit))[1]

    async def record(self, place: Space | Transaction, prefix: str) -> TalkRecord:
        """Returns what is known of the conversation."""
        return await place.documents.get(self.talk(prefix), TalkRecord(), type=TalkRecord)

    async def put_record(self, tx: Transaction, prefix: str, record: TalkRecord) -> None:
        """Writes what is known of the conversation."""
        await tx.documents.put(self.talk(prefix), record)

    async def read(
        self, place: Space | Transaction, prefix: str, record: TalkRecord, numbers: Sequence[int]
    ) -> dict[int, Message]:
        """Returns messages by number, as they stand now."""
        found: dict[int, Any] = {}
        for start in range(0, len(numbers), _READ_AT_ONCE):
            names = {
                self._stands(prefix, record, number): number
                for number in numbers[start : start + _READ_AT_ONCE]
            }
            entries = await place.documents.entries(*names)
            found |= {names[name]: entry.value for name, entry in entries.items()}
        return found

    def _stands(self, prefix: str, record: TalkRecord, number: int) -> str:
        if number in record.edited:
            return self.edit_name(prefix, number)
        for tail, upto in record.spans:
            if number < upto:
                return f"{prefix}{tail}{MESSAGES}{number:0{_DIGITS}d}"
        return self.message(prefix, number)


def admit_limit(max_tokens: int | None) -> None:
    """Raises `InvalidError` for what is no budget."""
    if max_tokens is not None:
        limits.admit_count("max_tokens", max_tokens)


def _no_message(number: object, record: TalkRecord, window: Window) -> NotFoundError:
    return NotFoundError(f"there is no message {number!r}; they are {record.begin} to {window.count - 1}")
