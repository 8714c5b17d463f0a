"""Named bytes up to a size limit: the counterpart of a folder on disk.

Invariant: every batch that changes the total size also writes the size entry. That entry is therefore the
exact size of all names and values, and the limit is never exceeded. Nothing is evicted to make room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.grants import checks_for
from keepstate.engine.kernel.large_values import MANIFEST_BYTE, collect_parts
from keepstate.engine.kernel.stored import decode_stored
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import InvalidError, StoreFullError
from keepstate.stores.protocol import Entry
from keepstate.values import limits

_PLAIN: Final = b"\x01"
"""Precedes each value, because a value may begin with any byte, such as `MANIFEST_BYTE`."""
_NAME_BYTES: Final = limits.KEY_BYTES - len(layout.BLOBS)


class Blobs:
    """The named bytes of a space.

    Args:
        executor: The executor of the space.
        size_limit: The largest total size of names and values, in bytes.
    """

    def __init__(self, executor: Executor, size_limit: int) -> None:
        self._executor, self._size_limit = executor, size_limit

    async def get(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the values that exist, by name. There is no limit on their number or size."""
        keys = {_key(name): name for name in names}
        found: dict[str, bytes] = {}
        for entry in await self._read(list(keys)):
            found[keys[entry[0].key]] = entry[1]
        return found

    async def _read(self, keys: Sequence[bytes]) -> list[tuple[Entry, bytes]]:
        if len(keys) > limits.READ_KEYS:
            half = len(keys) // 2
            return await self._read(keys[:half]) + await self._read(keys[half:])

        async def work(unit: Unit) -> list[tuple[Entry, bytes]]:
            there = [entry for entry in await unit.read(*keys) if entry is not None]
            return [(entry, (await unit.value(entry))[len(_PLAIN) :]) for entry in there]

        try:
            return (await self._executor.run(work, attempts=None))[0]
        except InvalidError:  # too large for one read
            if len(keys) < 2:
                raise
            half = len(keys) // 2
            return await self._read(keys[:half]) + await self._read(keys[half:])

    async def put(self, values: Mapping[str, bytes]) -> None:
        """Write values, in as few batches as the limits of a batch allow.

        Raises:
            StoreFullError: A batch would exceed the size limit. That batch was not written; earlier ones
                were.
        """
        for group in _groups(values):
            await self._change(dict(group))

    async def swap(self, name: str, expected: bytes | None, value: bytes) -> bool:
        """Write a value if the current one equals `expected` (None: absent), and return whether it did."""
        return await self._change({name: value}, {name: expected})

    async def delete(self, name: str) -> bool:
        """Delete a value, and return whether it existed."""
        return await self._change({name: None})

    async def names(self, prefix: str) -> list[str]:
        """Return the names that start with a prefix, in the order of their UTF-8 bytes."""
        start = layout.BLOBS + prefix.encode()
        return [layout.name_of(layout.BLOBS, entry.key) async for _, entry in self._executor.scan(start)]

    async def _change(
        self, values: Mapping[str, bytes | None], expected: Mapping[str, bytes | None] | None = None
    ) -> bool:
        """Write or delete values. Return False if `expected` did not match or there was nothing to delete."""
        keys = {name: _key(name) for name in values}
        replaces_large = False

        async def work(unit: Unit) -> bool:
            nonlocal replaces_large
            size, *entries = await unit.read(layout.BLOBS_SIZE, *keys.values())
            before = dict(zip(values, entries, strict=True))
            for name, wanted in (expected or {}).items():
                entry = before[name]
                if wanted != (None if entry is None else (await unit.value(entry))[len(_PLAIN) :]):
                    return False
            total = grown = 0
            if size is not None:
                total = decode_stored(size.value, int, layout.BLOBS_SIZE)
            for name, value in values.items():
                entry = before[name]
                if entry is not None:
                    old = await unit.value(entry)
                    replaces_large |= entry.value.startswith(MANIFEST_BYTE)
                    grown -= len(keys[name]) + len(old)
                if value is not None:
                    grown += len(keys[name]) + len(_PLAIN) + len(value)
                    unit.put(keys[name], _PLAIN + value)
                elif entry is not None:
                    unit.delete(keys[name])
            if grown > 0 and total + grown > self._size_limit:
                raise self._full(total, grown)
            if not unit.writes:
                return False
            unit.put(layout.BLOBS_SIZE, msgspec.msgpack.encode(total + grown))
            return True

        changed, _ = await self._executor.run(work, attempts=None)
        if replaces_large:
            store, name = await self._executor.store(), self._executor.stored_name
            await collect_parts(store, name, await checks_for(store, name))
        return changed

    def _full(self, total: int, grown: int) -> StoreFullError:
        return StoreFullError(
            f"{self._executor.name!r} has {total} bytes and would get {grown} more; its limit is "
            f"{self._size_limit}: open it with a larger size_limit, or delete something",
            space=self._executor.name,
        )


def _key(name: object) -> bytes:
    try:
        text = name.encode() if isinstance(name, str) else b""
    except UnicodeEncodeError as error:
        raise InvalidError(f"{name!r} cannot be encoded as UTF-8; give another key") from error
    if not 0 < len(text) <= _NAME_BYTES:
        raise InvalidError(f"a key is a str of 1 to {_NAME_BYTES} bytes of UTF-8, not {str(name)[:40]!r}")
    return layout.BLOBS + text


def _groups(values: Mapping[str, bytes]) -> Iterator[list[tuple[str, bytes]]]:
    """Yield values in groups. Each group fits into one batch, and the values it replaces into one read."""
    group: list[tuple[str, bytes]] = []
    size = 0
    for name, value in values.items():
        if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"the value of {name!r} is {type(value).__name__}; give bytes")
        own = min(len(value), limits.VALUE_BYTES) + limits.KEY_BYTES
        if group and (len(group) == limits.BATCH_WRITES // 2 or size + own > limits.BATCH_BYTES // 2):
            yield group
            group, size = [], 0
        group.append((name, value))
        size += own
    if group:
        yield group
