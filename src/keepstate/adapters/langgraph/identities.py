"""Identities of the objects in a list, read in one call: far faster than `is` for thousands of objects."""

from __future__ import annotations

import sys
from ctypes import c_void_p, sizeof, string_at
from typing import Any, Final

_ADDRESS_BYTES: Final = sizeof(c_void_p)
_ROW: Final = list.__basicsize__ - 2 * _ADDRESS_BYTES
"""Offset in a list object of the pointer to its items; the allocated length follows it."""


def identities(objects: list[Any]) -> bytes:
    """Return the addresses of objects, which are their ids, as the list stores them.

    Two results are equal if the lists hold the same objects in the same order, and the objects still live.
    For CPython only, and only if `ARE_TOLD`.
    """
    if not objects:
        return b""
    row = c_void_p.from_address(id(objects) + _ROW)
    return string_at(row.value or 0, len(objects) * _ADDRESS_BYTES)


def _are_told() -> bool:
    if sys.implementation.name != "cpython":
        return False
    objects = [object(), None, "text", object()]
    return identities(objects) == b"".join(id(one).to_bytes(_ADDRESS_BYTES, sys.byteorder) for one in objects)


ARE_TOLD: Final = _are_told()
"""True if this Python stores lists in the form that `identities` reads."""
