"""Lists of tasks that have their exact length and their newest items loaded."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from copy import deepcopy
from typing import Any, Final, cast, overload

from keepstate._finish import finish
from keepstate.errors import NotLoadedError
from keepstate.managers.teams.records import TeamTask

LoadTasks = Callable[[], Coroutine[Any, Any, list[TeamTask]]]

LOADED: Final = 100
"""Number of the newest tasks that are loaded."""


class TaskList(Sequence[TeamTask]):
    """Tasks, newest first. `len` is exact as of the read, however many are loaded.

    Access to a task that is not loaded raises `NotLoadedError`. `await tasks.load()` returns all.
    """

    def __init__(self, count: int, newest: Sequence[TeamTask], load_all: LoadTasks) -> None:
        self._count, self._loaded, self._load_all = count, list(newest), load_all

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._count}, {len(self._loaded)} loaded>"

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> TeamTask: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[TeamTask]: ...
    def __getitem__(self, index: int | slice) -> TeamTask | Sequence[TeamTask]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(self._count))]
        position = index + self._count if index < 0 else index
        if not 0 <= position < self._count:
            raise IndexError(f"there are {self._count} tasks, and none at index {index}")
        if position >= len(self._loaded):
            self._load_to(position)
        return self._loaded[position]

    def __iter__(self) -> Iterator[TeamTask]:
        yield from (self[index] for index in range(self._count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        others = cast("Sequence[object]", other)
        return len(self) == len(others) and all(a == b for a, b in zip(self, others, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a list has none

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskList:
        return type(self)(self._count, deepcopy(self._loaded, memo), self._load_all)

    async def load(self) -> list[TeamTask]:
        """Read all tasks of the list as they are now."""
        return await self._load_all()

    def _load_to(self, index: int) -> None:
        raise NotLoadedError(
            f"task {index} of {self._count} is not loaded, only the newest {len(self._loaded)} are. "
            "Read all with `await tasks.load()`."
        )


class LoadingTaskList(TaskList):
    """A task list for blocking mode, which loads tasks on access."""

    def _load_to(self, index: int) -> None:
        known = {task.id for task in self._loaded}
        self._loaded += [task for task in finish(self._load_all()) if task.id not in known]
        if index >= len(self._loaded):
            raise NotLoadedError(
                f"only {len(self._loaded)} of {self._count} tasks are left in the list. Read the queue again."
            )
