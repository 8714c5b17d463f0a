"""Messages as they are given to a conversation: dicts, items, and objects of the libraries.

An object is recognised by the module of its class, so no library is imported for one that is not used. It is
stored as its library writes it, in values of JSON. What is known of an answer besides its message, such as
its id and its usage, is not stored: that is what `meta` is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from typing import Any, ClassVar, Final, Protocol, TypeAlias, cast

from keepstate.errors import InvalidError
from keepstate.sessions.forms.turns import mappings
from keepstate.sessions.messages import LANGCHAIN, ROLES, SYSTEM_ROLES, Message, is_of_pydantic_ai
from keepstate.values import limits


class DumpedMessage(Protocol):
    """A message or an item of OpenAI, Anthropic, Gemini or LangChain."""

    def model_dump(self) -> dict[str, Any]:
        """Return the fields."""
        ...


class DataclassMessage(Protocol):
    """A message of Pydantic AI."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


GivenMessage: TypeAlias = (
    Mapping[str, Any] | Sequence[Mapping[str, Any] | DumpedMessage] | DumpedMessage | DataclassMessage
)
"""A message in the form of any library, or the list of the items of one answer of OpenAI's Responses."""

_LISTS: Final = ("content", "parts", "items", "tool_calls")
_OF_MODELS: Final = frozenset({"reasoning", "compaction", "image_generation_call", "mcp_list_tools"})
"""Types of items that a model makes, besides messages and calls."""
_LANGCHAIN_ROLES: Final = {
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "HumanMessageChunk": "user",
}
_LANGCHAIN_TYPES: Final = frozenset({"human", "ai", "system", "tool", "function", "chat", "remove"})


def check_message(given: object) -> Message:
    """Return a message as a plain dict.

    Raises:
        InvalidError: It is not a message of a known form, or has a key that is not text.
    """
    plain = _plain(given)
    if not isinstance(plain.get("role"), str):
        raise InvalidError(f"A message has the role {plain.get('role')!r}. Pass a text such as 'user'.")
    keys = cast("Mapping[object, Any]", plain)
    if wrong := [key for key in keys if not isinstance(key, str)]:
        raise InvalidError(f"A message has the key {wrong[0]!r}. Keys must be text.")
    for name in _LISTS:
        blocks = plain.get(name)
        if isinstance(blocks, list | tuple) and len(cast("list[object]", blocks)) > limits.MESSAGE_BLOCKS:
            raise InvalidError(
                f"A message has {len(cast('list[object]', blocks)):,} entries in `{name}`; "
                f"{limits.MESSAGE_BLOCKS:,} are allowed. Pass several messages."
            )
    return plain


def _plain(given: object) -> Message:
    if isinstance(given, Mapping):
        return _from_fields(cast("Mapping[str, Any]", given))
    if isinstance(given, list | tuple):
        return _from_items(cast("Sequence[object]", given))
    for library, read in _READERS.items():
        if _is_of(given, library):
            return read(given)
    raise InvalidError(
        f"A message is of type {type(given).__name__}. Pass a dict such as {{'role': 'user', …}}, or a "
        "message of OpenAI, Anthropic, Gemini, LangChain or Pydantic AI."
    )


def _is_of(thing: object, library: str) -> bool:
    """Return whether a class of an object is defined in a package; imports nothing."""
    return any(
        base.__module__ == library or base.__module__.startswith(f"{library}.")
        for base in type(thing).__mro__
    )


def _from_fields(fields: Mapping[str, Any]) -> Message:
    """Return a dict with a role, for dicts of libraries that have none."""
    if "role" in fields:
        _check_role(fields)
        return _with_plain_content(dict(fields))
    if is_of_pydantic_ai(fields):
        return _with_role(fields)
    if str(fields.get("type")) in _LANGCHAIN_TYPES and isinstance(fields.get("data"), Mapping):
        from keepstate.sessions.forms.langchain import from_fields

        return from_fields(fields)
    if isinstance(fields.get("parts"), list):
        return {"role": "user", **fields}  # a content of Gemini that leaves out its role
    if isinstance(fields.get("type"), str):
        return _from_items([fields])
    return dict(fields)


def _check_role(fields: Mapping[str, Any]) -> None:
    """Raise `InvalidError` if the parts of a message have another role than the message says.

    A caller who lets only users in by the role must not get the words of a system in.
    """
    known = fields.get(LANGCHAIN)
    bare = {name: part for name, part in fields.items() if name != "role"}
    if is_of_pydantic_ai(fields):
        said = "instructions" if fields.get("instructions") is not None else _with_role(bare)["role"]
    elif isinstance(items := fields.get("items"), list | tuple):
        said = _from_items(cast("Sequence[object]", items))["role"]
    elif isinstance(known, Mapping):
        kind = cast("Mapping[str, Any]", known).get("type")
        data = cast("Mapping[str, Any]", known).get("data")
        its_role = cast("Mapping[str, Any]", data).get("role") if isinstance(data, Mapping) else None
        said = its_role if kind == "chat" else _LANGCHAIN_ROLES.get(str(kind), kind)
    else:
        return
    given = fields["role"]
    if not isinstance(given, str) or ROLES.get(given, given) != ROLES.get(str(said), said):
        raise InvalidError(
            f"A message has the role {given!r}, and its parts are of {said!r}. Pass it as its library dumps "
            "it; what a user has typed belongs into `content`, as text."
        )


