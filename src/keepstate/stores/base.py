"""Base class of the backends: validation, combining, retries by token, hints, and the bounds of a handle.

A backend subclasses `StoreBase` and implements `_open _close _apply _read _scan _sizes _changes _wait
_spaces _drop _sweep _last_leap`. Their arguments were checked by `admission`. `_apply` answers each batch, or
raises a `StorageError` that holds for all of them. If a reply may have been lost, `_apply` raises or returns
`OutcomeUnknownError`, and the base class sends the batch again under its token.
"""

from __future__ import annotations

import logging
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from copy import copy
from typing import ClassVar, Self, TypeVar, TypeVarTuple

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Mode, Runner, Signal, Work, runner_of
from keepstate.errors import (
    ClosedError,
    HistoryLostError,
    InvalidError,
    OutcomeUnknownError,
    StorageError,
    StoreUnavailableError,
    UnsupportedError,
)
from keepstate.stores import admission
from keepstate.stores.clock_leaps import AheadReport
from keepstate.stores.combiner import Combiner, Turn
from keepstate.stores.hints import ChangeNotifier, HintListener
from keepstate.stores.protocol import (
    SCAN_LIMIT,
    TOKEN_RANDOM_BYTES,
    Applied,
    Batch,
    Capabilities,
    Changes,
    Conflict,
    Durability,
    Leap,
    Outcome,
    Page,
    Reading,
    Sizes,
    make_token,
    question,
)
from keepstate.stores.retries import (
    RETRY_FOR_S,
    OutageLog,
    RetryBudget,
    SeenRevisions,
    is_retryable,
    is_unanswered,
    is_verdict,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SWEPT_BY_FLUSH = 16
"""Number of expired entries that a flush removes besides its own work."""

_WAIT_ROUND_S = 0.25
_log = logging.getLogger("keepstate.stores")
logging.getLogger("keepstate").addHandler(logging.NullHandler())


class StoreBase(ABC):
    """A store on top of the methods of a backend.

    A handle works only in the process in which it was opened, and in async mode only in that event loop.

    Args:
        url: Names the store in errors; without a password.
        runner: The handle's mode, or the runner that waits in it.
        clock: Time and randomness of this process.
        retry_for_s: Seconds for which to retry a call that a server did not answer.
    """

    schemes: ClassVar[Sequence[str]] = ()
    retries: ClassVar[bool] = False
    """Whether replies can be lost. If so, every batch gets a token and is retried under it."""
    waits: ClassVar[bool] = False
    """Whether `_wait` is needed to detect changes by other processes."""

    def __init__(
        self,
        *,
        url: str,
        runner: Runner | Mode = "async",
        clock: Clock = SYSTEM_CLOCK,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        self.url = url
        self._runner = runner_of(runner) if isinstance(runner, str) else runner
        self._clock, self._retry_for_s = clock, retry_for_s
        self._outage, self._turn = OutageLog(url, retry_for_s, clock), Turn(self._runner, clock)
        self._combiner = Combiner(self._runner, self._flush)
        self._board = ChangeNotifier(self._runner)
        self._ahead = AheadReport(url, clock, self._second_clock_ms)
        self._capabilities: Capabilities | None = None
        self._waiter: Work | None = None
        self._revisions = SeenRevisions()
        self._is_open, self._has_warned, self._state = False, False, threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url} {'open' if self._is_open else 'closed'}>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError(f"{self!r} cannot be pickled. Pickle its URL and open that in the other process.")

    def __del__(self) -> None:
        self.warn_if_open()

    def warn_if_open(self) -> None:
        """Warn, once, that the store was dropped without being closed."""
        if getattr(self, "_is_open", False) and self._runner.is_home() and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self!r} was dropped while open. Call close().", ResourceWarning, stacklevel=1, source=self
            )

    # ---- opening and closing

    async def open(self) -> Self:
        """Open the store in this process and event loop, and return it.

        Raises:
            StoreUnavailableError: The store cannot be reached.
            CorruptError: The data is damaged, or is not a store.
        """
        if self._capabilities is not None:
            raise ClosedError(f"{self!r} was opened before. Create another store object.")
        self._runner.bind()
        self._nudge = self._runner.signal()
        self._capabilities = await self._open()
        self._is_open = True
        if self._capabilities.shared and self._capabilities.durability is Durability.NONE:
            _log.warning("%s loses acknowledged writes when its server stops. Check its settings.", self.url)
        return self

    @property
    def is_open(self) -> bool:
        """Return whether the store was opened and is not closed."""
        return self._is_open

    @property
    def mode(self) -> Mode:
        """`async` or `blocking`."""
        return self._runner.mode

    def twin(self, runner: Runner) -> StoreBase:
        """Return an unopened store on the same data for another mode."""
        raise UnsupportedError(f"{self!r} has no twin in another mode. Open its URL in that mode.")

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities of this opened store."""
        if self._capabilities is None:
            raise ClosedError(f"{self!r} was never opened. Call open() first.")
        return self._capabilities

    @property
    def flushes(self) -> int:
        """Return this handle's number of flushes: fewer than batches if some were combined."""
        return self._combiner.flushes

    async def close(self) -> None:
        """Stop the waiter, wait for flushes, and release files and connections; idempotent."""
        with self._state:
            if not self._is_open:
                return
            self._runner.check(self)
            self._is_open = False
            waiter, self._waiter = self._waiter, None
        try:
            if waiter is not None:
                self._nudge.set()
                await waiter.stop()
            await self._combiner.wait_until_idle()
        finally:
            await self._close()
            self._runner.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError(f"{self!r} is not open. Call open() first.")
        self._runner.check(self)

    # ---- applying

    def check_batches(self, batches: Sequence[Batch]) -> list[int]:
        """Return the sizes of batches in bytes, or raise `InvalidError` for a malformed or too large one."""
        self._check_open()
        return [admission.check_batch(batch) for batch in batches]

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch whole or not at all, in a flush shared with other callers."""
        return await self.apply_checked(batches, self.check_batches(batches))

    async def apply_checked(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply batches that were checked; a wrapper may have made their values longer since."""
        if not self.retries:
            return await self._combiner.apply_all(batches, sizes)
        since_s = self._clock.monotonic_s()
        tokened, known = list[Batch](), list[int]()
        for batch in batches:
            revision = self._revisions.get(batch.space) or (await self.read(batch.space, ())).revision
            known.append(revision if batch.retry_of is None else min(batch.retry_of, revision))
            # A new token carries the revision before the batch, so that any process can ask for the outcome.
            token = batch.token or make_token(known[-1], self._clock.random_bytes(TOKEN_RANDOM_BYTES))
            tokened.append(batch if batch.token else msgspec.structs.replace(batch, token=token))
        outcomes = await self._combiner.apply_all(tokened, sizes)
        if any(isinstance(outcome, StorageError) for outcome in outcomes):
            await self._settle(tokened, sizes, known, outcomes, self._retry_budget(since_s))
        return outcomes

    async def _settle(
        self,
        batches: Sequence[Batch],
        sizes: Sequence[int],
        known: Sequence[int],
        outcomes: list[Outcome],
        budget: RetryBudget,
    ) -> None:
        """Resend unanswered batches until each is answered or the retry budget is used up."""
        unknown: set[int] = set()
        while True:
            unknown |= {index for index, outcome in enumerate(outcomes) if is_unanswered(outcome)}
            indexes = [index for index, outcome in enumerate(outcomes) if is_retryable(outcome)]
            if not indexes or not await budget.wait_for_retry(outcomes[indexes[0]]):
                break
            self._outage.record_failure(outcomes[indexes[0]])
            again = [
                msgspec.structs.replace(batches[index], retry_of=known[index])
                if index in unknown
                else batches[index]
                for index in indexes
            ]
            answers = await self._combiner.apply_all(again, [sizes[index] for index in indexes])
            for index, answer in zip(indexes, answers, strict=True):
                outcomes[index] = answer
        for index in unknown:
            batch, outcome = batches[index], outcomes[index]
            if isinstance(outcome, HistoryLostError) and await self._has_not_applied(batch, known[index]):
                continue
            # After a lost answer, only the store itself can say whether the batch applied.
            if isinstance(outcome, StorageError) and not is_verdict(outcome):
                outcomes[index] = self._unknown_error(batch, outcome)

    async def _has_not_applied(self, batch: Batch, known: int) -> bool:
        """Return whether a batch sent before a loss is not in the remaining history, and never will be."""
        assert batch.token is not None
        (answer,) = await self._combiner.apply([question(batch.space, batch.token, known)], 0)
        return isinstance(answer, Conflict)

    def _unknown_error(self, batch: Batch, cause: Outcome) -> OutcomeUnknownError:
        settles = f"Call outcome({batch.token!r}) on the space once {self.url} is back."
        if batch.token is None:
            settles = f"Open {self.url} again and read the space."
        error = OutcomeUnknownError(
            f"A batch on space {batch.space!r} may or may not have applied "
            f"({str(cause).rstrip('.')}). {settles}",
            token=batch.token,
            space=batch.space,
            url=self.url,
        )
        error.__cause__ = cause if isinstance(cause, BaseException) else None
        return error

    async def _flush(self, batches: Sequence[Batch]) -> list[Outcome]:
        try:
            outcomes = await self._apply(batches)
        except InvalidError as error:  # the login is refused now, but earlier attempts may have applied
            outcomes = list[Outcome](StoreUnavailableError(str(error), url=self.url) for _ in batches)
        except StorageError as error:
            return [error, *(copy(error) for _ in batches[1:])]  # each caller raises its own
        _log.debug("%s: a flush of %d batches", self.url, len(batches))
        for batch, outcome in zip(batches, outcomes, strict=True):
            if type(outcome) is Applied and batch.writes:
                self._outage.record_answer()
                if self.retries:
                    self._revisions.record(batch.space, outcome.revision)
                self._board.hint(batch.space)
                if self._ahead.is_due(batch.space, outcome.now_ms):
                    await self._ahead.report(batch.space, outcome.now_ms)
        return outcomes

    def stop_retrying(self) -> None:
        """Let calls fail at once instead of being retried, for a caller that can do without an answer."""
        self._retry_for_s = 0.0

    def _retry_budget(self, since_s: float | None = None) -> RetryBudget:
        return RetryBudget(self._retry_for_s, since_s=since_s, runner=self._runner, clock=self._clock)

    # ---- reading

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Return at most 1,000 entries and 8 MiB of values, all of the same revision."""
        self._check_open()
        admission.check_read(space, keys, at_ms)
        if not self.retries:
            if self._turn.is_over():
                await self._turn.pass_on()
            reading = await self._read(space, keys, at_ms)
        else:
            reading = await self._retry(self._read, space, keys, at_ms)
            self._revisions.record(space, reading.revision)
        if self._ahead.is_due(space, reading.now_ms):
            await self._ahead.report(space, reading.now_ms)
        return reading

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = SCAN_LIMIT,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Return entries whose key starts with `prefix`, in key order, after `after` in scan direction."""
        self._check_open()
        admission.check_scan(space, prefix, after, limit, at_ms)
        page = await self._retry(self._scan, space, prefix, after, limit, reverse, at_ms)
        if self._ahead.is_due(space, page.now_ms):
            await self._ahead.report(space, page.now_ms)
        return page

    async def sizes(self, space: str) -> Sizes:
        """Return the size of each part of a space, in one call."""
        self._check_open()
        admission.check_space(space)
        sizes = await self._retry(self._sizes, space)
        if self._ahead.is_due(space, sizes.now_ms):
            await self._ahead.report(space, sizes.now_ms)
        return sizes

    async def last_leap(self, space: str) -> Leap | None:
        """Return the last leap of the space's time, None for a space without a revision."""
        self._check_open()
        admission.check_space(space)
        return await self._retry(self._last_leap, space)

    async def changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        """Return the time of each space's last revision, by the store's clock; None if it is not known."""
        self._check_open()
        for space in spaces:
            admission.check_space(space)
        return await self._retry(self._changed_ms, spaces)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Return the changes after a revision, in whole revisions."""
        self._check_open()
        admission.check_changes(space, after, limit)
        return await self._retry(self._changes, space, after, limit)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """Return the names of spaces that are not empty, in the order of their UTF-8 bytes."""
        self._check_open()
        admission.check_listing(prefix, after, limit)
        return await self._retry(self._spaces, prefix, after, limit)

    async def drop(self, space: str, *, at: int | None = None) -> bool:
        """Remove entries, log and tokens as the space's next revision; return whether it was there."""
        self._check_open()
        admission.check_space(space)
        admission.check_drop(at)
        was_there = await self._retry(self._drop, space, at, twice=False)
        self._board.hint(space)
        return was_there

    async def trim(self, space: str, *, keep: int = 1) -> None:
        """Remove the log of a space but the last revisions; see `TrimsLogs`."""
        self._check_open()
        admission.check_space(space)
        admission.check_kept(keep)
        await self._retry(self._trim, space, keep)

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove up to `limit` expired entries of spaces whose names start with `prefix`; count them."""
        self._check_open()
        admission.check_listing(prefix, None, limit)
        return await self._retry(self._sweep, prefix, limit)

    async def scrub(self) -> Sequence[str]:
        """Rewrite the files without deleted data. Return in words the places that may still have it."""
        self._check_open()
        return await self._scrub()

    async def _retry(self, call: Callable[[*Ts], Awaitable[T]], *arguments: *Ts, twice: bool = True) -> T:
        """Retry a call while the store is unavailable; unless `twice`, only if it surely had no effect."""
        if not self.retries:
            if self._turn.is_over():
                await self._turn.pass_on()
            return await call(*arguments)
        budget, since_s = None, self._clock.monotonic_s()
        while True:
            try:
                answer = await call(*arguments)
                self._outage.record_answer()
                return answer
            except StoreUnavailableError as error:
                budget = budget or self._retry_budget(since_s)
                known = twice or not isinstance(error, OutcomeUnknownError)
                if not known or not await budget.wait_for_retry(error):
                    raise
                self._outage.record_failure(error)

    # ---- hints

    def listen(self, spaces: Collection[str]) -> HintListener:
        """Return a listener that receives every hint of these spaces from now on."""
        self._check_open()
        for space in spaces:
            admission.check_space(space)
        listener = self._board.join(spaces)
        if self.waits:
            with self._state:
                if self._waiter is None and self._is_open:
                    self._waiter = self._runner.start(self._watch_others, "waiter")
            self._nudge.set()
        return listener

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Return when one of the spaces may have changed, early or late."""
        listener = self.listen(spaces)
        try:
            await listener.wait(timeout_s)
        finally:
            listener.close()

    def notify(self, space: str) -> None:
        """Accept a hint that a space has changed; callable from any thread."""
        self._board.hint(space)

    async def _watch_others(self, ended: Signal) -> None:
        """Turn other processes' changes into hints for as long as there are listeners."""
        try:
            await self._forward_hints(ended)
        except BaseException:
            self._waiter = None  # the loop cancelled all tasks; the next listener starts the waiter again
            raise

    async def _forward_hints(self, ended: Signal) -> None:
        heard, attempt = set[str](), 0
        while self._is_open:
            spaces = self._board.spaces()
            if not spaces:
                with self._state:
                    if not self._board.spaces():
                        self._waiter = None
                        return
                continue
            try:
                changed = await self._wait(spaces, _WAIT_ROUND_S)
                attempt = 0
            except Exception as error:  # noqa: BLE001  hints must go on after any failure
                level = logging.DEBUG if attempt else logging.WARNING
                is_fault = not isinstance(error, StorageError | InvalidError)
                _log.log(level, "Changes of other processes are seen later: %s", error, exc_info=is_fault)
                changed = spaces
                await ended.wait(min(0.05 * 2 ** min(attempt, 10), 1.0))
                attempt += 1
            # A change during a space's first round may have been missed, so each new space gets a hint.
            for space in dict.fromkeys((*changed, *(space for space in spaces if space not in heard))):
                self._board.hint(space)
            heard = set(spaces)

    # ---- what a backend writes

    @abstractmethod
    async def _open(self) -> Capabilities:
        """Open files or connections and return their capabilities."""

    @abstractmethod
    async def _close(self) -> None:
        """Release files and connections."""

    @abstractmethod
    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply one flush."""

    @abstractmethod
    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        """Read entries, revision and time in one snapshot; expiry is judged at `at_ms`, or now."""

    @abstractmethod
    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        """Read one page in one snapshot; expiry is judged at `at_ms`, or now."""

    @abstractmethod
    async def _sizes(self, space: str) -> Sizes:
        """Read the size of each part in one snapshot, without entries that have expired."""

    @abstractmethod
    async def _last_leap(self, space: str) -> Leap | None:
        """Return the record of the last write that advanced the space's time by more than an hour."""

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        """Return the time of each space's last revision; None from a backend that does not store it."""
        return [None] * len(spaces)

    async def _second_clock_ms(self, space: str) -> int:
        """Return the time of the store's second clock; without one, that of this process."""
        return self._clock.now_ms()

    @abstractmethod
    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        """Read whole revisions of the log."""

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        """Return the spaces that other processes may have changed, after at most `timeout_s` seconds.

        `self._nudge` is set when a listener adds spaces, or the store closes.
        """
        await self._runner.sleep(timeout_s)
        return spaces

    @abstractmethod
    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """List the spaces that are not empty."""

    @abstractmethod
    async def _drop(self, space: str, at: int | None) -> bool:
        """Empty the space, if it exists, and is at revision `at` if one is given; return whether it did."""

    @abstractmethod
    async def _trim(self, space: str, keep: int) -> None:
        """Remove the log of a space but the last `keep` revisions. A repetition changes nothing."""

    async def _scrub(self) -> Sequence[str]:
        """Rewrite the files without deleted data. Return in words the places that may still have it."""
        return (f"what {self.url} itself keeps of deleted data",)

    @abstractmethod
    async def _sweep(self, prefix: str, limit: int) -> int:
        """Remove up to `limit` expired entries of spaces whose names start with `prefix`; count them."""
