"""Which objects stand in a list, to the very object: told of thousands at once, far faster than with `is`."""

from __future__ import annotations

import sys
from ctypes import c_void_p, sizeof, string_at
from typing import Any, Final

_ADDRESS_BYTES: Final = sizeof(c_void_p)
_ROW: Final = list.__basicsize__ - 2 * _ADDRESS_BYTES
"""Where in a list it says where its items are; behind that stands for how many there is room."""


def identities(objects: list[Any]) -> bytes:
    """Return the addresses of objects, which are their ids, as a list keeps them: in a row.

    They equal others if those are of the very same objects in the same order, and these still live. On
    CPython alone, and where `ARE_TOLD`.
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
"""Whether this Python keeps lists as `identities` needs it."""
