"""Which objects stand in a list, to the very object: told of thousands at once, far faster than with `is`."""

from __future__ import annotations

import sys
from ctypes import c_void_p, sizeof, string_at
from typing import Any, Final, TypeAlias

Identities: TypeAlias = bytes | list[int]
"""Equal to another if that was made of the very same objects in the same order, and those still live."""

_ADDRESS_BYTES: Final = sizeof(c_void_p)
_ROW: Final = list.__basicsize__ - 2 * _ADDRESS_BYTES
"""Where in a list it says where its items are; behind that stands for how many there is room."""


def by_id(objects: list[Any]) -> Identities:
    """Returns them on any Python."""
    return [*map(id, objects)]


def by_address(objects: list[Any]) -> Identities:
    """Returns them on CPython: there `id` is an object's address, and a list keeps a row of addresses."""
    if not objects:
        return b""
    row = c_void_p.from_address(id(objects) + _ROW)
    return string_at(row.value or 0, len(objects) * _ADDRESS_BYTES)


def _keeps_rows() -> bool:
    """Whether lists lie in memory as `by_address` needs it."""
    if sys.implementation.name != "cpython":
        return False
    objects = [object(), None, "text", object()]
    return by_address(objects) == b"".join(id(one).to_bytes(_ADDRESS_BYTES, sys.byteorder) for one in objects)


identities: Final = by_address if _keeps_rows() else by_id
