"""A key-value store in front of a slower one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from keepstate._runner import reentrant_lock
from keepstate.errors import InvalidError
from keepstate.stores.protocol import CONTENT_NAMED
from keepstate.values import limits
from keepstate.workspace.kv import KVStore

_MAX_BYTES: Final = 64 << 20


class Cache(KVStore):
    """Keeps in memory what it has read and written of another store, up to a size; the oldest goes first.

    Only what can never change is kept: the parts of a state, which are named by their content. All else is
    asked of the store each time. So what other processes do is never seen late. Each write goes through.

    Args:
        store: The store behind it; it stays the caller's.
        max_bytes: How many bytes of keys and values are kept in memory.
    """

    def __init__(self, store: KVStore, max_bytes: int = _MAX_BYTES) -> None:
        limits.admit_count("max_bytes", max_bytes)
        if not isinstance(store, KVStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"{store!r} is no KVStore; give a Disk, or one of your own")
        self.store, self.max_bytes = store, max_bytes
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._lock = reentrant_lock()
        if callable(swap := getattr(store, "cas", None)):
            self.cas = swap
            """As the store behind it does; there is none if that has none."""

    def __repr__(self) -> str:
        return f"<Cache of {self._kept_bytes} bytes over {self.store!r}>"

    def __reduce__(self) -> tuple[type[Cache], tuple[KVStore, int]]:
        return Cache, (self.store, self.max_bytes)

    def get(self, key: str) -> bytes | None:
        """Return a value, None for none."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Collection[str]) -> Mapping[str, bytes]:
        """Return the values that are there; what is not at hand is read together."""
        with self._lock:
            here = {key: self._kept[key] for key in keys if key in self._kept}
            for key in here:
                self._kept.move_to_end(key)
        missing = [key for key in keys if key not in here]
        if not missing:
            return here
        found = self.store.get_many(missing)
        self._keep(found)
        return {**here, **found}

    def set(self, key: str, value: bytes) -> None:
        """Write a value through."""
        self.store.set(key, value)
        self._keep({key: value})

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """Write values through."""
        self.store.set_many(values)
        self._keep(values)

    def delete(self, key: str) -> None:
        """Remove a value; an absent one stays absent."""
        self.store.delete(key)
        with self._lock:
            self._forget(key)

    def keys(self, prefix: str = "") -> Iterable[str]:
        """Return the keys that start with a prefix, as the store has them now."""
        return self.store.keys(prefix)

    def _keep(self, values: Mapping[str, bytes]) -> None:
        with self._lock:
            for key, value in values.items():
                self._forget(key)
                own = len(key) + len(value)
                if key.startswith(CONTENT_NAMED) and own <= self.max_bytes:
                    self._kept[key] = value
                    self._kept_bytes += own
            while self._kept_bytes > self.max_bytes:
                self._forget(next(iter(self._kept)))

    def _forget(self, key: str) -> None:
        value = self._kept.pop(key, None)
        if value is not None:
            self._kept_bytes -= len(key) + len(value)
