"""Items of a LangGraph store: the names of their documents, and the records in these documents.

The item `prefs` in the namespace `("users", "7")` is the document `users.7..prefs`. A label is not empty and
has no dot, so the first `..` ends the namespace. The names below `("users",)` begin with `users.`; the names
of `("users2",)` do not. No name of an item begins with a dot; names of vectors do.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

import msgspec
from langgraph.store.base import (
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    SearchItem,
)

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.errors import CorruptError, InvalidError
from keepstate.values.limits import TTL_MS

_MINUTE_MS: Final = 60_000
_MOST_MINUTES: Final = TTL_MS // _MINUTE_MS
_TICK: Final = timedelta(microseconds=1)
ITEM_BYTES: Final = 500
"""The largest size of an item's name as UTF-8. The name of its vectors is 9 bytes longer."""
VECTORS: Final = ".vectors."
"""The prefix of the name of an item's vectors; the item's name follows."""
BEHIND_VECTORS: Final = "/"
"""The first name after all names that begin with a dot."""

_BEHIND_ITEMS: Final = "..\U0010ffff"

Namespace = tuple[str, ...]


# ---- names


def name_of(namespace: Iterable[str], key: str) -> str:
    """Return the name of an item's document.

    Raises:
        InvalidNamespaceError: The namespace has no label.
        InvalidError: Namespace and key are too long together, or not text.
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
    """Return a name after all names of a namespace's items; None if the names are cut and not in order."""
    name = ".".join(namespace) + _BEHIND_ITEMS
    is_cut = layout.is_cut(layout.DOCUMENTS, layout.named_key(layout.DOCUMENTS, name))
    return None if is_cut else name


def parse_name(name: str) -> tuple[Namespace, str]:
    """Return the namespace and key of an item from its name."""
    labels, _, key = name.partition("..")
    return tuple(labels.split(".")), key


def pattern_of(prefix: Iterable[str], *, before: str = "") -> str:
    """Return the pattern of the names at and below a namespace; of all names, for an empty one."""
    return escape_pattern(before + "".join(f"{label}." for label in prefix)) + "*"


def select_namespaces(namespaces: Iterable[Namespace], op: ListNamespacesOp) -> list[Namespace]:
    """Return the namespaces that an operation asks for, in order."""
    found = {namespace for namespace in namespaces if all(_fits(namespace, each) for each in _asked(op))}
    if op.max_depth is not None:
        found = {namespace[: op.max_depth] for namespace in found}
    return sorted(found)[op.offset : op.offset + op.limit]


def common_prefix(op: ListNamespacesOp) -> Namespace:
    """Return the common prefix of all namespaces that an operation asks for."""
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


# ---- records


class ItemRecord(msgspec.Struct, frozen=True):
    """A stored item; its document is a dict of these fields.

    Attributes:
        value: The value.
        created_at: The time of the first put since the item was last absent.
        updated_at: The time of the last put; it grows each time, by at least a microsecond.
        after: The revision of the space before the put. It orders items with equal times.
        ttl_minutes: The time to live after the last put or refreshing read; None for no limit.
    """

    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    after: int
    ttl_minutes: float | None = None

    @property
    def order(self) -> tuple[datetime, int]:
        """The sort key of the last put: the time in ms, then the revision before it."""
        at = self.updated_at
        return at.replace(microsecond=at.microsecond // 1000 * 1000), self.after

    @property
    def ttl_ms(self) -> int | None:
        """The time to live from now; None for no limit."""
        return None if self.ttl_minutes is None else lifetime_ms(self.ttl_minutes)

    @classmethod
    def put(
        cls, value: dict[str, Any], at: datetime, after: int, ttl: float | None, old: Self | None
    ) -> Self:
        """Return the record of a put, which may replace an older record."""
        if old is None:
            return cls(value, at, at, after, ttl)
        return cls(value, old.created_at, max(at, old.updated_at + _TICK), after, ttl)

    def as_document(self) -> dict[str, Any]:
        """Return the document to store."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    def item(self, name: str) -> Item:
        """Return the result of `get`."""
        namespace, key = parse_name(name)
        return Item(
            value=self.value,
            key=key,
            namespace=namespace,
            created_at=self.created_at,
            updated_at=self.updated_at,
        )

    def found(self, name: str, score: float | None) -> SearchItem:
        """Return the result of `search`."""
        namespace, key = parse_name(name)
        return SearchItem(namespace, key, self.value, self.created_at, self.updated_at, score)


def read_item(name: str, document: Any) -> ItemRecord:
    """Return the item in a document.

    Raises:
        CorruptError: The document is not an item.
    """
    try:
        return ItemRecord(**document)
    except TypeError as error:
        raise CorruptError(f"document {name!r} is not an item of a LangGraph store", place=name) from error


def at_ms(now_ms: int) -> datetime:
    """Return a time of the store as a datetime."""
    return datetime.fromtimestamp(now_ms / 1000, UTC)


def lifetime_ms(minutes: object) -> int:
    """Return a time to live in milliseconds.

    Raises:
        InvalidError: It is not a number, not positive, or over a hundred years.
    """
    if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 < minutes <= _MOST_MINUTES:
        raise InvalidError(
            f"`ttl` is {minutes!r}; it is a number of minutes, more than 0 and at most {_MOST_MINUTES:,}, "
            "or None for no limit"
        )
    return max(1, round(minutes * _MINUTE_MS))
