"""A key-value store in a folder, durable, shared by the processes of one host."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Final

from keepstate._files import make_folder
from keepstate._finish import finish
from keepstate.engine.kernel.blobs import Blobs
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.opening import source_of
from keepstate.values import limits
from keepstate.workspace.kv import KVStore
from keepstate.workspace.leaked_handles import close, close_dropped, close_with

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

    def __repr__(self) -> str:
        return f"<Disk {os.fspath(self.path)}>"

    def __reduce__(self) -> tuple[type[Disk], tuple[Path, int]]:
        return Disk, (self.path, self.size_limit)

    @property
    def _blobs(self) -> Blobs:
        close_dropped()
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> Blobs:
        try:
            make_folder(os.fspath(self.path))
        except OSError as error:
            raise InvalidError(f"the folder {self.path} cannot be created: {error.strerror}") from error
        handle = Keepstate(source_of(self.path / _FILE, "blocking"))
        close_with(self, handle)
        self._handle = handle
        return Blobs(SpaceExecutor(handle, "disk", None), self.size_limit)

    def close(self) -> None:
        """Release the folder; the next call opens it again."""
        if self._opened is not None:
            self._opened = None
            close(self._handle)

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
