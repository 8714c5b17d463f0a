"""Vectors of numbers: their stored form, and the comparison of many vectors with one.

A vector is stored as little-endian numbers of 4 bytes. Comparisons use numpy if it is installed. Without it
they give the same results to about six digits, and take about a hundred times as long.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterable, Sequence
from math import hypot, isfinite, sqrt
from operator import mul
from typing import Any, Final, Literal, TypeAlias

Distance: TypeAlias = Literal["cosine", "inner_product", "l2"]
"""The measure of nearness of two vectors."""
DISTANCES: Final[tuple[Distance, ...]] = ("cosine", "inner_product", "l2")
NUMBER_BYTES: Final = 4
_FLOAT: Final = "<f4"
_FIRST_ROWS: Final = 64


def find_numpy() -> Any | None:
    """Return numpy, or None if it is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def pack_vector(numbers: Sequence[float]) -> bytes:
    """Return the stored form of a vector.

    Raises:
        TypeError: It is not a sequence of numbers.
        ValueError: It is empty, or has several dimensions, or a number is not finite in 4 bytes.
    """
    listed: Any = numbers
    try:
        packed = array("f", listed.tolist() if hasattr(listed, "tolist") else listed)
    except OverflowError as error:
        raise ValueError(str(error)) from error
    if not packed:
        raise ValueError("the vector has no numbers")
    if not all(map(isfinite, packed)):
        raise ValueError("a number of the vector is not finite")
    return _swapped(packed).tobytes()


def unpack_vector(packed: bytes) -> list[float]:
    """Return the numbers of a stored vector."""
    numbers = array("f")
    numbers.frombytes(packed)
    return _swapped(numbers).tolist()


def _swapped(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def nearness(vectors: Sequence[bytes], query: bytes, distance: Distance = "cosine") -> list[float]:
    """Return the nearness of each stored vector to a query of the same length; larger is nearer.

    The cosine of a vector of zeros is 0, and the nearness by `l2` is the negative distance.
    """
    if not vectors:
        return []
    if (numpy := find_numpy()) is None:
        asked = unpack_vector(query)
        return [_nearness_of(unpack_vector(each), asked, distance) for each in vectors]
    asked = numpy.frombuffer(query, _FLOAT)
    matrix = numpy.frombuffer(b"".join(vectors), _FLOAT).reshape(len(vectors), asked.size)
    if distance == "l2":
        near = -numpy.linalg.norm(matrix - asked, axis=1)
    elif distance == "inner_product":
        near = matrix @ asked
    else:
        near = _cosines(numpy, matrix, numpy.linalg.norm(matrix, axis=1), asked)
    found: list[float] = near.tolist()
    return found


def _nearness_of(vector: Sequence[float], asked: Sequence[float], distance: Distance) -> float:
    if distance == "l2":
        return -hypot(*(one - other for one, other in zip(vector, asked, strict=True)))
    product: float = sum(map(mul, vector, asked))
    if distance == "inner_product":
        return product
    lengths = sqrt(sum(map(mul, vector, vector))) * sqrt(sum(map(mul, asked, asked)))
    return product / lengths if lengths else 0.0


def _cosines(numpy: Any, matrix: Any, lengths: Any, asked: Any) -> Any:
    products = matrix @ asked
    scale = lengths * numpy.linalg.norm(asked)
    return numpy.divide(products, scale, out=numpy.zeros_like(products), where=scale != 0)


class VectorMatrix:
    """Vectors of one length by key, which are compared with a query by their cosines.

    Changing a vector costs its own size. With numpy the vectors are one block of memory.

    Args:
        size_bytes: The size of a stored vector.

    Attributes:
        size_bytes: The size of a stored vector.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._rows: dict[str, int] = {}
        self._keys: list[str] = []
        self._numpy = find_numpy()
        self._packed: list[bytes] = []
        self._matrix: Any = None
        self._lengths: Any = None

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def put(self, key: str, packed: bytes) -> None:
        """Add or replace the vector of a key."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._keys)
            self._keys.append(key)
            self._reserve(len(self._keys))
        if self._numpy is None:
            self._packed[row] = packed
        else:
            self._matrix[row] = self._numpy.frombuffer(packed, _FLOAT)
            self._lengths[row] = self._numpy.linalg.norm(self._matrix[row])

    def _reserve(self, count: int) -> None:
        if self._numpy is None:
            self._packed.append(b"")
        elif self._matrix is None or count > len(self._matrix):
            rows = max(_FIRST_ROWS, count * 3 // 2)
            matrix = self._numpy.zeros((rows, self.size_bytes // NUMBER_BYTES), _FLOAT)
            lengths = self._numpy.zeros(rows, _FLOAT)
            if self._matrix is not None:
                matrix[: count - 1], lengths[: count - 1] = self._matrix, self._lengths
            self._matrix, self._lengths = matrix, lengths

    def discard(self, key: str) -> None:
        """Remove the vector of a key, if there is one; the last row takes its place."""
        row = self._rows.pop(key, None)
        if row is None:
            return
        last = self._keys.pop()
        if last != key:
            self._keys[row] = last
            self._rows[last] = row
        end = len(self._keys)
        if self._numpy is None:
            self._packed[row] = self._packed[end]
            self._packed.pop()
        else:
            self._matrix[row], self._lengths[row] = self._matrix[end], self._lengths[end]

    def nearest(
        self, query: bytes, limit: int, allowed: Collection[str] | None = None
    ) -> list[tuple[str, float]]:
        """Return the keys with the largest cosines, and all others whose cosine equals the last of them.

        Args:
            query: A stored vector of the same length.
            limit: The number of keys.
            allowed: Only these keys.
        """
        if not self._keys:
            return []
        if self._numpy is None:
            scores: Iterable[float] = nearness(self._packed, query)
            pairs = [
                pair for pair in zip(self._keys, scores, strict=True) if allowed is None or pair[0] in allowed
            ]
            least = sorted((score for _, score in pairs), reverse=True)[:limit]
            return [pair for pair in pairs if pair[1] >= least[-1]]
        numpy, count = self._numpy, len(self._keys)
        asked = numpy.frombuffer(query, _FLOAT)
        cosines = _cosines(numpy, self._matrix[:count], self._lengths[:count], asked)
        rows = numpy.arange(count)
        if allowed is not None:
            rows = numpy.array(sorted(self._rows[key] for key in allowed if key in self._rows), numpy.intp)
            cosines = cosines[rows]
        if len(rows) > limit:
            best = cosines >= numpy.partition(cosines, len(rows) - limit)[len(rows) - limit]
            rows, cosines = rows[best], cosines[best]
        return [(self._keys[row], score) for row, score in zip(rows.tolist(), cosines.tolist(), strict=True)]
