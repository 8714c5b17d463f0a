"""A commit's state, to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, Final

from keepstate.engine.documents.documents import MISSING
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.loaded_state import Loaded, State, missing
from keepstate.engine.history.paths import shown, steps_of
from keepstate.engine.kernel.executor import Executor
from keepstate.errors import InvalidError, NotFoundError

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})


class Checkout(Loaded, Mapping[str, Any]):
    """The state of one commit: a read-only mapping over what of it is loaded.

    What it gives are copies, a new one each time: changing one changes nothing that anybody else reads here.

    Attributes:
        commit: The commit.
    """

    def __init__(self, executor: Executor, state: State, commit: Commit) -> None:
        super().__init__(executor, state)
        self.commit: Commit = commit
        self._unseen = set(state.values)
        """Keys whose value was made and given to nobody."""
        self._own: dict[str, Any] = {}
        """Values that only paths lead into; they are given to nobody."""

    def __repr__(self) -> str:
        return f"<Checkout of {self.commit.id[:10]} in {self._executor.name!r}>"

    def __getitem__(self, key: str | tuple[Any, ...]) -> Any:
        """Return a copy of the value of a key; with a tuple, of what that path leads to.

        To walk a long list take it once, or iterate over it: each `checkout["list"]` is another one.

        Raises:
            NotFoundError: There is none.
            NotLoadedError: It was left out when loading; blocking use loads it now.
        """
        first, *steps = steps_of(key)
        value = self._loaded(first)
        if value is MISSING:
            raise missing(first)
        if not steps:
            return self._taken(first, value)
        if first not in self._own:
            self._own[first] = self._taken(first, value)
        inner = _inside(self._own[first], first, steps)
        return inner if type(inner) in _PLAIN else deepcopy(inner)

    def _taken(self, key: str, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        try:
            self._unseen.remove(key)  # by one thread only
        except KeyError:
            return self._state.again(key)
        return value

    def _keep(self, loaded: dict[str, Any]) -> None:
        self._unseen |= loaded.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __setitem__(self, key: str, value: object) -> None:
        """Raise: a commit never changes."""
        raise self._read_only()

    def __delitem__(self, key: str) -> None:
        """Raise: a commit never changes."""
        raise self._read_only()

    def update(self, *args: object, **kwargs: object) -> None:
        """Raise: a commit never changes."""
        raise self._read_only()

    def setdefault(self, key: str, default: object = None) -> None:
        """Raise: a commit never changes."""
        raise self._read_only()

    def pop(self, key: str, default: object = None) -> None:
        """Raise: a commit never changes."""
        raise self._read_only()

    def popitem(self) -> None:
        """Raise: a commit never changes."""
        raise self._read_only()

    def clear(self) -> None:
        """Raise: a commit never changes."""
        raise self._read_only()

    def _read_only(self) -> InvalidError:
        return InvalidError(f"{self!r} is read-only; change a draft, `begin(branch)`, and commit that")


def _inside(value: Any, first: object, steps: list[Any]) -> Any:
    way: tuple[Any, ...] = (first,)
    for step in steps:
        way = (*way, step)
        try:
            value = value[step]
        except (LookupError, TypeError) as error:
            raise NotFoundError(f"there is no {shown(way)}") from error
    return value
