"""Builtin form: stored values for tools without the application's classes, and the same as JSON.

An object of a class becomes `{"@type": "profile@2", …}` with its fields. In JSON, every value without a JSON
type becomes such a dict too, with a name without a version: `{"@type": "tuple", "items": […]}`.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePath
from types import EllipsisType
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from keepstate.errors import InvalidError, MissingExtraError
from keepstate.values import arrays, standard, types
from keepstate.values.types import kind_of

TYPE: Final = "@type"
_SCALARS: Final = frozenset({str, bytes, int, float, bool, UUID, datetime, date, type(None)})


class Record(dict[str, Any]):
    """The builtin form of an object; its own type, so that no dict is mistaken for it."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none
        # Equal forms have equal scalars; without them all objects of a class in a set would have one hash.
        return hash(frozenset((name, value) for name, value in self.items() if type(value) in _SCALARS))

    def named(self) -> tuple[str, int]:
        """Return the name and version of the class."""
        name, _, version = str(self[TYPE]).rpartition("@")
        return name, int(version)

    def fields(self) -> dict[str, Any]:
        """Return the fields without the `@type`."""
        return {name: value for name, value in self.items() if name != TYPE}


class _FormlessError(Exception):
    """A value of a class has no JSON form."""

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value


def json_form(value: object, path: str = "") -> Any:
    """Return the builtin form in JSON types: dicts with str keys, lists, text, numbers, bools and None.

    Args:
        value: A value in builtin form.
        path: Path of the value, for error messages.

    Raises:
        InvalidError: The value contains an object, whose path the error names, or nests too deep for the room
            left on the call stack.
    """
    try:
        return _json(value)
    except _FormlessError as error:
        kind, at = kind_of(error.value), _path_to(value, error.value, path)
        raise InvalidError(
            f"{at or 'the value'}: {kind.__module__}.{kind.__qualname__} has no form in JSON; store its "
            "fields, or what str() makes of it",
            path=at,
        ) from None
    except RecursionError:
        raise InvalidError("the value nests too deep to be shown as JSON") from None


def _path_to(value: Any, sought: object, path: str) -> str | None:
    """Return the path of an object inside a value, as `a[0].b`; None if it is absent."""
    if value is sought:
        return path
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        named = [(f"{path}.{name}" if path else str(name), name, part) for name, part in items]
        parts = [(at, each) for at, name, part in named for each in (part, name)]
    elif isinstance(value, list | tuple):
        items_of = cast("Sequence[object]", value)
        parts = [(f"{path}[{index}]", part) for index, part in enumerate(items_of)]
    elif isinstance(value, set | frozenset):
        parts = [(f"{path}[…]", part) for part in cast("Collection[object]", value)]
    found = (_path_to(part, sought, at) for at, part in parts)
    return next((at for at in found if at is not None), None)


def _json(value: Any) -> Any:
    kind = kind_of(value)
    if value is None or kind is bool:
        return value
    if kind is Record:
        return {name: _json(field) for name, field in value.items()}
    form = _FORMS.get(kind)
    if form is not None:
        return form(value)
    if standard.is_standard(kind):
        return _standard(value)
    if isinstance(value, PurePath):
        return {TYPE: "path", "kind": kind.__name__, "value": _json(str(value))}
    raise _FormlessError(value)


def _text(text: str) -> Any:
    return {TYPE: "str", "escaped": text.encode("unicode_escape").decode()} if _is_loose(text) else text


def _is_loose(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _int(number: int) -> Any:
    return number if -(1 << 63) <= number < 1 << 64 else {TYPE: "int", "value": hex(number)}


def _float(number: float) -> Any:
    return number if math.isfinite(number) else {TYPE: "float", "value": repr(number)}


def _dict(group: dict[Any, Any]) -> Any:
    if TYPE not in group and all(type(key) is str and not _is_loose(key) for key in group):
        return {key: _json(value) for key, value in group.items()}
    return {TYPE: "map", "items": [[_json(key), _json(value)] for key, value in group.items()]}


def _group(name: str) -> Callable[[Any], Any]:
    return lambda group: {TYPE: name, "items": [_json(item) for item in group]}


def _members(name: str) -> Callable[[Any], Any]:
    return lambda group: {TYPE: name, "items": sorted(map(_json, group), key=msgspec.json.encode)}


def _standard(value: Any) -> Any:
    """Return the named parts of a value of the standard library, with its items or pairs if it has any."""
    tag, fixed, items, pairs = standard.parts_of(value)
    form: dict[str, Any] = {TYPE: _STANDARD_NAMES[tag], **{name: _json(part) for name, part in fixed.items()}}
    if tag == types.DEQUE:
        form["items"] = [_json(item) for item in items]
    elif tag in (types.ORDERED, types.COUNTER, types.DEFAULT):
        form["items"] = [[_json(key), _json(part)] for key, part in pairs.items()]
    return form


_STANDARD_NAMES: Final = {
    types.DEQUE: "deque",
    types.ORDERED: "ordered dict",
    types.COUNTER: "counter",
    types.DEFAULT: "defaultdict",
    types.RANGE: "range",
    types.FRACTION: "fraction",
    types.PATTERN: "pattern",
    types.EXCEPTION: "exception",
}


def _datetime(moment: datetime | time) -> Any:
    form = {TYPE: type(moment).__name__, "value": moment.isoformat()}
    if isinstance(moment.tzinfo, ZoneInfo):
        form["zone"] = moment.tzinfo.key
    return form | ({"fold": 1} if moment.fold else {})


def _timedelta(span: timedelta) -> Any:
    return {TYPE: "timedelta", "days": span.days, "seconds": span.seconds, "microseconds": span.microseconds}


_FORMS: Final[Mapping[type, Callable[[Any], Any]]] = {
    str: _text,
    int: _int,
    float: _float,
    bytes: lambda data: {TYPE: "bytes", "base64": b64encode(data).decode()},
    list: lambda items: [_json(item) for item in items],
    dict: _dict,
    tuple: _group("tuple"),
    set: _members("set"),
    frozenset: _members("frozenset"),
    EllipsisType: lambda _: {TYPE: "ellipsis"},
    complex: lambda number: {TYPE: "complex", "real": _float(number.real), "imaginary": _float(number.imag)},
    Decimal: lambda number: {TYPE: "decimal", "value": str(number)},
    UUID: lambda value: {TYPE: "uuid", "value": str(value)},
    datetime: _datetime,
    time: _datetime,
    date: lambda day: {TYPE: "date", "value": day.isoformat()},
    timedelta: _timedelta,
    timezone: lambda zone: {TYPE: "timezone", "value": _text(str(zone))},
    ZoneInfo: lambda zone: {TYPE: "zone", "value": zone.key},
}


def _array(data: bytes) -> Record:
    dtype, shape, elements = arrays.split(data)
    return Record({TYPE: "numpy", "dtype": dtype, "shape": list(shape), "data": elements})


def _pickled(data: bytes) -> Record:
    name, dumped = types.split_pickle(data)
    return Record({TYPE: "pickle", "class": name, "data": dumped})


def _tolerant(tag: int, reader: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        try:
            return reader(data)
        except MissingExtraError:
            return Record({TYPE: "unreadable here", "tag": tag, "data": data})

    return read


FORM_READERS: Final[Mapping[int, Callable[[bytes], object]]] = {
    **{tag: _tolerant(tag, reader) for tag, reader in types.LEAF_READERS.items()},
    types.ARRAY: _array,
    types.SCALAR: _array,
    types.PICKLE: _pickled,
}
"""By tag: leaves as they are read where neither numpy nor time zones need be installed."""