def _with_plain_content(message: Message) -> Message:
    """Return a message whose blocks, which may be objects of a library, are dicts."""
    for name in ("content", "parts", "tool_calls"):
        blocks = message.get(name)
        if isinstance(blocks, list | tuple):
            given = cast("Sequence[object]", blocks)
            if any(_is_object(block) for block in given):
                message = {**message, name: [_dump(each) if _is_object(each) else each for each in given]}
    return message


def _is_object(thing: object) -> bool:
    return any(_is_of(thing, library) for library in ("openai", "anthropic", "google.genai"))


def _dump(thing: Any) -> Any:
    """Return a part of a message as the client of its library writes it into a request."""
    if _is_of(thing, "google.genai"):
        return thing.model_dump(mode="json", by_alias=False, exclude_none=True)
    return thing.model_dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)


# ---- OpenAI


def _from_openai(thing: Any) -> Message:
    fields = _dump(thing)
    choices, output = mappings(fields.get("choices")), fields.get("output")
    if choices:
        return dict(choices[0]["message"])
    if fields.get("object") == "response" and isinstance(output, list):
        return _from_items(cast("list[object]", output))
    return _from_fields(fields)


def _from_items(given: Sequence[object]) -> Message:
    """Return the items of one answer, or results of calls, as one message.

    Raises:
        InvalidError: An item is neither a dict nor an object of OpenAI.
    """
    items: list[Any] = [_dump(item) if _is_of(item, "openai") else item for item in given]
    if wrong := [item for item in items if not isinstance(item, Mapping)]:
        raise InvalidError(
            f"A list has an item of type {type(wrong[0]).__name__}. A list is one message of items of "
            "OpenAI's Responses. Pass other messages one by one, as append(*messages)."
        )
    plain = mappings(items)
    if systems := [item for item in plain if item.get("role") in SYSTEM_ROLES and len(plain) > 1]:
        raise InvalidError(
            f"A list has an item of the role {systems[0]['role']!r}. A list is one message: pass that item "
            "as a message of its own."
        )
    if not plain or not all(isinstance(item.get("type", item.get("role")), str) for item in plain):
        raise InvalidError("A list of items is empty, or has an item without a type. Pass items of OpenAI.")
    if len(plain) == 1 and isinstance(plain[0].get("role"), str):
        return dict(plain[0])
    return {"role": "assistant" if any(map(_is_of_model, plain)) else "user", "items": [*map(dict, plain)]}


def _is_of_model(item: Mapping[str, Any]) -> bool:
    kind = str(item.get("type"))
    return item.get("role") == "assistant" or kind in _OF_MODELS or kind.endswith(("_call", "_request"))


# ---- the other libraries


def _from_anthropic(thing: Any) -> Message:
    fields = _dump(thing)
    return {"role": fields.get("role"), "content": fields.get("content")}


def _from_gemini(thing: Any) -> Message:
    fields = _dump(thing)
    candidates = mappings(fields.get("candidates"))
    content = candidates[0].get("content") if candidates else fields
    if not isinstance(content, Mapping) or "parts" not in content:
        raise InvalidError(f"A {type(thing).__name__} has no content. Pass a Content of Gemini.")
    return _from_fields(cast("Mapping[str, Any]", content))


def _from_langchain(thing: Any) -> Message:
    from keepstate.sessions.forms.langchain import stored

    return stored(thing)


def _from_pydantic_ai(thing: Any) -> Message:
    from keepstate.sessions.forms.pydantic_ai import dump

    return _with_role(dump(thing))


def _with_role(fields: Mapping[str, Any]) -> Message:
    """Return a message of Pydantic AI with a role. One that has a system prompt is a system message."""
    kinds = {str(part.get("part_kind")) for part in mappings(fields.get("parts"))}
    asked = "system" if "system-prompt" in kinds else "user"
    return {"role": "assistant" if fields.get("kind") == "response" else asked, **fields}


_READERS: Final[Mapping[str, Callable[[Any], Message]]] = {
    "openai": _from_openai,
    "anthropic": _from_anthropic,
    "google.genai": _from_gemini,
    "langchain_core": _from_langchain,
    "pydantic_ai": _from_pydantic_ai,
}
