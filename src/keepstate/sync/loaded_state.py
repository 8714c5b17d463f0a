"""Blocking twins of `keepstate.engine.history.loaded_state`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import Any, TypeVar

from keepstate._finish import finish
from keepstate.engine.history import loaded_state as engine
from keepstate.engine.history.paths import Path
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.Loaded)


class Loaded(Twin[Inner]):
    """Loads parts of a state when they are asked for."""

    def load(self, *paths: Path) -> None:
        """Load the keys that some paths begin with, or all of the state where none is given.

        Raises:
            NotFoundError: The state has no such key.
        """
        finish(self._inner.load(*paths))

    def fetch(self, path: Path) -> Any:
        """Return a copy of what a path leads to in the commit, reading only what lies on its way.

        A text that is not a key of the state may be a path as it is printed, such as `messages[3].meta`.

        Raises:
            NotFoundError: It leads nowhere; says how far it goes.
        """
        return finish(self._inner.fetch(path))
