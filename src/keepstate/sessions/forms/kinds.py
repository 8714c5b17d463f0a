"""The forms that a stored message has. Pure.

Short messages have several: `{"role": "user", "content": "Hi"}` is the same for OpenAI and Anthropic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast

from keepstate.sessions.messages import LANGCHAIN, SYSTEM_ROLES, Message, is_of_pydantic_ai

Form: TypeAlias = Literal["chat", "responses", "anthropic", "gemini", "langchain", "pydantic_ai"]
_NONE: Final[frozenset[Form]] = frozenset()
_CHAT: Final[frozenset[Form]] = frozenset({"chat"})
_ANTHROPIC: Final[frozenset[Form]] = frozenset({"anthropic"})
_RESPONSES: Final[frozenset[Form]] = frozenset({"responses"})
_BLOCKS: Final[frozenset[Form]] = frozenset({"chat", "anthropic"})
_TEXT: Final[frozenset[Form]] = frozenset({"chat", "anthropic", "responses"})
_ROLES: Final = ("user", "assistant", *SYSTEM_ROLES)
_CHAT_KEYS: Final = ("tool_calls", "tool_call_id", "function_call", "refusal", "audio", "name")
_OF_BLOCK: Final = {
    "image_url": _CHAT,
    "input_audio": _CHAT,
    "input_text": _RESPONSES,
    "input_image": _RESPONSES,
    "input_file": _RESPONSES,
    "output_text": _RESPONSES,
    "thinking": _ANTHROPIC,
    "redacted_thinking": _ANTHROPIC,
    "document": _ANTHROPIC,
    "search_result": _ANTHROPIC,
    "container_upload": _ANTHROPIC,
    "tool_use": _ANTHROPIC,
    "tool_result": _ANTHROPIC,
}
_LANGCHAIN_BLOCKS: Final = ("audio", "video", "reasoning", "tool_call", "invalid_tool_call", "non_standard")


def forms_of(message: Message) -> frozenset[Form]:
    """Return the forms that a message has as it is; none if it mixes them."""
    if LANGCHAIN in message:
        return frozenset({"langchain"})
    if is_of_pydantic_ai(message):
        return frozenset({"pydantic_ai"})
    if isinstance(message.get("parts"), list):
        return frozenset({"gemini"})
    if isinstance(message.get("items"), list):
        return _RESPONSES
    content, found = message.get("content"), _TEXT
    if isinstance(content, Mapping):  # a value, which the forms convert to text
        return _NONE
    for block in cast("list[object]", content) if isinstance(content, list | tuple) else ():
        found &= _of_block(block)
    is_dump = message.get("type") == "message"  # of one of OpenAI's items, or of an answer of Anthropic
    if message["role"] not in _ROLES or (not is_dump and message.keys() & set(_CHAT_KEYS)):
        return found & _CHAT
    if message.keys() - {"role", "content"}:
        others = _RESPONSES | _ANTHROPIC if is_dump else _CHAT
        return found & others
    return found if content is not None else found & _CHAT


def _of_block(block: object) -> frozenset[Form]:
    if not isinstance(block, Mapping):
        return _NONE
    fields = cast("Mapping[str, object]", block)
    kind = fields.get("type")
    if kind == "text":
        return _ANTHROPIC if fields.keys() & {"cache_control", "citations"} else _BLOCKS
    if kind == "image":
        return _ANTHROPIC if "source" in fields else _NONE
    if kind == "file":
        return _CHAT if "file" in fields else _NONE
    if kind == "refusal":
        return _CHAT | _RESPONSES
    if kind in _LANGCHAIN_BLOCKS:
        return _NONE
    known = _OF_BLOCK.get(kind) if isinstance(kind, str) else None
    if known is None:  # a block of a later version, or of a provider's own tool
        return _ANTHROPIC if str(kind).endswith(("_tool_use", "_tool_result")) else _BLOCKS
    return known
