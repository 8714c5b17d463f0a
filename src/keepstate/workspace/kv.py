"""Key-value stores for the variables of a `Versioned`: in memory, in a folder, or cached.

Leaked handles are closed later, never inside a finalizer. The garbage collector may run anywhere, also inside
a store that holds a lock that closing needs. Therefore a finalizer only records the handle. The next call on
any handle closes it, or the end of the process.
"""

from __future__ import annotations

import atexit
import os
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Final
from weakref import finalize

from keepstate._files import make_folder
from keepstate._finish import finish
from keepstate._runner import reentrant_lock
from keepstate.engine.kernel.blobs import Blobs
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ClosedError, InvalidError
from keepstate.kv import KVStore
from keepstate.opening import OpenStore, PassedStore, source_of, source_over
from keepstate.stores.protocol import CONTENT_NAMED, Store
from keepstate.values import limits
from keepstate.values.pickles import SignedPickle


class Memory(KVStore):
    """Stores bytes in this process, as long as the object exists. Thread-safe."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = reentrant_lock()

    def __repr__(self) -> str:
        return f"<Memory with {len(self._values)} keys>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a Memory stays in its process and cannot be pickled. Use a Disk.")

    def get(self, key: str) -> bytes | None:
        """Return a value, or None."""
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"the value of {key!r} is {type(value).__name__}. Pass bytes.")
        with self._lock:
            self._values[key] = value

    def cas(self, key: str, expected: bytes | None, value: bytes) -> bool:
        """Write a value if the current value is `expected` (None for absent), and return whether it was."""
        with self._lock:
            if self._values.get(key) != expected:
                return False
            self.set(key, value)
            return True

    def delete(self, key: str) -> None:
        """Delete a value. Deleting an absent value does nothing."""
        with self._lock:
            self._values.pop(key, None)

    def keys(self, prefix: str = "") -> Iterable[str]:
        """Return the keys with a prefix."""
        with self._lock:
            return [key for key in self._values if key.startswith(prefix)]


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


_open: Final = set[Keepstate]()
_dropped: Final = deque[Keepstate]()


def _close(handle: Keepstate) -> None:
    """Close a handle. A second call does nothing."""
    if handle in _open:
        _open.discard(handle)
        if handle.runner.is_home():  # a forked child has nothing to close
            finish(handle.close())


def close_dropped() -> None:
    """Close the handles that were recorded since the last call."""
    with suppress(IndexError):  # the last one may be closed by another thread
        while _dropped:
            _close(_dropped.popleft())


@atexit.register
def _close_all() -> None:
    for handle in [*_open]:
        _close(handle)


GIB: Final = 1 << 30

_FILE: Final = "disk.db"


class Disk(KVStore):
    """Stores bytes in a folder. Writes survive a power cut, and nothing is ever evicted.

    Threads and processes may share it. An object that is dropped is closed some time later.

    Args:
        path: The folder; it is created if it is missing.
        size_limit: Maximum bytes of keys and values. A write that would exceed it raises `StoreFullError` and
            is not applied. The folder takes up to two fifths more, or 64 bytes more for each small value; and
            until it is closed a log of 4 MiB and the last write.
    """

    def __init__(self, path: str | PathLike[str], size_limit: int = GIB) -> None:
        limits.admit_count("size_limit", size_limit)
        try:
            self.path: Path = Path(path).absolute()
        except TypeError as error:
            raise InvalidError(f"{path!r} is not a path of a folder. Pass a str or a Path.") from error
        self.size_limit: int = size_limit
        self._opened: Blobs | None = None
        self._lock = reentrant_lock()

    def __repr__(self) -> str:
        return f"<Disk {os.fspath(self.path)}>"

    def __reduce__(self) -> tuple[type[Disk], tuple[Path, int]]:
        return Disk, (self.path, self.size_limit)

    @property
    def _blobs(self) -> Blobs:
        close_dropped()
        with self._lock:  # a second binding would replace the first, and close what other threads use
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> Blobs:
        try:
            make_folder(os.fspath(self.path))
        except OSError as error:
            raise InvalidError(f"the folder {self.path} cannot be created: {error.strerror}") from error
        self._binding = WorkspaceBinding(self.path / _FILE, "disk")
        return Blobs(self._binding.executor, self.size_limit)

    def close(self) -> None:
        """Release the folder; the next call opens it again."""
        with self._lock:
            if self._opened is not None:
                self._opened = None
                self._binding.close()

    def get(self, key: str) -> bytes | None:
        """Return a value, or None."""
        return finish(self._blobs.get([key])).get(key)

    def get_many(self, keys: Collection[str]) -> Mapping[str, bytes]:
        """Return the values that exist, with one read."""
        return finish(self._blobs.get(keys))

    def set(self, key: str, value: bytes) -> None:
        """Write a value.

        Raises:
            StoreFullError: The write would exceed the limit.
        """
        finish(self._blobs.put({key: value}))

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """Write values, in as few batches as possible.

        Raises:
            StoreFullError: The writes would exceed the limit.
        """
        finish(self._blobs.put(values))

    def cas(self, key: str, expected: bytes | None, value: bytes) -> bool:
        """Write a value if the current value is `expected` (None for absent), and return whether it was.

        Raises:
            StoreFullError: The write would exceed the limit.
        """
        return finish(self._blobs.swap(key, expected, value))

    def delete(self, key: str) -> None:
        """Delete a value. Deleting an absent value does nothing."""
        finish(self._blobs.delete(key))

    def keys(self, prefix: str = "") -> Iterable[str]:
        """Return the keys with a prefix, in the order of their UTF-8 bytes."""
        return finish(self._blobs.names(prefix))


MEMORY_URL = "memory://"


class WorkspaceBinding:
    """A store that several states share. The last of them closes it.

    Args:
        store: A key-value store, the URL of a store, the path of an SQLite file, or an open blocking store.
        space: The name of the space in the store.
        author: Author of commits.
        pickle: Serializer for objects of classes that are not registered.
    """

    def __init__(
        self,
        store: KVStore | Store | str | PathLike[str],
        space: str,
        author: str | None = None,
        pickle: SignedPickle | None = None,
    ) -> None:
        close_dropped()
        if isinstance(store, KVStore):
            source: OpenStore | PassedStore = source_over(store)
        elif isinstance(store, type):
            raise InvalidError(f"{store!r} is a class. Pass an object of it, such as {store.__name__}(…).")
        else:
            source = source_of(store, "blocking")
        handle = Keepstate(source, author=author, pickle=pickle)
        self.executor = SpaceExecutor(handle, handle.space(space).name, author)
        self.url = source.url
        self._handle = handle
        self.is_closed = False
        _open.add(handle)
        finalize(self, _dropped.append, handle).atexit = False

    def close(self) -> None:
        """Release the store. A store that was passed in open stays open."""
        self.is_closed = True
        _close(self._handle)

    def require_open(self) -> None:
        """Raise `ClosedError` after `close`, because later changes could not be committed."""
        if self.is_closed:
            raise ClosedError(f"the state in {self.url} is closed. Open it again with the same store.")
