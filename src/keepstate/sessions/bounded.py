"""An agent's context within a budget of tokens; what leaves it stays in the conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from os import PathLike
from typing import Any

from keepstate._runner import Mode
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.sessions.binding import Home
from keepstate.sessions.context_fit import ordered
from keepstate.sessions.conversation_documents import rules_of
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.messages import Message, estimate_tokens
from keepstate.sessions.resource import Kept
from keepstate.sessions.site import Site
from keepstate.stores.protocol import Store


class BoundedState(Kept):
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
        _mode: Mode = "async",
    ) -> None:
        rules = rules_of(
            max_tokens, counter, summarise, summarise_over, summarise_first, is_blocking=_mode == "blocking"
        )
        self.id, self.max_tokens = "default" if id is None else id, max_tokens
        self._home = self._closing = Home(persistence, space, mode=_mode, is_private=id is None)
        site = Site(self._home.place("context", self.id), self._home.prefix("context", self.id))
        self._talk = ConversationStore(site, rules)

    def __repr__(self) -> str:
        return f"<BoundedState {self.id!r} of {self.max_tokens} tokens in {self._home!r}>"

    async def add_message(self, message: Mapping[str, Any], *, pinned: bool = False) -> int:
        """Add a message, and return its number; summarises what left the context, if that is due.

        Inside a transaction summaries are made by the next addition outside, or by `summarise`.

        Args:
            message: A dict with a role, as model APIs take it.
            pinned: Keeps it in the context.

        Raises:
            InvalidError: It is no message, or system and pinned messages pass the budget; nothing is added.
        """
        (number,) = await self._talk.add(message, pinned=pinned)
        return number

    async def get_context(self) -> list[Message]:
        """Return the messages in the context, in order: never more than the budget."""
        return ordered(*await self._talk.context())

    async def count_tokens(self) -> int:
        """Return how many tokens the context has."""
        return (await self._talk.context())[0].tokens

    async def messages(self, *, after: int | None = None) -> AsyncIterator[Message]:
        """Yield all messages that were ever added, in order, as they were.

        Args:
            after: Starts behind the message of this number.
        """
        async for _, message in self._talk.items(after):
            yield message

    async def summarise(self) -> bool:
        """Summarise what has left the context and is due for it, and return whether something was.

        One of all who call it at once does so; what it came to is kept.
        """
        self._home.require_outside_transaction("summarising")
        return await self._talk.summarise()
