"""Shapes of LangChain's and LangGraph's own classes: how to get an object's fields, and create it again.

Creating an object runs neither the constructor nor the validators of its class. The object was valid when it
was stored.
"""

from __future__ import annotations

import ipaddress
import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, Final, cast

from langchain_core import messages
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde import types
from langgraph.store.base import GetOp, Item
from langgraph.types import Command, Interrupt, Overwrite, PregelTask, Send, StateSnapshot
from pydantic import SecretBytes, SecretStr

from keepstate.errors import InvalidError
from keepstate.values.schema import Registration
from keepstate.values.shapes import ExceptionShape, Shape, shape_of
from keepstate.values.standard import pattern_fields, pattern_of

Snapshot: Final = types._DeltaSnapshot  # pyright: ignore[reportPrivateUsage]
"""A whole value of a delta channel in its checkpoint."""

_Make = Callable[[Mapping[str, Any]], Any]
_Build = Callable[[Mapping[str, Any], Collection[str]], Any]
_MESSAGES: Final = (
    *("HumanMessage", "AIMessage", "SystemMessage", "ToolMessage", "ChatMessage", "FunctionMessage"),
    *("HumanMessageChunk", "AIMessageChunk", "SystemMessageChunk", "ToolMessageChunk", "ChatMessageChunk"),
    *("FunctionMessageChunk", "RemoveMessage", "BaseMessage", "BaseMessageChunk"),
)
_ADDRESSES: Final = (
    *(ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network),
    *(ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network),
)
_SUPERSEDED: Final = str, int, float, bytes, list, dict, set, frozenset, tuple
_set: Final = object.__setattr__


class MessageShape:
    """The shape of a message: its attributes, without those that are empty in every new message."""

    def __init__(self, kind: type[BaseMessage]) -> None:
        self._kind = kind
        fields = kind.model_fields
        self._made: list[tuple[str, Callable[[], Any]]] = [
            (name, cast("Callable[[], Any]", field.default_factory))
            for name, field in fields.items()
            if field.default_factory is not None
        ]
        self._empty = {
            name: field.get_default(call_default_factory=True, validated_data={})
            for name, field in fields.items()
            if not field.is_required()
        }
        # In the order of constructors, so that a decoded message has the same encoding again.
        self._blank = dict.fromkeys(fields) | {
            name: empty for name, empty in self._empty.items() if name not in dict(self._made)
        }

    def fields(self, value: BaseMessage) -> dict[str, Any]:
        """Return the attributes that differ from those of a new message."""
        empty, held = self._empty, value.__dict__
        fields = {
            name: held[name]
            for name in self._blank
            if name in held
            and not (name in empty and type(held[name]) is type(empty[name]) and held[name] == empty[name])
        }
        return {**fields, **value.__pydantic_extra__} if value.__pydantic_extra__ else fields

    def unset(self, value: BaseMessage) -> list[str]:
        """Return nothing, because a message does not record which attributes were set."""
        return []

    def build(self, fields: Mapping[str, Any], unset: Collection[str]) -> BaseMessage:
        """Return the message."""
        made = self._kind.__new__(self._kind)
        held = self._blank.copy()
        held.update(fields)
        for name, make in self._made:
            if name not in fields:
                held[name] = make()
        extra: dict[str, Any] = {}
        if len(held) > len(self._blank):
            extra = {name: held.pop(name) for name in fields if name not in self._blank}
        _set(made, "__dict__", held)
        _set(made, "__pydantic_fields_set__", set(fields))
        _set(made, "__pydantic_extra__", extra)
        _set(made, "__pydantic_private__", None)
        return made


class PlainShape:
    """The shape of an object by two functions: one returns its fields, one creates it from them."""

    def __init__(self, take: Callable[[Any], dict[str, Any]], make: _Make) -> None:
        self._take, self._make = take, make

    def fields(self, value: Any) -> dict[str, Any]:
        """Return the fields."""
        return self._take(value)

    def unset(self, value: Any) -> list[str]:
        """Return nothing."""
        return []

    def build(self, fields: Mapping[str, Any], unset: Collection[str]) -> Any:
        """Return the object."""
        return self._make(fields)


class _Plain:
    """Placeholder class for builtin values of derived classes."""


def _slots(kind: Any, *names: str) -> PlainShape:
    """Return the shape of a class by its attributes; absent ones are left out."""

    def take(value: Any) -> dict[str, Any]:
        return {name: getattr(value, name) for name in names if hasattr(value, name)}

    def make(fields: Mapping[str, Any]) -> Any:
        made = kind.__new__(kind)
        for name in names:
            if name in fields:
                _set(made, name, fields[name])
        return made

    return PlainShape(take, make)


@cache
def MESSAGES() -> frozenset[type]:  # noqa: N802 - a value, created on first use
    """Return the classes of messages."""
    return frozenset(getattr(messages, name) for name in _MESSAGES if hasattr(messages, name))


