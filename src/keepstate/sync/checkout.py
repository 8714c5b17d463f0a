"""Blocking twins of `keepstate.engine.history.checkout`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keepstate.engine.history import checkout as engine
from keepstate.engine.history.commits import Commit
from keepstate.sync.loaded_state import Loaded


class Checkout(Loaded[engine.Checkout], Mapping[str, Any]):
    """The state of one commit: a read-only mapping over what of it is loaded.

    What it gives are copies, a new one each time: changing one changes nothing that anybody else reads here.

    Attributes:
        commit: The commit.
    """

    @property
    def commit(self) -> Commit:
        """The commit."""
        return self._inner.commit

    def __getitem__(self, key: str | tuple[Any, ...]) -> Any:
        """Return a copy of the value of a key; with a tuple, of what that path leads to.

        To walk a long list take it once, or iterate over it: each `checkout["list"]` is another one.

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
        """Raise: a commit never changes."""
        self._inner[key] = value

    def __delitem__(self, key: str) -> None:
        """Raise: a commit never changes."""
        del self._inner[key]

    def update(self, *args: object, **kwargs: object) -> None:
        """Raise: a commit never changes."""
        self._inner.update(*args, **kwargs)

    def setdefault(self, key: str, default: object = None) -> None:
        """Raise: a commit never changes."""
        self._inner.setdefault(key, default)

    def pop(self, key: str, default: object = None) -> None:
        """Raise: a commit never changes."""
        self._inner.pop(key, default)

    def popitem(self) -> None:
        """Raise: a commit never changes."""
        self._inner.popitem()

    def clear(self) -> None:
        """Raise: a commit never changes."""
        self._inner.clear()
