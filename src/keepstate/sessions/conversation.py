"""Conversations: all messages, the part that a model sees, and forks; of a session, or alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final, Literal, Unpack, cast

from keepstate.binding import PRIVATE, SHARED, Resource, StorageOptions, StoreBinding
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.arguments import (
    check_choice,
    check_flag,
    check_text,
    require_instance,
    single_use,
)
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable, check_unreadable
from keepstate.engine.usage.amounts import Usage
from keepstate.engine.usage.spends import Spend
from keepstate.errors import InvalidError
from keepstate.sessions import following, forks, replies, reply_calls, word_search
from keepstate.sessions.context_fit import ordered
from keepstate.sessions.conversation_documents import make_rules
from keepstate.sessions.conversation_store import ConversationStore, check_limit
from keepstate.sessions.entries import Addition, Entry, make_addition
from keepstate.sessions.following import ChatChange
from keepstate.sessions.forks import Fork
from keepstate.sessions.forms.conversion import BaseMessage, ModelContext, ModelMessage, convert
from keepstate.sessions.forms.given import GivenMessage, check_message
from keepstate.sessions.messages import Message, estimate_tokens
from keepstate.sessions.namespace import Namespace
from keepstate.sessions.replies import Reply
from keepstate.sessions.reply_calls import ReplyClaim, ReplyProgress
from keepstate.values import limits

_MESSAGES_AT_ONCE: Final = 400
_DIGITS: Final = 12
"""The largest number of digits of a message's number."""


