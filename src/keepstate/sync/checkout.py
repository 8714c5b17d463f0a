"""Blocking twins of `keepstate.engine.history.checkout`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from keepstate._finish import finish
from keepstate.engine.history import checkout as engine
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.outline import Outline, StatePath
from keepstate.engine.history.paths import Path
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.Loaded)


class Loaded(Twin[Inner]):
    """A state that is loaded in parts."""

    def load(self, *paths: Path) -> None:
        """Load the keys that some paths begin with, or the whole state if none is given.

        Raises:
            NotFoundError: The state does not have a key.
        """
        finish(self._inner.load(*paths))

    def fetch(self, path: Path) -> Any:
        """Return a copy of the committed value at a path, reading only the objects on its way.

        Text that is not a key of the state may also be a printed path, such as `messages[3].meta`.

        Raises:
            NotFoundError: The path does not exist. The error shows how much of it does.
        """
        return finish(self._inner.fetch(path))


class Checkout(Loaded[engine.Checkout], Mapping[str, Any]):
    """The state of one commit: a read-only mapping over its loaded keys.

    Each read returns a new copy, so a caller that changes a value changes nothing for other readers.

    Attributes:
        commit: The commit.
    """

    @property
    def commit(self) -> Commit:
        """The commit."""
        return self._inner.commit

    def _repr_html_(self) -> str:
        return self._inner._repr_html_()  # pyright: ignore[reportPrivateUsage]

    def __getitem__(self, key: str | tuple[Any, ...]) -> Any:
        """Return a copy of the value of a key; with a tuple, of the value at that path.

        To walk over a long list, read it once or iterate over it, because each `checkout["list"]` is a copy.

        Raises:
            NotFoundError: The key or path does not exist.
            NotLoadedError: The key is not loaded. Blocking use loads it now.
        """
        return self._inner[key]

    def outline(self, path: StatePath = (), *, after: int | None = None, limit: int = 100) -> Outline:
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
        return finish(self._inner.outline(path, after=after, limit=limit))

    def slice(self, path: Path, start: int | None = None, stop: int | None = None) -> list[Any]:
        """Return a copy of a range of a committed list, reading only the objects that hold it.

        Args:
            path: The path of the list, as for `fetch`.
            start: The first index; a negative one counts from the end. The default is the beginning.
            stop: The index before which the range ends; negative as above. The default is the end.

        Raises:
            NotFoundError: The path does not exist.
            InvalidError: The value at the path is not a list.
        """
        return finish(self._inner.slice(path, start, stop))

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
