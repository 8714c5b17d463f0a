"""The store over HTTP: spaces on a server of keepstate, in whatever store that server has.

The server compares the mark of each call with the history that it has, so this handle notices a loss also
after the server was restarted on a restored file, or another server took its place.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from copy import copy
from typing import ClassVar, TypeVar

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Runner, Signal
from keepstate.errors import (
    InvalidError,
    KeepstateError,
    NotAllowedError,
    StorageError,
    StoreUnavailableError,
)
from keepstate.stores.hints import HintListener
from keepstate.stores.http import wire
from keepstate.stores.http.client import Client, HttpOptions, ProblemError, sends_key_openly
from keepstate.stores.http.hint_stream import HintStream
from keepstate.stores.http.wire import Answer, BatchOutcome, Outcomes, Seen, SpaceCall
from keepstate.stores.marks import HighWaterMarks, MarkedStore, apply_except
from keepstate.stores.protocol import (
    Batch,
    Capabilities,
    Changes,
    Leap,
    Mark,
    Outcome,
    Page,
    Reading,
    Setting,
    Sizes,
)
from keepstate.stores.retries import is_retryable
from keepstate.stores.urls import StoreUrl

T = TypeVar("T")

_SWEPT = 256
"""Number of entries that one call sweeps, so that each ends before its deadline."""

_log = logging.getLogger("keepstate.stores")


class HttpStore(MarkedStore):
    """A store on `http://HOST:PORT/PATH` or `https://…`: the server's, at `PATH/store` there.

    Args:
        url: The URL, with the options of `HttpOptions`.
        runner: The handle's mode.
        clock: Time and randomness of this process; the spaces' time is the server's.
    """

    schemes: ClassVar[Sequence[str]] = ("http", "https")

    def __init__(self, url: StoreUrl, *, runner: Runner, clock: Clock = SYSTEM_CLOCK) -> None:
        options = url.parse_options(HttpOptions)
        super().__init__(url=str(url), runner=runner, clock=clock, retry_for_s=options.retry_for_s)
        self._url, self._options, self._marks = url, options, HighWaterMarks()
        self._vouches: dict[str, bytes] = {}
        """The server's statement of each mark; the lock keeps the two together."""
        self._seen_lock = threading.Lock()
        self._client = self._new_client()
        self._stream: HintStream | None = None
        self._ending: list[Signal] = []

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> HttpStore:
        """Return the unopened store that the URL names."""
        return cls(url, runner=runner)

    def twin(self, runner: Runner) -> HttpStore:
        """Return an unopened store on the same server for another mode."""
        return HttpStore(self._url, runner=runner, clock=self._clock)

    # ---- opening and closing

    def _new_client(self) -> Client:
        return Client(self._url, self._options, self._runner.mode)

    async def _open(self) -> Capabilities:
        if sends_key_openly(self._url, self._options):
            _log.warning("%s sends its key unencrypted. Use https.", self.url)
        try:
            offered = (await self._client.open()).capabilities
        except BaseException as error:  # also a cancellation; raised again
            given_up, self._client = self._client, self._new_client()  # it may be opened again
            await given_up.close()
            if isinstance(error, ProblemError):
                raise error.error from error
            raise
        # Any number of processes can reach the server, also where its own store allows one only.
        return msgspec.structs.replace(offered, shared=True)

    async def close(self) -> None:
        """Stop the waiter, wait for flushes, and release connections; a second call does nothing."""
        if self._is_open and (stream := self._stream) is not None:
            self._runner.check(self)
            stream.end()
        await super().close()

    async def _close(self) -> None:
        for ended in list(self._ending):
            await ended.wait(self._options.timeout_s)
        await self._client.close()

    async def settings(self) -> list[Setting]:
        """Return the settings of the system under the server's store; none for a key of one tenant."""
        self._check_open()
        return await self._retry(self._ask, wire.SettingsCall(), Answer[list[Setting]])

    # ---- calls

    async def _ask(self, call: wire.Call, answer: type[Answer[T]], *, writes: bool = False) -> T:
        """Return the answer to a call that is not on one space."""
        try:
            return (await self._client.ask(call, answer, writes=writes)).value
        except ProblemError as raised:
            raise raised.error from raised

    async def _ask_on(
        self, call: SpaceCall, answer: type[Answer[T]], *, under: Mark | None = None, writes: bool = False
    ) -> T:
        """Return the answer to a call on a space, under the mark that is given or that this handle has."""
        mark, seen = self._seen_of(call.space) if under is None else (under, Seen(*under, b""))
        if seen is not None:
            call = msgspec.structs.replace(call, seen=seen)
        try:
            found = await self._client.ask(call, answer, writes=writes)
        except ProblemError as raised:
            if raised.problem.is_lost and mark is not None:
                raise self._record_loss(call.space, mark) from raised
            raise raised.error from raised
        if under is None:  # an answer under another handle's mark proves nothing about the own mark
            self._record_seen(call.space, found.seen)
        return found.value

    def _seen_of(self, space: str) -> tuple[Mark | None, Seen | None]:
        with self._seen_lock:
            mark = self._marks.of(space)
            return mark, None if mark is None else Seen(*mark, self._vouches.get(space, b""))

    def _record_seen(self, space: str, seen: Seen | None) -> None:
        """Remember a mark, and what vouches for it.

        A late answer with a lower mark says nothing about the higher one, so its vouch is not taken.
        """
        if seen is None:
            return
        with self._seen_lock:
            self._marks.record(space, seen.revision, seen.nonce)
            if self._marks.of(space) == (seen.revision, seen.nonce):
                self._vouches[space] = seen.vouch

    # ---- applying

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        marks, seen = dict[str, Mark | None](), dict[str, Seen]()
        for space in dict.fromkeys(batch.space for batch in batches):
            marks[space], found = self._seen_of(space)
            if found is not None:
                seen[space] = found
        if void := self._marks.loss_errors(batches, url=self.url):
            return await apply_except(void, batches, self._apply)
        return await self._apply_under(batches, marks, seen)

    async def _apply_under(
        self, batches: Sequence[Batch], marks: dict[str, Mark | None], seen: dict[str, Seen]
    ) -> list[Outcome]:
        body = wire.encode(wire.ApplyCall(batches=batches, seen=seen))
        if len(body) > wire.BODY_BYTES and len(batches) > 1:
            half = len(batches) // 2
            outcomes = await self._apply_under(batches[:half], marks, seen)
            if any(is_retryable(outcome) for outcome in outcomes):
                # The batches of a space apply in order, so none may overtake one that is sent again.
                return outcomes + [self._unsent_error() for _ in batches[half:]]
            return outcomes + await self._apply_under(batches[half:], marks, seen)
        try:
            answer = await self._client.send("apply", body, Outcomes, writes=True)
        except ProblemError as raised:
            return self._failed(batches, raised.error)
        except (StorageError, NotAllowedError) as error:
            return self._failed(batches, error)
        for space, found in answer.seen.items():
            self._record_seen(space, found)
        return [
            self._outcome(batch, marks[batch.space], outcome)
            for batch, outcome in zip(batches, answer.outcomes, strict=True)
        ]

    def _unsent_error(self) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"A batch was not sent to {self.url}, because an earlier one in the same flush was not answered.",
            url=self.url,
        )

    def _failed(self, batches: Sequence[Batch], error: KeepstateError) -> list[Outcome]:
        """Return the outcomes of a flush that failed as a whole."""
        if isinstance(error, StorageError | InvalidError):
            return [copy(error) for _ in batches]
        if all(batch.retry_of is None for batch in batches):
            raise error
        # The first attempt may have applied, so the caller may not be told that nothing was written.
        return [StoreUnavailableError(str(error), url=self.url) for _ in batches]

    def _outcome(self, batch: Batch, mark: Mark | None, found: BatchOutcome) -> Outcome:
        if found.applied is not None:
            return found.applied
        if found.conflict is not None:
            return found.conflict
        assert found.problem is not None
        if found.problem.is_lost:
            if mark is not None:
                return self._record_loss(batch.space, mark)
            return StoreUnavailableError(found.problem.detail, url=self.url, space=batch.space)
        error = wire.error_of(found.problem, url=self.url)
        return error if isinstance(error, StorageError | InvalidError) else StorageError(str(error))

    # ---- reading

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        return await self._ask_on(wire.ReadCall(space=space, keys=keys, at_ms=at_ms), Answer[Reading])

    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        call = wire.ScanCall(
            space=space, prefix=prefix, after=after, limit=limit, reverse=reverse, at_ms=at_ms
        )
        return await self._ask_on(call, Answer[Page])

    async def _sizes(self, space: str) -> Sizes:
        return await self._ask_on(wire.SizesCall(space=space), Answer[Sizes])

    async def _last_leap(self, space: str) -> Leap | None:
        return await self._ask_on(wire.LeapCall(space=space), Answer[Leap | None])

    async def _changes(self, space: str, after: int, limit: int, under: Mark | None = None) -> Changes:
        call = wire.ChangesCall(space=space, after=after, limit=limit)
        return await self._ask_on(call, Answer[Changes], under=under)

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        found = list[int | None]()
        for start in range(0, len(spaces), wire.NAMES):
            call = wire.ChangedCall(spaces=spaces[start : start + wire.NAMES])
            times = await self._ask(call, Answer[list[int | None]])
            found += times
        return found

    async def _second_clock_ms(self, space: str) -> int:
        return await self._ask(wire.ClockCall(), Answer[int])

    # ---- all spaces

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        names = list[str]()
        while (asked := min(limit - len(names), wire.NAMES)) > 0:
            call = wire.SpacesCall(prefix=prefix, after=after, limit=asked)
            page = await self._ask(call, Answer[list[str]])
            names += page
            if len(page) < asked:
                break
            after = page[-1]
        return names

    async def _drop(self, space: str, at: int | None) -> bool:
        return await self._ask_on(wire.DropCall(space=space, at=at), Answer[bool], writes=True)

    async def _trim(self, space: str, keep: int) -> None:
        await self._ask_on(wire.TrimCall(space=space, keep=keep), Answer[None], writes=True)

    async def _sweep(self, prefix: str, limit: int) -> int:
        removed = 0
        while (asked := min(limit - removed, _SWEPT)) > 0:
            found = await self._ask(wire.SweepCall(prefix=prefix, limit=asked), Answer[int], writes=True)
            removed += found
            if found < asked:
                break
        return removed

    async def _scrub(self) -> Sequence[str]:
        return await self._ask(wire.ScrubCall(), Answer[list[str]], writes=True)

    # ---- hints

    def listen(self, spaces: Collection[str]) -> HintListener:
        """Return a listener that receives every hint of these spaces from now on."""
        listener = super().listen(spaces)
        if (stream := self._stream) is not None:
            stream.want(spaces)
        return listener

    async def _watch_others(self, ended: Signal) -> None:
        stream = self._stream = HintStream(self._client, self._runner.mode, self._clock)
        closed = self._runner.signal()
        self._ending.append(closed)
        try:
            await super()._watch_others(ended)
        finally:
            await stream.close()
            self._ending.remove(closed)
            closed.set()

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        assert self._stream is not None
        return await self._stream.wait(self._board.spaces, timeout_s)
