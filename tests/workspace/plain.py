"""The least that a key-value store of one's own can be."""

from __future__ import annotations

from collections.abc import Iterable

from keepstate.kv import KVStore


class Plain(KVStore):
    """A dict; counts what it is asked for. It has no `cas`."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.asked: list[str] = []

    def get(self, key: str) -> bytes | None:
        self.asked.append(key)
        return self.values.get(key)

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)

    def keys(self, prefix: str = "") -> Iterable[str]:
        return [key for key in self.values if key.startswith(prefix)]
