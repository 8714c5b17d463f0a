"""A commit's state, of which some keys are loaded and the others on demand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from keepstate._finish import finish
from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.archive import Archive
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.outline import Outline, StatePath, outline_at, range_at
from keepstate.engine.history.paths import CODEC, Path, find_path, format_path, steps_of
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError, NotFoundError, NotLoadedError
from keepstate.values import limits
from keepstate.values.codec import canonical
from keepstate.values.compression import Expansion
from keepstate.values.contents import open_contents, whole
from keepstate.values.merkle import gather
from keepstate.values.nodes import Entry
from keepstate.values.notebooks import state_html
from keepstate.values.refs import Fetching, together

Load = bool | Collection[Path]
"""True for the whole state, False for nothing yet, or the paths to load."""

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})


def check_load(load: Load) -> Load:
    """Return the argument `load`.

    Raises:
        InvalidError: It is not a bool or a list of paths.
    """
    if isinstance(load, bool):
        return load
    if isinstance(load, str | bytes) or not isinstance(load, Collection):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"`load` is {load!r}; pass True, False, or a list of paths")
    for path in load:
        steps_of(path)
    return list(load)


class State:
    """The loaded keys of one committed state.

    Args:
        executor: The executor of its space.
        records: A cache of commits.
        id: The commit; None for the state before the first commit.
        root: The encoding of the state.
        archive: The archive of the space.
        is_shared: Whether `copy_of` is used, which needs the encodings of loaded values.
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
        self.order: Sequence[bytes] = []
        """Of a state that is loaded whole: the encoded keys of the commit, in order."""

    async def session(self, unit: Unit, branch: str | None = None) -> HistorySession:
        """Return a session that has loaded the objects that the commit carries.

        Args:
            unit: The unit.
            branch: A branch that is read first, because it probably leads to the commit.
        """
        session = HistorySession.of(self._executor, unit, self._records, self._archive)
        if self.id is not None:
            head = None if branch is None else await session.branch(branch)
            if head is None or head.commit != self.id:
                session.read_loosely(self.id)
                session.objects.uses_cache = False
            await session.record(self.id)
        return session

    async def load(self, session: HistorySession, load: Load) -> dict[str, Any]:
        """Load keys, and return those that were not loaded before.

        Raises:
            NotFoundError: The state does not have a key.
        """
        if load is False:
            return {}
        entries = await session.serve(self._entries(load))
        fresh = [(key, entry) for key, entry in entries if key not in self.values and key not in self.gone]
        encodings = await session.serve(whole([entry for _, entry in fresh]))
        objects = await session.serve(gather(encodings))
        expansion = Expansion(objects)
        loaded: dict[str, Any] = {}
        for (key, _), encoding in zip(fresh, encodings, strict=True):
            loaded[key] = session.states.assemble(encoding, objects, expansion)
            if self._is_shared:
                self._sources[key] = encoding, objects
        if load is True:
            self.is_whole, self.order = True, [entry.key for _, entry in entries]
            order = [key for key, _ in entries if key not in self.gone]
            self.values = {
                key: loaded[key] if key in loaded else self.values[key] for key in order
            } | self.values
        else:
            self.values.update(loaded)
        return loaded

    def copy_of(self, key: str) -> Any:
        """Return a new copy of a loaded value, as it was loaded."""
        return self._executor.home.states.assemble(*self._sources[key])

    def _entries(self, load: Load) -> Fetching[list[tuple[str, Entry]]]:
        contents = yield from open_contents(self.root)
        if load is True or load is False:
            return [(_decode_key(entry.key), entry) for entry in (yield from contents.items())]
        keys = list(dict.fromkeys(steps_of(path)[0] for path in load))
        entries: list[tuple[str, Entry]] = []
        found = yield from together([contents.find(canonical(key)) for key in keys])
        for key, entry in zip(keys, found, strict=True):
            if entry is None:
                raise NotFoundError(f"the state has no {key!r}")
            entries.append((key, entry))
        return entries

    async def present(self, session: HistorySession, keys: Collection[str]) -> list[str]:
        """Return the given keys that the state has."""
        contents = await session.serve(open_contents(self.root))
        found = await session.serve(together([contents.find(canonical(key)) for key in keys]))
        return [key for key, entry in zip(keys, found, strict=True) if entry is not None]

    async def read(self, session: HistorySession, path: Path) -> Any:
        """Return a copy of the value at a path.

        Raises:
            NotFoundError: The path does not exist.
        """
        _, encoding = await session.serve(find_path(self.root, path))
        return session.states.assemble(encoding, await session.serve(gather([encoding])))