@cache
def framework() -> tuple[Registration, ...]:
    """Return the shapes of the frameworks' own classes, and of some of the standard library."""
    shapes: dict[str, tuple[type, Shape]] = {
        f"langchain.{kind.__name__}": (kind, MessageShape(kind)) for kind in MESSAGES()
    }
    shapes |= {
        "langchain.Document": (Document, shape_of(Document)),
        "langgraph.Send": (Send, _slots(Send, "node", "arg", "timeout")),
        "langgraph.Interrupt": (Interrupt, _dataclass(Interrupt)),
        "langgraph.Command": (Command, _dataclass(Command)),
        "langgraph.Overwrite": (Overwrite, _dataclass(Overwrite)),
        "langgraph.StateSnapshot": (StateSnapshot, shape_of(StateSnapshot)),
        "langgraph.PregelTask": (PregelTask, shape_of(PregelTask)),
        "langgraph.Item": (Item, _slots(Item, *Item.__slots__)),
        "langgraph.GetOp": (GetOp, shape_of(GetOp)),
        "error": (BaseException, PlainShape(lambda it: {"value": repr(it)}, _value)),
        "plain": (_Plain, PlainShape(lambda it: {}, _value)),
        "deque": (deque, PlainShape(lambda it: {"items": [*it], "most": it.maxlen}, _deque)),
        "regex": (re.Pattern, PlainShape(_regex_fields, _regex)),
        "bytearray": (
            bytearray,
            PlainShape(lambda it: {"bytes": bytes(it)}, _bytearray),
        ),
        "secret": (SecretStr, _secret(SecretStr)),
        "secret bytes": (SecretBytes, _secret(SecretBytes)),
    }
    for kind in _ADDRESSES:
        shapes[kind.__name__] = kind, _address(kind)
    if (policy := _timeout_policy()) is not None:
        shapes["langgraph.TimeoutPolicy"] = policy, _dataclass(policy)
    return tuple(Registration(name, 1, kind, shape) for name, (kind, shape) in shapes.items())


@cache
def BUILDERS() -> dict[bytes, _Build]:  # noqa: N802 - a value, created on first use
    """Return the functions that create messages from their attributes, by stored names."""
    return {known.name.encode(): known.shape.build for known in framework() if known.kind in MESSAGES()}


def _timeout_policy() -> type | None:
    from langgraph import types

    return getattr(types, "TimeoutPolicy", None)


def _dataclass(kind: Any) -> PlainShape:
    return _slots(kind, *kind.__dataclass_fields__)


def _deque(fields: Mapping[str, Any]) -> deque[Any]:
    return deque(fields["items"], fields["most"])


def _bytearray(fields: Mapping[str, Any]) -> bytearray:
    held = fields["bytes"]
    if type(held) is not bytes:  # bytearray(n) would create n zeros
        raise TypeError(f"a stored bytearray holds bytes, not a {type(held).__name__}")
    return bytearray(held)


def _regex(fields: Mapping[str, Any]) -> re.Pattern[Any]:
    # Compiling with this flag prints, and stored bytes must not make a process print.
    return pattern_of(fields["pattern"], fields["flags"] & ~int(re.DEBUG))


def _regex_fields(pattern: re.Pattern[Any]) -> dict[str, Any]:
    if pattern.flags & re.DEBUG:
        pattern = re.compile(pattern.pattern, pattern.flags & ~re.DEBUG)
    return pattern_fields(pattern)


def _secret(kind: Any) -> PlainShape:
    return PlainShape(lambda it: {"secret": it.get_secret_value()}, lambda fields: kind(fields["secret"]))


def _address(kind: Any) -> PlainShape:
    return PlainShape(lambda it: {"text": str(it)}, lambda fields: kind(fields["text"]))


def shape_of_class(kind: Any) -> Shape | None:
    """Return the shape of a class of the application; None if it has none."""
    try:
        shape = shape_of(kind)
        return None if isinstance(shape, ExceptionShape) else shape  # LangGraph stores the text of errors
    except InvalidError:
        return _pydantic_1(kind) if hasattr(kind, "__fields__") and hasattr(kind, "construct") else None


@cache
def _stand_ins() -> dict[str, Registration]:
    return {known.name: known for known in framework()}


def stand_in_of(kind: Any) -> Registration | None:
    """Return how LangGraph's own serializer would store objects of a class without a shape; or None.

    An error becomes its text, and an object of a subclass of a builtin class becomes a builtin object.
    """
    bases: tuple[Any, ...] = deque, re.Pattern, *_SUPERSEDED
    base: Any = next((base for base in bases if issubclass(kind, base)), None)
    if issubclass(kind, BaseException):
        return _stand_ins()["error"]
    if base in (deque, re.Pattern):
        return _stand_ins()["deque" if base is deque else "regex"]
    if base is not None:
        return Registration("plain", 1, kind, PlainShape(lambda it: {"value": base(it)}, _value))
    return None


def _value(fields: Mapping[str, Any]) -> Any:
    return fields["value"]


def _pydantic_1(kind: Any) -> Shape:
    def make(fields: Mapping[str, Any]) -> Any:
        made = kind.__new__(kind)
        _set(made, "__dict__", dict(fields))
        _set(made, "__fields_set__", set(fields))
        return made

    def take(value: Any) -> dict[str, Any]:
        if any(type(name) is not str for name in value.__dict__):
            raise InvalidError(f"{kind.__qualname__} has attributes whose names are not text")
        return dict(value.__dict__)

    return PlainShape(take, make)
