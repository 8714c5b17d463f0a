"""Namespaces of a LangGraph store as names of documents, segment by segment.

`("users", "7")` with the key `prefs` is the document `users.7..prefs`. No label has a dot and none is empty,
so the first `..` ends the namespace, and what is below `("users",)` begins with `users.`, which nothing of
`("users2",)` does. No such name begins with a dot: that is where vectors stand.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from langgraph.store.base import InvalidNamespaceError, ListNamespacesOp, MatchCondition

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.errors import InvalidError

ITEM_BYTES: Final = 500
"""Of an item's namespace and key as UTF-8, with a dot behind each label and one more: its vectors add 9."""
VECTORS: Final = ".vectors."
"""What the name of an item's vectors begins with; the item's name follows."""
BEHIND_VECTORS: Final = "/"
"""Stands behind every name that begins with a dot, and before every other that is not before the dot."""

_BEHIND_ITEMS: Final = "..\U0010ffff"

Namespace = tuple[str, ...]


def name_of(namespace: Iterable[str], key: str) -> str:
    """Return the name of an item's document.

    Raises:
        InvalidNamespaceError: There is no label.
        InvalidError: They are too long together, or no text.
    """
    labels = tuple(namespace)
    if not labels:
        raise InvalidNamespaceError("the namespace of an item has no label; give one, such as ('memories',)")
    name = f"{'.'.join(labels)}..{key}"
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidError(f"UTF-8 cannot hold the namespace {labels!r} and the key {key!r}") from error
    if size > ITEM_BYTES:
        raise InvalidError(
            f"the namespace {labels!r:.99} and the key {key!r:.99} have {size:,} bytes of UTF-8 together; "
            f"they may have {ITEM_BYTES}"
        )
    return name


def behind(namespace: Namespace) -> str | None:
    """Return what stands behind the names of a namespace's items; None if long names are in no order."""
    name = ".".join(namespace) + _BEHIND_ITEMS
    is_cut = layout.is_cut(layout.DOCUMENTS, layout.named_key(layout.DOCUMENTS, name))
    return None if is_cut else name


def place_of(name: str) -> tuple[Namespace, str]:
    """Return the namespace and key of an item's name."""
    labels, _, key = name.partition("..")
    return tuple(labels.split(".")), key


def pattern_of(prefix: Iterable[str], *, before: str = "") -> str:
    """Return the pattern of names at and below a namespace; of all, for an empty one."""
    return escape_pattern(before + "".join(f"{label}." for label in prefix)) + "*"


def listed(namespaces: Iterable[Namespace], op: ListNamespacesOp) -> list[Namespace]:
    """Return what an operation asks for of all namespaces, in order."""
    found = {namespace for namespace in namespaces if all(_fits(namespace, each) for each in _asked(op))}
    if op.max_depth is not None:
        found = {namespace[: op.max_depth] for namespace in found}
    return sorted(found)[op.offset : op.offset + op.limit]


def common_prefix(op: ListNamespacesOp) -> Namespace:
    """Return the labels that every namespace asked for begins with."""
    plain: Namespace = ()
    for condition in _asked(op):
        if condition.match_type == "prefix":
            path = tuple(condition.path)
            labels = path[: path.index("*")] if "*" in path else path
            plain = max(plain, labels, key=len)
    return plain


def _asked(op: ListNamespacesOp) -> tuple[MatchCondition, ...]:
    return tuple(op.match_conditions or ())


def _fits(namespace: Namespace, condition: MatchCondition) -> bool:
    path = tuple(condition.path)
    if not path:
        return True
    if len(namespace) < len(path):
        return False
    labels = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(wanted in ("*", label) for label, wanted in zip(labels, path, strict=True))
