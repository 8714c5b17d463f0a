"""The records of a store that may be damaged, from its files or its server."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from keepstate.errors import NotFoundError
from keepstate.stores.protocol import Entry, Store
from keepstate.stores.recovery.remains import Damage, RecoveredStore, SpaceRemains
from keepstate.stores.urls import StoreUrl

_PAGE = 256


class FileSource:
    """What is whole of a store's files, as the engine looks at it."""

    def __init__(self, remains: RecoveredStore) -> None:
        self.remains = remains

    async def pages(self, space: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield all entries of a space."""
        for entry in self.remains.entries(space):
            yield [entry]

    async def read(self, space: str, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries, None for absent ones."""
        return self.remains.read(space, keys)


class StoreSource:
    """A store's records, read through the store itself."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def pages(self, space: str) -> AsyncIterator[Sequence[Entry]]:
        """Yield all entries of a space."""
        for section in range(3):
            after: bytes | None = None
            while True:
                page = await self._store.scan(space, bytes((section,)), after=after, limit=_PAGE)
                yield page.entries
                after = page.next
                if after is None:
                    break

    async def read(self, space: str, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries as of one moment, None for absent ones."""
        return (await self._store.read(space, keys)).entries


class SpaceRecords:
    """One space of what is whole."""

    def __init__(self, remains: RecoveredStore, space: str) -> None:
        self._remains, self._space = remains, space

    def entries(self) -> Iterator[Entry]:
        """Yield all that is whole, in key order."""
        return self._remains.entries(self._space)

    def read(self, keys: Sequence[bytes]) -> Sequence[Entry | None]:
        """Return entries in the order of the keys asked."""
        return self._remains.read(self._space, keys)


@asynccontextmanager
async def remains_of(url: StoreUrl) -> AsyncGenerator[RecoveredStore]:
    """Yield what is whole of a store's files, which are not touched; SQLite looks too.

    Args:
        url: A `file:` or `sqlite:` URL.

    Raises:
        NotFoundError: There is no such file.
    """
    path = os.path.abspath(url.path)
    if url.backend == "file":
        from keepstate.stores.file.store import JOURNAL
        from keepstate.stores.recovery.file import JournalRemains

        path = os.path.join(path, JOURNAL) if os.path.isdir(path) else path
        _refuse_absent(path)
        yield JournalRemains(path)
        return
    from keepstate.stores.recovery.sqlite import DatabaseRemains, check_integrity, copy_database

    _refuse_absent(path)
    with TemporaryDirectory(prefix="keepstate-") as folder:
        remains = DatabaseRemains(copy_database(path, folder), name=path)
        try:
            remains.damages += check_integrity(remains.file, folder)
            yield remains
        finally:
            remains.close()


def _refuse_absent(path: str) -> None:
    if not Path(path).is_file():
        raise NotFoundError(f"there is no store at {path}")


class StoreRemains:
    """What a store gave when it was read through, held in memory."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[bytes, Entry]] = {}
        self._spaces: list[SpaceRemains] = []
        self.damages: list[Damage] = []

    def added(self, space: SpaceRemains) -> dict[bytes, Entry]:
        """Return where the entries of one more space go, in key order."""
        self._spaces.append(space)
        return self._entries.setdefault(space.name, {})

    def spaces(self) -> list[SpaceRemains]:
        """Return the spaces."""
        return self._spaces

    def entries(self, space: str) -> Iterator[Entry]:
        """Yield a space's entries, in key order."""
        yield from self._entries[space].values()

    def read(self, space: str, keys: Sequence[bytes]) -> list[Entry | None]:
        """Return entries in the order of the keys asked."""
        return [self._entries[space].get(key) for key in keys]

    def close(self) -> None:
        """Let go of them."""
        self._entries.clear()
