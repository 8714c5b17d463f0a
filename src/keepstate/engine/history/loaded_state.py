"""A state of which some parts are loaded, and the rest when it is asked for: checkouts and drafts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from keepstate._finish import finish
from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.archive import Archive
from keepstate.engine.history.paths import CODEC, Path, find_path, shown, steps_of
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError, NotFoundError, NotLoadedError
from keepstate.values.codec import canonical
from keepstate.values.contents import open_contents, whole
from keepstate.values.expansion import Expansion
from keepstate.values.merkle import gather
from keepstate.values.nodes import Entry
from keepstate.values.refs import Fetching, together

Load = bool | Collection[Path]
"""True for all, False for nothing yet, or paths."""


def admit_load(load: Load) -> Load:
    """Return what is to be loaded.

    Raises:
        InvalidError: It is neither, or a path is none.
    """
    if isinstance(load, bool):
        return load
    if isinstance(load, str | bytes) or not isinstance(load, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"`load` is {load!r}; give True, False, or a list of paths")
    for path in load:
        steps_of(path)
    return list(load)


class State:
    """The loaded keys of one committed state.

    Args:
        executor: Where its history is.
        records: Commits that are remembered.
        id: The commit; None for a state without any.
        root: The state's encoding.
        archive: What was moved into a file.
        is_shared: Whether `again` is to make any loaded value anew.
    """

    def __init__(
        self,
        executor: Executor,
        records: Records,
        id: bytes | None,
        root: bytes,
        *,
        archive: Archive | None = None,
        is_shared: bool = False,
    ) -> None:
        self._executor, self._records, self.id, self.root = executor, records, id, root
        self._archive = archive
        self._is_shared = is_shared
        self._sources: dict[str, tuple[bytes, dict[bytes, bytes]]] = {}
        self.values: dict[str, Any] = {}
        self.gone: set[str] = set()
        """Keys that were removed, and are not to be loaded."""
        self.is_whole = False

    async def session(self, unit: Unit) -> HistorySession:
        """Return a ledger that has at hand what the commit carries."""
        executor = self._executor
        session = HistorySession(
            unit, self._records, states=executor.home.states, record=executor.record, archive=self._archive
        )
        if self.id is not None:
            session.read_loosely(self.id)
            await session.record(self.id)
        return session

    async def load(self, session: HistorySession, load: Load) -> dict[str, Any]:
        """Return what was not loaded yet of what is asked for, by key, and has it loaded.

        Raises:
            NotFoundError: There is no such key.
        """
        if load is False:
            return {}
        entries = await session.serve(self._entries(load))
        fresh = [(key, entry) for key, entry in entries if key not in self.values and key not in self.gone]
        encodings = await session.serve(whole([entry for _, entry in fresh]))
        objects = await session.serve(gather(encodings))
        expansion = Expansion(objects)
        loaded = {
            key: session.states.assemble(encoding, objects, expansion)
            for (key, _), encoding in zip(fresh, encodings, strict=True)
        }
        if self._is_shared:
            for (key, _), encoding in zip(fresh, encodings, strict=True):
                self._sources[key] = encoding, objects
        if load is True:
            self.is_whole = True
            request = [key for key, _ in entries if key not in self.gone]
            self.values = {
                key: loaded[key] if key in loaded else self.values[key] for key in request
            } | self.values
        else:
            self.values.update(loaded)
        return loaded

    def again(self, key: str) -> Any:
        """Return a new copy of a loaded value, whatever has become of the one before."""
        return self._executor.home.states.assemble(*self._sources[key])

    def _entries(self, load: Load) -> Fetching[list[tuple[str, Entry]]]:
        contents = yield from open_contents(self.root)
        if load is True or load is False:
            return [(_key(entry.key), entry) for entry in (yield from contents.items())]
        keys = list(dict.fromkeys(steps_of(path)[0] for path in load))
        found = yield from together([contents.find(canonical(key)) for key in keys])
        there: list[tuple[str, Entry]] = []
        for key, entry in zip(keys, found, strict=True):
            if entry is None:
                raise NotFoundError(f"the state has no {key!r}")
            there.append((key, entry))
        return there

    async def present(self, session: HistorySession, keys: Collection[str]) -> list[str]:
        """Return which of some keys the state has."""
        contents = await session.serve(open_contents(self.root))
        found = await session.serve(together([contents.find(canonical(key)) for key in keys]))
        return [key for key, entry in zip(keys, found, strict=True) if entry is not None]

    async def read(self, session: HistorySession, path: Path) -> Any:
        """Return a copy of what a path leads to.

        Raises:
            NotFoundError: It leads nowhere.
        """
        _, encoding = await session.serve(find_path(self.root, path))
        return session.states.assemble(encoding, await session.serve(gather([encoding])))

    async def has(self, session: HistorySession, key: str) -> bool:
        """Whether the state has a key."""
        contents = await session.serve(open_contents(self.root))
        return await session.serve(contents.find(canonical(key))) is not None


def _key(encoding: bytes) -> str:
    key = CODEC.assemble(encoding, {})
    if not isinstance(key, str):
        raise CorruptError(f"a state has a key that is no text: {key!r}")
    return key


class Loaded:
    """Loads parts of a state when they are asked for."""

    def __init__(self, executor: Executor, state: State) -> None:
        self._executor, self._state = executor, state

    async def load(self, *paths: Path) -> None:
        """Load the keys that some paths begin with, or all of the state where none is given.

        Raises:
            NotFoundError: The state has no such key.
        """
        wanted: Load = list(paths) if paths else True

        async def work(unit: Unit) -> dict[str, Any]:
            return await self._state.load(await self._state.session(unit), wanted)

        self._keep((await self._executor.run(work))[0])

    async def _load_present(self, keys: Collection[str]) -> list[str]:
        """Load what there is of some keys, and return which there are; for what stands above."""

        async def work(unit: Unit) -> tuple[list[str], dict[str, Any]]:
            session = await self._state.session(unit)
            present = await self._state.present(session, keys)
            return present, await self._state.load(session, [(key,) for key in present])

        present, loaded = (await self._executor.run(work))[0]
        self._keep(loaded)
        return present

    async def fetch(self, path: Path) -> Any:
        """Return a copy of what a path leads to in the commit, reading only what lies on its way.

        A text that is not a key of the state may be a path as it is printed, such as `messages[3].meta`.

        Raises:
            NotFoundError: It leads nowhere; says how far it goes.
        """
        steps_of(path)  # a wrong one is refused before anything is read

        async def work(unit: Unit) -> Any:
            return await self._state.read(await self._state.session(unit), path)

        return (await self._executor.run(work))[0]

    def _keep(self, loaded: dict[str, Any]) -> None:
        """Take what was loaded just now."""

    def _loaded(self, key: object) -> Any:
        """Return the value of a key; in blocking use it is loaded, in asynchronous use it must be."""
        is_open = not self._state.is_whole and key not in self._state.gone
        if isinstance(key, str) and key not in self._state.values and is_open:
            self._need(f"{key!r}", f"load({key!r})", key)
        values = self._state.values
        return values[key] if isinstance(key, str) and key in values else MISSING

    def _all(self) -> dict[str, Any]:
        if not self._state.is_whole:
            self._need("all keys", "load()")
        return self._state.values

    def _need(self, what: str, call: str, *paths: Path) -> None:
        if self._executor.runner.mode != "blocking":
            raise NotLoadedError(f"{what} of the state is not loaded; call `await {call}` on it first")
        try:
            finish(self.load(*paths))
        except NotFoundError:
            if not paths:
                raise


def missing(key: object) -> NotFoundError:
    """Return the error of who reads a key that is not there."""
    return NotFoundError(f"the state has no {shown((key,))}")
