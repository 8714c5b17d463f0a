"""Values to canonical bytes, in C code where possible.

ormsgpack encodes plain values and hands over all others, including subclasses. Values that it cannot encode
(keys other than str, lone surrogates) or would silently flatten (bytearray, memoryview, another NaN) are
encoded by `encode_ext`, which also finds the path of a value that cannot be stored. Both give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final, cast

import ormsgpack

from keepstate.errors import InvalidError
from keepstate.values import limits, standard, types
from keepstate.values.builtin import Record
from keepstate.values.encode_ext import Lowering, Pickling, array_head, map_head
from keepstate.values.guards import is_crowded, nests_deeper
from keepstate.values.schema import Registry

_OPTIONS: Final = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_SUBCLASS
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_FLATTENED: Final = frozenset({bytearray, memoryview})
"""Types that ormsgpack silently encodes as bytes."""
_GROUPS: Final[frozenset[type]] = frozenset({list, dict})
_DICTS: Final[frozenset[type]] = frozenset({dict})
_VALUES: Final[Any] = cast("Any", dict).values
_SETS: Final = frozenset({types.SET, types.FROZENSET})
_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})
_OTHER_NAN: Final = re.compile(rb"\xcb(?:\x7f(?!\xf0\0{6}|\xf8\0{6})|\xff(?!\xf0\0{6}))[\xf0-\xff]")
"""A NaN of other bits than Python's own; some text matches too, and is only written more slowly."""

_FEW_MARKS: Final = 64
"""Maximum number of numbers checked one by one; above it a pattern scans every byte."""
_PART: Final = 128
"""Number of items of a long list or dict encoded together, because a buffer of megabytes costs more."""
_FEW: Final = 16
_FEW_DEEP: Final = 3
"""Depth to which short containers are searched for long ones."""

_pack = ormsgpack.packb


class Writer:
    """Encodes one level of tagged values; `_inner` encodes the next one. Holds no state of any value."""

    def __init__(self, registry: Registry, depth: int = 0, *, pickling: Pickling | None = None) -> None:
        self._registry, self._pickling = registry, pickling
        self._depth = depth
        self._inner = Writer(registry, depth + 1, pickling=pickling) if depth < limits.TAG_DEPTH else None

    def write(self, value: object) -> bytes:
        """Return the canonical bytes of a value.

        Raises:
            InvalidError: The value would not come back equal and with the same type; the error names the
                path.
        """
        body = self._plain(value)
        return self._write_lowered(value) if body is None else body

    def write_long(self, value: object) -> bytes | None:
        """Return the same as `write`, faster for long values; None if only `write` can encode the value."""
        try:
            return b"".join([*self._parts(value, 0)])
        except TypeError:
            return None

    def _plain(self, value: object) -> bytes | None:
        """Return the canonical bytes if ormsgpack encodes the value the same way; otherwise None."""
        try:
            body = _pack(value, self._tagged, _OPTIONS)
        except TypeError:
            return None
        # Bytes of text and numbers look like these marks too, so they only say that a closer look is due.
        if (0xC4 in body or 0xC5 in body or 0xC6 in body) and _holds_flattened(value):
            return None
        if 0xCB in body and (0x7F in body or 0xFF in body) and _holds_other_nan(body):
            return None
        return body

    def _parts(self, value: Any, depth: int) -> Iterator[bytes]:
        """Yield the encoding of a value part by part.

        Raises:
            TypeError: The value must be encoded as a whole.
        """
        kind = cast("Any", type(value))
        if (kind is not list and kind is not dict) or (len(value) > _FEW and len(value) <= _PART):
            yield self._part(value, depth)
        elif len(value) > _PART:
            yield array_head(len(value)) if kind is list else map_head(len(value))
            items = iter(value if kind is list else value.items())
            while some := cast("Any", kind(islice(items, _PART))):
                yield self._part(some, depth)[1 if len(some) < 16 else 3 :]
        elif depth == _FEW_DEEP:
            yield self._part(value, depth)
        elif kind is list:
            yield array_head(len(value))
            for item in value:
                yield from self._parts(item, depth + 1)
        else:
            yield map_head(len(value))
            for key, item in value.items():
                if type(key) is not str:
                    raise TypeError("a dict with keys that are not text is encoded as a whole")
                yield self._part(key, depth + 1)
                yield from self._parts(item, depth + 1)

    def _part(self, value: object, depth: int) -> bytes:
        for _ in range(depth):  # so that it may nest no deeper than the whole
            value = [value]
        body = self._plain(value)
        if body is None:
            raise TypeError("a part is to be lowered")
        return body[depth:]

    def _write_lowered(self, value: object) -> bytes:
        return Lowering(self._registry, self._depth, self._pickling).write(value)

    def _tagged(self, value: object) -> ormsgpack.Ext:
        """Return the tagged form of a value that msgpack does not have; any error becomes a TypeError."""
        kind = type(value)
        leaf = types.LEAF_WRITERS.get(kind)
        if leaf is not None:
            return ormsgpack.Ext(leaf[0], leaf[1](value))
        inner = self._inner
        if inner is None:
            raise InvalidError("too deep")
        if kind is tuple:
            items: Any = value
            tag, body = types.TUPLE, inner.write([*items])
        elif kind is set or kind is frozenset:
            items = value
            if is_crowded(items, as_set=True):
                raise InvalidError("the hashes of the members collide")
            members = sorted(map(inner.write, items))
            tag, body = (
                types.SET if kind is set else types.FROZENSET,
                array_head(len(members)) + b"".join(members),
            )
        elif (known := self._registry.of(kind)) is not None:
            tag, body = types.OBJECT, inner.write(known.parts(value))
        elif kind is Record:
            tag, stored = cast("Record", value).stored()
            if isinstance(stored, bytes):
                return ormsgpack.Ext(tag, stored)
            if tag in _SETS:
                body = array_head(len(stored)) + b"".join(sorted(map(inner.write, stored)))
            else:
                body = inner.write(stored)
        elif standard.is_standard(kind):
            parts = standard.parts_of(value)
            if is_crowded(parts.pairs):
                raise InvalidError("the hashes of the keys collide")
            tag, body = parts.tag, inner.write(parts.listed())
        elif (array := types.leaf(value)) is not None:
            return ormsgpack.Ext(*array)
        elif self._pickling is not None and (dumped := self._pickling(value)) is not None:
            return ormsgpack.Ext(types.PICKLE, dumped)
        else:
            raise InvalidError("not registered")
        if self._depth == 1 and nests_deeper(body, limits.INNER_DEPTH):
            raise InvalidError("too deep")
        return ormsgpack.Ext(tag, body)


def _holds_other_nan(body: bytes) -> bool:
    at = body.find(b"\xcb")
    for _ in range(_FEW_MARKS):
        if at < 0 or _OTHER_NAN.match(body, at):
            return at >= 0
        at = body.find(b"\xcb", at + 1)
    return at >= 0 and _OTHER_NAN.search(body, at) is not None


def _holds_flattened(value: object) -> bool:
    """Return whether plain lists and dicts contain such a value; tagged values are checked on their own."""
    level: list[Any] = [value]
    while level:
        kinds = set(map(type, level))
        if not _FLATTENED.isdisjoint(kinds):
            return True
        if not kinds & _GROUPS:
            return False
        if kinds <= _DICTS:
            level = list(chain.from_iterable(map(_VALUES, level)))
            continue
        groups: list[Any] = [
            group.values() if type(group) is dict else group for group in level if type(group) in _GROUPS
        ]
        level = [item for group in groups for item in group if type(item) not in _LEAVES]
    return False