class Conversation:
    """The messages of a session, or of a fork of its conversation.

    Messages are numbered from 0 in the order in which they were added. The context, which is what a model
    sees, stays within a token budget as in `BoundedState`. All messages stay readable.

    Attributes:
        max_tokens: The token budget of the context.
        name: Name of the fork; None for the conversation itself.
    """

    max_tokens: int
    name: str | None

    def __init__(self, store: ConversationStore, name: str | None = None) -> None:
        self._store, self.name = store, name
        self.max_tokens = store.rules.budget.max_tokens

    def __repr__(self) -> str:
        fork = "" if self.name is None else f" fork {self.name!r}"
        return f"<Conversation{fork} of {self.max_tokens} tokens in {self._store.namespace.target!r}>"

    def within(
        self,
        max_tokens: int = 8000,
        *,
        summarise: Callable[[list[Message]], Awaitable[str | Message] | str | Message] | None = None,
        summarise_over: int = 20,
        summarise_first: int = 10,
        counter: Callable[[Message], int] = estimate_tokens,
    ) -> Conversation:
        """Return the same conversation with other context rules for additions; see `BoundedState`.

        Args:
            max_tokens: The token budget of the context.
            summarise: Returns a summary, as text or a message, of a list of messages.
            summarise_over: Summarise once the context has more than this many messages.
            summarise_first: Number of the oldest messages that one summary replaces.
            counter: Returns the number of tokens of a message.
        """
        is_blocking = self._store.namespace.runner.mode == "blocking"
        rules = make_rules(
            max_tokens, counter, summarise, summarise_over, summarise_first, is_blocking=is_blocking
        )
        return Conversation(ConversationStore(self._store.namespace, rules, self._store.tail), self.name)

    # ---- messages

    async def append(
        self,
        *messages: GivenMessage,
        id: str | None = None,
        author: str | None = None,
        meta: Mapping[str, Any] | None = None,
        pinned: bool = False,
        usage: Usage | None = None,
        spend: Spend | None = None,
    ) -> int:
        """Add messages atomically and return the number of the last.

        Args:
            messages: Messages in the form of any library, as dicts or as its objects; 1 to 400. A list is one
                message, with the items of one answer of OpenAI's Responses.
            id: The id of the message, such as that of a request. A message with an id that was used before is
                not added again, whatever it says: the number of the first one is returned.
            author: The author of the messages; by default, that of the space.
            meta: Notes on the messages, by name. They are stored with the messages, and no model sees them.
            pinned: Never let the messages leave the context.
            usage: The call of a model that made the last message. It is stored with it, and counted in the
                ledger of the session in the same batch, under its budgets.
            spend: Instead: a spend of the session's ledger. What it has recorded is stored and counted in the
                same way, also above a budget, and its reservation is returned. Wider ledgers are settled
                before.

        Raises:
            BudgetExceededError: The usage would exceed a budget. Nothing is added.
            InvalidError: A message is malformed, several messages have one id, or system and pinned messages
                exceed the budget. Nothing is added.
        """
        _check_number_of("append", messages)
        if id is not None and len(messages) > 1:
            raise InvalidError(f"append() got one id for {len(messages)} messages. Append them one by one.")
        additions = [make_addition(check_message(message), id, author, meta) for message in messages]
        if usage is None and spend is None:
            return (await self._store.add(*additions, pinned=pinned))[-1]
        source = _source_of(usage, spend)
        uses = (source,) if isinstance(source, Usage) else tuple(source.uses)
        additions[-1] = replace(additions[-1], usage=uses)
        return (await self._store.add(*additions, pinned=pinned, source=source))[-1]

    async def pop(self, n: int = 1) -> list[Entry]:
        """Remove the newest messages from view, and return them in order; fewer if there are fewer.

        Removed messages leave the context, and messages that left it before do not return. Their numbers and
        ids are not used again. The history, and forks that share them, still have them.

        Args:
            n: The number of messages; 1 to 400.
        """
        limits.admit_count("n", n, most=_MESSAGES_AT_ONCE)
        return await self._store.remove(n)

    async def delete(self, number: int) -> None:
        """Remove a message from view, as `pop` does.

        If it called tools, the results stay in the conversation, but leave the context with it.

        Raises:
            NotFoundError: The message does not exist.
        """
        await self._store.delete(number)

    async def replace(self, from_: int, messages: Sequence[GivenMessage]) -> list[int]:
        """Remove the messages from a number on, as `pop` does, and append others, in one batch.

        Args:
            from_: The number of the first message to remove, such as an answer that is generated again.
            messages: The messages to append; none to 400.

        Returns:
            The numbers of the new messages, which continue the numbering.

        Raises:
            InvalidError: A message is malformed, or system and pinned messages exceed the budget. Nothing is
                changed.
            NotFoundError: The message does not exist.
        """
        if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"`messages` is of type {type(messages).__name__}. Pass a list of messages.")
        if messages:
            _check_number_of("replace", messages)
        additions = [Addition(check_message(message)) for message in messages]
        return await self._store.replace(from_, additions)

    async def edit(self, number: int, message: GivenMessage | str) -> None:
        """Replace a message, or only its text. `original` still returns the first version.

        Raises:
            InvalidError: The new message makes or answers other tool calls than the old one; or one text is
                given for a message with several texts in its parts.
            NotFoundError: The message does not exist.
        """
        await self._store.edit(number, message)

    async def get(self, number: int) -> Message:
        """Return a message, with its last edit.

        Raises:
            NotFoundError: The message does not exist.
        """
        return await self._store.one(number)

    async def original(self, number: int) -> Message:
        """Return a message as it was first added, without edits.

        Raises:
            NotFoundError: The message does not exist.
        """
        return await self._store.one(number, original=True)

    async def messages(self, *, after: int | None = None) -> AsyncIterator[Message]:
        """Yield all messages in order.

        Args:
            after: Start after the message with this number.
        """
        async for _, message in self._store.items(after):
            yield message

    async def items(self, *, after: int | None = None) -> AsyncIterator[tuple[int, Message]]:
        """Yield all messages with their numbers, in order; see `messages`."""
        async for item in self._store.items(after):
            yield item

    async def page(
        self,
        *,
        before: int | str | None = None,
        after: int | str | None = None,
        limit: int = 50,
        at: Revision | None = None,
        unreadable: IfUnreadable = "raise",
    ) -> Page[Entry]:
        """Return entries in order: messages with their numbers, times, authors, ids, meta and statuses.

        Args:
            before: Only entries before this number; a page's `previous` leads to the entries before it.
            after: Only entries after this number; a page's `next` leads to the entries after it.
            limit: The largest number of entries. Without `after`, the page has the last ones.
            at: A moment of the recorded space, such as `main#37` or a time. The page has the messages that
                the conversation had then, as they were then.
            unreadable: With `skip`, a message that cannot be read is left out, and the page is shorter. With
                `raw`, its entry says why, in `unreadable`.

        Raises:
            NotFoundError: The moment does not exist, or the fork did not exist at that moment.
        """
        limits.admit_count("limit", limit)
        check_unreadable(unreadable)
        last, first = _number_in("after", after), _number_in("before", before)
        return await self._store.page(last, first, limit, unreadable, at)

    async def window(self, size: int = 10) -> list[Message]:
        """Return the newest messages, whole and in order, whatever their number of tokens."""
        limits.admit_count("size", size)
        return [message for _, message in await self._store.newest(size)]

    async def search(
        self,
        text: str,
        *,
        role: str | None = None,
        after: int | str | None = None,
        limit: int = 20,
        unreadable: IfUnreadable = "raise",
    ) -> Page[Entry]:
        """Return entries whose messages contain all words of a text, the newest first.

        A word is found where a word begins, `flight` in "flights". In scripts without letter case it is found
        anywhere, and a text between quotes as a whole. Case makes no difference. What is searched is the text
        of messages in any form, results of tools included, and not the arguments of tool calls.

        A page looks at up to 2,000 messages, so it may have fewer entries than `limit`, or none, and still
        have a `next`. It reads what it looks at. Other tasks run meanwhile.

        Args:
            text: The words, at most 32; without any, all messages are found.
            role: Only messages of this role.
            after: The `next` of a page: continue with older messages.
            limit: The largest number of entries.
            unreadable: With `skip`, messages that cannot be read are passed over. With `raw`, what is known
                of them is searched, and `unreadable` of an entry says why.
        """
        limits.admit_count("limit", limit)
        check_unreadable(unreadable)
        if role is not None:
            check_text("role", role)
        return await word_search.search(
            self._store, word_search.Words(text), role, _number_in("after", after), limit, unreadable
        )

    async def count(self) -> int:
        """Return the number of messages."""
        return await self._store.count()

    async def clear(self) -> int:
        """Remove all messages from view and return their number. Later messages continue the numbering."""
        return await self._store.clear()

    # ---- replies

    @single_use
    async def reply(
        self,
        *,
        id: str | None = None,
        author: str | None = None,
        flush_s: float = 0.1,
        lease_s: float = 30,
        spend: Spend | None = None,
    ) -> AsyncGenerator[Reply]:
        """Yield a reply that followers read while it is written; it becomes a message when the block ends.

        The message is added, and the pieces of text are removed, in one batch. They are not in the history.
        If the block raises, what was said is kept as `failed`, and no model sees it. If this process is
        killed, the next follower or reply does the same, once the lease has ended.

        Args:
            id: The id of the reply and of its message; by default a random one.
            author: The author; by default, that of the space.
            flush_s: Seconds after which written text is stored.
            lease_s: Seconds until the reply of a killed process is ended. The lease is renewed meanwhile.
            spend: A spend of the session's ledger. What it has recorded when the block ends is stored with
                the message, and counted in the same batch.

        Raises:
            AlreadyExistsError: The conversation has a message with this id that is not a failed reply.
            ConflictError: Another reply is being written.
            InvalidError: The conversation is inside a transaction.
            LeaseLostError: The reply was ended as failed, because this process could not renew its lease.
        """
        async with replies.speak(self._store, id, author, flush_s, lease_s, spend) as reply:
            yield reply

    async def begin_reply(
        self, *, id: str | None = None, author: str | None = None, lease_s: float = 30
    ) -> ReplyClaim:
        """Begin a reply whose writer has no object between two calls, and return its claim.

        For a server, and for a writer in another process. `reply` is simpler where one block writes it all.
        Unless each `extend_reply` comes within `lease_s`, the next follower or reply ends it as failed.

        Args:
            id: The id of the reply and of its message; by default a random one.
            author: The author; by default, that of the space.
            lease_s: Seconds until the lease of the reply expires.

        Raises:
            AlreadyExistsError: The conversation has a message with this id that is not a failed reply.
            ConflictError: Another reply is being written.
            InvalidError: The conversation is inside a transaction.
        """
        return await reply_calls.begin(self._store, id, author, lease_s)

    async def extend_reply(
        self, claim: ReplyClaim, text: str = "", *, lease_s: float | None = 30
    ) -> ReplyProgress:
        """Add text to a reply and renew its lease. Sent again with the same claim, it is added once.

        Args:
            claim: The claim that the last call has returned.
            text: The text; none to renew the lease alone.
            lease_s: Seconds until the lease expires; None leaves it.

        Raises:
            ConflictError: The claim is not that of the last call.
            LeaseLostError: The lease expired, so the reply was ended as failed.
        """
        return await reply_calls.extend(self._store, claim, text, lease_s)

    async def end_reply(
        self,
        claim: ReplyClaim,
        how: Literal["done", "failed"] = "done",
        *,
        text: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> ReplyProgress:
        """End a reply: it becomes a message. One that was stopped stays stopped.

        Args:
            claim: The claim that the last call has returned.
            how: `done`, or `failed`: then no model sees it.
            text: The last piece of text.
            meta: Notes that are stored with the message.

        Raises:
            ConflictError: The claim is not that of the last call, for `done`.
            LeaseLostError: The lease expired, so the reply was ended as failed.
        """
        return await reply_calls.end(self._store, claim, how, text, meta or {})

    async def stop(self, *, by: str) -> bool:
        """End the reply that is being written, in whatever process, and return whether there was one.

        What was stored of it becomes a message with the status `stopped`.

        Args:
            by: The person or program that stops it, stored as `stopped_by` in the meta of the message.
        """
        return await replies.stop(self._store, by)

    async def follow(
        self, *, after: str | int | None = None, deltas: bool = True
    ) -> AsyncIterator[ChatChange]:
        """Yield all messages, and then each change as it comes. The iteration never ends by itself.

        Args:
            after: The `position` of a change, or the number of a message, to continue after it. If the
                session ended after that position, the messages of the next one are told from its beginning.
            deltas: Whether to tell of a reply while it is being said.

        Raises:
            HistoryLostError: The store has lost messages that were told.
            InvalidError: The position belongs to another conversation, or this one is inside a transaction.
        """
        changes = following.follow(self._store, after, deltas=check_flag("deltas", deltas))
        async with aclosing(changes):
            async for change in changes:
                yield change

    # ---- the context

    async def get_context(self, max_tokens: int | None = None) -> list[Message]:
        """Return the messages in the context, in order, within its budget or a smaller `max_tokens`."""
        check_limit(max_tokens)
        return ordered(*await self._store.context(max_tokens))

    async def as_openai(self, api: Literal["chat", "responses"] = "chat") -> list[Message]:
        """Return the context as OpenAI's API takes it.

        Messages that were given in this form come back as they are. Parts that OpenAI does not accept from
        others, such as their reasoning, are left out; see docs/how-to/messages.md. This holds for all forms.

        Args:
            api: `chat` for the messages of chat completions, `responses` for the input of Responses.

        Raises:
            InvalidError: A message has no form, such as content that is a number; the place is named.
            UnsupportedError: The context has a part that the form does not have, such as a video.
        """
        check_choice("api", api, "chat", "responses")
        return convert(await self.get_context(), api)

    async def as_anthropic(self) -> ModelContext[Message]:
        """Return the context as Anthropic takes it: messages that alternate, and `system` apart.

        Raises:
            InvalidError: A message has no form, such as content that is a number; the place is named.
            UnsupportedError: The context has a part that the form does not have, such as a recording.
        """
        return cast("ModelContext[Message]", convert(await self.get_context(), "anthropic"))

    async def as_gemini(self) -> ModelContext[Message]:
        """Return the context as contents of Gemini, which alternate, and `system` apart.

        Raises:
            InvalidError: A message has no form, such as content that is a number; the place is named.
            UnsupportedError: The context has a part that the form does not have.
        """
        return cast("ModelContext[Message]", convert(await self.get_context(), "gemini"))

    async def as_langchain(self) -> list[BaseMessage]:
        """Return the context as messages of LangChain.

        Raises:
            InvalidError: A message has no form, such as content that is a number; the place is named.
            MissingExtraError: langchain-core is not installed.
            UnsupportedError: The context has a part that the form does not have.
        """
        return convert(await self.get_context(), "langchain")

    async def as_pydantic_ai(self) -> list[ModelMessage]:
        """Return the context as messages of Pydantic AI. Parts of other forms have the time of this call.

        Raises:
            InvalidError: A message has no form, such as content that is a number; the place is named.
            MissingExtraError: Pydantic AI is not installed.
            UnsupportedError: The context has a part that the form does not have.
        """
        return convert(await self.get_context(), "pydantic_ai")

    async def context_tokens(self) -> int:
        """Return the number of tokens in the context."""
        return (await self._store.context())[0].total_tokens

    async def summarise(self) -> bool:
        """Summarise the messages that left the context and are due, and return whether any were."""
        return await self._store.summarise()

    # ---- forks

    async def fork(self, name: str, *, at: int | None = None) -> Conversation:
        """Create a fork that begins with this conversation's messages, without copying them, and return it.

        Cost: the same for a conversation of any length. The context is copied, which has a budget.

        Args:
            name: Name of the fork in the session.
            at: Number of the last shared message; the newest message by default.

        Raises:
            AlreadyExistsError: The session has a fork of this name.
            NotFoundError: The message does not exist.
        """
        fork = self.get_fork(name)
        await forks.begin(self._store, fork._store, name, at)
        return fork

    async def forks(self) -> list[Fork]:
        """Return all forks of the session's conversation, by name, also forks of forks."""
        return await forks.list_forks(self._store)

    def get_fork(self, name: str) -> Conversation:
        """Return the fork of this name; no store access.

        If the fork does not exist, its first use raises `NotFoundError`.
        """
        return Conversation(
            ConversationStore(self._store.namespace, self._store.rules, forks.tail_of(name)), name
        )

    async def merge(self, fork: str, *, prefer: Literal["ours", "theirs"] | None = None) -> int:
        """Append a fork's own messages, apply its edits, and return the number of messages added.

        Messages that an earlier merge added are not added again.

        Args:
            fork: The name of a fork of this conversation.
            prefer: The side whose edit wins if both sides edited the same message.

        Raises:
            MergeConflictError: Both sides edited the same message and `prefer` is None. Nothing was changed.
            NotFoundError: This conversation has no fork of this name.
        """
        check_choice("prefer", prefer, "ours", "theirs", None)
        return await forks.merge(self._store, self.get_fork(fork)._store, fork, prefer)

    async def merge_back(self, *, summary: Mapping[str, Any] | str, author: str | None = None) -> int:
        """Tell the conversation that this fork was created from how it went, by one message.

        The message has the link to the fork in its meta, as `fork`: a dict with the `name`, with `at`, the
        number of the last shared message, and with `last`, the number of the fork's last message. The
        messages of the fork stay in the fork; `merge` copies them instead. One batch adds the message, and
        no other writer makes it fail.

        The same state of the fork is told once: another call returns the number of the first message,
        whatever it says, also if that message was removed. After a message, an edit or a removal in the fork,
        a call adds another message.

        Args:
            summary: The message, as text of the role `assistant` or as a dict. Models see it. A message of
                the role `system` would never leave the context.
            author: The author; by default, that of the space.

        Returns:
            The number of the message in the conversation.

        Raises:
            InvalidError: This conversation is not a fork, or the message is malformed. Nothing is added.
            NotFoundError: The fork does not exist.
        """
        message = {"role": "assistant", "content": summary} if isinstance(summary, str) else summary
        if self.name is None:
            raise InvalidError(f"{self!r} is not a fork. Call merge_back() on a conversation made by fork().")
        addition = make_addition(check_message(message), None, author, None)
        return await forks.merge_back(self._store, self.name, addition)


def _check_number_of(call: str, messages: Sequence[object]) -> None:
    if not 0 < len(messages) <= _MESSAGES_AT_ONCE:
        raise InvalidError(f"{call}() got {len(messages)} messages. Pass 1 to {_MESSAGES_AT_ONCE}.")


def _number_in(what: str, given: int | str | None) -> int | None:
    """Return the number of a message, also as the text that a page has."""
    if isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) <= _DIGITS:
        return int(given)
    if given is not None:
        limits.admit_count(what, given, 0)
    return given if isinstance(given, int) else None


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
        namespace = Namespace(*self._binding.locate("context", self.id))
        self._store = ConversationStore(namespace, rules)

    def __repr__(self) -> str:
        return f"<BoundedState {self.id!r} of {self.max_tokens} tokens in {self._binding!r}>"

    async def add_message(self, message: GivenMessage, *, pinned: bool = False) -> int:
        """Add a message and return its number. Summarises messages that left the context, if that is due.

        Inside a transaction no summary is made. The next addition outside, or `summarise`, makes it.

        Args:
            message: A message in the form of any library, as for `Conversation.append`.
            pinned: Never let the message leave the context.

        Raises:
            InvalidError: The message is malformed, or system and pinned messages exceed the budget. Nothing
                is added.
        """
        (number,) = await self._store.add(Addition(check_message(message)), pinned=pinned)
        return number

    async def get_context(self) -> list[Message]:
        """Return the messages in the context, in order, never more than the budget."""
        return ordered(*await self._store.context())

    async def count_tokens(self) -> int:
        """Return the number of tokens in the context."""
        return (await self._store.context())[0].total_tokens

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


def _source_of(usage: object, spend: object) -> Usage | Spend:
    """Return the usage or the spend of a message, of which one was given."""
    if usage is not None and spend is not None:
        raise InvalidError("append() got `usage` and `spend`. Record the usage in the spend, and pass that.")
    given = usage if spend is None else spend
    require_instance("usage" if spend is None else "spend", given, Usage if spend is None else Spend)
    return cast("Usage | Spend", given)
