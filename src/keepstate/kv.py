"""`KVStore`, the base class of your own key-value store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = ["KVStore"]


class KVStore(ABC):
    """Bytes by name. Subclass it with `get`, `set`, `delete` and `keys`; override more methods for speed.

    With a method `cas(key, expected, value) -> bool`, several processes may use the store at once. `cas`
    writes only if the current value is `expected` (None for an absent one). Without it there must be only one
    writer.
    """

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return a value, or None."""

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Write a value. The value must be durable when this returns, as far as the store is durable."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete a value. Deleting an absent value does nothing."""

    @abstractmethod
    def keys(self, prefix: str = "") -> Iterable[str]:
        """Return the keys with a prefix, in any order."""

    def get_many(self, keys: Collection[str]) -> Mapping[str, bytes]:
        """Return the values that exist."""
        found = {key: self.get(key) for key in keys}
        return {key: value for key, value in found.items() if value is not None}

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """Write values, one by one."""
        for key, value in values.items():
            self.set(key, value)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield keys with a prefix, and their values."""
        for key in list(self.keys(prefix)):
            value = self.get(key)
            if value is not None:
                yield key, value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None
