"""What an operation of a LangGraph store may say: what cannot work is refused before any of a batch is done.

LangGraph's own methods check labels; operations given to `batch` come as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final, cast

from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, SearchOp, validate_op_namespace

from keepstate.adapters.langgraph.filters import admit_filter
from keepstate.adapters.langgraph.items import lifetime_ms
from keepstate.adapters.langgraph.vectors import is_texts
from keepstate.errors import InvalidError
from keepstate.values.limits import admit_count

_KINDS: Final = (GetOp, SearchOp, PutOp, ListNamespacesOp)
_MATCHES: Final = ("prefix", "suffix")


def admitted(ops: Iterable[Op]) -> list[Op]:
    """Return operations with the values that they put, as these are now: what changes later is not stored.

    Raises:
        InvalidError: One of them cannot work.
        InvalidNamespaceError: A label is empty, no text, or has a dot.
    """
    asked = cast("object", ops)
    if not isinstance(asked, Iterable):
        raise InvalidError(f"`ops` is {asked!r}; give a list of operations")
    return [_admitted(op) for op in ops]


def _admitted(op: Op) -> Op:
    asked = cast("object", op)
    if not isinstance(asked, _KINDS):
        raise InvalidError(
            f"{asked!r} is no operation; there are {', '.join(kind.__name__ for kind in _KINDS)}"
        )
    if isinstance(op, ListNamespacesOp):
        return _listing(op)
    if isinstance(op, SearchOp):
        return _search(op)
    _refuse_unless_labels("namespace", op.namespace)
    validate_op_namespace(op)
    admit_key(op.key)
    return _put(op) if isinstance(op, PutOp) else op


def admit_key(key: object) -> str:
    """Return the key of an item.

    Raises:
        InvalidError: It is no text.
    """
    if not isinstance(key, str):
        raise InvalidError(f"`key` is {key!r}; it is text")
    return key


def _put(op: PutOp) -> PutOp:
    if op.ttl is not None:
        lifetime_ms(op.ttl)
    if op.index is not None and op.index is not False and not is_texts(op.index):
        raise InvalidError(f"`index` is {op.index!r}; it is False, or a list of paths")
    return op if op.value is None else op._replace(value=_value(op.value))


def _search(op: SearchOp) -> SearchOp:
    _refuse_unless_labels("namespace_prefix", op.namespace_prefix)
    validate_op_namespace(op)
    _refuse_unless_page(op)
    admit_filter(op.filter)
    if op.query is not None and not isinstance(cast("object", op.query), str):
        raise InvalidError(f"`query` is {op.query!r}; it is text")
    return op


def _listing(op: ListNamespacesOp) -> ListNamespacesOp:
    for condition in op.match_conditions or ():
        if condition.match_type not in _MATCHES:  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`match_type` is {condition.match_type!r}; it is {' or '.join(_MATCHES)}")
        _refuse_unless_labels("path", condition.path)
    validate_op_namespace(op)
    _refuse_unless_page(op)
    if op.max_depth is not None:
        admit_count("max_depth", op.max_depth)
    return op


def _refuse_unless_page(op: SearchOp | ListNamespacesOp) -> None:
    for name, number in (("limit", op.limit), ("offset", op.offset)):
        if type(number) is not int or number < 0:
            raise InvalidError(f"`{name}` is {number!r}; it is 0 or more")


def _refuse_unless_labels(name: str, labels: object) -> None:
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
    except Exception as error:  # whatever a class of the caller's raises
        raise InvalidError(f"`value` cannot be copied, and so not be stored: {error}") from error
