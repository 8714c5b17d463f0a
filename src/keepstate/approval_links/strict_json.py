"""JSON from strangers, read strictly: bounded, and with one meaning for every reader."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, Final, NoReturn

from keepstate.values import limits

_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)


def read_json(body: bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: It is too large or too deep, names a key twice, has a number that is too large for a
            float, or is not JSON in UTF-8.
    """
    if len(body) > limits.LINK_BODY_BYTES:
        raise ValueError("too large")
    text = body.decode()
    depth = 0
    for sign in _STRING.sub("", text):
        depth += (sign in "[{") - (sign in "]}")
        if depth > limits.LINK_BODY_DEPTH:
            raise ValueError("too deep")
    value = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
    # Half of a surrogate pair has no UTF-8, and could not be stored.
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    if not isfinite(number):
        raise ValueError(f"{digits:.40} is too large")
    return number


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
