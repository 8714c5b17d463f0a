"""Callbacks that receive the latest value: a slow callback skips values that newer ones replaced.

Invariant: each callback receives the value of the last change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from keepstate._runner import Runner, Signal
from keepstate.engine.documents.watch import DocumentChange
from keepstate.errors import CompactedError, HistoryLostError
from keepstate.managers.binding import Namespace
from keepstate.managers.callbacks import invoke_callback
from keepstate.managers.watch_loop import UNREADABLE, WatchLoop

LatestCallback = Callable[[Any], Awaitable[Any] | Any]
"""Receives the latest value."""


class LatestValueLoop(WatchLoop):
    """Delivers the latest values of a subject's documents to one callback.

    Args:
        runner: Runs the loop in the background.
        namespace: Namespace of the subject.
        callback: Receives each document's latest value. Deletions are not delivered.
        interval_s: Minimum seconds between two deliveries.
    """

    def __init__(
        self, runner: Runner, namespace: Namespace, callback: LatestCallback, interval_s: float
    ) -> None:
        super().__init__(runner, namespace, "*", f"subscription to {namespace.id!r}")
        self.subject, self.callback, self._interval_s = namespace.id, callback, interval_s

    async def _deliver(self, changes: Sequence[DocumentChange], signal: Signal) -> None:
        await self._deliver_each({change.key: change.new for change in changes}.values())
        if changes and self._interval_s:
            await signal.wait(self._interval_s)

    async def _resume_after(self, missed: CompactedError | HistoryLostError) -> None:
        after = await self._space.revision()
        found: list[Any] = []
        async for name in self._space.documents.keys(self._pattern):
            try:
                found.append(await self._space.documents.get(name))
            except UNREADABLE as error:
                self._skip_unreadable(error)
        await self._deliver_each(found)
        self._advance_to(after)

    async def _deliver_each(self, newest: Iterable[Any]) -> None:
        for value in newest:
            if value is not None and not self._is_ending:
                await invoke_callback(self.callback, value, of=self._what)
