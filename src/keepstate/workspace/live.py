"""An agent's variables in this process: any object, by reference, until the process ends."""

from __future__ import annotations

from collections.abc import Generator, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from keepstate.errors import InvalidError
from keepstate.workspace.task_events import TaskEvent


class Live(MutableMapping[str, Any]):
    """Holds variables between tasks, in memory, including objects that cannot be stored.

    Values are stored by reference, so changing an object changes the variable. It is not thread-safe.
    """

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}
        self._task_events: list[TaskEvent] = []
        self._names: dict[str, Any] = {}
        self._is_lent = False

    def __getitem__(self, name: str) -> Any:
        return self._variables[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if type(name) is not str:
            raise InvalidError(f"the name of a variable is {name!r}. Use a str.")
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
        """Lend a dict for the names of a task's steps: the same dict to one task after the other.

        Therefore a function of an earlier task finds names that later steps bind.
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
    def task_events(self) -> list[TaskEvent]:
        """A new list of the events on this state, in order."""
        return list(self._task_events)

    def get_ready(self, author: str) -> None:
        """Do nothing, because changes are never lost here."""

    def refused(self) -> dict[str, InvalidError]:
        """Return nothing, because any object can be a variable."""
        return {}

    def restore(self, names: Sequence[str]) -> None:
        """Do nothing, because nothing is ever refused."""

    def remember(self, task_events: Sequence[TaskEvent], *, message: str = "", always: bool = False) -> None:
        """Store events; there are no commits."""
        self._task_events += task_events