def _decode_key(encoding: bytes) -> str:
    key = CODEC.assemble(encoding, {})
    if not isinstance(key, str):
        raise CorruptError(f"a state has a key that is not text: {key!r}")
    return key


class Loaded:
    """A state that is loaded in parts."""

    def __init__(self, executor: Executor, state: State) -> None:
        self._executor, self._state = executor, state

    async def load(self, *paths: Path) -> None:
        """Load the keys that some paths begin with, or the whole state if none is given.

        Raises:
            NotFoundError: The state does not have a key.
        """
        wanted: Load = list(paths) if paths else True

        async def work(unit: Unit) -> dict[str, Any]:
            return await self._state.load(await self._state.session(unit), wanted)

        self._on_load((await self._executor.run(work))[0])

    async def _load_present(self, keys: Collection[str]) -> list[str]:
        """Load the given keys that exist, and return them; for the layers above."""

        async def work(unit: Unit) -> tuple[list[str], dict[str, Any]]:
            session = await self._state.session(unit)
            present = await self._state.present(session, keys)
            return present, await self._state.load(session, [(key,) for key in present])

        present, loaded = (await self._executor.run(work))[0]
        self._on_load(loaded)
        return present

    async def fetch(self, path: Path) -> Any:
        """Return a copy of the committed value at a path, reading only the objects on its way.

        Text that is not a key of the state may also be a printed path, such as `messages[3].meta`.

        Raises:
            NotFoundError: The path does not exist. The error shows how much of it does.
        """
        steps_of(path)  # check it before any read

        async def work(unit: Unit) -> Any:
            return await self._state.read(await self._state.session(unit), path)

        return (await self._executor.run(work))[0]

    def _on_load(self, loaded: dict[str, Any]) -> None:
        """Note values that were loaded."""

    def _value(self, key: object) -> Any:
        """Return the value of a key, or `MISSING`. Blocking use loads it; async use must have loaded it."""
        is_open = not self._state.is_whole and key not in self._state.gone
        if isinstance(key, str) and key not in self._state.values and is_open:
            self._require_loaded(f"{key!r}", f"load({key!r})", key)
        values = self._state.values
        return values[key] if isinstance(key, str) and key in values else MISSING

    def _all(self) -> dict[str, Any]:
        if not self._state.is_whole:
            self._require_loaded("all keys", "load()")
        return self._state.values

    def _require_loaded(self, what: str, call: str, *paths: Path) -> None:
        if self._executor.runner.mode != "blocking":
            raise NotLoadedError(f"{what} of the state is not loaded; call `await {call}` on it first")
        try:
            finish(self.load(*paths))
        except NotFoundError:
            if not paths:
                raise


def missing_error(key: object) -> NotFoundError:
    """Return the error for a key that the state does not have."""
    return NotFoundError(f"the state has no {format_path((key,))}")


