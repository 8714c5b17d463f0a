"""Blocking twins of `keepstate.sessions.conversation`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from keepstate._finish import finish, finish_each
from keepstate.sessions import conversation as sessions
from keepstate.sessions.messages import Message, estimate_tokens
from keepstate.sync.twin import Twin


class Conversation(Twin[sessions.Conversation]):
    """The messages of a session; or of a fork of its conversation.

    Each message has a number, from 0 in the order in which they were added. The context, what a model is
    given, is kept within a budget as by `BoundedState`; all messages stay.

    Attributes:
        max_tokens: The budget of the context.
        name: What the fork is called; None for the conversation itself.
    """

    @property
    def max_tokens(self) -> int:
        """The budget of the context."""
        return self._inner.max_tokens

    @property
    def name(self) -> str | None:
        """What the fork is called; None for the conversation itself."""
        return self._inner.name

    def within(
        self,
        max_tokens: int = 8000,
        *,
        summarise: Callable[[list[Message]], str | Message | str | Message] | None = None,
        summarise_over: int = 20,
        summarise_first: int = 10,
        counter: Callable[[Message], int] = estimate_tokens,
    ) -> Conversation:
        """Return the same conversation, to be added to by other rules; see `BoundedState`.

        Args:
            max_tokens: The budget.
            summarise: Returns a summary, text or a message, of the messages that it is given.
            summarise_over: With more messages than so many in the context, the first are summarised.
            summarise_first: How many of them at once.
            counter: Returns how many tokens a message has.
        """
        return Conversation(
            self._inner.within(
                max_tokens,
                summarise=summarise,
                summarise_over=summarise_over,
                summarise_first=summarise_first,
                counter=counter,
            )
        )

    def append(self, *messages: Mapping[str, Any], pinned: bool = False) -> int:
        """Add messages together, and return the number of the last.

        Args:
            messages: Dicts with a role, as model APIs take them.
            pinned: Keeps them in the context.

        Raises:
            InvalidError: One is no message, or system and pinned messages pass the budget; nothing is added.
        """
        return finish(self._inner.append(*messages, pinned=pinned))

    def edit(self, number: int, message: Mapping[str, Any] | str) -> None:
        """Put another message, or another text, in the place of one; `original` still returns that.

        Raises:
            InvalidError: It makes or answers other tool calls than that.
            NotFoundError: There is no such message.
        """
        finish(self._inner.edit(number, message))

    def get(self, number: int) -> Message:
        """Return a message as it stands now.

        Raises:
            NotFoundError: There is no such message.
        """
        return finish(self._inner.get(number))

    def original(self, number: int) -> Message:
        """Return a message as it was first said.

        Raises:
            NotFoundError: There is no such message.
        """
        return finish(self._inner.original(number))

    def messages(self, *, after: int | None = None) -> Iterator[Message]:
        """Yield all messages in order.

        Args:
            after: Starts behind the message of this number.
        """
        return finish_each(self._inner.messages(after=after))

    def items(self, *, after: int | None = None) -> Iterator[tuple[int, Message]]:
        """Yield all messages with their numbers, in order; see `messages`."""
        return finish_each(self._inner.items(after=after))

    def window(self, size: int = 10) -> list[Message]:
        """Return the newest messages, whole and in order, however many tokens they have."""
        return finish(self._inner.window(size))

    def search(self, text: str, *, role: str | None = None, limit: int = 20) -> list[tuple[int, Message]]:
        """Return messages that say something, with their numbers, in order: the first ones that do.

        It reads the conversation from its beginning.

        Args:
            text: What they say, in any case.
            role: Whose messages.
            limit: How many at the most.
        """
        return finish(self._inner.search(text, role=role, limit=limit))

    def count(self) -> int:
        """Return how many messages there are."""
        return finish(self._inner.count())

    def clear(self) -> int:
        """Begin anew, and return how many messages there were; they are no longer read."""
        return finish(self._inner.clear())

    def get_context(self, max_tokens: int | None = None) -> list[Message]:
        """Return the messages in the context, in order: never more than its budget, or a smaller one."""
        return finish(self._inner.get_context(max_tokens))

    def context_tokens(self) -> int:
        """Return how many tokens the context has."""
        return finish(self._inner.context_tokens())

    def summarise(self) -> bool:
        """Summarise what has left the context and is due for it, and return whether something was."""
        return finish(self._inner.summarise())

    def fork(self, name: str, *, at: int | None = None) -> Conversation:
        """Return a conversation of its own that begins with this one's messages; none is copied.

        Args:
            name: What it is called in the session.
            at: The last message that both have; the newest one, if it is not given.

        Raises:
            AlreadyExistsError: The session has a fork of this name.
            NotFoundError: There is no such message.
        """
        return Conversation(finish(self._inner.fork(name, at=at)))

    def get_fork(self, name: str) -> Conversation:
        """Return the fork of this name; asks the store nothing.

        The first use of one that nobody has made raises `NotFoundError`.
        """
        return Conversation(self._inner.get_fork(name))

    def merge(self, fork: str, *, prefer: Literal["ours", "theirs"] | None = None) -> int:
        """Add a fork's own messages behind these, takes over its edits, and return how many were added.

        What was merged before is not merged again.

        Args:
            fork: The name of a fork of this conversation.
            prefer: Whose edit stands where both have edited one message.

        Raises:
            MergeConflictError: Both have edited one message, and nothing is preferred; nothing was changed.
            NotFoundError: There is no such fork of this conversation.
        """
        return finish(self._inner.merge(fork, prefer=prefer))
