"""Guards against hash flooding: keys chosen so that building a dict or set takes quadratic time.

Text and bytes are hashed with a secret of the process. Numbers, UUIDs, time spans, and tuples, sets and
objects of them are not, so the author of stored bytes can choose their hashes: equal ones, or different ones
that probe the same slots. The guard simulates CPython's tables with the hashes alone and counts the steps of
each key; above the bound it stops. Its time is linear in the number of keys, whatever they are.

The msgpack decoder builds a plain map before the guard sees its keys. The codec writes such maps with text
keys only, and tags a dict with other keys. So a large plain map with another key is rejected before decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final, TypeAlias

import msgspec
import ormsgpack

from keepstate.errors import CorruptError
from keepstate.values import limits

_SECRET: Final = frozenset({
    str, bytes, bool, type(None), date, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
})  # fmt: skip
"""Types whose hashes cannot be chosen, or that have too few values."""
_WORD: Final = (1 << 64) - 1
_SHIFT: Final = 5
"""By so many bits CPython shifts the part of the hash that perturbs the walk from slot to slot."""
_RUN: Final = 10
"""So many neighbours a set looks at before it walks on."""
_RUN_STEPS: Final = 4
"""Of a dict, which take about as long."""
_UNLOOKED_BYTES: Final = 16 * limits.UNCHECKED_KEYS
"""Up to so many bytes hold too few keys, whatever they are."""

Encoding: TypeAlias = bytes | memoryview | msgspec.Raw


def decoder(look: Callable[[int, memoryview], object]) -> Callable[[Encoding], Any]:
    """Return a decoder of one level of untrusted encodings, which rejects chosen keys.

    Args:
        look: Decodes a tagged value, given its tag and bytes.
    """
    decode = msgspec.msgpack.Decoder(ext_hook=look).decode

    def guarded(encoding: Encoding) -> Any:
        refuse_chosen_keys(encoding)
        return decode(encoding)

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
    for place, first in enumerate(hashes):
        slot = first & mask
        if taken[slot]:
            perturbed = first
            while taken[slot]:
                met += 1
                perturbed >>= _SHIFT
                slot = (slot * 5 + perturbed + 1) & mask
            if met > limits.STEPS_PER_KEY * (place + limits.UNCHECKED_KEYS):
                return False
        taken[slot] = 1
    return True


def _fills_set(hashes: Sequence[int], size: int) -> bool:
    """Return the same for a set, which probes the neighbours of a slot in each step."""
    taken, mask, met = bytearray(size), size - 1, 0
    for place, first in enumerate(hashes):
        slot = first & mask
        if taken[slot]:
            perturbed = first
            while (free := taken.find(0, slot, slot + (_RUN if slot + _RUN <= size else 1))) < 0:
                met += _RUN_STEPS
                perturbed >>= _SHIFT
                slot = (slot * 5 + perturbed + 1) & mask
            if met > limits.STEPS_PER_KEY * (place + limits.UNCHECKED_KEYS):
                return False
            slot = free
        taken[slot] = 1
    return True
