"""The nesting depth of an encoding, computed without recursion."""

from __future__ import annotations

import sys
from typing import Final

from keepstate.values.types import CONTAINERS

_SKIPPED: Final = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""Bytes after the first byte of numbers; nothing follows nil, false and true."""
_COUNTED: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Bytes of the length of byte strings and texts."""
_GROUPS: Final = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Bytes of the count of arrays and maps, and values for each counted."""
_TAGS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD4: 0, 0xD5: 0, 0xD6: 0, 0xD7: 0, 0xD8: 0}
"""Bytes of the length of tagged values; it is in the first byte for the short ones."""


_FIRST_OF_GROUPS: Final = {*range(0x80, 0xA0), *_GROUPS}
_NO_GROUP: Final = bytes(first for first in range(256) if first not in _FIRST_OF_GROUPS)


def nests_deeper(data: bytes, depth: int) -> bool:
    """Return whether an encoding nests deeper than `depth`. For most, counting bytes is enough."""
    if len(data) <= depth or len(data.translate(None, _NO_GROUP)) <= depth:
        return False
    return nesting(data, enough=depth + 1) > depth


def nesting(data: bytes, *, enough: int = sys.maxsize) -> int:
    """Return the maximum nesting of arrays and maps, tagged ones included.

    Truncated bytes count as far as they go. The scan stops at a depth of `enough`.
    """
    open_groups = [1]
    deepest = at = 0
    size = len(data)
    while open_groups and at < size and deepest < enough:
        if not open_groups[-1]:
            open_groups.pop()
            continue
        open_groups[-1] -= 1
        first = data[at]
        at += 1
        if first < 0x80 or first >= 0xE0:
            continue
        if first < 0xA0:
            open_groups.append(2 * (first & 0x0F) if first < 0x90 else first & 0x0F)
        elif first < 0xC0:
            at += first & 0x1F
        elif first in _SKIPPED:
            at += _SKIPPED[first]
        elif first in _COUNTED:
            at = _after(data, at, _COUNTED[first])
        elif first in _GROUPS:
            width, values = _GROUPS[first]
            open_groups.append(values * int.from_bytes(data[at : at + width]))
            at += width
        elif first in _TAGS:
            width = _TAGS[first]
            if at + width < size and data[at + width] in CONTAINERS:
                open_groups[-1] += 1
                at += width + 1
            else:
                at = _after(data, at, width) + 1 if width else at + 1 + (1 << (first - 0xD4))
        deepest = max(deepest, len(open_groups) - 1)
    return deepest


def _after(data: bytes, at: int, width: int) -> int:
    return at + width + int.from_bytes(data[at : at + width])
