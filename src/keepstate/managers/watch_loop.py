"""Background loops that watch the changes of a subject's documents.

Invariant: only its owner ends a loop, or a store that is closed or damaged. While the store is unavailable,
the loop retries. If changes were lost or cannot be decoded, the loop continues after them and reports the
gap.
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
from keepstate.managers.binding import Namespace

_WAIT_S: Final = 5.0
_DELAY_S: Final = 0.5
_LONGEST_DELAY_S: Final = 10.0
UNREADABLE: Final = CorruptError, InvalidError, MissingExtraError, UnsupportedError
"""Errors of values that newer code wrote, or whose class is not registered."""
_log = logging.getLogger("keepstate.managers")


class WatchLoop:
    """A background loop that delivers changes until it is ended. Subclasses define the delivery.

    Attributes:
        is_over: Whether the loop and the last delivery have ended.

    Args:
        runner: Runs the loop in the background.
        namespace: Namespace of the subject.
        pattern: Pattern of the documents to watch.
        what: Description for the log.
    """

    def __init__(self, runner: Runner, namespace: Namespace, pattern: str, what: str) -> None:
        if not isinstance(namespace.space, Space):
            raise InvalidError(
                "subscribing takes effect at once, so it cannot be in a transaction. Do it outside."
            )
        self._runner, self._space = runner, namespace.space
        self._pattern, self._what = escape_pattern(namespace.prefix) + pattern, what
        self._is_ending = self.is_over = False
        self._after = 0
        self._missed: CompactedError | HistoryLostError | None = None
        self._delay_s = _DELAY_S
        self._watch: Watch | None = None
        self._work: Work | None = None

    # ---- hooks of subclasses

    async def _deliver(self, changes: Sequence[DocumentChange], signal: Signal) -> None:
        """Deliver changes, oldest first. The sequence may be empty."""
        raise NotImplementedError

    async def _resume_after(self, missed: CompactedError | HistoryLostError) -> None:
        """Find the revision to continue from after lost changes; called again after an outage of the store.

        Subclasses also deliver the state that can still be read.
        """
        if isinstance(missed, CompactedError):
            self._advance_to(max(missed.floor or 0, self._after + 1))
        else:
            self._advance_to(await self._space.revision())

    def _advance_to(self, revision: int) -> None:
        """Record that all changes up to a revision are delivered."""
        self._after = revision

    def _on_error(self, error: KeepstateError) -> None:
        """Handle an error: changes were lost, a change cannot be decoded, or the loop ends because of it."""

    def _on_end(self) -> None:
        """Handle the end of deliveries."""

    def _on_stopped(self) -> None:
        """Handle the end of the loop, after its last delivery."""

    # ---- start and end

    async def begin(self) -> None:
        """Watch changes from now on."""
        await self.find_start()
        self.start()

    async def find_start(self) -> None:
        """Read the revision to start from, and deliver nothing yet."""
        self._after = await self._space.revision()

    def start(self) -> None:
        """Start to deliver changes in the background."""
        self._work = self._runner.start(self._run, self._what)

    def stop(self) -> None:
        """Start no further delivery."""
        self._is_ending = True
        if self._watch is not None:
            self._watch.wake()

    async def end(self) -> None:
        """Start no further delivery, and wait for the delivery in progress."""
        self.stop()
        if self._work is not None:
            await self._work.stop()
        self._on_end()

    # ---- the loop

    async def _run(self, signal: Signal) -> None:
        try:
            while not self._is_ending:
                await self._run_once(signal)
        finally:  # nothing waits for the loop any more, whatever ended it
            self._is_ending = True
            self._on_end()
            self.is_over = True
            self._on_stopped()

    async def _run_once(self, signal: Signal) -> None:
        try:
            if self._missed is not None:
                await self._resume_after(self._missed)
                self._missed = None
            await self._deliver_all(signal)
        except (CompactedError, HistoryLostError) as error:
            _log.warning("A %s missed changes: %s", self._what, error)
            self._missed = error
            self._on_error(error)
        except StoreUnavailableError as error:
            await self._wait(error, signal)
        except KeepstateError as error:
            if not isinstance(error, ClosedError):
                _log.warning("A %s has ended: %s", self._what, error)
                self._on_error(error)
            self._is_ending = True

    async def _wait(self, error: StoreUnavailableError, signal: Signal) -> None:
        _log.warning("A %s retries in %g s: %s", self._what, self._delay_s, error)
        await signal.wait(self._delay_s)
        self._delay_s = min(2 * self._delay_s, _LONGEST_DELAY_S)

    async def _deliver_all(self, signal: Signal) -> None:
        async with self._space.documents.watch(self._pattern, after=self._after) as watch:
            self._watch = watch
            try:
                while not self._is_ending:
                    await self._deliver_next(watch, signal)
            finally:
                self._watch = None

    async def _deliver_next(self, watch: Watch, signal: Signal) -> None:
        passed, changes = watch.passed, list[DocumentChange]()
        try:
            changes = await watch.take(_WAIT_S)
        except StoreUnavailableError as error:  # keep this watch: a new one would not notice a loss
            await self._wait(error, signal)
            return
        except UNREADABLE as error:
            if watch.passed == passed:  # not a single change: the store itself is damaged
                raise
            self._skip_unreadable(error)
        self._delay_s = _DELAY_S
        await self._deliver(changes, signal)
        self._advance_to(watch.revision)

    def _skip_unreadable(self, error: KeepstateError) -> None:
        """Report a change that cannot be decoded, and skip it."""
        _log.warning("A %s skips a change that it cannot decode: %s", self._what, error)
        self._on_error(error)
