"""Keys whose hashes were made equal: a dict or set of many takes time by the square of their number.

Text, bytes and moments hash by a secret of the process. Numbers, UUIDs, tuples and frozensets of
them do not, so that whoever writes bytes can choose their hashes. Keys that differ in hash and still meet in
one table again and again can be made too; they cost a constant more, and are let through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final
from uuid import UUID

from keepstate.values import limits

_CHOSEN: Final = frozenset({int, float, complex, Decimal, Fraction, UUID, range, tuple, frozenset})


def is_crowded(keys: Collection[Any]) -> bool:
    """Returns whether more than `limits.EQUAL_HASHES` of the keys have one hash that can be chosen."""
    if len(keys) <= limits.EQUAL_HASHES:
        return False
    hashes = Counter(hash(key) for key in keys if type(key) in _CHOSEN)
    return max(hashes.values(), default=0) > limits.EQUAL_HASHES
