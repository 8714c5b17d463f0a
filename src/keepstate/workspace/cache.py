"""A cache in front of a slower key-value store."""

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
    """Caches reads and writes of another store in memory, up to a size; the oldest entries go first.

    Only immutable values are cached: the parts of a state, which are named by their content. All other keys
    are read from the store each time. Therefore changes by other processes are visible at once. Writes go
    through.

    Args:
        store: The cached store. The caller closes it.
        max_bytes: Maximum bytes of keys and values in memory.
    """

    def __init__(self, store: KVStore, max_bytes: int = _MAX_BYTES) -> None:
        limits.admit_count("max_bytes", max_bytes)
        if not isinstance(store, KVStore):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"{store!r} is not a KVStore. Pass a Disk, or your own subclass.")
        self.store, self.max_bytes = store, max_bytes
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._size_bytes = 0
        self._lock = reentrant_lock()
        if callable(swap := getattr(store, "cas", None)):
            self.cas = swap
            """The `cas` of the cached store, if it has one."""

    def __repr__(self) -> str:
        return f"<Cache of {self._size_bytes} bytes over {self.store!r}>"

    def __reduce__(self) -> tuple[type[Cache], tuple[KVStore, int]]:
        return Cache, (self.store, self.max_bytes)

    def get(self, key: str) -> bytes | None:
        """Return a value, or None."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Collection[str]) -> Mapping[str, bytes]:
        """Return the values that exist; those that are not cached are read together."""
        with self._lock:
            here = {key: self._entries[key] for key in keys if key in self._entries}
            for key in here:
                self._entries.move_to_end(key)
        missing = [key for key in keys if key not in here]
        if not missing:
            return here
        found = self.store.get_many(missing)
        self._add(found)
        return {**here, **found}

    def set(self, key: str, value: bytes) -> None:
        """Write a value through."""
        self.store.set(key, value)
        self._add({key: value})

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """Write values through."""
        self.store.set_many(values)
        self._add(values)

    def delete(self, key: str) -> None:
        """Delete a value. Deleting an absent value does nothing."""
        self.store.delete(key)
        with self._lock:
            self._drop(key)

    def keys(self, prefix: str = "") -> Iterable[str]:
        """Return the keys with a prefix, from the store."""
        return self.store.keys(prefix)

    def _add(self, values: Mapping[str, bytes]) -> None:
        with self._lock:
            for key, value in values.items():
                self._drop(key)
                own = len(key) + len(value)
                if key.startswith(CONTENT_NAMED) and own <= self.max_bytes:
                    self._entries[key] = value
                    self._size_bytes += own
            while self._size_bytes > self.max_bytes:
                self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        value = self._entries.pop(key, None)
        if value is not None:
            self._size_bytes -= len(key) + len(value)