class Checkout(Loaded, Mapping[str, Any]):
    """The state of one commit: a read-only mapping over its loaded keys.

    Each read returns a new copy, so a caller that changes a value changes nothing for other readers.

    Attributes:
        commit: The commit.
    """

    def __init__(self, executor: Executor, state: State, commit: Commit) -> None:
        super().__init__(executor, state)
        self.commit: Commit = commit
        self._unread = set(state.values)
        """Keys whose loaded value was not returned yet."""
        self._own: dict[str, Any] = {}
        """Values that only paths lead into. They are never returned whole."""

    def __repr__(self) -> str:
        return f"<Checkout of {self.commit.id[:10]} in {self._executor.name!r}>"

    def _repr_html_(self) -> str:
        return state_html(f"{self.commit.id[:10]} {self.commit.message}", self._state.values)

    def __getitem__(self, key: str | tuple[Any, ...]) -> Any:
        """Return a copy of the value of a key; with a tuple, of the value at that path.

        To walk over a long list, read it once or iterate over it, because each `checkout["list"]` is a copy.

        Raises:
            NotFoundError: The key or path does not exist.
            NotLoadedError: The key is not loaded. Blocking use loads it now.
        """
        first, *steps = steps_of(key)
        value = self._value(first)
        if value is MISSING:
            raise missing_error(first)
        if not steps:
            return self._copy(first, value)
        if first not in self._own:
            self._own[first] = self._copy(first, value)
        inner = _value_at(self._own[first], first, steps)
        return inner if type(inner) in _PLAIN else deepcopy(inner)

    async def outline(self, path: StatePath = (), *, after: int | None = None, limit: int = 100) -> Outline:
        """Return a page of the items of a list or dict, without reading large values.

        The cost depends on the size of the page, not on that of the list or dict.

        Args:
            path: The path of the list or dict; `()` is the whole state. Text is read as by `fetch`.
            after: The place of the last item of the page before, `next` of its outline.
            limit: The largest number of items.

        Raises:
            NotFoundError: The path does not exist.
            InvalidError: The value at the path is not a list or dict.
        """
        if path != ():
            steps_of(path)  # check it before any read
        if after is not None:
            limits.admit_count("after", after, least=0)
        limits.admit_count("limit", limit)

        async def work(unit: Unit) -> Outline:
            session = await self._state.session(unit)
            return await session.serve(outline_at(self._state.root, path, after, limit, session.states))

        return (await self._executor.run(work))[0]

    async def slice(self, path: Path, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return a copy of a range of a committed list, reading only the objects that hold it.

        Args:
            path: The path of the list, as for `fetch`.
            start: The first index; a negative one counts from the end. The default is the beginning.
            stop: The index before which the range ends; negative as above. The default is the end.

        Raises:
            NotFoundError: The path does not exist.
            InvalidError: The value at the path is not a list.
        """
        steps_of(path)
        for name, place in (("start", start), ("stop", stop)):
            if place is not None and type(place) is not int:
                raise InvalidError(f"`{name}` is {place!r}; pass an index, or None")

        async def work(unit: Unit) -> list[Any]:
            session = await self._state.session(unit)
            encodings = await session.serve(range_at(self._state.root, path, start, stop))
            objects = await session.serve(gather(encodings))
            expansion = Expansion(objects)
            return [session.states.assemble(encoding, objects, expansion) for encoding in encodings]

        return (await self._executor.run(work))[0]

    def _copy(self, key: str, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        try:
            self._unread.remove(key)  # succeeds in one thread only
        except KeyError:
            return self._state.copy_of(key)
        return value

    def _on_load(self, loaded: dict[str, Any]) -> None:
        self._unread |= loaded.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __setitem__(self, key: str, value: object) -> None:
        """Raise: a commit never changes."""
        raise self._read_only_error()

    def __delitem__(self, key: str) -> None:
        """Raise: a commit never changes."""
        raise self._read_only_error()

    def update(self, *args: object, **kwargs: object) -> None:
        """Raise: a commit never changes."""
        raise self._read_only_error()

    def setdefault(self, key: str, default: object = None) -> None:
        """Raise: a commit never changes."""
        raise self._read_only_error()

    def pop(self, key: str, default: object = None) -> None:
        """Raise: a commit never changes."""
        raise self._read_only_error()

    def popitem(self) -> None:
        """Raise: a commit never changes."""
        raise self._read_only_error()

    def clear(self) -> None:
        """Raise: a commit never changes."""
        raise self._read_only_error()

    def _read_only_error(self) -> InvalidError:
        return InvalidError(f"{self!r} is read-only; change a draft, `begin(branch)`, and commit that")


def _value_at(value: Any, first: object, steps: list[Any]) -> Any:
    path: tuple[Any, ...] = (first,)
    for step in steps:
        path = (*path, step)
        try:
            value = value[step]
        except (LookupError, TypeError) as error:
            raise NotFoundError(f"there is no {format_path(path)}") from error
    return value
