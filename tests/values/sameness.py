"""What "comes back equal and of the same type" means, all the way down."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from datetime import datetime, time, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from keepstate.values.standard import exception_fields


def same(one: Any, other: Any) -> Any:
    """Return whether nothing can tell the two values apart, a dict's insertion order included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (one != one and other != other) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, BaseException):
        return same(exception_fields(one), exception_fields(other))
    if isinstance(one, range):
        return (one.start, one.stop, one.step) == (other.start, other.stop, other.step)
    if isinstance(one, deque):
        return one.maxlen == other.maxlen and same([*one], [*other])
    if isinstance(one, defaultdict) and one.default_factory is not other.default_factory:
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)
    if isinstance(one, datetime | time):
        return (
            one.replace(tzinfo=None) == other.replace(tzinfo=None)
            and one.fold == other.fold
            and same(one.tzinfo, other.tzinfo)
        )
    if isinstance(one, timezone):
        return one == other and one.tzname(None) == other.tzname(None)
    if isinstance(one, ZoneInfo):
        return one.key == other.key
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    return bool(one == other)
