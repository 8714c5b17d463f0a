"""A session's conversation: all its messages, the part that a model sees, and its forks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal

from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import InvalidError
from keepstate.sessions import forks
from keepstate.sessions.context_fit import ordered
from keepstate.sessions.conversation_documents import rules_of
from keepstate.sessions.conversation_store import ConversationStore, admit_limit
from keepstate.sessions.messages import Message, estimate_tokens
from keepstate.values import limits


class Conversation:
    """The messages of a session; or of a fork of its conversation.

    Each message has a number, from 0 in the order in which they were added. The context, what a model is
    given, is kept within a budget as by `BoundedState`; all messages stay.

    Attributes:
        max_tokens: The budget of the context.
        name: What the fork is called; None for the conversation itself.
    """

    max_tokens: int
    name: str | None

    def __init__(self, talk: ConversationStore, name: str | None = None) -> None:
        self._talk, self.name = talk, name
        self.max_tokens = talk.rules.budget.max_tokens

    def __repr__(self) -> str:
        fork = "" if self.name is None else f" fork {self.name!r}"
        return f"<Conversation{fork} of {self.max_tokens} tokens in {self._talk.site.place!r}>"

    def within(
        self,
        max_tokens: int = 8000,
        *,
        summarise: Callable[[list[Message]], Awaitable[str | Message] | str | Message] | None = None,
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
        is_blocking = self._talk.site.runner.mode == "blocking"
        rules = rules_of(
            max_tokens, counter, summarise, summarise_over, summarise_first, is_blocking=is_blocking
        )
        return Conversation(ConversationStore(self._talk.site, rules, self._talk.tail), self.name)

    # ---- what is said

    async def append(self, *messages: Mapping[str, Any], pinned: bool = False) -> int:
        """Add messages together, and return the number of the last.

        Args:
            messages: Dicts with a role, as model APIs take them.
            pinned: Keeps them in the context.

        Raises:
            InvalidError: One is no message, or system and pinned messages pass the budget; nothing is added.
        """
        if not 0 < len(messages) <= _MESSAGES_AT_ONCE:
            raise InvalidError(f"{len(messages)} messages were given; give 1 to {_MESSAGES_AT_ONCE}")
        return (await self._talk.add(*messages, pinned=pinned))[-1]

    async def edit(self, number: int, message: Mapping[str, Any] | str) -> None:
        """Put another message, or another text, in the place of one; `original` still returns that.

        Raises:
            InvalidError: It makes or answers other tool calls than that.
            NotFoundError: There is no such message.
        """
        await self._talk.edit(number, message)

    async def get(self, number: int) -> Message:
        """Return a message as it stands now.

        Raises:
            NotFoundError: There is no such message.
        """
        return await self._talk.one(number)

    async def original(self, number: int) -> Message:
        """Return a message as it was first said.

        Raises:
            NotFoundError: There is no such message.
        """
        return await self._talk.one(number, original=True)

    async def messages(self, *, after: int | None = None) -> AsyncIterator[Message]:
        """Yield all messages in order.

        Args:
            after: Starts behind the message of this number.
        """
        async for _, message in self._talk.items(after):
            yield message

    async def items(self, *, after: int | None = None) -> AsyncIterator[tuple[int, Message]]:
        """Yield all messages with their numbers, in order; see `messages`."""
        async for item in self._talk.items(after):
            yield item

    async def window(self, size: int = 10) -> list[Message]:
        """Return the newest messages, whole and in order, however many tokens they have."""
        limits.admit_count("size", size)
        return [message for _, message in await self._talk.newest(size)]

    async def search(
        self, text: str, *, role: str | None = None, limit: int = 20
    ) -> list[tuple[int, Message]]:
        """Return messages that say something, with their numbers, in order: the first ones that do.

        It reads the conversation from its beginning.

        Args:
            text: What they say, in any case.
            role: Whose messages.
            limit: How many at the most.
        """
        limits.admit_count("limit", limit)
        if role is not None:
            check_text("role", role)
        wanted, found = check_text("text", text).casefold(), list[tuple[int, Message]]()
        async for number, message in self._talk.items():
            if role in (None, message["role"]) and wanted in _said(message.get("content")).casefold():
                found.append((number, message))
                if len(found) == limit:
                    break
        return found

    async def count(self) -> int:
        """Return how many messages there are."""
        return await self._talk.count()

    async def clear(self) -> int:
        """Begin anew, and return how many messages there were; they are no longer read."""
        return await self._talk.clear()

    # ---- what a model is given

    async def get_context(self, max_tokens: int | None = None) -> list[Message]:
        """Return the messages in the context, in order: never more than its budget, or a smaller one."""
        admit_limit(max_tokens)
        return ordered(*await self._talk.context(max_tokens))

    async def context_tokens(self) -> int:
        """Return how many tokens the context has."""
        return (await self._talk.context())[0].tokens

    async def summarise(self) -> bool:
        """Summarise what has left the context and is due for it, and return whether something was."""
        return await self._talk.summarise()

    # ---- forks

    async def fork(self, name: str, *, at: int | None = None) -> Conversation:
        """Return a conversation of its own that begins with this one's messages; none is copied.

        Args:
            name: What it is called in the session.
            at: The last message that both have; the newest one, if it is not given.

        Raises:
            AlreadyExistsError: The session has a fork of this name.
            NotFoundError: There is no such message.
        """
        fork = self.get_fork(name)
        await forks.begin(self._talk, fork._talk, name, at)
        return fork

    def get_fork(self, name: str) -> Conversation:
        """Return the fork of this name; asks the store nothing.

        The first use of one that nobody has made raises `NotFoundError`.
        """
        return Conversation(ConversationStore(self._talk.site, self._talk.rules, forks.tail_of(name)), name)

    async def merge(self, fork: str, *, prefer: Literal["ours", "theirs"] | None = None) -> int:
        """Add a fork's own messages behind these, takes over its edits, and return how many were added.

        What was merged before is not merged again.

        Args:
            fork: The name of a fork of this conversation.
            prefer: Whose edit stands where both have edited one message.

        Raises:
            MergeConflictError: Both have edited one message, and nothing is preferred; nothing was changed.
            NotFoundError: There is no such fork of this conversation.
        """
        if prefer not in (None, "ours", "theirs"):
            raise InvalidError(f"`prefer` is {prefer!r}; give 'ours', 'theirs' or None")
        return await forks.merge(self._talk, self.get_fork(fork)._talk, fork, prefer)


_MESSAGES_AT_ONCE = 400


def _said(content: object) -> str:
    """Return the text of a message's content, in whatever blocks it stands."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return " ".join(_said(part) for key, part in content.items() if key in ("text", "content"))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(content, list | tuple):
        return " ".join(_said(part) for part in content)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return ""
