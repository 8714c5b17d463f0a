"""What every backend shares: admission, combining, retries by token, hints, and where a handle may be used.

A backend subclasses `StoreBase` and writes `_open _close _apply _read _scan _changes _wait _spaces _drop
_sweep _last_leap`. They get only what `admission` let through. `_apply` answers each batch, or raises a
`StorageError` that holds for all of them; where a reply may have been lost it says `OutcomeUnknownError`, and
the base sends the batch again under its token.
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
from keepstate.stores.combiner import Combiner
from keepstate.stores.fairness import Turn
from keepstate.stores.hints import ChangeNotifier, HintListener
from keepstate.stores.last_seen import SeenRevisions
from keepstate.stores.outage import OutageLog
from keepstate.stores.protocol import (
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
    question,
    token_after,
)
from keepstate.stores.retry_budget import RetryBudget, is_retryable, is_unanswered, is_verdict

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SWEPT_BY_FLUSH = 16
"""How many expired entries a flush removes beside its own work."""

RETRY_FOR_S = 30.0
"""How long a batch whose outcome is unknown, or a store that is away, is tried again."""

_WAIT_ROUND_S = 0.25
_log = logging.getLogger("keepstate.stores")
logging.getLogger("keepstate").addHandler(logging.NullHandler())


class StoreBase(ABC):
    """A store over the methods of a backend.

    A handle works in the process, and in the asynchronous colour in the event loop, in which it was opened.

    Args:
        url: Names the store in errors; without a password.
        runner: The handle's colour, or what waits in it.
        clock: Time and randomness of this process.
        retry_for_s: How long to try again what a server did not answer, in seconds.
    """

    schemes: ClassVar[Sequence[str]] = ()
    retries: ClassVar[bool] = False
    """Whether replies can be lost: then every batch gets a token, and is tried again under it."""
    waits: ClassVar[bool] = False
    """Whether `_wait` is needed to hear of other processes' changes."""

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
        raise TypeError(f"{self!r} cannot be pickled; pickle its URL and open it where it is used")

    def __del__(self) -> None:
        self.warn_if_open()

    def warn_if_open(self) -> None:
        """Warn, once, that who held it has dropped it and not closed it."""
        if getattr(self, "_is_open", False) and self._runner.is_home() and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self!r} was dropped while open; close it", ResourceWarning, stacklevel=1, source=self
            )

    # ---- opening and closing

    async def open(self) -> Self:
        """Open the store here, and return it.

        Raises:
            StoreUnavailableError: It cannot be reached.
            CorruptError: What is there is no store, or a damaged one.
        """
        if self._capabilities is not None:
            raise ClosedError(f"{self!r} was opened before; make another")
        self._runner.bind()
        self._nudge = self._runner.signal()
        self._capabilities = await self._open()
        self._is_open = True
        if self._capabilities.shared and self._capabilities.durability is Durability.NONE:
            _log.warning("%s loses acknowledged writes when its server ends; see how it is set", self.url)
        return self

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed."""
        return self._is_open

    @property
    def mode(self) -> Mode:
        """`async` or `blocking`."""
        return self._runner.mode

    def twin(self, runner: Runner) -> StoreBase:
        """Return a store on the same data for another colour, not yet opened."""
        raise UnsupportedError(f"{self!r} has no twin in another colour; open its URL there")

    @property
    def capabilities(self) -> Capabilities:
        """Return what this opened store offers."""
        if self._capabilities is None:
            raise ClosedError(f"{self!r} was never opened; open it first")
        return self._capabilities

    @property
    def flushes(self) -> int:
        """Return how often this handle flushed: fewer than its batches where it combined some."""
        return self._combiner.flushes

    async def close(self) -> None:
        """End the waiter, lets flushes end, and let go of files and connections; twice is once."""
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
            await self._combiner.drained()
        finally:
            await self._close()
            self._runner.close()

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClosedError(f"{self!r} is not open; open it first")
        self._runner.check(self)

    # ---- applying

    def admit(self, batches: Sequence[Batch]) -> list[int]:
        """Return the batches' sizes in bytes.

        Raises:
            InvalidError: A batch is malformed or over a limit.
        """
        self._check_open()
        return [admission.admit_batch(batch) for batch in batches]

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply each batch whole or not at all, flushed together with those of other callers."""
        return await self.apply_admitted(batches, self.admit(batches))

    async def apply_admitted(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply what was admitted; a wrapper may have made the values longer since."""
        if not self.retries:
            return await self._combiner.apply_all(batches, sizes)
        since_s = self._clock.monotonic_s()
        named, known = list[Batch](), list[int]()
        for batch in batches:
            revision = self._revisions.get(batch.space) or (await self.read(batch.space, ())).revision
            known.append(revision if batch.retry_of is None else min(batch.retry_of, revision))
            # A new token carries the revision before it, for any process to ask for its outcome.
            token = batch.token or token_after(known[-1], self._clock.random_bytes(TOKEN_RANDOM_BYTES))
            named.append(batch if batch.token else msgspec.structs.replace(batch, token=token))
        outcomes = await self._combiner.apply_all(named, sizes)
        if any(isinstance(outcome, StorageError) for outcome in outcomes):
            await self._settle(named, sizes, known, outcomes, self._patience(since_s))
        return outcomes

    async def _settle(
        self,
        batches: Sequence[Batch],
        sizes: Sequence[int],
        known: Sequence[int],
        outcomes: list[Outcome],
        patience: RetryBudget,
    ) -> None:
        """Send again what was not answered, until it is or time is up."""
        unknown: set[int] = set()
        while True:
            unknown |= {place for place, outcome in enumerate(outcomes) if is_unanswered(outcome)}
            places = [place for place, outcome in enumerate(outcomes) if is_retryable(outcome)]
            if not places or not await patience.again(outcomes[places[0]]):
                break
            self._outage.goes_on(outcomes[places[0]])
            again = [
                msgspec.structs.replace(batches[place], retry_of=known[place])
                if place in unknown
                else batches[place]
                for place in places
            ]
            answers = await self._combiner.apply_all(again, [sizes[place] for place in places])
            for place, answer in zip(places, answers, strict=True):
                outcomes[place] = answer
        for place in unknown:
            batch, outcome = batches[place], outcomes[place]
            if isinstance(outcome, HistoryLostError) and await self._is_gone(batch, known[place]):
                continue
            # Once an answer was lost, only the store's own word on the batch ends the doubt.
            if isinstance(outcome, StorageError) and not is_verdict(outcome):
                outcomes[place] = self._unknown(batch, outcome)

    async def _is_gone(self, batch: Batch, known: int) -> bool:
        """Whether a batch that was sent before a loss has not applied in what is left, and never will."""
        assert batch.token is not None
        (answer,) = await self._combiner.apply([question(batch.space, batch.token, known)], 0)
        return isinstance(answer, Conflict)

    def _unknown(self, batch: Batch, cause: Outcome) -> OutcomeUnknownError:
        settles = f"ask outcome({batch.token!r}) of its space once {self.url} is back"
        if batch.token is None:
            settles = f"open {self.url} again and read the space"
        error = OutcomeUnknownError(
            f"whether a batch on {batch.space!r} applied is not known: {cause}; {settles}",
            token=batch.token,
            space=batch.space,
            url=self.url,
        )
        error.__cause__ = cause if isinstance(cause, BaseException) else None
        return error

    async def _flush(self, batches: Sequence[Batch]) -> list[Outcome]:
        try:
            outcomes = await self._apply(batches)
        except InvalidError as error:  # the login is refused since then, and earlier attempts may stand
            outcomes = list[Outcome](StoreUnavailableError(str(error), url=self.url) for _ in batches)
        except StorageError as error:
            return [error, *(copy(error) for _ in batches[1:])]  # each caller raises its own
        _log.debug("%s: a flush of %d batches", self.url, len(batches))
        for batch, outcome in zip(batches, outcomes, strict=True):
            if type(outcome) is Applied and batch.writes:
                self._outage.ends()
                if self.retries:
                    self._revisions.saw(batch.space, outcome.revision)
                self._board.hint(batch.space)
                if self._ahead.is_due(batch.space, outcome.now_ms):
                    await self._ahead.report(batch.space, outcome.now_ms)
        return outcomes

    def hurry(self) -> None:
        """Let calls fail at once where they would be repeated: for who can do without an answer."""
        self._retry_for_s = 0.0

    def _patience(self, since_s: float | None = None) -> RetryBudget:
        return RetryBudget(self._retry_for_s, since_s=since_s, runner=self._runner, clock=self._clock)

    # ---- reading

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        """Return at most 1,000 entries and 8 MiB of values, all of one revision."""
        self._check_open()
        admission.admit_read(space, keys, at_ms)
        if not self.retries:
            if self._turn.is_over():
                await self._turn.pass_on()
            reading = await self._read(space, keys, at_ms)
        else:
            reading = await self._repeated(self._read, space, keys, at_ms)
            self._revisions.saw(space, reading.revision)
        if self._ahead.is_due(space, reading.now_ms):
            await self._ahead.report(space, reading.now_ms)
        return reading

    async def scan(
        self,
        space: str,
        prefix: bytes,
        *,
        after: bytes | None = None,
        limit: int = 256,
        reverse: bool = False,
        at_ms: int | None = None,
    ) -> Page:
        """Return entries whose key starts with `prefix`, in key order, after `after` in scan direction."""
        self._check_open()
        admission.admit_scan(space, prefix, after, limit, at_ms)
        page = await self._repeated(self._scan, space, prefix, after, limit, reverse, at_ms)
        if self._ahead.is_due(space, page.now_ms):
            await self._ahead.report(space, page.now_ms)
        return page

    async def last_leap(self, space: str) -> Leap | None:
        """Return the last leap of the space's time, None for a space without a revision."""
        self._check_open()
        admission.admit_space(space)
        return await self._repeated(self._last_leap, space)

    async def changes(self, space: str, after: int, *, limit: int = 1024) -> Changes:
        """Return what changed after a revision, in whole revisions."""
        self._check_open()
        admission.admit_changes(space, after, limit)
        return await self._repeated(self._changes, space, after, limit)

    async def spaces(self, prefix: str = "", *, after: str | None = None, limit: int = 256) -> list[str]:
        """Return names of spaces that hold something, in the order of their UTF-8 bytes."""
        self._check_open()
        admission.admit_listing(prefix, after, limit)
        return await self._repeated(self._spaces, prefix, after, limit)

    async def drop(self, space: str) -> None:
        """Remove entries, log and tokens as the space's next revision; an absent space stays absent."""
        self._check_open()
        admission.admit_space(space)
        await self._repeated(self._drop, space, twice=False)
        self._board.hint(space)

    async def sweep(self, prefix: str = "", *, limit: int = 256) -> int:
        """Remove up to `limit` expired entries of spaces whose names start so, and return how many."""
        self._check_open()
        admission.admit_listing(prefix, None, limit)
        return await self._repeated(self._sweep, prefix, limit)

    async def _repeated(self, call: Callable[[*Ts], Awaitable[T]], *arguments: *Ts, twice: bool = True) -> T:
        """Ask again while the store is away; what may not be done `twice` only if it surely was not done."""
        if not self.retries:
            if self._turn.is_over():
                await self._turn.pass_on()
            return await call(*arguments)
        patience, since_s = None, self._clock.monotonic_s()
        while True:
            try:
                answer = await call(*arguments)
                self._outage.ends()
                return answer
            except StoreUnavailableError as error:
                patience = patience or self._patience(since_s)
                known = twice or not isinstance(error, OutcomeUnknownError)
                if not known or not await patience.again(error):
                    raise
                self._outage.goes_on(error)

    # ---- hints

    def listen(self, spaces: Collection[str]) -> HintListener:
        """Return a listener that hears every hint of these spaces from now on."""
        self._check_open()
        for space in spaces:
            admission.admit_space(space)
        listener = self._board.join(spaces)
        if self.waits:
            with self._state:
                if self._waiter is None and self._is_open:
                    self._waiter = self._runner.start(self._wait_for_others, "waiter")
            self._nudge.set()
        return listener

    async def wait(self, spaces: Collection[str], timeout_s: float) -> None:
        """Return when one of the spaces may have changed, early or late."""
        listener = self.listen(spaces)
        try:
            await listener.wait(timeout_s)
        finally:
            listener.close()

    def hear(self, space: str) -> None:
        """Take the hint that a space has changed; in any thread."""
        self._board.hint(space)

    async def _wait_for_others(self, ended: Signal) -> None:
        """Turn what others do into hints, while anybody listens."""
        try:
            await self._hint_of_others(ended)
        except BaseException:
            self._waiter = None  # who cancels all tasks has ended it: the next who listens starts it again
            raise

    async def _hint_of_others(self, ended: Signal) -> None:
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
            except Exception as error:  # noqa: BLE001  whatever it is, others' hints must go on
                level = logging.DEBUG if attempt else logging.WARNING
                is_fault = not isinstance(error, StorageError | InvalidError)
                _log.log(level, "changes by others are seen later for now: %s", error, exc_info=is_fault)
                changed = spaces
                await ended.wait(min(0.05 * 2 ** min(attempt, 10), 1.0))
                attempt += 1
            # What changed before a space's first round was over may have been missed: one hint makes sure.
            for space in dict.fromkeys((*changed, *(space for space in spaces if space not in heard))):
                self._board.hint(space)
            heard = set(spaces)

    # ---- what a backend writes

    @abstractmethod
    async def _open(self) -> Capabilities:
        """Open files or connections and say what they offer."""

    @abstractmethod
    async def _close(self) -> None:
        """Let go of them."""

    @abstractmethod
    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply one flush."""

    @abstractmethod
    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        """Read entries, revision and now as of one moment; expiry is judged at `at_ms`, or now."""

    @abstractmethod
    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        """Read one page as of one moment; expiry is judged at `at_ms`, or now."""

    @abstractmethod
    async def _last_leap(self, space: str) -> Leap | None:
        """Return what the last write that moved the space's time on by more than an hour kept."""

    async def _second_clock_ms(self, space: str) -> int:
        """Ask the store's second clock; this process has no other where a backend names none."""
        return self._clock.now_ms()

    @abstractmethod
    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        """Read whole revisions of the log."""

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        """Return which of the spaces may have changed by others, at the latest after `timeout_s`.

        `self._nudge` is raised when somebody listens to more spaces, or the store closes.
        """
        await self._runner.sleep(timeout_s)
        return spaces

    @abstractmethod
    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        """List spaces that hold something."""

    @abstractmethod
    async def _drop(self, space: str) -> None:
        """Make the space empty, if there is one."""

    @abstractmethod
    async def _sweep(self, prefix: str, limit: int) -> int:
        """Remove expired entries of spaces whose names start with `prefix`, and say how many."""
