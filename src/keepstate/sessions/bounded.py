"""An agent's context within a budget of tokens; what leaves it stays in the conversation.

Each message is a document of its own and never changes; one more, small, says which of them are in the
context. So adding a message writes the message and that, however long the conversation is.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Final, Self

from keepstate._runner import Colour
from keepstate.engine.glob import escaped
from keepstate.engine.keepstate import Keepstate
from keepstate.engine.scope import called, refuse_coroutine_function
from keepstate.engine.space import Space
from keepstate.engine.together import together
from keepstate.engine.transaction import Transaction
from keepstate.errors import ConflictError, InvalidError
from keepstate.sessions import window as rules
from keepstate.sessions.home import Home
from keepstate.sessions.window import Budget, Message, Window, WindowRecord, estimate_tokens
from keepstate.stores.protocol import Store
from keepstate.values import limits

_log = logging.getLogger("keepstate.sessions")

_READ_AT_ONCE: Final = 100
_SUMMARY_LEASE_S: Final = 120.0
_DIGITS: Final = 12
"""Of a message's number, so that names stand in order."""


class BoundedState:
    """The messages of a conversation, of which the context holds as many as its budget allows.

    Over the budget the oldest messages leave the context: dropped, or summarised if `summarise` is given and
    there are more than `summarise_over`. System and pinned messages stay; a tool call and its results leave
    together. A newest message that is too large by itself is cut in the context. All originals stay.

    Args:
        id: Which conversation, in the space `context/<id>`; without it one that nobody else has.
        max_tokens: The budget.
        summarise: Returns a summary, text or a message, of the messages that it is given. Its result is kept.
        summarise_over: With more messages than so many in the context, the first of them are summarised.
        summarise_first: How many of them at once.
        counter: Returns how many tokens a message has; `estimate_tokens` if it is not given.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space, or a transaction whose batch all additions join.

    Attributes:
        id: Which conversation.
        max_tokens: The budget.
    """

    id: str
    max_tokens: int

    def __init__(
        self,
        id: str | None = None,
        *,
        max_tokens: int = 8000,
        summarise: Callable[[list[Message]], Awaitable[str | Message] | str | Message] | None = None,
        summarise_over: int = 20,
        summarise_first: int = 10,
        counter: Callable[[Message], int] = estimate_tokens,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        _colour: Colour = "async",
    ) -> None:
        limits.admit_count("max_tokens", max_tokens)
        limits.admit_count("summarise_over", summarise_over)
        limits.admit_count("summarise_first", summarise_first)
        refuse_coroutine_function(counter)
        if summarise is not None and (_colour == "blocking" or not callable(summarise)):
            refuse_coroutine_function(summarise)
        over = None if summarise is None else summarise_over
        self._budget = Budget(max_tokens, counter, over, summarise_first)
        self._summarise = summarise
        self.id, self.max_tokens = "default" if id is None else id, max_tokens
        self._home = Home(persistence, space, colour=_colour, is_private=id is None)
        self._place = self._home.place("context", self.id)
        self._prefix = self._home.prefix("context", self.id)

    def __repr__(self) -> str:
        return f"<BoundedState {self.id!r} of {self.max_tokens} tokens in {self._home!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Lets go of the store; what was passed in open stays open."""
        await self._home.close()

    async def add_message(self, message: Mapping[str, Any], *, pinned: bool = False) -> int:
        """Adds a message, and returns its number; summarises what left the context, if that is due.

        Inside a transaction summaries are made by the next addition outside, or by `summarise`.

        Args:
            message: A dict with a role, as model APIs take it.
            pinned: Keeps it in the context.

        Raises:
            InvalidError: It is no message, or system and pinned messages pass the budget; nothing is added.
        """
        plain = rules.admit(message)

        async def work(tx: Transaction) -> tuple[int, bool]:
            window = await self._window(tx)
            number = rules.add(window, plain, self._budget, pinned=pinned)
            await tx.documents.put(self._message(number), plain)
            await tx.documents.put(self._name, window.record())
            return number, bool(window.due)

        number, is_due = await together(self._place, work, message="add a message")
        if is_due and self._summarise is not None and isinstance(self._place, Space):
            try:
                await self.summarise()
            except Exception:  # noqa: BLE001 - the message is added; the summary stays due
                _log.warning("a summary of %r failed and stays due", self, exc_info=True)
        return number

    async def get_context(self) -> list[Message]:
        """Returns the messages in the context, in order: never more than the budget."""
        return rules.ordered(*await self._context())

    async def count_tokens(self) -> int:
        """Returns how many tokens the context has."""
        return (await self._context())[0].tokens

    async def _context(self) -> tuple[Window, dict[int, Message]]:
        window = await self._window(self._place)
        found = await self._read([entry.number for entry in window.entries])
        if window.tokens > self.max_tokens and window.entries:  # whoever added had a larger budget
            rules.fit(window, found[window.entries[-1].number], self._budget, summarises=False)
        return window, found

    async def messages(self, *, after: int | None = None) -> AsyncIterator[Message]:
        """Yields all messages that were ever added, in order, as they were.

        Args:
            after: Starts behind the message of this number.
        """
        begin = self._message(0)[:-_DIGITS]
        last = None if after is None else self._message(after)
        async for _, message in self._place.documents.items(escaped(begin) + "*", after=last):
            yield message

    async def summarise(self) -> bool:
        """Summarises what has left the context and is due for it, and returns whether something was.

        One of all who call it at once does so; what it came to is kept.
        """
        if self._summarise is None:
            raise InvalidError(f"{self!r} has nothing that summarises; give summarise=")
        self._home.refuse_inside("summarising")
        assert isinstance(self._place, Space)
        try:
            lease = await self._place.leases.acquire(f"{self._name}/summary", _SUMMARY_LEASE_S)
        except ConflictError:
            return False  # somebody else does it
        async with lease:
            window = await self._window(self._place)
            if not window.due:
                return False
            numbers = list(window.due)
            originals = await self._read(numbers)
            given = [originals[number] for number in numbers if number in originals]
            told = await called(self._summarise, [*([window.summary] if window.summary else []), *given])
            summary = rules.admit({"role": "system", "content": told} if isinstance(told, str) else told)

            async def work(tx: Transaction) -> None:
                now = await self._window(tx)
                rules.summarise(now, summary, numbers, self._budget)
                await tx.documents.put(self._name, now.record())

            await together(self._place, work, lease=lease, message="summarise")
        return True

    # ---- its documents

    @property
    def _name(self) -> str:
        return f"{self._prefix}context"

    def _message(self, number: int) -> str:
        return f"{self._prefix}message/{number:0{_DIGITS}d}"

    async def _window(self, place: Space | Transaction) -> Window:
        return Window.of(await place.documents.get(self._name, type=WindowRecord))

    async def _read(self, numbers: Sequence[int]) -> dict[int, Message]:
        found: dict[int, Message] = {}
        for start in range(0, len(numbers), _READ_AT_ONCE):
            names = {self._message(number): number for number in numbers[start : start + _READ_AT_ONCE]}
            entries = await self._place.documents.entries(*names)
            found |= {names[name]: entry.value for name, entry in entries.items()}
        return found
