"""Blocking twins of `keepstate.sessions.versioned`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from keepstate._finish import finish
from keepstate.engine.history.merge import MergeRules
from keepstate.sessions import versioned as sessions
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.sessions.resource import Kept
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import around, inner_of


class VersionedState(Kept[sessions.VersionedState]):
    """Versions of a state, in the space `versions/<id>`; each costs what it changes, and none is lost.

    Args:
        id: Which state; without it one that nobody else has, unless a place is given.
        fork: The fork of it that this one is; `fork` makes it.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space, or a transaction whose batch all checkpoints join.

    Attributes:
        id: Which state.
    """

    def __init__(
        self,
        id: str | None = None,
        *,
        fork: str | None = None,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
    ) -> None:
        super().__init__(
            sessions.VersionedState(
                id,
                fork=fork,
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                _mode="blocking",
            )
        )

    @property
    def id(self) -> str:
        """Which state."""
        return self._inner.id

    def checkpoint(self, state: object, *, message: str = "") -> int:
        """Save a version, which is the present one then, and return its number; the first one has 0."""
        return finish(self._inner.checkpoint(state, message=message))

    def rollback(self, steps: int = 1) -> Any:
        """Make an earlier version the present one and return its state; stops at the first.

        Raises:
            NotFoundError: There is no version.
        """
        return finish(self._inner.rollback(steps))

    def get_state(self) -> Any:
        """Return a copy of the present version's state.

        Raises:
            NotFoundError: There is no version.
        """
        return finish(self._inner.get_state())

    def current_version(self) -> int:
        """Return the number of the present version; -1 if there is none."""
        return finish(self._inner.current_version())

    def state_at(self, version: int) -> Any:
        """Return a copy of a version's state.

        Raises:
            NotFoundError: There is no such version.
        """
        return finish(self._inner.state_at(version))

    def fork(self, name: str, *, at: int | None = None) -> VersionedState:
        """Return a state of its own that begins with a version of this one; closing it leaves this one open.

        Args:
            name: What the fork is called; `VersionedState(id, fork=name)` is the same again.
            at: The version; the present one, if it is not given.

        Raises:
            AlreadyExistsError: There is a fork of this name.
            NotFoundError: There is no such version.
        """
        return around(VersionedState, finish(self._inner.fork(name, at=at)))

    def merge(self, fork: str, *, rules: MergeRules | None = None) -> int:
        """Make a version of the present one and of what a fork has changed, and return its number.

        Args:
            fork: The name of the fork.
            rules: What to do where both changed the same, as for `History.merge`, by paths in the state.

        Raises:
            MergeConflictError: Both changed the same and no rule decides; nothing was changed.
            InvalidError: The rules are none.
            NotFoundError: There is no such fork.
        """
        return finish(self._inner.merge(fork, rules=rules))
