"""Profiles and shared state: what is kept of an agent or a scope, beyond runs and threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from os import PathLike
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast, overload

from keepstate._runner import Mode
from keepstate.engine.documents.documents import MISSING, DocumentEntry, Missing, resolve_expected_version
from keepstate.engine.kernel.arguments import check_revision, check_target
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.positions import Printable
from keepstate.engine.space.joint_work import read_ahead, together
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import ConflictError, InvalidError, StateError
from keepstate.stores.protocol import Store
from keepstate.typed.admission import admit_many
from keepstate.typed.binding import Home
from keepstate.typed.encoded_value import fresh, kept
from keepstate.typed.key import ProfileKey, admit_key, opened
from keepstate.typed.layout import profile_prefix
from keepstate.typed.read_set import Reads
from keepstate.typed.records import ValueRecord, kept_record, read_record
from keepstate.typed.scopes import StateScope, owner_of

V = TypeVar("V")

_NAMES_BY_READ: Final = 500

Owner = str | StateScope
"""A scope, the string of one, or any other string."""


@dataclass(frozen=True, slots=True)
class ProfileEntry(Generic[V]):
    """A value of a profile as it was read.

    Attributes:
        key: The name of its profile key.
        value: A copy; JSON where the key is not known, or `error` says why it is no value of it.
        version: An `expected_version` within this handle; 0 in the transaction that has written it.
        error: Why the value cannot be read, in what `list` gives: the others can.
    """

    key: str
    value: V
    version: int
    error: StateError | None = None
    _printable: Printable | None = field(default=None, repr=False, compare=False)

    @property
    def printed_version(self) -> str | None:
        """An opaque text: as `expected_version` in any process, it is refused once its history is gone.

        None while `version` is 0.
        """
        return None if self._printable is None else self._printable.text()


Entries = list[ProfileEntry[Any]]
"""Values of one owner, by name of key."""


class ProfileAccess:
    """Reads and writes values of profile keys, each under the string of whom it belongs to.

    It remembers what each task and thread has read by it, of the last 65,536 values at least: who writes over
    that writes only if it is still so. Without a read before, `write` replaces what is there; `update` is for
    changing it.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` profiles are in memory that nobody else sees.
        space: Instead: a space, or a transaction, that all profiles are in.
        keys: The keys that `list` reads by; others are given as JSON.
        author: Who writes, in what is recorded.
    """

    def __init__(
        self,
        *,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
        keys: Iterable[type[ProfileKey[Any]]] = (),
        author: str | None = None,
        _mode: Mode = "async",
    ) -> None:
        self._home = Home(persistence, space, author=author, mode=_mode)
        self._keys = {key.KEY: key for key in _admitted(keys)}
        self._blocking = _mode == "blocking"
        self._read = Reads()

    def __repr__(self) -> str:
        return f"<ProfileAccess in {self._home!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of a store that was opened here; what was passed in open stays open."""
        await self._home.close()

    def _admit(self, mode: Mode) -> None:
        """Raise `InvalidError` unless it is used in this colour; for `AgentRun`."""
        check_target("profile", self._home.passed or self._home.handle, mode, Space, Transaction, Keepstate)

    def _afresh(self, keys: Iterable[type[ProfileKey[Any]]]) -> ProfileAccess:
        """Return the same for another task, which has read nothing yet."""
        other = ProfileAccess.__new__(ProfileAccess)
        other._home, other._blocking, other._read = self._home, self._blocking, Reads()
        other._keys = {**self._keys, **{key.KEY: key for key in keys}}
        return other

    # ---- one value

    async def read(
        self,
        profile_key: type[ProfileKey[V]],
        key: Owner | None = None,
        *,
        agent: str | None = None,
        scope: StateScope | None = None,
    ) -> V:
        """Return a value, or the key's default if there is none.

        Args:
            profile_key: What to read.
            key: Whose: a scope, or the string of one.
            agent: Instead: the agent of this name, whom no scope can be mistaken for.
            scope: Instead: a scope.

        Raises:
            StateError: What is stored no longer validates; names the path and the stored version.
        """
        found = await self.entry(profile_key, key, agent=agent, scope=scope)
        return fresh(profile_key) if found is None else found.value

    async def entry(
        self,
        profile_key: type[ProfileKey[V]],
        key: Owner | None = None,
        *,
        agent: str | None = None,
        scope: StateScope | None = None,
    ) -> ProfileEntry[V] | None:
        """Return a value with its version, or None if there is none; see `read`."""
        owner = owner_of(key, agent, scope)
        place, name = self._place(owner), _name(owner, profile_key)
        stored = await place.documents.entry(name)
        if isinstance(place, Space):
            self._read.read(owner, profile_key.KEY, 0 if stored is None else stored.version)
        if stored is None:
            return None
        record = read_record(ValueRecord, name, stored.value)
        value = opened(profile_key, record.value, record.version)
        return _entry(profile_key.KEY, value, stored)

    @overload
    async def write(
        self,
        profile_key: type[ProfileKey[V]],
        key: Owner,
        value: V,
        *,
        expected_version: str | int | None = None,
    ) -> int: ...
    @overload
    async def write(
        self,
        profile_key: type[ProfileKey[V]],
        *,
        value: V,
        agent: str | None = None,
        scope: StateScope | None = None,
        expected_version: str | int | None = None,
    ) -> int: ...
    async def write(
        self,
        profile_key: type[ProfileKey[V]],
        key: Owner | None = None,
        value: V | Missing = MISSING,
        *,
        agent: str | None = None,
        scope: StateScope | None = None,
        expected_version: str | int | None = None,
    ) -> int:
        """Write a value, and return its version; 0 inside a transaction, which has none before it ends.

        What this object has read before is replaced only if nobody has changed it since.

        Args:
            profile_key: What to write.
            key: Whose; see `read`.
            value: The value.
            agent: Instead of `key`.
            scope: Instead of `key`.
            expected_version: Writes only over this version; 0 only if there is none. A `printed_version` may
                come from another process; a number is for use within a handle.

        Raises:
            ConflictError: Somebody else has changed it; nothing was written. Read it again, or `update` it.
            HistoryLostError: The store lost what a printed version was printed of, and others wrote after.
            StateError: It is no value of the key; names the path.
        """
        if isinstance(value, Missing):
            raise InvalidError("no `value` was given to write")
        owner = owner_of(key, agent, scope)
        name = _name(owner, profile_key)
        if expected_version is None:
            expected_version = self._read.expected(owner, profile_key.KEY)
        record = kept_record(kept(profile_key, value))
        try:
            version = await self._place(owner).documents.put(name, record, expected_version=expected_version)
        except ConflictError:
            self._read.refused(owner, profile_key.KEY)
            raise
        if version:
            self._read.wrote(owner, profile_key.KEY, version)
        return version

    @overload
    async def update(
        self, profile_key: type[ProfileKey[V]], key: Owner, change: Callable[[V], V | Awaitable[V]]
    ) -> V: ...
    @overload
    async def update(
        self,
        profile_key: type[ProfileKey[V]],
        *,
        change: Callable[[V], V | Awaitable[V]],
        agent: str | None = None,
        scope: StateScope | None = None,
    ) -> V: ...
    async def update(
        self,
        profile_key: type[ProfileKey[V]],
        key: Owner | None = None,
        change: Callable[[V], V | Awaitable[V]] | Missing = MISSING,
        *,
        agent: str | None = None,
        scope: StateScope | None = None,
    ) -> V:
        """Change a value, or the default if there is none, again and again until nobody else has meanwhile.

        Args:
            profile_key: What to change.
            key: Whose; see `read`.
            change: Gets a copy of the value, and returns the new one. It may be called several times.
            agent: Instead of `key`.
            scope: Instead of `key`.

        Returns:
            The new value.
        """
        if isinstance(change, Missing):
            raise InvalidError("no `change` was given to update")
        if self._blocking:
            reject_coroutine_function(change)
        elif not callable(change):
            raise InvalidError(f"`change` is {change!r}; give a function of the old value")
        function = change
        owner = owner_of(key, agent, scope)
        name = _name(owner, profile_key)

        async def changed(stored: Any) -> Any:
            record = None if stored is None else read_record(ValueRecord, name, stored)
            old = fresh(profile_key) if record is None else opened(profile_key, record.value, record.version)
            new: Any = await call_function(function, old)
            if new is None and profile_key.default() is not None:
                raise StateError(
                    f"what updates {profile_key.KEY!r} returned None; let it return the new value",
                    state_key=profile_key.KEY,
                )
            return kept_record(kept(profile_key, cast("V", new)))

        # A plain function around it, because blocking handles take no coroutine functions.
        documents = self._place(owner).documents
        made, version = await documents._update_versioned(name, lambda old: changed(old), None)  # noqa: PLW0108  # pyright: ignore[reportPrivateUsage]
        if version:
            self._read.read(owner, profile_key.KEY, version)
        else:
            self._read.forget(owner, profile_key.KEY)
        record = read_record(ValueRecord, name, made)
        return opened(profile_key, record.value, record.version)

    async def delete(
        self,
        profile_key: type[ProfileKey[Any]],
        key: Owner | None = None,
        *,
        agent: str | None = None,
        scope: StateScope | None = None,
        expected_version: str | int | None = None,
    ) -> bool:
        """Remove a value, and return whether there was one; what was read only as it was, as `write` does.

        Args:
            profile_key: What to remove.
            key: Whose; see `read`.
            agent: Instead of `key`.
            scope: Instead of `key`.
            expected_version: Removes only this version; see `write`.

        Raises:
            ConflictError: Somebody else has changed it; nothing was removed.
            HistoryLostError: The store lost what a printed version was printed of, and others wrote after.
        """
        owner = owner_of(key, agent, scope)
        name = _name(owner, profile_key)
        if expected_version is None:
            expected_version = self._read.expected(owner, profile_key.KEY)
        elif not isinstance(expected_version, str):
            check_revision("expected_version", expected_version)

        async def work(tx: Transaction) -> tuple[bool, int | None, int | None]:
            if expected_version is None:
                return await tx.documents.delete(name), None, None
            expected = await resolve_expected_version(tx.documents, name, expected_version)
            stored = await tx.documents.entry(name)
            actual = 0 if stored is None else stored.version
            return actual == expected and await tx.documents.delete(name), actual, expected

        existed, actual, expected = await together(self._place(owner), work)
        if actual != expected:
            self._read.refused(owner, profile_key.KEY)
            raise ConflictError(
                f"{name!r} has version {actual}, not {expected}; nothing was removed: read it again",
                actual=actual or 0,
            )
        self._read.forget(owner, profile_key.KEY)
        return existed

    # ---- all that somebody has

    async def list(
        self, key: Owner | None = None, *, agent: str | None = None, scope: StateScope | None = None
    ) -> Entries:
        """Return all values of one owner by name of key; see `read`.

        Those of unknown keys are JSON, and so are those that no longer validate: `error` says why.
        """
        owner = owner_of(key, agent, scope)
        prefix = profile_prefix(owner)

        async def work(tx: Transaction) -> Entries:
            names = [name async for name in tx.documents.keys(f"{escape_pattern(prefix)}*")]
            entries: dict[str, DocumentEntry[Any]] = {}
            for begin in range(0, len(names), _NAMES_BY_READ):
                entries |= await tx.documents.entries(*names[begin : begin + _NAMES_BY_READ])
            return [self._told(name[len(prefix) :], name, entry) for name, entry in entries.items()]

        place = self._place(owner)
        found = await together(place, work)
        if isinstance(place, Space):
            for each in found:
                self._read.read(owner, each.key, each.version)
        return found

    def _told(self, key: str, name: str, stored: DocumentEntry[Any]) -> ProfileEntry[Any]:
        record, known = read_record(ValueRecord, name, stored.value), self._keys.get(key)
        if known is None:
            return _entry(key, record.value, stored)
        try:
            return _entry(key, opened(known, record.value, record.version), stored)
        except StateError as error:
            return _entry(key, record.value, stored, error)

    async def clear(
        self, key: Owner | None = None, *, agent: str | None = None, scope: StateScope | None = None
    ) -> int:
        """Remove all values of one owner, and return how many there were; see `read`."""
        owner = owner_of(key, agent, scope)

        async def work(tx: Transaction) -> int:
            names = [name async for name in tx.documents.keys(f"{escape_pattern(profile_prefix(owner))}*")]
            for begin in range(0, len(names), _NAMES_BY_READ):
                await read_ahead(tx, documents=names[begin : begin + _NAMES_BY_READ])
            return sum([await tx.documents.delete(name) for name in names])

        removed = await together(self._place(owner), work)
        self._read.forget(owner)
        return removed

    def _place(self, owner: str) -> Space | Transaction:
        return self._home.place(f"profile/{owner}")


def _admitted(keys: Iterable[type[ProfileKey[Any]]]) -> list[type[ProfileKey[Any]]]:
    admitted = admit_many("keys", keys)
    for key in admitted:
        admit_key(key, ProfileKey)
    return admitted


def _entry(
    key: str, value: V, stored: DocumentEntry[Any], error: StateError | None = None
) -> ProfileEntry[V]:
    printable = stored._printable  # pyright: ignore[reportPrivateUsage]
    return ProfileEntry(key, value, stored.version, error, printable)


def _name(owner: str, key: type[ProfileKey[Any]]) -> str:
    admit_key(key, ProfileKey)
    return profile_prefix(owner) + key.KEY
