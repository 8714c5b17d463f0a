"""A context in the form of one library.

A message in the form that is asked for comes back as it is. Only where an API wants the sides to alternate,
neighbours of one side are joined. Parts that a form does not have are refused, by the rules of
docs/how-to/messages.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from keepstate.errors import InvalidError, UnsupportedError
from keepstate.sessions.forms import anthropic, gemini, langchain, openai_chat, openai_responses, pydantic_ai
from keepstate.sessions.forms.content import turns_of_content, turns_of_items
from keepstate.sessions.forms.kinds import Form, forms_of
from keepstate.sessions.forms.turns import ToolCall, Turn
from keepstate.sessions.message_texts import CUT
from keepstate.sessions.messages import Message, is_of_pydantic_ai, is_system

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage as BaseMessage  # noqa: PLC0414 - exported
    from pydantic_ai.messages import ModelMessage as ModelMessage  # noqa: PLC0414 - exported
else:  # what annotations mean where the libraries need not be installed
    BaseMessage = ModelMessage = Any

T = TypeVar("T")
_LISTED: Final = ("content", "parts", "items", "tool_calls")
"""The keys of a message that have a list, in one of the forms."""
_OPENING: Final = CUT.strip()
"""The text of the user in front of a context that begins with an answer, for APIs that unsupported that."""


class ModelContext(list[T]):
    """A context for an API that takes the system instructions apart.

    Attributes:
        system: The instructions: blocks of text for Anthropic's `system`, parts for Gemini's
            `system_instruction`. Empty if there are none.
    """

    __slots__ = ("system",)

    def __init__(self, messages: Iterable[T] = (), *, system: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(messages)
        self.system: list[dict[str, Any]] = list(system)

    def __repr__(self) -> str:
        return f"{list(self)!r} (system={self.system!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _context_of, (list(self), self.system)


def _context_of(messages: list[Any], system: list[dict[str, Any]]) -> ModelContext[Any]:
    return ModelContext(messages, system=system)


def convert(context: Sequence[Message], form: Form) -> list[Any]:
    """Return a context in a form.

    Raises:
        InvalidError: A message has no form, such as content that is a number. The error names the place.
        MissingExtraError: The form has objects of a library that is not installed.
        UnsupportedError: The form does not have a part of the context.
    """
    write = _WRITERS[form]
    for at, message in enumerate(context):
        for name in _LISTED:
            _check_list(message, name, f"Message {at} of the context: `{name}`")
    try:
        return write(context)
    except (InvalidError, UnsupportedError) as error:
        number = next((at for at, each in enumerate(context) if _is_refused(each, write)), None)
        kind = InvalidError if isinstance(error, InvalidError) else UnsupportedError
        raise kind(f"Message {number} of the context: {error}") from None


def _check_list(message: Message, name: str, place: str) -> None:
    """Raise `InvalidError` for content, or a list of parts, that no form has."""
    given, is_content = message.get(name), name == "content"
    if given is None or (is_content and isinstance(given, str | Mapping)):
        return
    wanted = "a text, or a list of texts and blocks" if is_content else "a list of dicts"
    if not isinstance(given, list | tuple):
        raise InvalidError(f"{place} is of type {type(given).__name__}. Give {wanted}: replace the message")
    for number, part in enumerate(cast("Sequence[object]", given)):
        if not isinstance(part, Mapping) and not (is_content and isinstance(part, str)):
            raise InvalidError(
                f"{place}[{number}] is of type {type(part).__name__}. Give {wanted}: replace the message"
            )


def _is_refused(message: Message, write: Callable[[Sequence[Message]], object]) -> bool:
    try:
        write([message])
    except (InvalidError, UnsupportedError):
        return True
    return False


def turns_of(message: Message) -> list[Turn]:
    """Return the turns of a message in any form."""
    if is_of_pydantic_ai(message):
        return pydantic_ai.turns_of_message(message)
    if isinstance(message.get("parts"), list):
        return gemini.turns_of_parts(message)
    is_items = isinstance(message.get("items"), list)
    return turns_of_items(message) if is_items else turns_of_content(message)


def _to_openai_chat(context: Sequence[Message]) -> list[Message]:
    """Return a context as messages of OpenAI's chat completions."""
    return list(_each(context, "chat", lambda message: [message], openai_chat.to_chat))


def _to_openai_responses(context: Sequence[Message]) -> list[Message]:
    """Return a context as input items of OpenAI's Responses."""

    def as_given(message: Message) -> list[Message]:
        return cast("list[Message]", message.get("items") or [message])

    return list(_each(context, "responses", as_given, openai_responses.to_items))


