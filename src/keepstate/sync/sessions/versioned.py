"""Blocking twins of `keepstate.sessions.versioned`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import Any, Unpack

from keepstate._finish import finish
from keepstate.engine.history.merge import MergeRules
from keepstate.sessions import versioned as sessions
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import around, inner_options


class VersionedState(Resource[sessions.VersionedState]):
    """A state with all its versions, in the space `versions/<id>`; each version costs only what it changes.

    Args:
        id: Id of the state; without it the state is private to this object, unless `persistence` or `space`
            is given.
        fork: Name of a fork of the state; `fork` creates it.
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one.
        space: Instead: a space, or a transaction whose batch all checkpoints join.

    Attributes:
        id: Id of the state.
    """

    def __init__(
        self, id: str | None = None, *, fork: str | None = None, **storage: Unpack[StorageOptions]
    ) -> None:
        super().__init__(sessions.VersionedState(id, fork=fork, **inner_options(storage)))

    @property
    def id(self) -> str:
        """Id of the state."""
        return self._inner.id

    def checkpoint(self, state: object, *, message: str = "") -> int:
        """Save a new version, make it current, and return its number, from 0."""
        return finish(self._inner.checkpoint(state, message=message))

    def rollback(self, steps: int = 1) -> Any:
        """Make an earlier version current and return its state; stops at the first version.

        Raises:
            NotFoundError: There is no version.
        """
        return finish(self._inner.rollback(steps))

    def get_state(self) -> Any:
        """Return a copy of the current version's state.

        Raises:
            NotFoundError: There is no version.
        """
        return finish(self._inner.get_state())

    def current_version(self) -> int:
        """Return the number of the current version; -1 if there is none."""
        return finish(self._inner.current_version())

    def state_at(self, version: int) -> Any:
        """Return a copy of a version's state.

        Raises:
            NotFoundError: The version does not exist.
        """
        return finish(self._inner.state_at(version))

    def fork(self, name: str, *, at: int | None = None) -> VersionedState:
        """Create an independent fork that begins with a version of this state.

        Closing the fork leaves this object open.

        Args:
            name: Name of the fork; `VersionedState(id, fork=name)` opens it again.
            at: The version; the current version by default.

        Raises:
            AlreadyExistsError: A fork of this name exists.
            NotFoundError: The version does not exist.
        """
        return around(VersionedState, finish(self._inner.fork(name, at=at)))

    def merge(self, fork: str, *, rules: MergeRules | None = None) -> int:
        """Make a version from the present one and the changes of a fork, and return its number.

        Args:
            fork: The name of the fork.
            rules: What to do where both changed the same, as for `History.merge`, by paths in the state.

        Raises:
            MergeConflictError: Both changed the same and no rule decides; nothing was changed.
            InvalidError: The rules are none.
            NotFoundError: There is no such fork.
        """
        return finish(self._inner.merge(fork, rules=rules))
