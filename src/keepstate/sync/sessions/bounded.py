"""Blocking twins of `keepstate.sessions.bounded`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Unpack

from keepstate._finish import finish, finish_each
from keepstate.sessions import bounded as sessions
from keepstate.sessions.messages import Message, estimate_tokens
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import inner_options


class BoundedState(Resource[sessions.BoundedState]):
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

    def __init__(
        self,
        id: str | None = None,
        *,
        max_tokens: int = 8000,
        summarise: Callable[[list[Message]], str | Message | str | Message] | None = None,
        summarise_over: int = 20,
        summarise_first: int = 10,
        counter: Callable[[Message], int] = estimate_tokens,
        **storage: Unpack[StorageOptions],
    ) -> None:
        super().__init__(
            sessions.BoundedState(
                id,
                max_tokens=max_tokens,
                summarise=summarise,
                summarise_over=summarise_over,
                summarise_first=summarise_first,
                counter=counter,
                **inner_options(storage),
            )
        )

    @property
    def id(self) -> str:
        """Name of the conversation."""
        return self._inner.id

    @property
    def max_tokens(self) -> int:
        """The token budget of the context."""
        return self._inner.max_tokens

    def add_message(self, message: Mapping[str, Any], *, pinned: bool = False) -> int:
        """Add a message and return its number. Summarises messages that left the context, if that is due.

        Inside a transaction no summary is made. The next addition outside, or `summarise`, makes it.

        Args:
            message: A dict with a role, as model APIs take it.
            pinned: Never let the message leave the context.

        Raises:
            InvalidError: The message is malformed, or system and pinned messages exceed the budget. Nothing
                is added.
        """
        return finish(self._inner.add_message(message, pinned=pinned))

    def get_context(self) -> list[Message]:
        """Return the messages in the context, in order, never more than the budget."""
        return finish(self._inner.get_context())

    def count_tokens(self) -> int:
        """Return the number of tokens in the context."""
        return finish(self._inner.count_tokens())

    def messages(self, *, after: int | None = None) -> Iterator[Message]:
        """Yield all messages ever added, in order and unchanged.

        Args:
            after: Start after the message with this number.
        """
        return finish_each(self._inner.messages(after=after))

    def summarise(self) -> bool:
        """Summarise the messages that left the context and are due, and return whether any were.

        Of concurrent callers, one makes the summary; the others return False.
        """
        return finish(self._inner.summarise())
