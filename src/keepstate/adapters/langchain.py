"""`KeepstateChatMessageHistory`: what LangChain's chains remember, in the conversation of a session.

Messages are kept in the form that model APIs take, so that whoever reads the session without LangChain reads
them too; what LangChain knows of them beside stands next to it, and each comes back equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from keepstate._finish import finish
from keepstate.errors import InvalidError, MissingExtraError
from keepstate.sessions.conversation_store import check_limit
from keepstate.sessions.messages import Message
from keepstate.sessions.session import Session, blocking_of, mode_of

if TYPE_CHECKING:
    from keepstate.sync.sessions.session import Session as BlockingSession

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import (
        BaseMessage,
        ChatMessage,
        convert_to_messages,
        message_to_dict,
        messages_from_dict,
    )
except ImportError as error:
    install = "pip install 'keepstate[langchain]'"
    raise MissingExtraError(f"this needs langchain-core: {install}", install=install) from error

_ROLES: Final = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "HumanMessageChunk": "user",
}
_PLAIN: Final = ("content", "tool_calls", "tool_call_id")
"""What stands in a message for everybody."""
_BESIDE: Final = "langchain"
_AT_ONCE: Final = 400


class KeepstateChatMessageHistory(BaseChatMessageHistory):
    """LangChain's chat message history on the conversation of a session.

    Give `RunnableWithMessageHistory` a function that returns one by the session's id. Both its sync and its
    async methods work, whatever colour the session is of.

    Args:
        session: The session; a `Session`, or one of `keepstate.sync`. Messages that others wrote into it are
            read, too: those that LangChain has no class for as a `ChatMessage` of their role.
        max_tokens: Hands out the context of the conversation within this budget, and not all messages.
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
            InvalidError: One would not come back equal; nothing is added.
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
    kept = [stored(message) for message in _admitted(messages)]
    for begin in range(0, len(kept), _AT_ONCE):
        await session.conversation.append(*kept[begin : begin + _AT_ONCE])


def _admitted(messages: object) -> Sequence[BaseMessage]:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidError(f"`messages` is a {type(messages).__name__}; give a list of LangChain's messages")
    for message in cast("Sequence[object]", messages):
        if not isinstance(message, BaseMessage):
            raise InvalidError(
                f"a message is a {type(message).__name__}; give one of LangChain's, such as HumanMessage(…)"
            )
    return cast("Sequence[BaseMessage]", messages)


def stored(message: BaseMessage) -> Message:
    """Return a message of LangChain as it is kept in a conversation.

    Raises:
        InvalidError: It would not come back equal.
    """
    told = message_to_dict(message)
    data: dict[str, Any] = told["data"]
    role = data.get("role") if told["type"] == "chat" else _ROLES.get(told["type"], told["type"])
    plain = {name: data[name] for name in _PLAIN if data.get(name) or name == "content"}
    beside = {name: part for name, part in data.items() if name not in plain}
    made = {"role": role, **plain, _BESIDE: {"type": told["type"], "data": beside}}
    if restored([made]) != [message]:
        raise InvalidError(
            f"a {type(message).__name__} would not come back equal; give one of LangChain's own, and plain "
            "values in its `artifact`"
        )
    return made


def restored(messages: Sequence[Message]) -> list[BaseMessage]:
    """Return the messages of a conversation as LangChain's messages, of any author."""
    return [_restored(message) for message in messages]


def _restored(message: Message) -> BaseMessage:
    beside = message.get(_BESIDE)
    if not isinstance(beside, dict):
        return _converted(message)
    known = cast("dict[str, Any]", beside)
    plain = {name: message[name] for name in _PLAIN if name in message}
    return messages_from_dict([{"type": known["type"], "data": {**known["data"], **plain}}])[0]


def _converted(message: Message) -> BaseMessage:
    """Return a message that others wrote; one that LangChain has no class for, as one of its role."""
    content = message.get("content")
    said = {**message, "content": "" if content is None else content}
    try:
        return convert_to_messages([said])[0]
    except (ValueError, TypeError, KeyError, NotImplementedError):  # a message for each kind that it refuses
        rest = {name: part for name, part in message.items() if name not in ("role", "content")}
        content = said["content"]
        text = content if isinstance(content, str) else msgspec.json.encode(content).decode()
        return ChatMessage(content=text, role=message["role"], additional_kwargs=rest)
