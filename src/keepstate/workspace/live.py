"""An agent's variables in this process: any object, by reference, until the process ends."""

from __future__ import annotations

from collections.abc import Generator, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from keepstate.errors import InvalidError
from keepstate.workspace.task_events import TaskEvent


class Live(MutableMapping[str, Any]):
    """Remembers variables between tasks, in memory; objects that no store can keep too.

    A value is kept as it is, so whoever changes it changes what is remembered. It is not for several threads
    at once.
    """

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}
        self._happened: list[TaskEvent] = []
        self._names: dict[str, Any] = {}
        self._is_lent = False

    def __getitem__(self, name: str) -> Any:
        return self._variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if type(name) is not str:
            raise InvalidError(f"a variable is named {name!r}; its name must be a str")
        self._variables[name] = value

    def __delitem__(self, name: str) -> None:
        del self._variables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __repr__(self) -> str:
        return f"<Live with {len(self._variables)} variables>"

    @contextmanager
    def names(self) -> Generator[dict[str, Any]]:
        """Lend a dict for the names of a task's steps: the same to one task after the other.

        So a function that an earlier task defined looks its names up where later steps bind them.
        """
        if self._is_lent:
            yield {}
            return
        self._is_lent = True
        try:
            yield self._names
        finally:
            self._is_lent = False

    @property
    def happened(self) -> list[TaskEvent]:
        """Return what happened on this state, in order, in a list of its own."""
        return list(self._happened)

    def get_ready(self, author: str) -> None:
        """Do nothing: all that was changed is remembered already."""

    def refused(self) -> dict[str, InvalidError]:
        """Return nothing: any object can be remembered."""
        return {}

    def restore(self, names: Sequence[str]) -> None:
        """Do nothing: nothing was refused."""

    def remember(self, happened: Sequence[TaskEvent], *, message: str = "", always: bool = False) -> None:
        """Keep events; no commit is made."""
        self._happened += happened
