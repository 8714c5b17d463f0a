"""Blocking twins of `keepstate.engine.history.checkout`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keepstate.engine.history import checkout as engine
from keepstate.engine.history.commits import Commit
from keepstate.sync.loading import Loaded


class Checkout(Loaded[engine.Checkout], Mapping[str, Any]):
    """The state of one commit: a read-only mapping over what of it is loaded.

    What it gives are copies, the same one each time; changing one changes nothing stored.

    Attributes:
        commit: The commit.
    """

    @property
    def commit(self) -> Commit:
        """The commit."""
        return self._inner.commit

    def __getitem__(self, key: str | tuple[Any, ...]) -> Any:
        """Returns the value of a key; with a tuple, what that path leads to.

        Raises:
            NotFoundError: There is none.
            NotLoadedError: It was left out when loading; blocking use loads it now.
        """
        return self._inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def __setitem__(self, key: str, value: object) -> None:
        """Raises: a commit never changes."""
        self._inner[key] = value

    def __delitem__(self, key: str) -> None:
        """Raises: a commit never changes."""
        del self._inner[key]
