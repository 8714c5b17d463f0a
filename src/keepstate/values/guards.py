"""Guards against hostile encodings: chosen hashes, and deep nesting.

Hash flooding uses keys chosen so that building a dict or set takes quadratic time.

Text and bytes are hashed with a secret of the process. Numbers, UUIDs, time spans, and tuples, sets and
objects of them are not, so the author of stored bytes can choose their hashes: equal ones, or different ones
that probe the same slots. The guard simulates CPython's tables with the hashes alone and counts the steps of
each key; above the bound it stops. Its time is linear in the number of keys, whatever they are.

The msgpack decoder builds a plain map before the guard sees its keys. The codec writes such maps with text
keys only, and tags a dict with other keys. So a large plain map with another key is rejected before decoding.

The nesting depth of an encoding is computed without recursion.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, TypeAlias

import msgspec
import ormsgpack

from keepstate.errors import CorruptError
from keepstate.values import limits
from keepstate.values.types import CONTAINERS

_SECRET: Final = frozenset({
    str, bytes, bool, type(None), date, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
})  # fmt: skip
"""Types whose hashes cannot be chosen, or that have too few values."""
_WORD: Final = (1 << 64) - 1
_SHIFT: Final = 5
"""Bits by which CPython shifts the part of the hash that perturbs the walk from slot to slot."""
_RUN: Final = 10
"""Neighbours that a set probes before it walks on."""
_RUN_STEPS: Final = 4
"""Steps of a dict that take about as long."""
_UNLOOKED_BYTES: Final = 16 * limits.UNCHECKED_KEYS
"""Encodings up to this size have too few keys to matter."""

Encoding: TypeAlias = bytes | memoryview | msgspec.Raw


def decoder(look: Callable[[int, memoryview], object]) -> Callable[[Encoding], Any]:
    """Return a decoder of one level of untrusted encodings, which rejects chosen keys.

    Args:
        look: Decodes a tagged value, given its tag and bytes.
    """

    def guarded(encoding: Encoding) -> Any:
        refuse_chosen_keys(encoding)
        return msgspec.msgpack.decode(encoding, ext_hook=look)  # a decoder takes ten times as long to make

    return guarded


def refuse_chosen_keys(encoding: Encoding) -> None:
    """Raise `CorruptError` for a large map with keys that are not text, which is never written.

    Tagged values are skipped.
    """
    if len(memoryview(encoding)) <= _UNLOOKED_BYTES:
        return
    data = bytes(encoding)
    if b"\xde" not in data and b"\xdf" not in data:  # the heads of maps of more than 15 keys
        return
    try:
        ormsgpack.unpackb(data, ext_hook=_pass_over)  # takes no key but text
    except ValueError as error:
        raise CorruptError(
            f"a stored value is damaged, or one of its maps has a key that is not text: {error}"
        ) from error


def _pass_over(tag: int, data: bytes) -> None:
    """Skip a tagged value."""


def is_crowded(keys: Collection[Any], *, as_set: bool = False) -> bool:
    """Return whether the keys of a dict or set take more than `limits.STEPS_PER_KEY` steps on average.

    Up to `limits.UNCHECKED_KEYS` keys are never crowded, because so few cost little.
    """
    if len(keys) <= limits.UNCHECKED_KEYS or _SECRET.issuperset(map(type, keys)):
        return False
    hashes = [hash(key) & _WORD for key in keys]
    stages, fills = (_set_stages, _fills_set) if as_set else (_dict_stages, _fills_dict)
    return not all(fills(hashes[:count], size) for size, count in stages(len(keys)))


def _dict_stages(count: int) -> Iterable[tuple[int, int]]:
    """Yield each table size of a growing dict, and the number of keys that it holds at most."""
    size = 8
    while True:
        room = size * 2 // 3
        if size > limits.UNCHECKED_KEYS:
            yield size, min(room, count)
        if room >= count:
            return
        size = 1 << (room * 3 - 1).bit_length()


def _set_stages(count: int) -> Iterable[tuple[int, int]]:
    """Yield the same for a growing set."""
    size = 8
    while True:
        room = -(-(size - 1) * 3 // 5)
        if size > limits.UNCHECKED_KEYS:
            yield size, min(room, count)
        if room > count:
            return
        size = 1 << (room * (2 if room > 50_000 else 4)).bit_length()


def _fills_dict(hashes: Sequence[int], size: int) -> bool:
    """Return whether the keys fit into a dict table of this size within the bound of steps."""
    taken, mask, met = bytearray(size), size - 1, 0
    for number, first in enumerate(hashes):
        slot = first & mask
        if taken[slot]:
            perturbed = first
            while taken[slot]:
                met += 1
                perturbed >>= _SHIFT
                slot = (slot * 5 + perturbed + 1) & mask
            if met > limits.STEPS_PER_KEY * (number + limits.UNCHECKED_KEYS):
                return False
        taken[slot] = 1
    return True


def _fills_set(hashes: Sequence[int], size: int) -> bool:
    """Return the same for a set, which probes the neighbours of a slot in each step."""
    taken, mask, met = bytearray(size), size - 1, 0
    for number, first in enumerate(hashes):
        slot = first & mask
        if taken[slot]:
            perturbed = first
            while (free := taken.find(0, slot, slot + (_RUN if slot + _RUN <= size else 1))) < 0:
                met += _RUN_STEPS
                perturbed >>= _SHIFT
                slot = (slot * 5 + perturbed + 1) & mask
            if met > limits.STEPS_PER_KEY * (number + limits.UNCHECKED_KEYS):
                return False
            slot = free
        taken[slot] = 1
    return True


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
