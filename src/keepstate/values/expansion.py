"""Bounds the memory of decoded values, against compression and repeated references that expand few bytes.

The weight of an encoding is an upper bound of the memory of its decoded value: each byte once, and
`_OBJECT_BYTES` for each byte that may begin a list, dict or tagged value. It is computed without decoding.
The writer respects the same bounds, so every stored value can be read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from keepstate.errors import CorruptError
from keepstate.values import limits

_OBJECT_BYTES: Final = 64
_HEADS: Final = frozenset((*range(0x80, 0xA0), *range(0xC7, 0xCA), *range(0xD4, 0xD9), *range(0xDC, 0xE0)))
"""First bytes of the lists, dicts and tagged values of msgpack."""
_NO_HEADS: Final = bytes(set(range(256)) - _HEADS)
_UNWEIGHED_BYTES: Final = limits.SHARED_BYTES // (1 + _OBJECT_BYTES)


def weight(encoding: bytes) -> int:
    """Return an upper bound, approximately, of the memory of an encoding's value in bytes."""
    return len(encoding) + _OBJECT_BYTES * len(encoding.translate(None, _NO_HEADS))


def most_inflated(stored_bytes: int) -> int:
    """Return the size of the largest encoding that this many compressed bytes may expand to."""
    return min(limits.DECODED_BYTES, limits.INFLATED_BYTES + limits.EXPANSION * stored_bytes)


def is_within(encoding: bytes, stored_bytes: int) -> bool:
    """Return whether this many compressed bytes may expand to the value of this encoding."""
    most = most_inflated(stored_bytes)
    return len(encoding) <= most and (
        len(encoding) * (1 + _OBJECT_BYTES) <= limits.INFLATED_BYTES
        or weight(encoding) <= limits.INFLATED_BYTES + limits.EXPANSION * stored_bytes
    )


def is_repeated(encoding: bytes, stored_bytes: int) -> bool:
    """Return whether a value repeats its parts more often than a state of this many bytes may."""
    return (
        len(encoding) > max(stored_bytes, _UNWEIGHED_BYTES)
        and weight(encoding) > limits.SHARED_BYTES + limits.EXPANSION * stored_bytes
    )


class Expansion:
    """Counts the objects of a state that are decoded, each as often as it is referred to.

    Args:
        objects: All objects that the state refers to.
    """

    def __init__(self, objects: Mapping[bytes, bytes]) -> None:
        self._objects = objects
        self._bytes = self._weight = 0
        self._stored_bytes: int | None = None

    def spend(self, data: bytes) -> bytes:
        """Count an object that is about to be decoded, and return it.

        Raises:
            CorruptError: The repeated objects weigh more than the stored bytes may expand to.
        """
        self._bytes += len(data)
        if self._bytes <= _UNWEIGHED_BYTES:
            return data
        if self._stored_bytes is None:
            self._stored_bytes = sum(map(len, self._objects.values()))
        if self._bytes <= self._stored_bytes:  # nothing was repeated
            return data
        self._weight += weight(data)
        if self._weight > limits.SHARED_BYTES + limits.EXPANSION * self._stored_bytes:
            raise CorruptError(
                f"a state of {self._stored_bytes:,} bytes repeats its parts until it takes more than "
                f"{self._weight:,} bytes of memory; it is damaged, or was made to harm"
            )
        return data
