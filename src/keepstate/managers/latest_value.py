"""Callbacks that are told how things stand, not of every step: who is slow misses what was overtaken.

Invariant: after the last change each callback is told the last state, once it gets there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from keepstate._runner import Runner, Signal
from keepstate.engine.documents.watch import DocumentChange
from keepstate.errors import CompactedError, HistoryLostError
from keepstate.managers.binding import Folder
from keepstate.managers.callbacks import tell
from keepstate.managers.watch_loop import UNREADABLE, Following

LatestCallback = Callable[[Any], Awaitable[Any] | Any]
"""Gets how something stands now."""


class Latest(Following):
    """Tells one callback how the documents of a subject stand.

    Args:
        runner: How to work beside the caller.
        folder: What belongs to the subject.
        callback: Is told each document's newest value; a deletion is not told.
        interval_s: For how long it is left alone after it was told.
    """

    def __init__(self, runner: Runner, folder: Folder, callback: LatestCallback, interval_s: float) -> None:
        super().__init__(runner, folder, "*", f"subscription to {folder.id!r}")
        self.subject, self.callback, self._interval_s = folder.id, callback, interval_s

    async def _tell(self, changes: Sequence[DocumentChange], signal: Signal) -> None:
        await self._tell_each({change.key: change.new for change in changes}.values())
        if changes and self._interval_s:
            await signal.wait(self._interval_s)

    async def _go_on_after(self, missed: CompactedError | HistoryLostError) -> None:
        after = await self._space.revision()
        found: list[Any] = []
        async for name in self._space.documents.keys(self._pattern):
            try:
                found.append(await self._space.documents.get(name))
            except UNREADABLE as error:
                self._passed_over(error)
        await self._tell_each(found)
        self._reached(after)

    async def _tell_each(self, newest: Iterable[Any]) -> None:
        for value in newest:
            if value is not None and not self._is_ending:
                await tell(self.callback, value, of=self._what)
