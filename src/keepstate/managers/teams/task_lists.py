"""Lists of tasks that know their exact length and have their newest items loaded."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from copy import deepcopy
from typing import Any, Final, cast, overload

from keepstate._finish import finish
from keepstate.errors import NotLoadedError
from keepstate.managers.teams.records import TeamTask

Loading = Callable[[], Coroutine[Any, Any, list[TeamTask]]]

LOADED: Final = 100
"""How many of the newest are loaded at once."""


class TaskList(Sequence[TeamTask]):
    """Tasks, the newest first; `len` is exact when it was read, whatever is loaded.

    Touching one that is not loaded raises `NotLoadedError`; `await tasks.load()` gives all.
    """

    def __init__(self, count: int, newest: Sequence[TeamTask], loading: Loading) -> None:
        self._count, self._loaded, self._loading = count, list(newest), loading

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
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"there are {self._count} tasks, and none at {index}")
        if place >= len(self._loaded):
            self._reach(place)
        return self._loaded[place]

    def __iter__(self) -> Iterator[TeamTask]:
        yield from (self[place] for place in range(self._count))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        others = cast("Sequence[object]", other)
        return len(self) == len(others) and all(a == b for a, b in zip(self, others, strict=True))

    __hash__ = None  # type: ignore[assignment]  # a list has none

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskList:
        return type(self)(self._count, deepcopy(self._loaded, memo), self._loading)

    async def load(self) -> list[TeamTask]:
        """Return all tasks of the list as they are now."""
        return await self._loading()

    def _reach(self, place: int) -> None:
        raise NotLoadedError(
            f"task {place} of {self._count} is not loaded, only the newest {len(self._loaded)} are; "
            "`await tasks.load()` gives all"
        )


class LoadingTaskList(TaskList):
    """The same for blocking use: what is touched is loaded."""

    def _reach(self, place: int) -> None:
        known = {task.id for task in self._loaded}
        self._loaded += [task for task in finish(self._loading()) if task.id not in known]
        if place >= len(self._loaded):
            raise NotLoadedError(
                f"only {len(self._loaded)} of {self._count} tasks still stand here; read the queue again"
            )
