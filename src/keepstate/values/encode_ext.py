"""Values to canonical bytes, step by step. Slower than `encode`, but complete, and its errors name the path.

A value is rewritten into what plain msgpack holds, every other type as an Ext. The first thing that would not
come back equal and of the same type raises `InvalidError` that names its path, as do a cycle and too deep a
value.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from types import ModuleType
from typing import Any, Final, TypeAlias
from uuid import UUID

import ormsgpack

from keepstate.errors import InvalidError
from keepstate.values import limits, standard, types
from keepstate.values.builtin import Record
from keepstate.values.guards import is_crowded, nests_deeper
from keepstate.values.schema import Registration, Registry
from keepstate.values.types import kind_of

_NAN: Final = float("nan")
_SHOWN: Final = 200
"""Maximum number of characters of a path in an error."""
_SUPERSEDED: Final = (
    *(str, int, float, complex, bytes, list, dict, set, frozenset, tuple),
    *(datetime, date, time, timedelta, Decimal, UUID, PurePath),
)
"""Types as which errors advise to store their subclasses."""


Pickling: TypeAlias = Callable[[object], bytes | None]
"""Returns the stored form of an object of an unregistered class, or None if it may not be pickled."""


class Lowering:
    """Rewrites one value; used once."""

    def __init__(self, registry: Registry, tags: int = 0, pickling: Pickling | None = None) -> None:
        self._registry, self._pickling = registry, pickling
        self._tags = tags
        self._plain = 0
        self._path: list[str] = []
        self._open: set[int] = set()

    def write(self, value: object) -> bytes:
        """Return the canonical bytes, or raise `InvalidError` with the path."""
        try:
            return ormsgpack.packb(self._lower(value))
        except RecursionError:
            raise self._refusal("the value nests too deep for the room left on the call stack") from None

    def _lower(self, value: Any) -> object:
        kind = kind_of(value)
        if kind is str:
            return self._lower_text(value)
        if value is None or kind is bool or kind is bytes:
            return value
        if kind is int and -(1 << 63) <= value < 1 << 64:
            return value
        if kind is float:
            return value if value == value else _NAN
        if kind is list or kind is dict:
            return self._lower_group(value)
        return self._lower_tagged(value)

    def _lower_text(self, text: str) -> str | ormsgpack.Ext:
        try:
            text.encode()
        except UnicodeEncodeError:
            return ormsgpack.Ext(types.LOOSE_TEXT, types.write_loose_text(text))
        return text

    def _lower_group(self, group: Any) -> object:
        self._enter(group)
        self._plain += 1
        if self._plain > limits.PLAIN_DEPTH:
            raise self._refusal(f"lists and dicts stand more than {limits.PLAIN_DEPTH} deep in one another")
        lowered: object
        kind = kind_of(group)
        if kind is list:
            lowered = self._lower_items(group)
        elif all(type(key) is str and type(self._lower_text(key)) is str for key in group):
            lowered = self._lower_values(group)
        else:
            lowered = self._lower_map(group)
        self._plain -= 1
        self._open.discard(id(group))
        return lowered

    def _lower_items(self, items: Any) -> list[object]:
        lowered: list[object] = []
        path = self._path
        for index, item in enumerate(items):
            path.append(f"[{index}]")
            lowered.append(self._lower(item))
            path.pop()
        return lowered

    def _lower_values(self, fields: dict[str, object]) -> dict[str, object]:
        lowered: dict[str, object] = {}
        path = self._path
        for key, value in fields.items():
            path.append(_step(key))
            lowered[key] = self._lower(value)
            path.pop()
        return lowered

    def _lower_map(self, group: dict[object, object]) -> ormsgpack.Ext:
        self._refuse_crowd(group, as_set=False)
        outer = self._enter_tag()
        return self._tag(types.MAP, self._lower_pairs(group), outer)

    def _lower_pairs(self, group: Mapping[object, object]) -> list[object]:
        pairs: list[object] = []
        path = self._path
        for key, value in group.items():
            path.append(f"{{key {_short(key)}}}")
            pairs.append(self._lower(key))
            path[-1] = _step(key)
            pairs.append(self._lower(value))
            path.pop()
        return pairs

    def _lower_tagged(self, value: Any) -> ormsgpack.Ext:
        kind = kind_of(value)
        try:
            found = types.leaf(value)
        except InvalidError as error:
            raise self._refusal(str(error)) from None
        if found is not None:
            return ormsgpack.Ext(*found)
        if kind is tuple:
            return self._lower_inside(types.TUPLE, value)
        if kind is set or kind is frozenset:
            return self._lower_set(types.SET if kind is set else types.FROZENSET, value)
        if kind is Record:
            return self._lower_form(value)
        known = self._registry.of(kind)
        if known is None and standard.is_standard(kind):
            return self._lower_standard(value)
        if known is None and (dumped := self._pickled(value)) is not None:
            return ormsgpack.Ext(types.PICKLE, dumped)
        if known is None:
            raise self._refusal(self._advice(value))
        return self._lower_object(known, value)

    def _pickled(self, value: object) -> bytes | None:
        try:
            return None if self._pickling is None else self._pickling(value)
        except InvalidError as error:
            raise self._refusal(str(error)) from error

    def _lower_inside(self, tag: int, items: Any) -> ormsgpack.Ext:
        self._enter(items)
        outer = self._enter_tag()
        lowered = self._lower_items(items)
        self._open.discard(id(items))
        return self._tag(tag, lowered, outer)

    def _lower_set(self, tag: int, members: Any) -> ormsgpack.Ext:
        self._refuse_crowd(members, as_set=True)
        outer = self._enter_tag()
        written: list[bytes] = []
        for member in members:
            self._path.append(f"{{{_short(member)}}}")
            written.append(self._pack(self._lower(member)))
            self._path.pop()
        return self._tag_bytes(tag, array_head(len(written)) + b"".join(sorted(written)), outer)

    def _lower_object(self, known: Registration, value: object) -> ormsgpack.Ext:
        self._enter(value)
        outer = self._enter_tag()
        try:
            name, version, fields, *unset = known.parts(value)
        except InvalidError as error:
            raise self._refusal(str(error)) from None
        lowered = self._lower_group(fields)
        self._open.discard(id(value))
        return self._tag(types.OBJECT, [name, version, lowered, *unset], outer)

    def _lower_form(self, form: Record) -> ormsgpack.Ext:
        """Rewrite a value in builtin form, which `Reader` has read."""
        self._enter(form)
        try:
            tag, stored = form.stored()
        except InvalidError as error:
            raise self._refusal(str(error)) from None
        if isinstance(stored, bytes):
            self._open.discard(id(form))
            return ormsgpack.Ext(tag, stored)
        outer = self._enter_tag()
        lowered = self._lower_items(stored)
        self._open.discard(id(form))
        if tag in (types.SET, types.FROZENSET):
            written = sorted(map(self._pack, lowered))
            return self._tag_bytes(tag, array_head(len(written)) + b"".join(written), outer)
        return self._tag(tag, lowered, outer)

    def _lower_standard(self, value: object) -> ormsgpack.Ext:
        self._enter(value)
        try:
            tag, fixed, items, pairs = standard.parts_of(value)
        except InvalidError as error:
            raise self._refusal(str(error)) from None
        self._refuse_crowd(pairs, as_set=False)
        outer = self._enter_tag()
        lowered: list[object] = []
        for name, part in fixed.items():
            self._path.append(f".{name}")
            lowered.append(self._lower(part))
            self._path.pop()
        lowered += self._lower_items(items)
        lowered += self._lower_pairs(pairs)
        self._open.discard(id(value))
        return self._tag(tag, lowered, outer)

    def _refuse_crowd(self, keys: Any, *, as_set: bool) -> None:
        if is_crowded(keys, as_set=as_set):
            raise self._refusal(
                "the hashes of its keys collide, and reading them would take very long; store a list"
            )

    def _enter(self, group: object) -> None:
        if id(group) in self._open:
            raise self._refusal("the value contains itself; store a tree, or names instead of references")
        self._open.add(id(group))

    def _enter_tag(self) -> int:
        """Restart the count of plain nesting at the list of parts, and return the count so far."""
        if self._tags >= limits.TAG_DEPTH:
            raise self._refusal(
                f"tuples, sets and objects stand more than {limits.TAG_DEPTH} deep in one another"
            )
        self._tags += 1
        outer, self._plain = self._plain, 1
        return outer

    def _tag(self, tag: int, parts: list[object], outer: int) -> ormsgpack.Ext:
        return self._tag_bytes(tag, self._pack(parts), outer)

    def _tag_bytes(self, tag: int, body: bytes, outer: int) -> ormsgpack.Ext:
        self._tags -= 1
        self._plain = outer
        if self._tags == 1 and nests_deeper(body, limits.INNER_DEPTH):
            raise self._refusal(
                f"a tuple, set or object inside another is more than {limits.INNER_DEPTH} deep"
            )
        return ormsgpack.Ext(tag, body)

    def _pack(self, lowered: object) -> bytes:
        try:
            return ormsgpack.packb(lowered)
        except TypeError as error:
            raise self._refusal(f"it cannot be encoded: {error}") from error

    def _advice(self, value: object) -> str:
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if (code := _code_name(value)) is not None:
            return (
                f"{code} is code and not a value; store its name, or what it returns (a task's step keeps a "
                "function or class that is a variable of its own)"
            )
        if isinstance(value, BaseException):
            return f"the exception {name} is not registered; register its class, or store str() of it"
        if isinstance(value, bytearray | memoryview):
            return f"a {kind.__name__} does not come back as one; store bytes(…)"
        if isinstance(value, enum.Enum):
            return f"the Enum {name} is not registered; register it or store its value"
        if self._registry.is_replaced(kind):
            return f"its class is an earlier definition of {name}; create it again with the registered class"
        for base in _SUPERSEDED:
            if isinstance(value, base):
                better = (
                    f"register it, or store {base.__name__}(…)"
                    if hasattr(kind, "_fields")
                    else f"store {base.__name__}(…)"
                )
                return f"{name}, a subclass of {base.__name__}, does not come back; {better}"
        return (
            f"{name} is not registered; register the class, store its fields, or allow it in "
            "pickle=SignedPickle(…)"
        )

    def _refusal(self, reason: str) -> InvalidError:
        path = "".join(self._path).removeprefix(".")
        if len(path) > _SHOWN:
            path = f"{path[: _SHOWN // 2]}…{path[-_SHOWN // 2 :]}"
        return InvalidError(f"{path or 'the value'}: {reason}", path=path)


def array_head(count: int) -> bytes:
    """Return the bytes that msgpack writes before the items of an array."""
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2) if count < 1 << 16 else b"\xdd" + count.to_bytes(4)


def array_count(encoding: bytes) -> int:
    """Return the number of items of an encoded array, from its first bytes."""
    first = encoding[0]
    return first & 0x0F if first < 0xA0 else int.from_bytes(encoding[1 : 3 if first == 0xDC else 5])


def map_head(count: int) -> bytes:
    """Return the bytes that msgpack writes before the keys and values of a map."""
    if count < 16:
        return bytes((0x80 | count,))
    return b"\xde" + count.to_bytes(2) if count < 1 << 16 else b"\xdf" + count.to_bytes(4)


def _code_name(value: object) -> str | None:
    """Return a name for functions, classes, modules and the like; None for other values."""
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    if isinstance(value, Generator | Coroutine | AsyncGenerator):
        return "a running generator or coroutine"
    if callable(value) and type(value).__module__ in ("builtins", "functools"):
        return f"the function {getattr(value, '__qualname__', type(value).__qualname__)}"
    return None


def _step(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_short(key)}]"


def _short(key: object) -> str:
    if isinstance(key, str | bytes):
        return repr(key) if len(key) <= 40 else f"{key[:40]!r}…"
    if key is None or isinstance(key, float) or (isinstance(key, int) and key.bit_length() <= 64):
        return repr(key)
    return type(key).__qualname__
