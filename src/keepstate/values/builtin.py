"""Builtin form: stored values for tools without the application's classes, and the same as JSON.

An object of a class becomes `{"@type": "profile@2", …}` with its fields. In JSON, every value without a JSON
type becomes such a dict too, with a name without a version: `{"@type": "tuple", "items": […]}`.

Invariant: a form loses nothing, so the codec writes it back to the same bytes. Facts that fields do not show
are in its `@unset`. A container that cannot hold forms as its members becomes a form that lists the parts.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePath
from types import EllipsisType
from typing import Any, Final, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from keepstate.errors import InvalidError, MissingExtraError
from keepstate.values import arrays, limits, standard, types
from keepstate.values.types import kind_of

TYPE: Final = "@type"
UNSET: Final = "@unset"
"""The names of pydantic's fields that were not set, if there are any."""
_ADDED: Final = frozenset({TYPE, UNSET})
_ARRAY, _SCALAR, _PICKLE = "numpy", "numpy scalar", "pickle"
_LEAF, _PARTS = "unreadable here", "parts"
RECORDS: Final = frozenset({_ARRAY, _SCALAR, _PICKLE, _LEAF, _PARTS})
"""The `@type` of forms that are records too, and not objects."""
_KEPT_AS_BYTES: Final = frozenset({types.PATH, types.DATETIME, types.TIME, types.ZONE})
"""The tags of leaves that some machines cannot create."""
_KEPT_AS_PARTS: Final = frozenset({
    types.SET, types.FROZENSET, types.MAP, types.OBJECT, types.ORDERED, types.COUNTER, types.DEFAULT
})  # fmt: skip
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
        """Return the fields without the `@type` and the `@unset`."""
        return {name: value for name, value in self.items() if name not in _ADDED}

    def unset(self) -> list[str]:
        """Return the names of the fields that were not set."""
        return [*self.get(UNSET, ())]

    def parts(self) -> tuple[int, list[Any]] | None:
        """Return tag and parts of a form that lists the stored parts; None for any other form."""
        return (self["tag"], self["parts"]) if self[TYPE] == _PARTS else None

    def stored(self) -> tuple[int, bytes | list[Any]]:
        """Return the tag, and the bytes of a leaf or the parts of a container.

        Raises:
            InvalidError: It is not a form of a stored value, or contains a pickle, which needs a signature.
        """
        try:
            return _stored(self)
        except InvalidError:
            raise
        except (ValueError, TypeError, LookupError, ArithmeticError, struct.error) as error:
            raise InvalidError(
                f"{str(self.get(TYPE))[:80]!r} is not a form of a stored value: {error}"
            ) from error


def object_form(
    name: str, version: int, fields: dict[str, Any], unset: list[str], *, is_plain: bool
) -> Record:
    """Return the form of a stored object.

    `is_plain` says that the names of its fields are UTF-8.
    """
    if is_plain and _ADDED.isdisjoint(fields):
        return Record({TYPE: f"{name}@{version}"} | ({UNSET: unset} if unset else {}) | fields)
    return parts_form(types.OBJECT, [name, version, fields, *([unset] if unset else [])])


def parts_form(tag: int, parts: list[Any]) -> Record:
    """Return the form of a container that lists its parts, such as a set of members with equal forms."""
    return Record({TYPE: _PARTS, "tag": tag, "parts": parts})


def _stored(form: Record) -> tuple[int, bytes | list[Any]]:
    kind = form[TYPE]
    if kind in (_ARRAY, _SCALAR):
        data = arrays.join(form["dtype"], form["shape"], form["data"])
        return (types.ARRAY if kind == _ARRAY else types.SCALAR), data
    if kind == _PICKLE:
        raise InvalidError(
            "a pickle in builtin form cannot be written: it needs its signature. Write it with a handle that "
            "has pickle=SignedPickle(…)"
        )
    if kind == _LEAF:
        return form["tag"], _checked_leaf(form["tag"], form["data"])
    if kind == _PARTS:
        return form["tag"], _checked_parts(form["tag"], form["parts"])
    name, version = form.named()
    unset = form.unset()
    return types.OBJECT, _checked_object([name, version, form.fields(), *([unset] if unset else [])])


