"""Writes that wait for `flush`: what each key has become since, over what is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import msgspec

from keepstate._runner import Lock
from keepstate.engine.documents import MISSING, Documents
from keepstate.errors import InvalidError
from keepstate.values import codec

Change = Callable[[Any], Any]


class Staged(msgspec.Struct, frozen=True):
    """What is to become of one key.

    Attributes:
        value: What it begins with; `MISSING` for nothing, `STORED` for what is stored then.
        changes: What is done to that, in order.
        first: What the first change gets where there is nothing.
        ttl_s: How long it lives.
    """

    value: Any
    changes: tuple[Change, ...] = ()
    first: bytes = codec.encode({})
    ttl_s: float | None = None

    @property
    def is_deleted(self) -> bool:
        """Whether nothing is left of it."""
        return self.value is MISSING and not self.changes

    def changed(self, stored: Any) -> Any:
        """Returns the value over what is stored, or `MISSING`."""
        value = (
            stored
            if self.value is STORED
            else codec.decode(self.value)
            if self.value is not MISSING
            else MISSING
        )
        for change in self.changes:
            value = change(codec.decode(self.first) if value is MISSING else value)
        return value


class _Stored(msgspec.Struct, frozen=True):
    def __repr__(self) -> str:
        return "STORED"


STORED: Final = _Stored()
"""Says that a staged change begins with what is stored when it is flushed."""


class Staging:
    """The keys that wait, in the order in which they were first written."""

    def __init__(self) -> None:
        self.keys: dict[str, Staged] = {}
        self._lock = Lock()

    def put(self, key: str, value: object, ttl_s: float | None) -> None:
        """Stages a value: a copy, as it would be stored.

        Raises:
            InvalidError: It would not come back equal.
        """
        staged = Staged(codec.encode(value), ttl_s=ttl_s)
        with self._lock:
            self.keys[key] = staged

    def delete(self, key: str) -> None:
        """Stages that nothing is there."""
        with self._lock:
            self.keys[key] = Staged(MISSING)

    def with_change(self, key: str, change: Change, first: object, ttl_s: float | None) -> Staged:
        """Returns what a key becomes by a change to what is there, staged or stored; it is not staged yet."""
        staged = self.keys.get(key, Staged(STORED, ttl_s=ttl_s))
        first_bytes = staged.first if staged.changes else codec.encode(first)
        return Staged(staged.value, (*staged.changes, change), first_bytes, staged.ttl_s)

    def change(self, key: str, change: Change, first: object, ttl_s: float | None) -> None:
        """Stages a change to what is there."""
        with self._lock:
            self.keys[key] = self.with_change(key, change, first, ttl_s)

    def flushed(self, done: Mapping[str, Staged]) -> None:
        """Forgets what was stored, but for what was saved or deleted meanwhile."""
        with self._lock:
            for key, staged in done.items():
                if self.keys.get(key) is staged:
                    del self.keys[key]


async def store(documents: Documents, key: str, staged: Staged) -> None:
    """Does to a document what was staged."""
    if staged.is_deleted:
        await documents.delete(key)
        return
    if staged.value is STORED:
        found = await documents.entry(key)
        value = staged.changed(MISSING if found is None else found.value)
        if found is not None:  # its time to live goes on
            await documents.update(key, lambda _: value)
            return
    else:
        value = staged.changed(MISSING)
    await documents.put(key, value, ttl_s=staged.ttl_s)


def merging(key: str, patch: Mapping[Any, Any]) -> Change:
    """Returns the change that puts top-level keys into a dict."""
    new: dict[Any, Any] = codec.decode(codec.encode(dict(patch)))

    def merged(value: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidError(
                f"{key!r} holds {type(value).__name__}, and no dict merges into that; give a function"
            )
        return {**cast("dict[Any, Any]", value), **new}  # type: ignore[redundant-cast]

    return merged
