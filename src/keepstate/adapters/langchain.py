"""`KeepstateChatMessageHistory`: the memory of LangChain's chains in the conversation of a session.

Messages are stored in the form of model APIs, so they are readable without LangChain. LangChain's own fields
are stored next to them, so each message comes back equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from keepstate._finish import finish
from keepstate.errors import InvalidError, MissingExtraError, UnsupportedError
from keepstate.sessions.conversation_store import check_limit
from keepstate.sessions.forms.conversion import convert
from keepstate.sessions.forms.kinds import forms_of
from keepstate.sessions.forms.langchain import stored
from keepstate.sessions.messages import Message
from keepstate.sessions.session import Session, blocking_of, mode_of

if TYPE_CHECKING:
    from keepstate.sync.sessions.session import Session as BlockingSession

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import BaseMessage, ChatMessage, convert_to_messages
except ImportError as error:
    raise MissingExtraError.of("langchain", "langchain-core") from error

_AT_ONCE: Final = 400


class KeepstateChatMessageHistory(BaseChatMessageHistory):
    """LangChain's chat message history on the conversation of a session.

    Give `RunnableWithMessageHistory` a function that returns one by the session's id. Its blocking and its
    asynchronous methods both work with either kind of session.

    Args:
        session: The session; a `Session`, or one of `keepstate.sync`. Messages of other writers are read,
            too; a message without a class in LangChain becomes a `ChatMessage` of its role.
        max_tokens: Return the context of the conversation within this budget, instead of all messages.
    """

    def __init__(self, session: Session | BlockingSession, *, max_tokens: int | None = None) -> None:
        given: Any = getattr(session, "_inner", session)
        if not isinstance(given, Session):
            raise InvalidError(f"`session` is {session!r}; give a Session")
        check_limit(max_tokens)
        self._session, self._max_tokens = given, max_tokens
        self._is_async = mode_of(given) == "async"
        self._blocking: Session | None = None if self._is_async else given

    def __repr__(self) -> str:
        return f"<KeepstateChatMessageHistory of {self._session!r}>"

    # ---- blocking

    @property
    # a field in the base, which may be a property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """The messages: all, or those that fit the budget."""
        return finish(self._read(self._own_blocking()))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages to the conversation; up to 400 of them together.

        Raises:
            InvalidError: A message would not come back equal; nothing is added.
        """
        finish(_add(self._own_blocking(), messages))

    def clear(self) -> None:
        """Delete the messages of the conversation."""
        finish(self._own_blocking().conversation.clear())

    # ---- with await

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the messages: all, or those that fit the budget."""
        if not self._is_async:
            return await super().aget_messages()
        return await self._read(self._session)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Add messages to the conversation; see `add_messages`."""
        if not self._is_async:
            return await super().aadd_messages(messages)
        return await _add(self._session, messages)

    async def aclear(self) -> None:
        """Delete the messages of the conversation."""
        if not self._is_async:
            return await super().aclear()
        await self._session.conversation.clear()
        return None

    def _own_blocking(self) -> Session:
        if self._blocking is None:
            self._blocking = blocking_of(self._session)
        return self._blocking

    async def _read(self, session: Session) -> list[BaseMessage]:
        if self._max_tokens is not None:
            return restored(await session.conversation.get_context(self._max_tokens))
        return restored([message async for message in session.conversation.messages()])


async def _add(session: Session, messages: Sequence[BaseMessage]) -> None:
    forms = [stored(message) for message in _check(messages)]
    for begin in range(0, len(forms), _AT_ONCE):
        await session.conversation.append(*forms[begin : begin + _AT_ONCE])


def _check(messages: object) -> Sequence[BaseMessage]:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidError(f"`messages` is a {type(messages).__name__}; give a list of LangChain's messages")
    for message in cast("Sequence[object]", messages):
        if not isinstance(message, BaseMessage):
            raise InvalidError(
                f"a message is a {type(message).__name__}; give one of LangChain's, such as HumanMessage(…)"
            )
    return cast("Sequence[BaseMessage]", messages)


def restored(messages: Sequence[Message]) -> list[BaseMessage]:
    """Return the messages of a conversation, of any author, as LangChain's messages."""
    return [each for message in messages for each in _restored(message)]


def _restored(message: Message) -> list[BaseMessage]:
    if "chat" in forms_of(message):
        return [_converted(message)]
    try:
        return convert([message], "langchain")
    except UnsupportedError:  # such as a call of a provider's own tool
        return [_converted(message)]


def _converted(message: Message) -> BaseMessage:
    """Return a message of another writer; without a class in LangChain, as a `ChatMessage` of its role."""
    content = message.get("content")
    said = {**message, "content": "" if content is None else content}
    try:
        return convert_to_messages([said])[0]
    except (
        ValueError,
        TypeError,
        KeyError,
        NotImplementedError,
    ):  # LangChain raises these for unknown forms
        rest = {name: part for name, part in message.items() if name not in ("role", "content")}
        content = said["content"]
        text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        return ChatMessage(content=text, role=message["role"], additional_kwargs=rest)