def _checked_leaf(tag: Any, data: Any) -> bytes:
    if tag not in _KEPT_AS_BYTES or type(data) is not bytes:
        raise ValueError(f"no bytes are kept for the tag {tag!r}")
    with suppress(MissingExtraError):
        types.LEAF_READERS[tag](data)
    return data


def _checked_parts(tag: Any, parts: Any) -> list[Any]:
    if tag not in _KEPT_AS_PARTS or kind_of(parts) is not list:
        raise ValueError(f"no parts are kept for the tag {tag!r}")
    if tag == types.OBJECT:
        return _checked_object(parts)
    if tag == types.DEFAULT and (not parts or not (parts[0] is None or parts[0] in standard.FACTORIES)):
        raise ValueError("the factory of a defaultdict is not one that is stored")
    if tag not in (types.SET, types.FROZENSET) and len(parts) % 2 != (tag == types.DEFAULT):
        raise ValueError("a key has no value")
    for key in parts if tag in (types.SET, types.FROZENSET) else parts[tag == types.DEFAULT :: 2]:
        hash(key)
    return [*parts]


def _checked_object(parts: list[Any]) -> list[Any]:
    name, version, fields, *rest = parts
    is_named = type(name) is str and 0 < len(name.encode()) <= limits.TYPE_NAME_BYTES
    if (
        not is_named
        or "@" in name
        or not name.isprintable()
        or type(version) is not int
        or not 0 < version < 1 << 31
    ):
        raise ValueError(f"{str(name)[:80]!r} in version {str(version)[:80]} names no class")
    if kind_of(fields) is not dict or not all(type(field) is str for field in fields):
        raise ValueError("its fields are not named by text")
    if rest:
        (unset,) = rest
        if kind_of(unset) is not list or not unset or not all(type(field) is str for field in unset):
            raise ValueError("the fields that were not set are not a list of names")
    return parts


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
    form: dict[str, Any] = {TYPE: type(moment).__name__, "value": moment.isoformat()}
    if isinstance(moment.tzinfo, ZoneInfo):
        form["zone"] = moment.tzinfo.key
    elif isinstance(moment.tzinfo, timezone) and (name := _name_of(moment.tzinfo)) is not None:
        form["zone_name"] = _text(name)
    return form | ({"fold": 1} if moment.fold else {})


def _timezone(zone: timezone) -> Any:
    name, offset = _name_of(zone), zone.utcoffset(None)
    form: dict[str, Any] = {TYPE: "timezone", "value": str(timezone(offset))}
    return form if name is None else form | {"name": _text(name)}


def _name_of(zone: timezone) -> str | None:
    """Return the name that a fixed offset was given; None if it has none of its own."""
    name = zone.tzname(None)
    return None if name == timezone(zone.utcoffset(None)).tzname(None) else name


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
    timezone: _timezone,
    ZoneInfo: lambda zone: {TYPE: "zone", "value": zone.key},
}


def _numpy(kind: str) -> Callable[[bytes], Record]:
    def read(data: bytes) -> Record:
        dtype, shape, elements = arrays.split(data)
        return Record({TYPE: kind, "dtype": dtype, "shape": list(shape), "data": elements})

    return read


def _pickled(data: bytes) -> Record:
    name, dumped = types.split_pickle(data)
    return Record({TYPE: _PICKLE, "class": name, "data": dumped})


def _path(data: bytes) -> object:
    """Return a path; its bytes, if it is a concrete one of another operating system."""
    path = types.LEAF_READERS[types.PATH](data)
    written = types.leaf(path)
    return path if written is not None and written[1] == data else _bytes_form(types.PATH, data)


def _bytes_form(tag: int, data: bytes) -> Record:
    return Record({TYPE: _LEAF, "tag": tag, "data": data})


def _tolerant(tag: int, reader: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        try:
            return reader(data)
        except MissingExtraError:
            return _bytes_form(tag, data)

    return read


FORM_READERS: Final[Mapping[int, Callable[[bytes], object]]] = {
    **{tag: _tolerant(tag, reader) for tag, reader in types.LEAF_READERS.items()},
    types.ARRAY: _numpy(_ARRAY),
    types.SCALAR: _numpy(_SCALAR),
    types.PICKLE: _pickled,
    types.PATH: _path,
}
"""By tag: leaves as they are read where neither numpy nor time zones need be installed."""
