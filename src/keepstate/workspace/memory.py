"""A key-value store in memory."""

from __future__ import annotations

from collections.abc import Iterable

from keepstate._runner import reentrant_lock
from keepstate.errors import InvalidError
from keepstate.workspace.kv import KVStore


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
