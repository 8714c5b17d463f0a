"""What a key-value store of one's own must do, for a `Versioned` to keep its variables there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping


class KVStore(ABC):
    """Bytes by name. Subclass it with `get`, `set`, `delete` and `keys`; override more where it pays.

    With a method `cas(key, expected, value) -> bool`, which writes only if the present value is `expected`
    (None for none), several processes may use it at once. Without one you promise that there is one writer.
    """

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return a value, None for none."""

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Write a value; when it returns, the value is as safe as it will ever be."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove a value; an absent one stays absent."""

    @abstractmethod
    def keys(self, prefix: str = "") -> Iterable[str]:
        """Return the keys that start with a prefix, in any order."""

    def get_many(self, keys: Collection[str]) -> Mapping[str, bytes]:
        """Return the values that are there."""
        found = {key: self.get(key) for key in keys}
        return {key: value for key, value in found.items() if value is not None}

    def set_many(self, values: Mapping[str, bytes]) -> None:
        """Write values, one after the other."""
        for key, value in values.items():
            self.set(key, value)

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield keys that start with a prefix, and their values."""
        for key in list(self.keys(prefix)):
            value = self.get(key)
            if value is not None:
                yield key, value

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None
