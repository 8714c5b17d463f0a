"""One conversation: what is added, edited, cleared and read of it, as atomic operations on its documents."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError, NotFoundError
from keepstate.sessions import context_fit, summaries
from keepstate.sessions.context_fit import Budget
from keepstate.sessions.conversation_documents import (
    PAGES_AT_ONCE,
    READ_AT_ONCE,
    ConversationDocuments,
    ConversationRecord,
)
from keepstate.sessions.messages import Message, admit, links
from keepstate.sessions.window import Window
from keepstate.values import limits

_log = logging.getLogger("keepstate.sessions")

T = TypeVar("T")


class ConversationStore(ConversationDocuments):
    """One conversation at a site."""

    # ---- writing

    async def add(self, *messages: Mapping[str, Any], pinned: bool = False) -> list[int]:
        """Add messages together, and return their numbers; summarises what left the context, if it is due.

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
        """Add messages in a transaction; returns their numbers, and whether a summary is due."""
        window = await self.counted(tx, prefix, await self.window(tx, prefix))

        def add(trial: Window) -> list[int]:
            return [context_fit.add(trial, message, self.rules.budget, pinned=pinned) for message in plain]

        numbers, window = await self.worked(tx, prefix, window, add)
        for number, message in zip(numbers, plain, strict=True):
            await tx.documents.put(self.message(prefix, number), message)
        await self.put_window(tx, prefix, window)
        return numbers, bool(window.spans)

    async def edit(self, number: int, message: Mapping[str, Any] | str) -> None:
        """Put another message, or another text, in the place of one.

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
        record: ConversationRecord,
        window: Window,
    ) -> None:
        """Put messages in the place of others in a transaction, with what is known of the conversation."""
        window = await self.counted(tx, prefix, window)
        for number, message in messages.items():
            record.edits += 1
            record.edited[number] = record.edits
            await tx.documents.put(self.edit_name(prefix, number), message)

        def replace(trial: Window) -> None:
            for number, message in messages.items():
                context_fit.replace(trial, number, message, self.rules.budget)

        _, window = await self.worked(tx, prefix, window, replace)
        await self.put_record(tx, prefix, record)
        window = await self._fitted(tx, prefix, record, window)
        await self.put_window(tx, prefix, window)

    async def clear(self) -> int:
        """Let the conversation begin anew, and return how many messages it had; numbers go on."""

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
        """Summarise what has left the context and is due for it; see `summaries`."""
        return await summaries.summarised(self)

    # ---- reading

    async def context(self, max_tokens: int | None = None) -> tuple[Window, dict[int, Message]]:
        """Return the context within its budget, or a smaller one, and the messages in it.

        Raises:
            InvalidError: System and pinned messages, or the least of the newest one, pass the budget.
        """
        budget = self.rules.budget
        if max_tokens is not None:
            budget = Budget(max_tokens, budget.counter, None)
        window, found = await self._of_one_moment()
        if window.counter != budget.counted_by:
            context_fit.recount(window, found, budget)
        if window.tokens > budget.max_tokens:  # whoever added had a larger budget, or counted otherwise
            context_fit.fit(window, found.get(window.newest, {}), budget, summarises=False)
        return window, found

    async def _of_one_moment(self) -> tuple[Window, dict[int, Message]]:
        """Return the context and the messages in it as they were together, however many write meanwhile.

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

    async def _whole(self, prefix: str) -> tuple[Window, ConversationRecord]:
        """Return the context with all of its pages, and what is known beside it, of one revision.

        Which pages are needed only the head says. So both are read together, again until they fit.
        """
        context, talk = self.context_name(prefix), self.talk(prefix)
        names: dict[str, int] = {}
        while True:
            found, heads = dict[str, Any](), set[int]()
            for start in range(0, len(names) or 1, PAGES_AT_ONCE):
                part = list(names)[start : start + PAGES_AT_ONCE]
                entries = await self.site.place.documents.entries(context, talk, *part)
                heads.add(entries[context].version if context in entries else 0)
                found |= {name: entry.value for name, entry in entries.items()}
            window = self.window_of(found.get(context))
            needed = [page for page in window.needed if page not in window.pages]
            needed_names = {self.page_name(prefix, window.era, page): page for page in needed}
            if len(heads) == 1 and needed_names.keys() <= names.keys():
                for name, page in needed_names.items():
                    window.take(page, found.get(name, ()))
                return window, found.get(talk) or ConversationRecord()
            names = needed_names

    async def items(
        self, after: int | None = None, *, original: bool = False
    ) -> AsyncIterator[tuple[int, Message]]:
        """Yield all messages with their numbers, in order, behind that of `after`."""
        if after is not None and (type(after) is not int or after < 0):
            raise InvalidError(f"`after` is {after!r}; give the number of a message, from 0")
        prefix = await self.present()
        if prefix is None:
            return
        window, record = await self.standing(prefix)
        begin = record.begin if after is None else max(record.begin, after + 1)
        if original:
            record = ConversationRecord(spans=record.spans)
        for start in range(begin, window.count, READ_AT_ONCE):
            numbers = range(start, min(start + READ_AT_ONCE, window.count))
            found = await self.read(self.site.place, prefix, record, numbers)
            for number in numbers:
                if number in found:
                    yield number, found[number]

    async def one(self, number: int, *, original: bool = False) -> Message:
        """Return a message; as it was first said.

        Raises:
            NotFoundError: There is no such message.
        """
        prefix = await self.present()
        window, record = (Window(), ConversationRecord()) if prefix is None else await self.standing(prefix)
        if type(number) is not int or not record.begin <= number < window.count:
            raise _no_message(number, record, window)
        assert prefix is not None
        if original:
            record = ConversationRecord(spans=record.spans)
        return (await self.read(self.site.place, prefix, record, [number]))[number]

    async def count(self) -> int:
        """Return how many messages there are."""
        prefix = await self.present()
        if prefix is None:
            return 0
        window, record = await self.standing(prefix)
        return window.count - record.begin

    async def newest(self, limit: int) -> list[tuple[int, Message]]:
        """Return the newest messages with their numbers, in order."""
        prefix = await self.present()
        if prefix is None:
            return []
        window, record = await self.standing(prefix)
        numbers = range(max(record.begin, window.count - limit), window.count)
        found = await self.read(self.site.place, prefix, record, numbers)
        return [(number, found[number]) for number in numbers if number in found]


def admit_limit(max_tokens: int | None) -> None:
    """Raise `InvalidError` for what is no budget."""
    if max_tokens is not None:
        limits.admit_count("max_tokens", max_tokens)


def _no_message(number: object, record: ConversationRecord, window: Window) -> NotFoundError:
    return NotFoundError(f"there is no message {number!r}; they are {record.begin} to {window.count - 1}")
