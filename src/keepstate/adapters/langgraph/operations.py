"""Validates the operations of a LangGraph store before any of a batch is done, and matches filters.

LangGraph's own methods check labels, but `batch` takes operations unchecked. Filters are compared in Python
and are never part of a query. Equality is JSON's: `True` is not 1, 1 equals 1.0, an absent key equals None.
Values of different kinds have no order, and match no `$gt`, `$gte`, `$lt` or `$lte`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import date, datetime, time
from functools import wraps
from inspect import iscoroutinefunction
from numbers import Real
from operator import ge, gt, le, lt
from typing import Any, Final, TypeGuard, TypeVar, cast

from langgraph.store.base import (
    BaseStore,
    GetOp,
    ListNamespacesOp,
    Op,
    PutOp,
    SearchOp,
    validate_op_namespace,
)

from keepstate.adapters.langgraph.items import lifetime_ms
from keepstate.adapters.langgraph.vectors import is_texts
from keepstate.errors import InvalidError
from keepstate.values.limits import admit_count

_KINDS: Final = (GetOp, SearchOp, PutOp, ListNamespacesOp)
_MATCHES: Final = ("prefix", "suffix")
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
_OPERATORS: Final = ("$eq", "$ne", *_ORDERS)


def check_operations(ops: Iterable[Op]) -> list[Op]:
    """Return the operations with copies of the values to put, so that later changes are not stored.

    Raises:
        InvalidError: An operation is wrong.
        InvalidNamespaceError: A label is empty, not text, or has a dot.
    """
    asked = cast("object", ops)
    if not isinstance(asked, Iterable):
        raise InvalidError(f"`ops` is {asked!r}; give a list of operations")
    return [_check(op) for op in ops]


def _check(op: Op) -> Op:
    asked = cast("object", op)
    if not isinstance(asked, _KINDS):
        raise InvalidError(
            f"{asked!r} is not an operation; there are {', '.join(kind.__name__ for kind in _KINDS)}"
        )
    if isinstance(op, ListNamespacesOp):
        return _listing(op)
    if isinstance(op, SearchOp):
        return _search(op)
    _check_labels("namespace", op.namespace)
    validate_op_namespace(op)
    check_key(op.key)
    return _put(op) if isinstance(op, PutOp) else op


def check_key(key: object) -> str:
    """Return the key of an item.

    Raises:
        InvalidError: It is not text.
    """
    if not isinstance(key, str):
        raise InvalidError(f"`key` is {key!r}; it must be text")
    return key


def _put(op: PutOp) -> PutOp:
    if op.ttl is not None:
        lifetime_ms(op.ttl)
    if op.index is not None and op.index is not False and not is_texts(op.index):
        raise InvalidError(f"`index` is {op.index!r}; it is False, or a list of paths")
    return op if op.value is None else op._replace(value=_value(op.value))


def _search(op: SearchOp) -> SearchOp:
    _check_labels("namespace_prefix", op.namespace_prefix)
    validate_op_namespace(op)
    _check_page(op)
    check_filter(op.filter)
    if op.query is not None and not isinstance(cast("object", op.query), str):
        raise InvalidError(f"`query` is {op.query!r}; it is text")
    return op


def _listing(op: ListNamespacesOp) -> ListNamespacesOp:
    for condition in op.match_conditions or ():
        if condition.match_type not in _MATCHES:  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`match_type` is {condition.match_type!r}; it is {' or '.join(_MATCHES)}")
        _check_labels("path", condition.path)
    validate_op_namespace(op)
    _check_page(op)
    if op.max_depth is not None:
        admit_count("max_depth", op.max_depth)
    return op


def _check_page(op: SearchOp | ListNamespacesOp) -> None:
    for name, number in (("limit", op.limit), ("offset", op.offset)):
        if type(number) is not int or number < 0:
            raise InvalidError(f"`{name}` is {number!r}; it is 0 or more")


def _check_labels(name: str, labels: object) -> None:
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise InvalidError(f"`{name}` is {labels!r}; it is a tuple of labels, such as ('users', '7')")


def _value(value: Mapping[Any, Any]) -> dict[str, Any]:
    asked = cast("object", value)
    if not isinstance(asked, Mapping):
        raise InvalidError(f"`value` is {type(asked).__name__}; an item is a dict with text for keys")
    for key in value:
        if not isinstance(key, str):
            raise InvalidError(f"`value` has the key {key!r}; the keys of an item are text")
    try:
        return {key: deepcopy(each) for key, each in value.items()}
    except Exception as error:  # anything that a class of the caller raises
        raise InvalidError(f"`value` cannot be copied, so it cannot be stored: {error}") from error


# ---- filters


def check_filter(conditions: Mapping[str, Any] | None) -> None:
    """Check a filter: a mapping with text keys and known operators."""
    if conditions is None:
        return
    if not _is_mapping(conditions):
        raise InvalidError(f"`filter` is {conditions!r}; it must be a dict of keys and conditions")
    for key, wanted in conditions.items():
        if not isinstance(key, str):
            raise InvalidError(f"`filter` has the key {key!r}; the keys of an item are text")
        _check_operators(key, wanted)


def _check_operators(key: str, wanted: Any) -> None:
    if _is_operators(wanted):
        for operator in wanted:
            if operator not in _OPERATORS:
                known = ", ".join(_OPERATORS)
                raise InvalidError(f"the filter of {key!r} has the operator {operator!r}; there are {known}")
        for operand in wanted.values():
            for each in _parts(operand):
                _check_operators(key, each)
    else:
        for each in _parts(wanted):
            _check_operators(key, each)


def _parts(wanted: Any) -> Iterable[Any]:
    if _is_mapping(wanted):
        return wanted.values()
    return wanted if _is_array(wanted) else ()


def matches(value: Mapping[str, Any], conditions: Mapping[str, Any] | None) -> bool:
    """Return whether each key of a value matches its condition.

    An absent key with dots is a path: `user.name` is the `name` in `user`.
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


# ---- calls that name one item

C = TypeVar("C", bound=Callable[..., Any])


def _keyed(method: C) -> C:
    """Return a method of a store that checks its key first."""

    @wraps(method)
    def call(self: BaseStore, namespace: tuple[str, ...], key: str, *args: Any, **options: Any) -> Any:
        return method(self, namespace, check_key(key), *args, **options)

    @wraps(method)
    async def acall(self: BaseStore, namespace: tuple[str, ...], key: str, *args: Any, **options: Any) -> Any:
        return await method(self, namespace, check_key(key), *args, **options)

    return cast("C", acall if iscoroutinefunction(method) else call)


class Keyed(BaseStore):
    """A store that rejects a key that is not text.

    LangGraph's own stores convert the key to text, so 5 and "5" are one item, and None is an item too.
    """

    get = _keyed(BaseStore.get)
    aget = _keyed(BaseStore.aget)
    put = _keyed(BaseStore.put)
    aput = _keyed(BaseStore.aput)
    delete = _keyed(BaseStore.delete)
    adelete = _keyed(BaseStore.adelete)