def _to_anthropic(context: Sequence[Message]) -> ModelContext[Message]:
    """Return a context as messages of Anthropic, which alternate, and the system instructions."""
    made: ModelContext[Message] = ModelContext()

    def add(role: str, content: Any) -> None:
        if made and made[-1]["role"] == role:
            made[-1] = {"role": role, "content": anthropic.joined_content(made[-1]["content"], content)}
        elif content:
            made.append({"role": role, "content": content})

    for message, turns in _read(context, "anthropic"):
        if turns is None and is_system(message):
            content = message["content"]
            text = [{"type": "text", "text": content}] if content else []
            made.system += text if isinstance(content, str) else content
        elif turns is None:
            add(message["role"], message["content"])
        for turn in turns or ():
            if turn.role == "system":
                made.system += anthropic.system_blocks(turn)
            else:
                add(turn.role, anthropic.content_of(turn))
    if made and made[0]["role"] == "assistant":
        made.insert(0, {"role": "user", "content": _OPENING})
    return made


def _to_gemini(context: Sequence[Message]) -> ModelContext[Message]:
    """Return a context as contents of Gemini, which alternate, and the system instructions."""
    made, names = ModelContext[Message](), _names_of_tools(context)

    def add(role: str, parts: Sequence[Any]) -> None:
        if made and made[-1]["role"] == role:
            made[-1] = {**made[-1], "parts": [*made[-1]["parts"], *parts]}
        elif parts:
            made.append({"role": role, "parts": list(parts)})

    for message, turns in _read(context, "gemini"):
        if turns is None and message["role"] == "system":
            made.system += message["parts"]
        elif turns is None:
            add(message["role"], message["parts"])
        for turn in turns or ():
            if turn.role == "system":
                made.system += gemini.system_parts(turn)
            else:
                add(gemini.ROLES.get(turn.role, turn.role), list(gemini.to_parts(turn, names)))
    if made and made[0]["role"] == "model":
        made.insert(0, {"role": "user", "parts": [{"text": _OPENING}]})
    return made


def _to_langchain(context: Sequence[Message]) -> list[Any]:
    """Return a context as messages of LangChain."""
    names = _names_of_tools(context)

    def write(turn: Turn) -> Iterator[Any]:
        return langchain.to_langchain(turn, names)

    return list(_each(context, "langchain", lambda message: [langchain.restored(message)], write))


def _to_pydantic_ai(context: Sequence[Message]) -> list[Any]:
    """Return a context as messages of Pydantic AI."""
    names, made, waiting = _names_of_tools(context), list[Any](), list[Turn]()
    for message, turns in _read(context, "pydantic_ai"):
        waiting += turns or ()
        if turns is None:
            made += pydantic_ai.to_messages(waiting, names)
            made.append(pydantic_ai.load(message))
            waiting = []
    return [*made, *pydantic_ai.to_messages(waiting, names)]


def _names_of_tools(context: Sequence[Message]) -> Mapping[str, str]:
    """Return the names of the tools that are called in a context, by the id of the call."""
    turns = (turn for message in context for turn in turns_of(message))
    return {call.id: call.name for turn in turns for call in turn.of(ToolCall)}


def _each(
    context: Sequence[Message],
    form: Form,
    as_given: Callable[[Message], Iterable[T]],
    write: Callable[[Turn], Iterable[T]],
) -> Iterator[T]:
    for message, turns in _read(context, form):
        if turns is None:
            yield from as_given(message)
        for turn in turns or ():
            yield from write(turn)


def _read(context: Sequence[Message], form: Form) -> Iterator[tuple[Message, list[Turn] | None]]:
    """Yield the messages of a context, with their turns if they do not have the form that is asked for.

    Of the instructions of Pydantic AI only the last count, as system instructions in front.
    """
    read = [(message, None if form in forms_of(message) else turns_of(message)) for message in context]
    told = [turn for _, turns in read for turn in turns or () if turn.role == "instructions"]
    if told:
        yield {}, [Turn("system", told[-1].parts)]
    for message, turns in read:
        plain = turns and [turn for turn in turns if turn.role != "instructions"]
        yield message, plain


_WRITERS: Final[Mapping[Form, Callable[[Sequence[Message]], list[Any]]]] = {
    "chat": _to_openai_chat,
    "responses": _to_openai_responses,
    "anthropic": _to_anthropic,
    "gemini": _to_gemini,
    "langchain": _to_langchain,
    "pydantic_ai": _to_pydantic_ai,
}
