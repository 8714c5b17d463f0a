"""Callbacks that are told how things stand, not of every step: who is slow misses what was overtaken.

Invariant: after the last change each callback is told the last state, once it gets there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from keepstate._runner import Runner, Signal, Work
from keepstate.engine.glob import escaped
from keepstate.engine.scope import called
from keepstate.engine.space import Space
from keepstate.engine.watch import Watch
from keepstate.errors import ClosedError, CompactedError, InvalidError, KeepstateError, StoreUnavailableError
from keepstate.managers.place import Folder

LatestCallback = Callable[[Any], Awaitable[Any] | Any]
"""Gets how something stands now."""

_WAIT_S: Final = 5.0
_AWAY_S: Final = 0.5
_log = logging.getLogger("keepstate.managers")


class Latest:
    """Tells one callback how the documents of a subject stand.

    Args:
        runner: How to work beside the caller.
        folder: What belongs to the subject.
        callback: Is told each document's newest value; a deletion is not told.
        interval_s: For how long it is left alone after it was told.
    """

    def __init__(self, runner: Runner, folder: Folder, callback: LatestCallback, interval_s: float) -> None:
        if not isinstance(folder.space, Space):
            raise InvalidError("subscribing acts at once and cannot be part of a transaction; do it outside")
        self._runner, self._folder, self._space = runner, folder, folder.space
        self._pattern = escaped(folder.prefix) + "*"
        self.subject, self.callback, self._interval_s = folder.id, callback, interval_s
        self._is_ending = False
        self._after = 0
        self._watch: Watch | None = None
        self._work: Work | None = None

    async def begin(self) -> None:
        """Follows what changes from now on."""
        self._after = await self._space.revision()
        self._work = self._runner.start(self._follow, f"subscription to {self.subject!r}")

    async def end(self) -> None:
        """Lets no further call start, and waits for the one that is at work."""
        self._is_ending = True
        if self._watch is not None:
            self._watch.wake()
        if self._work is not None:
            await self._work.stop()

    async def _follow(self, signal: Signal) -> None:
        while not self._is_ending:
            try:
                await self._tell_all(signal)
            except CompactedError:
                self._after = await self._space.revision()
                await self._tell(
                    {name: value async for name, value in self._space.documents.items(self._pattern)}
                )
            except StoreUnavailableError as error:
                _log.warning("a subscription to %r waits: %s", self.subject, error)
                await signal.wait(_AWAY_S)
            except KeepstateError as error:
                if not isinstance(error, ClosedError):
                    _log.warning("a subscription to %r has ended: %s", self.subject, error)
                return

    async def _tell_all(self, signal: Signal) -> None:
        async with self._space.documents.watch(self._pattern, after=self._after) as watch:
            self._watch = watch
            try:
                while not self._is_ending:
                    changes = await watch.take(_WAIT_S)
                    await self._tell({change.key: change.new for change in changes})
                    self._after = watch.revision
                    if changes and self._interval_s:
                        await signal.wait(self._interval_s)
            finally:
                self._watch = None

    async def _tell(self, newest: dict[str, Any]) -> None:
        for value in newest.values():
            if self._is_ending:
                return
            if value is None:
                continue
            try:
                await called(self.callback, value)
            except Exception:  # noqa: BLE001 - the caller's own function, whose failure is logged
                _log.exception("the callback of a subscription to %r failed", self.subject)
