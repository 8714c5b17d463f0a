"""Blocking twins of `keepstate.typed.profiles`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from keepstate._finish import finish
from keepstate.engine.documents.documents import MISSING, Missing
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import Twin, inner_of
from keepstate.typed import profiles as typed
from keepstate.typed.key import ProfileKey
from keepstate.typed.profiles import Entries, Owner, ProfileEntry
from keepstate.typed.scopes import StateScope

V = TypeVar("V")


class ProfileAccess(Twin[typed.ProfileAccess]):
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
    ) -> None:
        super().__init__(
            typed.ProfileAccess(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                keys=keys,
                author=author,
                _mode="blocking",
            )
        )

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Let go of a store that was opened here; what was passed in open stays open."""
        finish(self._inner.close())

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
            profile_key: What to read.
            key: Whose: a scope, or the string of one.
            agent: Instead: the agent of this name, whom no scope can be mistaken for.
            scope: Instead: a scope.

        Raises:
            StateError: What is stored no longer validates; names the path and the stored version.
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
        return finish(
            self._inner.delete(profile_key, key, agent=agent, scope=scope, expected_version=expected_version)
        )

    def list(
        self, key: Owner | None = None, *, agent: str | None = None, scope: StateScope | None = None
    ) -> Entries:
        """Return all values of one owner by name of key; see `read`.

        Those of unknown keys are JSON, and so are those that no longer validate: `error` says why.
        """
        return finish(self._inner.list(key, agent=agent, scope=scope))

    def clear(
        self, key: Owner | None = None, *, agent: str | None = None, scope: StateScope | None = None
    ) -> int:
        """Remove all values of one owner, and return how many there were; see `read`."""
        return finish(self._inner.clear(key, agent=agent, scope=scope))
