"""Which values a search's filter fits. Pure: filters are compared in Python and are never part of a query.

Equality is JSON's: `True` is not 1, 1 equals 1.0, an absent key equals None. Values of different kinds have
no order, and fit no `$gt`, `$gte`, `$lt` or `$lte`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from numbers import Real
from operator import ge, gt, le, lt
from typing import Any, Final, TypeGuard

from keepstate.errors import InvalidError

_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
_OPERATORS: Final = ("$eq", "$ne", *_ORDERS)


def admit_filter(conditions: Mapping[str, Any] | None) -> None:
    """Raise `InvalidError` for what is no mapping of text, and for an operator that there is none of."""
    if conditions is None:
        return
    if not _is_mapping(conditions):
        raise InvalidError(f"`filter` is {conditions!r}; it is a dict of keys and what they are to be")
    for key, wanted in conditions.items():
        if not isinstance(key, str):
            raise InvalidError(f"`filter` has the key {key!r}; the keys of an item are text")
        _admit_operators(key, wanted)


def _admit_operators(key: str, wanted: Any) -> None:
    if _is_operators(wanted):
        for operator in wanted:
            if operator not in _OPERATORS:
                known = ", ".join(_OPERATORS)
                raise InvalidError(f"the filter of {key!r} has the operator {operator!r}; there are {known}")
        for operand in wanted.values():
            for each in _parts(operand):
                _admit_operators(key, each)
    else:
        for each in _parts(wanted):
            _admit_operators(key, each)


def _parts(wanted: Any) -> Iterable[Any]:
    if _is_mapping(wanted):
        return wanted.values()
    return wanted if _is_array(wanted) else ()


def fits(value: Mapping[str, Any], conditions: Mapping[str, Any] | None) -> bool:
    """Whether each key of a value is as its condition says.

    A key with dots that the value has not is looked for as a path: `user.name` is the `name` in `user`.
    """
    return all(_holds(_found(value, key), wanted) for key, wanted in (conditions or {}).items())


def _found(value: Mapping[str, Any], key: str) -> Any:
    if key in value or "." not in key:
        return value.get(key)
    inner: Any = value
    for name in key.split("."):
        if not _is_mapping(inner):
            return None
        inner = inner.get(name)
    return inner


def _is_operators(wanted: Any) -> bool:
    return _is_mapping(wanted) and any(isinstance(key, str) and key.startswith("$") for key in wanted)


def _holds(found: Any, wanted: Any) -> bool:
    if not _is_operators(wanted):
        return _equals(found, wanted)
    for operator, operand in wanted.items():
        if operator in _ORDERS:
            holds = _is_ordered(found, operand) and _ORDERS[operator](found, operand)
        else:
            holds = _equals(found, operand) is (operator == "$eq")
        if not holds:
            return False
    return True


def _equals(found: Any, wanted: Any) -> bool:
    if _is_mapping(wanted):
        return _is_mapping(found) and all(_holds(found.get(key), each) for key, each in wanted.items())
    if _is_array(wanted):
        return _is_array(found) and len(found) == len(wanted) and all(map(_holds, found, wanted))
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return bool(found == wanted)


def _is_ordered(found: Any, wanted: Any) -> bool:
    if isinstance(found, bool) or isinstance(wanted, bool):
        return False
    if isinstance(found, Real):
        return isinstance(wanted, Real)
    for kind in (datetime, time):
        if isinstance(found, kind) and isinstance(wanted, kind):
            return (found.utcoffset() is None) is (wanted.utcoffset() is None)
    return type(found) is type(wanted) and isinstance(found, str | date)


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _is_array(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, list | tuple)
