"""A commit's state, to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from keepstate.engine.documents import MISSING
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.loading import Loaded, State, missing
from keepstate.engine.history.paths import shown, steps_of
from keepstate.engine.scope import Scope
from keepstate.errors import InvalidError, NotFoundError


class Checkout(Loaded, Mapping[str, Any]):
    """The state of one commit: a read-only mapping over what of it is loaded.

    What it gives are copies, the same one each time; changing one changes nothing stored.

    Attributes:
        commit: The commit.
    """

    def __init__(self, scope: Scope, state: State, commit: Commit) -> None:
        super().__init__(scope, state)
        self.commit: Commit = commit

    def __repr__(self) -> str:
        return f"<Checkout of {self.commit.id[:10]} in {self._scope.name!r}>"

    def __getitem__(self, key: str | tuple[Any, ...]) -> Any:
        """Returns the value of a key; with a tuple, what that path leads to.

        Raises:
            NotFoundError: There is none.
            NotLoadedError: It was left out when loading; blocking use loads it now.
        """
        first, *steps = steps_of(key)
        value = self._loaded(first)
        if value is MISSING:
            raise missing(first)
        return value if not steps else _inside(value, first, steps)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __setitem__(self, key: str, value: object) -> None:
        """Raises: a commit never changes."""
        raise self._read_only()

    def __delitem__(self, key: str) -> None:
        """Raises: a commit never changes."""
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
