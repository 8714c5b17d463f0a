"""Blocking twins of `keepstate.typed.profiles`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, Unpack, overload

from keepstate._finish import finish
from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import inner_options
from keepstate.typed import profiles as typed
from keepstate.typed.key import ProfileKey
from keepstate.typed.profiles import Entries, Owner, ProfileEntry, StateScope

V = TypeVar("V")


class ProfileAccess(Resource[typed.ProfileAccess]):
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
        super().__init__(typed.ProfileAccess(keys=keys, author=author, **inner_options(storage)))

    def read(
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
        return finish(self._inner.read(profile_key, key, agent=agent, scope=scope))

    def entry(
        self,
        profile_key: type[ProfileKey[V]],
        key: Owner | None = None,
        *,
        agent: str | None = None,
        scope: StateScope | None = None,
    ) -> ProfileEntry[V] | None:
        """Return a value with its version, or None if there is none; see `read`."""
        return finish(self._inner.entry(profile_key, key, agent=agent, scope=scope))

    @overload
    def write(
        self,
        profile_key: type[ProfileKey[V]],
        key: Owner,
        value: V,
        *,
        expected_version: str | int | None = None,
    ) -> int: ...
    @overload
    def write(
        self,
        profile_key: type[ProfileKey[V]],
        *,
        value: V,
        agent: str | None = None,
        scope: StateScope | None = None,
        expected_version: str | int | None = None,
    ) -> int: ...
    def write(
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
        write: Any = self._inner.write
        answer: int = finish(
            write(profile_key, key, value, agent=agent, scope=scope, expected_version=expected_version)
        )
        return answer

    @overload
    def update(self, profile_key: type[ProfileKey[V]], key: Owner, change: Callable[[V], V]) -> V: ...
    @overload
    def update(
        self,
        profile_key: type[ProfileKey[V]],
        *,
        change: Callable[[V], V],
        agent: str | None = None,
        scope: StateScope | None = None,
    ) -> V: ...
    def update(
        self,
        profile_key: type[ProfileKey[V]],
        key: Owner | None = None,
        change: Callable[[V], V] | Missing = MISSING,
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
        update: Any = self._inner.update
        answer: V = finish(update(profile_key, key, change, agent=agent, scope=scope))
        return answer

    def delete(
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
        return finish(
            self._inner.delete(profile_key, key, agent=agent, scope=scope, expected_version=expected_version)
        )

    def list(
        self, key: Owner | None = None, *, agent: str | None = None, scope: StateScope | None = None
    ) -> Entries:
        """Return all values of one owner, by key name; see `read`.

        Values of unknown keys are returned as JSON. So are values that no longer validate, with the reason in
        `error`.
        """
        return finish(self._inner.list(key, agent=agent, scope=scope))

    def clear(
        self, key: Owner | None = None, *, agent: str | None = None, scope: StateScope | None = None
    ) -> int:
        """Delete all values of one owner, and return their number; see `read`."""
        return finish(self._inner.clear(key, agent=agent, scope=scope))
