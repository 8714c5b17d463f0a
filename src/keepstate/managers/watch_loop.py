"""Work beside the caller that follows what changes in a subject's documents.

Invariant: only who began it ends it, or a store that is closed or damaged. While the store is away it tries
again; where changes were lost for it, or one cannot be read, it goes on after them, and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from keepstate._runner import Runner, Signal, Work
from keepstate.engine.documents.watch import DocumentChange, Watch
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.space.space import Space
from keepstate.errors import (
    ClosedError,
    CompactedError,
    CorruptError,
    HistoryLostError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    StoreUnavailableError,
    UnsupportedError,
)
from keepstate.managers.binding import Folder

_WAIT_S: Final = 5.0
_AWAY_S: Final = 0.5
_LONGEST_AWAY_S: Final = 10.0
UNREADABLE: Final = CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""What is raised by a value that newer code wrote, or whose class nobody here knows."""
_log = logging.getLogger("keepstate.managers")


class Following:
    """Tells of what changes, until it is ended; what it tells to whom, subclasses say.

    Attributes:
        is_over: Whether it has ended, and the call that was at work then.

    Args:
        runner: How to work beside the caller.
        folder: What belongs to the subject.
        pattern: Which of its documents to follow.
        what: What it is, for the log.
    """

    def __init__(self, runner: Runner, folder: Folder, pattern: str, what: str) -> None:
        if not isinstance(folder.space, Space):
            raise InvalidError("subscribing acts at once and cannot be part of a transaction; do it outside")
        self._runner, self._space = runner, folder.space
        self._pattern, self._what = escape_pattern(folder.prefix) + pattern, what
        self._is_ending = self.is_over = False
        self._after = 0
        self._missed: CompactedError | HistoryLostError | None = None
        self._away_s = _AWAY_S
        self._watch: Watch | None = None
        self._work: Work | None = None

    # ---- what subclasses say

    async def _tell(self, changes: Sequence[DocumentChange], signal: Signal) -> None:
        """Tell of changes, the oldest first; there may be none."""
        raise NotImplementedError

    async def _go_on_after(self, missed: CompactedError | HistoryLostError) -> None:
        """Find where to go on after changes that were lost for it; is called again where the store is away.

        Subclasses tell what they can of them.
        """
        if isinstance(missed, CompactedError):
            self._reached(max(missed.floor or 0, self._after + 1))
        else:
            self._reached(await self._space.revision())

    def _reached(self, revision: int) -> None:
        """Note that all until then was told."""
        self._after = revision

    def _failed(self, error: KeepstateError) -> None:
        """Is told what changes were lost by, or could not be read, or why it ends."""

    def _ended(self) -> None:
        """Is called when nothing more will be told."""

    def _over(self) -> None:
        """Is called when nothing is at work any more."""

    # ---- beginning and ending

    async def begin(self) -> None:
        """Follow what changes from now on."""
        await self.find_start()
        self.start()

    async def find_start(self) -> None:
        """Fix where it begins, and tell nothing yet."""
        self._after = await self._space.revision()

    def start(self) -> None:
        """Tell of changes beside the caller."""
        self._work = self._runner.start(self._follow, self._what)

    def stop(self) -> None:
        """Let no further call start."""
        self._is_ending = True
        if self._watch is not None:
            self._watch.wake()

    async def end(self) -> None:
        """Do the same, and wait for the call that is at work."""
        self.stop()
        if self._work is not None:
            await self._work.stop()
        self._ended()

    # ---- at work

    async def _follow(self, signal: Signal) -> None:
        try:
            while not self._is_ending:
                await self._go_on(signal)
        finally:  # whatever ended it, nobody waits for it any more
            self._is_ending = True
            self._ended()
            self.is_over = True
            self._over()

    async def _go_on(self, signal: Signal) -> None:
        try:
            if self._missed is not None:
                await self._go_on_after(self._missed)
                self._missed = None
            await self._tell_all(signal)
        except (CompactedError, HistoryLostError) as error:
            _log.warning("a %s missed changes: %s", self._what, error)
            self._missed = error
            self._failed(error)
        except StoreUnavailableError as error:
            await self._wait(error, signal)
        except KeepstateError as error:
            if not isinstance(error, ClosedError):
                _log.warning("a %s has ended: %s", self._what, error)
                self._failed(error)
            self._is_ending = True

    async def _wait(self, error: StoreUnavailableError, signal: Signal) -> None:
        _log.warning("a %s waits for %g s: %s", self._what, self._away_s, error)
        await signal.wait(self._away_s)
        self._away_s = min(2 * self._away_s, _LONGEST_AWAY_S)

    async def _tell_all(self, signal: Signal) -> None:
        async with self._space.documents.watch(self._pattern, after=self._after) as watch:
            self._watch = watch
            try:
                while not self._is_ending:
                    await self._tell_next(watch, signal)
            finally:
                self._watch = None

    async def _tell_next(self, watch: Watch, signal: Signal) -> None:
        passed, changes = watch.passed, list[DocumentChange]()
        try:
            changes = await watch.take(_WAIT_S)
        except StoreUnavailableError as error:  # the same watch goes on: another would not notice a loss
            await self._wait(error, signal)
            return
        except UNREADABLE as error:
            if watch.passed == passed:  # it is no single change: the store itself is damaged
                raise
            self._passed_over(error)
        self._away_s = _AWAY_S
        await self._tell(changes, signal)
        self._reached(watch.revision)

    def _passed_over(self, error: KeepstateError) -> None:
        """Note that something could not be read, and was not told."""
        _log.warning("a %s goes on after what it cannot read: %s", self._what, error)
        self._failed(error)
