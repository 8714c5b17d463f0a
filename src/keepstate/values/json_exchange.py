"""Values in builtin form as JSON for other programs, and back: `from_json(to_json(form))` is the same value.

The JSON is that of `builtin.json_form`, but an integer beyond 2^53 is tagged too, because many JSON readers
turn every number into a float. Invariant: `from_json` takes time and memory in proportion to its input, and
creates no object of a class. A program that turns `1.0` into `1` changes the value.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import EllipsisType
from typing import Any, Final, cast
from uuid import UUID

from keepstate.errors import InvalidError, KeepstateError
from keepstate.values import standard, types
from keepstate.values.builtin import FORM_READERS, RECORDS, TYPE, Record, json_form
from keepstate.values.guards import is_crowded
from keepstate.values.types import kind_of

_SAFE: Final = (1 << 53) - 1
"""The largest integer that a reader of JSON with floats keeps."""
_INT: Final = re.compile(r"-?(?:\d{1,20}|0x[0-9a-f]+)", re.ASCII)
_ESCAPED: Final = re.compile(
    r"(?:[ -\[\]-~]|\\(?:[\\nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}))*", re.ASCII
)
_PATH_KINDS: Final = {
    "PurePosixPath": b"p",
    "PureWindowsPath": b"w",
    "PosixPath": b"P",
    "WindowsPath": b"W",
}
_WRONG: Final = (ValueError, TypeError, LookupError, ArithmeticError, struct.error, re.error)


def to_json(value: object) -> Any:
    """Return a value in builtin form as JSON types, without an integer beyond 2^53 outside of a text.

    Raises:
        InvalidError: The value contains an object, whose path the error names, or nests too deep for the room
            left on the call stack.
    """
    form = json_form(value)
    try:
        return _tag_large_ints(form)
    except RecursionError:
        raise InvalidError("the value nests too deep to be shown as JSON") from None


def _tag_large_ints(form: Any) -> Any:
    kind = kind_of(form)
    if kind is int:
        return form if -_SAFE <= form <= _SAFE else {TYPE: "int", "value": str(form)}
    if kind is list:
        return [_tag_large_ints(item) for item in form]
    if kind is dict:
        return {name: _tag_large_ints(part) for name, part in form.items()}
    return form


def from_json(form: object) -> Any:
    """Return the value in builtin form that `to_json` was given; the codec writes it to the same bytes.

    Args:
        form: A parsed JSON text. It may come from a stranger.

    Raises:
        InvalidError: It is not such a JSON text, or nests too deep for the room left on the call stack.
    """
    try:
        return _read(form)
    except RecursionError:
        raise InvalidError("the JSON nests too deep to be read as a value") from None


def _read(form: Any) -> Any:
    kind = kind_of(form)
    if form is None or kind in (bool, int, str) or (kind is float and form - form == 0):
        return form
    if kind is list:
        return [_read(item) for item in form]
    if kind is not dict or not all(type(name) is str for name in form):
        raise InvalidError(f"{str(form)[:40]} is not JSON: it is a {kind.__qualname__}")
    if TYPE not in form:
        return {name: _read(part) for name, part in form.items()}
    return _read_tagged(form)


def _read_tagged(form: dict[str, Any]) -> Any:
    name, *parts = form[TYPE], *((part, _read(given)) for part, given in form.items() if part != TYPE)
    if type(name) is str and ("@" in name or name in RECORDS):
        return Record({TYPE: name, **dict(parts)})
    try:
        return _READERS[name](**dict(parts))
    except KeepstateError:
        raise
    except _WRONG as error:
        raise InvalidError(f"the form with the {TYPE} {str(name)[:40]!r} is not a value: {error}") from error


# ---- scalars


def _text(escaped: str) -> str:
    if _ESCAPED.fullmatch(escaped) is None:
        raise ValueError("the text is not escaped")
    return escaped.encode("ascii").decode("unicode_escape")


def _int(value: str) -> int:
    if _INT.fullmatch(value) is None:
        raise ValueError("an integer is decimal with up to 20 digits, or hexadecimal")
    return int(value, 16 if "x" in value else 10)


def _float(value: str) -> float:
    return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[value]


def _complex(real: float, imaginary: float) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise TypeError("the parts of a complex number are floats")
    return complex(real, imaginary)


def _path(kind: str, value: str) -> object:
    return FORM_READERS[types.PATH](_PATH_KINDS[kind] + types.write_loose_text(value))


def _bytes(base64: str) -> bytes:
    return b64decode(base64, validate=True)


def _decimal(value: str) -> Decimal:
    if type(value) is not str:
        raise TypeError("a decimal number is a text")
    return Decimal(value)


def _uuid(value: str) -> UUID:
    return UUID(value)


def _ellipsis() -> EllipsisType:
    return ...


# ---- moments


def _datetime(value: str, zone: str | None = None, zone_name: str | None = None, fold: int = 0) -> object:
    moment = datetime.fromisoformat(value)
    naive = moment.replace(tzinfo=None, fold=fold)
    return _with_zone(types.DATETIME, naive, moment.tzinfo, zone, zone_name)


def _time(value: str, zone: str | None = None, zone_name: str | None = None, fold: int = 0) -> object:
    moment = time.fromisoformat(value)
    naive = moment.replace(tzinfo=None, fold=fold)
    return _with_zone(types.TIME, naive, moment.tzinfo, zone, zone_name)


def _with_zone(
    tag: int, naive: datetime | time, offset: tzinfo | None, key: str | None, name: str | None
) -> object:
    """Return a moment in a zone; in its bytes, if this machine does not know the zone."""
    if key is not None:
        return FORM_READERS[tag](_bytes_of(naive) + types.zone_of_key(key))
    if name is not None:
        offset = _named(offset, name)
    return naive.replace(tzinfo=offset)


def _bytes_of(value: object) -> bytes:
    leaf = types.leaf(value)
    assert leaf is not None
    return leaf[1]


def _named(zone: tzinfo | None, name: str) -> timezone:
    offset = None if zone is None else zone.utcoffset(None)
    if offset is None:
        raise ValueError("a zone with a name has no offset")
    return timezone(offset, name)


def _zone(value: str) -> object:
    return FORM_READERS[types.ZONE](types.zone_of_key(value))


def _timezone(value: str, name: str | None = None) -> timezone:
    if not value.startswith("UTC"):
        raise ValueError("a fixed offset begins with UTC")
    zone = time.fromisoformat(f"00:00{value[3:] or '+00:00'}").tzinfo
    if not isinstance(zone, timezone):
        raise ValueError("it has no offset")
    return zone if name is None else _named(zone, name)


def _date(value: str) -> date:
    return date.fromisoformat(value)


def _timedelta(days: int, seconds: int, microseconds: int) -> timedelta:
    if not all(type(part) is int for part in (days, seconds, microseconds)):
        raise TypeError("the parts of a time span are integers")
    return timedelta(days, seconds, microseconds)


# ---- containers


def _group(tag: int) -> Callable[[list[Any]], object]:
    def read(items: list[Any]) -> object:
        members = _list(items)
        if is_crowded(members, as_set=True):
            raise ValueError("the hashes of its members collide")
        made: Any = set(members) if tag == types.SET else frozenset(members)
        if len(made) != len(members):
            raise ValueError("two members are equal")
        return made

    return read


def _tuple(items: list[Any]) -> tuple[Any, ...]:
    return tuple(_list(items))


def _list(items: Any) -> list[Any]:
    if kind_of(items) is not list:
        raise TypeError("its items are not a list")
    return cast("list[Any]", items)


def _flat(items: Any) -> list[Any]:
    """Return keys and values in turn; no two keys are equal."""
    pairs = _list(items)
    if not all(kind_of(pair) is list and len(pair) == 2 for pair in pairs):
        raise ValueError("its items are not pairs")
    keys = [pair[0] for pair in pairs]
    if is_crowded(keys):
        raise ValueError("the hashes of its keys collide")
    if len(set(keys)) != len(keys):
        raise ValueError("two keys are equal")
    return [part for pair in pairs for part in pair]


def _map(items: Any) -> dict[Any, Any]:
    flat = _flat(items)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _made(tag: int, *names: str) -> Callable[..., object]:
    """Return the reader of a value of the standard library with these named parts."""

    def read(**parts: Any) -> object:
        fixed = [parts.pop(name) for name in names]
        items = parts.pop("items", [])
        if parts:
            raise ValueError(f"it has no {next(iter(parts))!r}")
        return standard.made_of(tag, [*fixed, *(_list(items) if tag == types.DEQUE else _flat(items))])

    return read


_READERS: Final[Mapping[str, Callable[..., object]]] = {
    "str": _text,
    "int": _int,
    "float": _float,
    "complex": _complex,
    "bytes": _bytes,
    "ellipsis": _ellipsis,
    "decimal": _decimal,
    "uuid": _uuid,
    "path": _path,
    "datetime": _datetime,
    "time": _time,
    "date": _date,
    "timedelta": _timedelta,
    "timezone": _timezone,
    "zone": _zone,
    "tuple": _tuple,
    "set": _group(types.SET),
    "frozenset": _group(types.FROZENSET),
    "map": _map,
    "deque": _made(types.DEQUE, "maxlen"),
    "ordered dict": _made(types.ORDERED),
    "counter": _made(types.COUNTER),
    "defaultdict": _made(types.DEFAULT, "default_factory"),
    "range": _made(types.RANGE, "start", "stop", "step"),
    "fraction": _made(types.FRACTION, "numerator", "denominator"),
    "pattern": _made(types.PATTERN, "pattern", "flags"),
    "exception": _made(types.EXCEPTION, "kind", "args", "attributes"),
}
"""By `@type`: the function that creates the value from its named parts."""
