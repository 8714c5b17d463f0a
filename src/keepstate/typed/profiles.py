"""Profiles and shared state: values of an agent or a scope, beyond runs and threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, Unpack, cast, overload

from keepstate._runner import Mode
from keepstate.binding import PRIVATE, Resource, StorageOptions, StoreBinding, space_name
from keepstate.engine.documents.documents import MISSING, DocumentEntry, Missing, resolve_expected_version
from keepstate.engine.kernel.arguments import check_revision, check_target, check_text, require_instance
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.positions import Printable
from keepstate.engine.space.joint_work import read_ahead, run_in_transaction
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ConflictError, InvalidError, StateError
from keepstate.typed.key import ProfileKey, check_key, check_list, default_value, encode_value
from keepstate.typed.layout import profile_prefix
from keepstate.typed.read_set import ReadSet
from keepstate.typed.records import ValueRecord, read_record, value_document


@dataclass(frozen=True, slots=True)
class StateScope:
    """The owner of shared state. Scopes with equal strings are the same, and so is the string itself.

    Attributes:
        value: The string.
    """

    value: str

    def __post_init__(self) -> None:
        _check_nonempty("scope", self.value)

    def __str__(self) -> str:
        return self.value

    @classmethod
    def global_(cls) -> StateScope:
        """Return the scope of the whole system."""
        return cls("global")

    @classmethod
    def parent_thread(cls, id: str) -> StateScope:
        """Return the scope that a parent's thread shares with its children."""
        return cls(f"parent_thread::{_escape('id', id)}")

    @classmethod
    def agent_type(cls, name: str) -> StateScope:
        """Return the scope of all agents of a type."""
        return cls(f"agent_type::{_escape('name', name)}")

    @classmethod
    def thread(cls, id: str) -> StateScope:
        """Return the scope of one thread, across its runs."""
        return cls(f"thread::{_escape('id', id)}")

    @classmethod
    def new(cls, s: str) -> StateScope:
        """Return the scope of any other group; the string is used unchanged."""
        return cls(s)

    def as_str(self) -> str:
        """Return the string."""
        return self.value


def owner_of(key: str | StateScope | None, agent: str | None, scope: StateScope | None) -> str:
    """Return the string of an owner.

    Raises:
        InvalidError: The owner was given more than once, or not at all.
    """
    given = [each for each in (key, agent, scope) if each is not None]
    if len(given) != 1:
        raise InvalidError("Pass exactly one owner: the key, agent= or scope=.")
    if agent is not None:
        return f"agent::{_escape('agent', agent)}"
    if scope is not None:
        require_instance("scope", scope, StateScope)
    owner = key if scope is None else scope
    if isinstance(owner, StateScope):
        return owner.value
    return _check_nonempty("key", owner)


def _escape(what: str, id: object) -> str:
    """Return an id with `%` and `:` escaped, so that it cannot end a segment."""
    return _check_nonempty(what, id).replace("%", "%25").replace(":", "%3A")


def _check_nonempty(what: str, text: object) -> str:
    checked = check_text(what, text)
    if not checked:
        raise InvalidError(f"`{what}` is empty. Pass the owner.")
    return checked


V = TypeVar("V")

_NAMES_BY_READ: Final = 500

Owner = str | StateScope
"""A scope, its string, or any other string."""


@dataclass(frozen=True, slots=True)
class ProfileEntry(Generic[V]):
    """A value of a profile with its version.

    Attributes:
        key: The name of the profile key.
        value: A copy; JSON if the key is not registered, or if `error` is set.
        version: Usable as `expected_version` within this handle; 0 in the transaction that wrote the value.
        error: The reason why the value cannot be read; set by `list` only.
    """

    key: str
    value: V
    version: int
    error: StateError | None = None
    _printable: Printable | None = field(default=None, repr=False, compare=False)

    @property
    def printed_version(self) -> str | None:
        """An opaque text for `expected_version` in any process, rejected once its history is gone.

        None while `version` is 0.
        """
        return None if self._printable is None else self._printable.text()


Entries = list[ProfileEntry[Any]]
"""Values of one owner, by key name."""


