"""An agent's context within a token budget; messages that leave the context stay in the conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Unpack

from keepstate.binding import PRIVATE, SHARED, Resource, StorageOptions, StoreBinding
from keepstate.sessions.context_fit import ordered
from keepstate.sessions.conversation_documents import make_rules
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.messages import Message, estimate_tokens
from keepstate.sessions.site import Namespace


class BoundedState(Resource):
    """The messages of a conversation, with a context that never exceeds its token budget.

    Over the budget the oldest messages leave the context. They are dropped, or summarised if `summarise` is
    given and the context has more than `summarise_over` messages. System and pinned messages stay. A tool
    call and its results leave together. If the newest message alone is too large, it is cut in the context.
    All original messages stay readable by `messages`.

    Args:
        id: Name of the conversation, in the space `context/<id>`; without it, a conversation private to this
            object.
        max_tokens: The token budget of the context.
        summarise: Returns a summary, as text or a message, of a list of messages. The summary is stored.
        summarise_over: Summarise once the context has more than this many messages.
        summarise_first: Number of the oldest messages that one summary replaces.
        counter: Returns the number of tokens of a message; `estimate_tokens` by default.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space, or a transaction whose batch all additions join.

    Attributes:
        id: Name of the conversation.
        max_tokens: The token budget of the context.
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
        **storage: Unpack[StorageOptions],
    ) -> None:
        self.id, self.max_tokens = "default" if id is None else id, max_tokens
        self._binding = self._closing = StoreBinding(storage, default=PRIVATE if id is None else SHARED)
        is_blocking = self._binding.mode == "blocking"
        rules = make_rules(
            max_tokens, counter, summarise, summarise_over, summarise_first, is_blocking=is_blocking
        )
        namespace = Namespace(
            self._binding.resolve("context", self.id), self._binding.prefix("context", self.id)
        )
        self._store = ConversationStore(namespace, rules)

    def __repr__(self) -> str:
        return f"<BoundedState {self.id!r} of {self.max_tokens} tokens in {self._binding!r}>"

    async def add_message(self, message: Mapping[str, Any], *, pinned: bool = False) -> int:
        """Add a message and return its number. Summarises messages that left the context, if that is due.

        Inside a transaction no summary is made. The next addition outside, or `summarise`, makes it.

        Args:
            message: A dict with a role, as model APIs take it.
            pinned: Never let the message leave the context.

        Raises:
            InvalidError: The message is malformed, or system and pinned messages exceed the budget. Nothing
                is added.
        """
        (number,) = await self._store.add(message, pinned=pinned)
        return number

    async def get_context(self) -> list[Message]:
        """Return the messages in the context, in order, never more than the budget."""
        return ordered(*await self._store.context())

    async def count_tokens(self) -> int:
        """Return the number of tokens in the context."""
        return (await self._store.context())[0].tokens

    async def messages(self, *, after: int | None = None) -> AsyncIterator[Message]:
        """Yield all messages ever added, in order and unchanged.

        Args:
            after: Start after the message with this number.
        """
        async for _, message in self._store.items(after):
            yield message

    async def summarise(self) -> bool:
        """Summarise the messages that left the context and are due, and return whether any were.

        Of concurrent callers, one makes the summary; the others return False.
        """
        self._binding.require_outside_transaction("summarising")
        return await self._store.summarise()
