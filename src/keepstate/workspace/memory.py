"""A key-value store in memory."""

from __future__ import annotations

from collections.abc import Iterable

from keepstate._runner import reentrant_lock
from keepstate.errors import InvalidError
from keepstate.workspace.kv import KVStore


class Memory(KVStore):
    """Keeps bytes in this process, for as long as somebody holds it. Threads may share it."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = reentrant_lock()

    def __repr__(self) -> str:
        return f"<Memory with {len(self._values)} keys>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a Memory stays in its process and cannot be pickled; use a Disk")

    def get(self, key: str) -> bytes | None:
        """Return a value, None for none."""
        return self._values.get(key)

    def set(self, key: str, value: bytes) -> None:
        """Write a value."""
        if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"the value of {key!r} is {type(value).__name__}; give bytes")
        with self._lock:
            self._values[key] = value

    def cas(self, key: str, expected: bytes | None, value: bytes) -> bool:
        """Write a value if the present one is `expected`, None for none, and return whether it was."""
        with self._lock:
            if self._values.get(key) != expected:
                return False
            self.set(key, value)
            return True

    def delete(self, key: str) -> None:
        """Remove a value; an absent one stays absent."""
        with self._lock:
            self._values.pop(key, None)

    def keys(self, prefix: str = "") -> Iterable[str]:
        """Return the keys that start with a prefix."""
        with self._lock:
            return [key for key in self._values if key.startswith(prefix)]