class ProfileAccess(Resource):
    """Reads and writes values of profile keys, each under the string of its owner.

    It remembers the versions that each task and thread has read, of at least the last 65,536 values. A write
    over a value that was read succeeds only if the value has not changed since. Without a read before,
    `write` replaces the value. To change a value, use `update`.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the profiles are in private memory.
        space: Instead: a space, or a transaction, that contains all profiles.
        keys: The keys by which `list` decodes values; other values are returned as JSON.
        author: The author in the recorded history.
    """

    def __init__(
        self,
        *,
        keys: Iterable[type[ProfileKey[Any]]] = (),
        author: str | None = None,
        **storage: Unpack[StorageOptions],
    ) -> None:
        self._binding = self._closing = StoreBinding(storage, default=PRIVATE, author=author)
        self._keys = {key.KEY: key for key in _check_keys(keys)}
        self._blocking = self._binding.mode == "blocking"
        self._read = ReadSet()

    def __repr__(self) -> str:
        return f"<ProfileAccess in {self._binding!r}>"

    def _check_mode(self, mode: Mode) -> None:
        """Raise `InvalidError` unless it is used in this mode; for `AgentRun`."""
        check_target(
            "profile",
            self._binding.passed or self._binding.handle,
            mode,
            Space,
            Transaction,
            Keepstate,
        )

    def _for_task(self, keys: Iterable[type[ProfileKey[Any]]]) -> ProfileAccess:
        """Return the same access for another task, with an empty read set."""
        other = ProfileAccess.__new__(ProfileAccess)
        other._binding, other._blocking, other._read = self._binding, self._blocking, ReadSet()
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
            profile_key: The profile key.
            key: The owner: a scope, or a string.
            agent: Instead: the agent of this name, which no scope can be mistaken for.
            scope: Instead: a scope.

        Raises:
            StateError: The stored value no longer validates; the error names the path and the stored version.
        """
        found = await self.entry(profile_key, key, agent=agent, scope=scope)
        return default_value(profile_key) if found is None else found.value

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
        target, name = self._target(owner), _name(owner, profile_key)
        stored = await target.documents.entry(name)
        if isinstance(target, Space):
            self._read.record_read(owner, profile_key.KEY, 0 if stored is None else stored.version)
        if stored is None:
            return None
        value = read_record(ValueRecord, name, stored.value).decode(profile_key)
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
        """Write a value and return its version; inside a transaction, which has no version yet, return 0.

        If this object has read the value before, the write succeeds only if it has not changed since.

        Args:
            profile_key: The profile key.
            key: The owner; see `read`.
            value: The value.
            agent: Instead of `key`.
            scope: Instead of `key`.
            expected_version: Write only over this version; 0 means only if there is no value. A
                `printed_version` may come from another process; a number is valid within one handle.

        Raises:
            ConflictError: The value changed; nothing was written. Read it again, or use `update`.
            HistoryLostError: The store lost the history of a printed version, and other writes followed.
            StateError: The value does not fit the key; the error names the path.
        """
        if isinstance(value, Missing):
            raise InvalidError("write() got no value. Pass value=.")
        owner = owner_of(key, agent, scope)
        name = _name(owner, profile_key)
        if expected_version is None:
            expected_version = self._read.expected(owner, profile_key.KEY)
        record = value_document(encode_value(profile_key, value))
        try:
            version = await self._target(owner).documents.put(name, record, expected_version=expected_version)
        except ConflictError:
            self._read.record_conflict(owner, profile_key.KEY)
            raise
        if version:
            self._read.record_write(owner, profile_key.KEY, version)
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
        """Change a value, or the default if there is none; retried until no other writer interferes.

        Args:
            profile_key: The profile key.
            key: The owner; see `read`.
            change: Gets a copy of the value and returns the new one. It may be called more than once.
            agent: Instead of `key`.
            scope: Instead of `key`.

        Returns:
            The new value.
        """
        if isinstance(change, Missing):
            raise InvalidError("update() got no change. Pass change=.")
        if self._blocking:
            reject_coroutine_function(change)
        elif not callable(change):
            raise InvalidError(f"`change` is {change!r}. Pass a function of the old value.")
        function = change
        owner = owner_of(key, agent, scope)
        name = _name(owner, profile_key)

        async def changed(stored: Any) -> Any:
            record = None if stored is None else read_record(ValueRecord, name, stored)
            old = default_value(profile_key) if record is None else record.decode(profile_key)
            new: Any = await call_function(function, old)
            if new is None and profile_key.default() is not None:
                raise StateError(
                    f"The function passed to update({profile_key.KEY!r}) returned None. Return the new "
                    "value.",
                    state_key=profile_key.KEY,
                )
            return value_document(encode_value(profile_key, cast("V", new)))

        # A plain function around it, because blocking handles take no coroutine functions.
        documents = self._target(owner).documents
        made, version = await documents._update_versioned(name, lambda old: changed(old), None)  # noqa: PLW0108  # pyright: ignore[reportPrivateUsage]
        if version:
            self._read.record_read(owner, profile_key.KEY, version)
        else:
            self._read.forget(owner, profile_key.KEY)
        return read_record(ValueRecord, name, made).decode(profile_key)

    async def delete(
        self,
        profile_key: type[ProfileKey[Any]],
        key: Owner | None = None,
        *,
        agent: str | None = None,
        scope: StateScope | None = None,
        expected_version: str | int | None = None,
    ) -> bool:
        """Delete a value, and return whether there was one. Conflicts are checked as in `write`.

        Args:
            profile_key: The profile key.
            key: The owner; see `read`.
            agent: Instead of `key`.
            scope: Instead of `key`.
            expected_version: Delete only this version; see `write`.

        Raises:
            ConflictError: The value changed; nothing was deleted.
            HistoryLostError: The store lost the history of a printed version, and other writes followed.
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

        existed, actual, expected = await run_in_transaction(self._target(owner), work)
        if actual != expected:
            self._read.record_conflict(owner, profile_key.KEY)
            raise ConflictError(
                f"{name!r} has version {actual}, but version {expected} was expected. Nothing was deleted. "
                "Read it again.",
                actual=actual or 0,
            )
        self._read.forget(owner, profile_key.KEY)
        return existed

    # ---- all values of one owner

    async def list(
        self, key: Owner | None = None, *, agent: str | None = None, scope: StateScope | None = None
    ) -> Entries:
        """Return all values of one owner, by key name; see `read`.

        Values of unknown keys are returned as JSON. So are values that no longer validate, with the reason in
        `error`.
        """
        owner = owner_of(key, agent, scope)
        prefix = profile_prefix(owner)

        async def work(tx: Transaction) -> Entries:
            names = [name async for name in tx.documents.keys(f"{escape_pattern(prefix)}*")]
            entries: dict[str, DocumentEntry[Any]] = {}
            for begin in range(0, len(names), _NAMES_BY_READ):
                entries |= await tx.documents.entries(*names[begin : begin + _NAMES_BY_READ])
            return [self._decode_entry(name[len(prefix) :], name, entry) for name, entry in entries.items()]

        target = self._target(owner)
        found = await run_in_transaction(target, work)
        if isinstance(target, Space):
            for each in found:
                self._read.record_read(owner, each.key, each.version)
        return found

    def _decode_entry(self, key: str, name: str, stored: DocumentEntry[Any]) -> ProfileEntry[Any]:
        record, known = read_record(ValueRecord, name, stored.value), self._keys.get(key)
        if known is None:
            return _entry(key, record.value, stored)
        try:
            return _entry(key, record.decode(known), stored)
        except StateError as error:
            return _entry(key, record.value, stored, error)

    async def clear(
        self, key: Owner | None = None, *, agent: str | None = None, scope: StateScope | None = None
    ) -> int:
        """Delete all values of one owner, and return their number; see `read`."""
        owner = owner_of(key, agent, scope)

        async def work(tx: Transaction) -> int:
            names = [name async for name in tx.documents.keys(f"{escape_pattern(profile_prefix(owner))}*")]
            for begin in range(0, len(names), _NAMES_BY_READ):
                await read_ahead(tx, documents=names[begin : begin + _NAMES_BY_READ])
            return sum([await tx.documents.delete(name) for name in names])

        removed = await run_in_transaction(self._target(owner), work)
        self._read.forget(owner)
        return removed

    def _target(self, owner: str) -> Space | Transaction:
        return self._binding.target(space_name("profile", owner))


def _check_keys(keys: Iterable[type[ProfileKey[Any]]]) -> list[type[ProfileKey[Any]]]:
    checked = check_list("keys", keys)
    for key in checked:
        check_key(key, ProfileKey)
    return checked


def _entry(
    key: str, value: V, stored: DocumentEntry[Any], error: StateError | None = None
) -> ProfileEntry[V]:
    printable = stored._printable  # pyright: ignore[reportPrivateUsage]
    return ProfileEntry(key, value, stored.version, error, printable)


def _name(owner: str, key: type[ProfileKey[Any]]) -> str:
    check_key(key, ProfileKey)
    return profile_prefix(owner) + key.KEY
