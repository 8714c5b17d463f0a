"""Sharing of a store by the callers of one process: flushes that they join, and turns on the event loop.

A caller that finds no flush under way leads one. A caller that arrives during a flush joins the next one.
Cancelling a caller ends only that caller's wait. So 64 writers of one file share a single fsync.

Threads hand the lead over. The holder of one lock leads: it flushes once, lets go, and wakes the first caller
in the queue. Answered callers wake one another in turn, because threads that wake together compete for the
interpreter with the next flush. A wake-up is only a hint, because an interrupt may split it from what it
announces: a waiting caller looks again after `_LOOK_AGAIN_S` in any case.

A call on a store in memory returns without suspending, so a task that makes one call after another would
block the loop. A `Turn` limits that: after a handle has used the loop for `TURN_S`, its next call first lets
other tasks run. Nothing is applied before the call, so a cancellation there has no effect.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from itertools import zip_longest
from math import inf

from keepstate._clock import Clock
from keepstate._finish import interrupt_behind
from keepstate._runner import Promise, Runner, Signal
from keepstate.errors import OutcomeUnknownError
from keepstate.stores.protocol import Batch, Outcome

FLUSH_BATCHES = 128
FLUSH_BYTES = 16 << 20
_LOOK_AGAIN_S = 0.05
"""Seconds after which a waiting thread looks without being woken."""

TURN_S = 0.01
"""Seconds for which the calls of a handle may hold the event loop; the last call may exceed them."""


class _Request:
    """The batches of one caller, and their outcomes."""

    __slots__ = ("answered", "batches", "error", "following", "outcomes", "promise", "signal", "size_bytes")

    def __init__(
        self, batches: Sequence[Batch], size_bytes: int, promise: Promise[None] | None = None
    ) -> None:
        self.batches, self.size_bytes, self.promise = batches, size_bytes, promise
        self.answered = False
        self.signal: Signal | None = None
        """Wakes the thread of the caller, once it has begun to wait."""
        self.following: _Request | None = None
        """The request that the same flush answers next. The caller of this one wakes it."""
        self.outcomes: list[Outcome] = []
        self.error: BaseException | None = None

    def answer(self, outcomes: list[Outcome]) -> None:
        self.outcomes = outcomes
        self._end()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._end()
        self.wake()

    def _end(self) -> None:
        self.answered = True
        if self.promise is not None:
            self.promise.give(None)

    def wake(self) -> None:
        """Make a waiting thread look again."""
        if self.signal is not None:
            self.signal.set()

    def result(self) -> list[Outcome]:
        if self.error is not None:
            raise self.error
        return self.outcomes


class Combiner:
    """The queue of batches that wait for a store's next flush.

    Args:
        runner: How callers wait.
        flush: Applies batches and answers them in order.
    """

    def __init__(self, runner: Runner, flush: Callable[[Sequence[Batch]], Awaitable[list[Outcome]]]) -> None:
        self._runner, self._flush = runner, flush
        self._queue: deque[_Request] = deque()
        self._lead = threading.Lock()
        self._flushing = self._is_busy = False
        self.flushes = 0

    async def apply_all(self, batches: Sequence[Batch], sizes: Sequence[int]) -> list[Outcome]:
        """Apply batches of these sizes, in as many flushes as the limits of a flush need."""
        if len(batches) == 1:
            return await self.apply(batches, sizes[0])
        outcomes: list[Outcome] = []
        start = 0
        while start < len(batches):
            end, size = start + 1, sizes[start]
            while end < len(batches) and end - start < FLUSH_BATCHES and size + sizes[end] <= FLUSH_BYTES:
                size, end = size + sizes[end], end + 1
            outcomes += await self.apply(batches[start:end], size)
            start = end
        return outcomes

    async def apply(self, batches: Sequence[Batch], size_bytes: int) -> list[Outcome]:
        """Apply batches, in one flush with the batches of other waiting callers."""
        if self._runner.mode == "blocking":
            return await self._apply_in_thread(_Request(batches, size_bytes))
        if not self._flushing and not self._is_busy:
            return await self._apply_alone(batches)
        request = _Request(batches, size_bytes, self._runner.promise())
        self._queue.append(request)
        self._ensure_flusher()
        assert request.promise is not None
        await request.promise.wait()
        return request.result()

    async def wait_until_idle(self) -> None:
        """Wait until the queue is empty and no flush is under way."""
        if self._runner.mode == "blocking":
            with self._lead:
                while requests := self._drain():
                    await self._flush_together(requests)
            return
        while self._flushing or self._queue:
            await self._runner.sleep(0.001)

    # ---- with threads: the holder of the lead lock flushes once for all waiting callers

    async def _apply_in_thread(self, request: _Request) -> list[Outcome]:
        try:
            self._queue.append(request)
            while not request.answered:
                if not self._lead.locked():
                    await self._lead_once(request)
                elif request.signal is None:
                    # Then the lock is looked at again, because no caller could have woken this thread before.
                    request.signal = self._runner.signal()
                else:
                    await request.signal.wait(_LOOK_AGAIN_S)
        except BaseException:
            # A request whose caller gave up must not be applied later, and a wake-up that it may have
            # received belongs to the next one.
            try:  # noqa: SIM105  `suppress` leaves room for a second interrupt
                self._queue.remove(request)
            except ValueError:
                pass
            _wake(request.following)
            self._wake_first()
            raise
        _wake(request.following)
        return request.result()

    async def _lead_once(self, request: _Request) -> None:
        # The lock is held across an await, which is safe because no coroutine suspends in blocking mode. It
        # is entered by `with` and not by a call that tries, from which an interrupt could not give it back.
        with self._lead:
            if not request.answered:
                if request in self._queue:
                    await self._flush_together(self._drain())
                else:  # the leader was interrupted while it flushed this request
                    request.fail(_interrupted(request.batches[0]))
        if self._queue:
            self._wake_first()

    def _wake_first(self) -> None:
        try:
            _wake(self._queue[0])
        except IndexError:
            return

    # ---- with tasks: the caller itself, or one flusher while requests wait

    async def _apply_alone(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Flush in the caller's own task if no other request waits, because a task costs as much as Redis.

        If the caller is cancelled here, only its own flush is affected.
        """
        self._flushing = True
        self.flushes += 1
        try:
            return await self._flush(batches)
        finally:
            self._flushing = False
            if self._queue:
                self._is_busy = True
                self._ensure_flusher()

    def _ensure_flusher(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._runner.detach(self._flush_all)

    async def _flush_all(self) -> None:
        try:
            while self._queue:
                requests = self._drain()
                self._is_busy = len(requests) > 1
                await self._flush_together(requests)
        finally:
            self._flushing = False
            if (
                self._queue
            ):  # the flusher was cancelled, as all tasks are when a loop ends, but requests still wait
                self._ensure_flusher()

    # ---- one flush

    def _drain(self) -> list[_Request]:
        """Take the requests of the next flush out of the queue."""
        requests: list[_Request] = []
        batches = size_bytes = 0
        while self._queue:
            try:  # an interrupted caller may take its request out of the queue at any point
                batches += len(self._queue[0].batches)
                size_bytes += self._queue[0].size_bytes
                if requests and (batches > FLUSH_BATCHES or size_bytes > FLUSH_BYTES):
                    break
                requests.append(self._queue.popleft())
            except IndexError:
                break
        return requests

    async def _flush_together(self, requests: Sequence[_Request]) -> None:
        batches = [batch for request in requests for batch in request.batches]
        self.flushes += 1
        try:
            outcomes = await self._flush(batches)
        except Exception as error:  # noqa: BLE001 - each caller receives the backend's failure
            is_fault = interrupt_behind(error) is None
            for request in requests:
                request.fail(copy(error) if is_fault else _interrupted(request.batches[0]))
            if is_fault:  # each caller gets the backend's failure, so that none hangs
                return
            raise (interrupt_behind(error) or error) from None
        except BaseException:
            # No variable may hold the interrupt: its traceback refers to this frame, and the cycle would keep
            # the flush's connection alive, so that its pool would count it as in use.
            for request in requests:
                request.fail(_interrupted(request.batches[0]))
            raise
        first, *others = requests
        start = len(first.batches)
        for request, following in zip_longest(others, others[1:]):
            request.following = following
            request.answer(outcomes[start : start + len(request.batches)])
            start += len(request.batches)
        if others:
            first.following = others[0]
            outcomes = outcomes[: len(first.batches)]
        first.answer(outcomes)
        first.wake()


def _wake(request: _Request | None) -> None:
    if request is not None:
        request.wake()


def _interrupted(batch: Batch) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"A flush with a batch on space {batch.space!r} was interrupted. The batch may have applied. Read "
        f"the space.",
        space=batch.space,
        token=batch.token,
    )


class Turn:
    """The present turn of one handle; it never ends in blocking mode."""

    __slots__ = ("_clock", "_ends_s", "_runner")

    def __init__(self, runner: Runner, clock: Clock) -> None:
        self._runner, self._clock = runner, clock
        self._ends_s = inf if runner.mode == "blocking" else 0.0

    def is_over(self) -> bool:
        """Return whether the next call should let other tasks run first."""
        return self._clock.monotonic_s() >= self._ends_s

    async def pass_on(self) -> None:
        """Let other tasks run once, and begin a new turn."""
        await self._runner.sleep(0)
        self._ends_s = self._clock.monotonic_s() + TURN_S
