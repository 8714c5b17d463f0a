"""Blocking twins of `keepstate.sessions.bounded`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from typing import Any

from keepstate._finish import finish, finish_each
from keepstate.sessions import bounded as sessions
from keepstate.sessions.messages import Message, estimate_tokens
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.sessions.resource import Kept
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of


class BoundedState(Kept[sessions.BoundedState]):
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

    def __init__(
        self,
        id: str | None = None,
        *,
        max_tokens: int = 8000,
        summarise: Callable[[list[Message]], str | Message | str | Message] | None = None,
        summarise_over: int = 20,
        summarise_first: int = 10,
        counter: Callable[[Message], int] = estimate_tokens,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
    ) -> None:
        super().__init__(
            sessions.BoundedState(
                id,
                max_tokens=max_tokens,
                summarise=summarise,
                summarise_over=summarise_over,
                summarise_first=summarise_first,
                counter=counter,
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                _mode="blocking",
            )
        )

    @property
    def id(self) -> str:
        """Which conversation."""
        return self._inner.id

    @property
    def max_tokens(self) -> int:
        """The budget."""
        return self._inner.max_tokens

    def add_message(self, message: Mapping[str, Any], *, pinned: bool = False) -> int:
        """Add a message, and return its number; summarises what left the context, if that is due.

        Inside a transaction summaries are made by the next addition outside, or by `summarise`.

        Args:
            message: A dict with a role, as model APIs take it.
            pinned: Keeps it in the context.

        Raises:
            InvalidError: It is no message, or system and pinned messages pass the budget; nothing is added.
        """
        return finish(self._inner.add_message(message, pinned=pinned))

    def get_context(self) -> list[Message]:
        """Return the messages in the context, in order: never more than the budget."""
        return finish(self._inner.get_context())

    def count_tokens(self) -> int:
        """Return how many tokens the context has."""
        return finish(self._inner.count_tokens())

    def messages(self, *, after: int | None = None) -> Iterator[Message]:
        """Yield all messages that were ever added, in order, as they were.

        Args:
            after: Starts behind the message of this number.
        """
        return finish_each(self._inner.messages(after=after))

    def summarise(self) -> bool:
        """Summarise what has left the context and is due for it, and return whether something was.

        One of all who call it at once does so; what it came to is kept.
        """
        return finish(self._inner.summarise())
