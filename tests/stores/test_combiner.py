"""The combiner of blocking callers: an interrupt ends its own call, and holds up no other one."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import pytest

from keepstate._finish import finish
from keepstate._runner import Signal, ThreadRunner
from keepstate.errors import OutcomeUnknownError
from keepstate.stores import combiner as combiner_module
from keepstate.stores.combiner import FLUSH_BATCHES, FLUSH_BYTES, Combiner, _Request
from keepstate.stores.protocol import Applied, Batch, Outcome


def hidden(interrupt: BaseException) -> SystemError:
    """Return the error in which Python 3.11.2 hides an interrupt."""
    error = SystemError("<method> returned a result with an exception set")
    error.__cause__ = interrupt
    return error


@pytest.mark.parametrize("is_hidden", [False, True])
def test_an_interrupted_leader_gets_its_interrupt_and_the_others_an_unknown_outcome(is_hidden: bool) -> None:
    interrupt = KeyboardInterrupt()
    is_leading, is_queued, found = threading.Event(), threading.Event(), list[BaseException]()

    async def flush(batches: Sequence[Batch]) -> list[Outcome]:
        if batches[0].space == "first":
            is_leading.set()
            assert is_queued.wait(60)
            return [Applied(1, now_ms=1)]
        raise hidden(interrupt) if is_hidden else interrupt

    combiner = Combiner(ThreadRunner(), flush)

    def apply(space: str) -> None:
        try:
            finish(combiner.apply([Batch(space, ())], 0))
        except (KeyboardInterrupt, OutcomeUnknownError) as error:
            found.append(error)

    leader = threading.Thread(target=apply, args=("first",))
    leader.start()
    assert is_leading.wait(60)
    others = [threading.Thread(target=apply, args=(name,)) for name in ("second", "third")]
    for thread in others:
        thread.start()
    while len(combiner._queue) < len(others):
        threading.Event().wait(0.001)
    is_queued.set()
    for thread in (leader, *others):
        thread.join()

    assert {type(error) for error in found} == {KeyboardInterrupt, OutcomeUnknownError}
    assert len(found) == 2
    assert interrupt in found


def test_a_leader_flushes_once_and_hands_the_lead_over() -> None:
    is_leading, may_flush, first_returned = threading.Event(), threading.Event(), threading.Event()
    flushed: list[list[str]] = []

    async def flush(batches: Sequence[Batch]) -> list[Outcome]:
        flushed.append([batch.space for batch in batches])
        if batches[0].space == "first":
            is_leading.set()
            assert may_flush.wait(60)
        else:
            assert first_returned.wait(60), "the first leader flushes for the others too"
        return [Applied(1, now_ms=1) for _ in batches]

    combiner = Combiner(ThreadRunner(), flush)

    def apply(space: str) -> None:
        finish(combiner.apply([Batch(space, ())], 0))
        if space == "first":
            first_returned.set()

    threads = [threading.Thread(target=apply, args=(name,)) for name in ("first", "second", "third")]
    threads[0].start()
    assert is_leading.wait(60)
    for thread in threads[1:]:
        thread.start()
    while len(combiner._queue) < 2:
        threading.Event().wait(0.001)
    may_flush.set()
    for thread in threads:
        thread.join()

    assert [sorted(names) for names in flushed] == [["first"], ["second", "third"]]


class _Interrupted(ThreadRunner):
    """A runner that interrupts the thread `second` once it was woken, and is then no longer first."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    def signal(self) -> Signal:
        return _Waking(super().signal(), self)


class _Waking:
    def __init__(self, signal: Signal, runner: _Interrupted) -> None:
        self._signal, self._runner = signal, runner

    def set(self) -> None:
        self._signal.set()

    async def wait(self, timeout_s: float) -> bool:
        self._runner.waiting += 1
        is_set = await self._signal.wait(timeout_s)
        if threading.current_thread().name == "second":
            raise KeyboardInterrupt
        return is_set


def test_a_woken_thread_that_is_interrupted_wakes_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combiner_module, "_LOOK_AGAIN_S", 60.0)  # only the hint is in time
    is_leading, may_flush, runner = threading.Event(), threading.Event(), _Interrupted()
    answered: list[str] = []

    async def flush(batches: Sequence[Batch]) -> list[Outcome]:
        is_leading.set()
        assert may_flush.wait(60)
        return [Applied(1, now_ms=1) for _ in batches]

    combiner = Combiner(runner, flush)

    def apply() -> None:
        with suppress(KeyboardInterrupt):
            name = threading.current_thread().name
            finish(combiner.apply([Batch(name, ())], 0))
            answered.append(name)

    threads = [
        threading.Thread(target=apply, name=name, daemon=True) for name in ("first", "second", "third")
    ]
    threads[0].start()
    assert is_leading.wait(60)
    for number, thread in enumerate(threads[1:], start=1):
        thread.start()
        while runner.waiting < number:
            threading.Event().wait(0.001)
    may_flush.set()
    for thread in threads:
        thread.join(60)

    assert sorted(answered) == ["first", "third"]


def test_a_request_that_its_interrupted_caller_takes_out_meanwhile_fails_no_flush() -> None:
    class Left(deque[_Request]):
        """A queue whose last request is taken out just after a leader has seen it."""

        def __bool__(self) -> bool:
            return len(self) < 2

    async def flush(batches: Sequence[Batch]) -> list[Outcome]:
        return [Applied(1, now_ms=1) for _ in batches]

    combiner = Combiner(ThreadRunner(), flush)
    combiner._queue = Left()

    assert finish(combiner.apply([Batch("a", ())], 0)) == [Applied(1, now_ms=1)]
    finish(combiner.wait_until_idle())


# ---- the size of a flush

SIZES = {
    "batches that just fit": (2, FLUSH_BATCHES // 2, 0, [FLUSH_BATCHES]),
    "too many batches": (5, 40, 0, [120, 80]),
    "bytes that just fit": (4, 2, FLUSH_BYTES // 4, [8]),
    "too many bytes": (5, 2, FLUSH_BYTES // 3, [6, 4]),
    "callers that fill a flush each": (2, FLUSH_BATCHES, FLUSH_BYTES, [FLUSH_BATCHES, FLUSH_BATCHES]),
}


@pytest.mark.parametrize("case", SIZES)
def test_callers_share_a_flush_up_to_its_limits(case: str) -> None:
    callers, batches, size_bytes, expected = SIZES[case]
    flushed, combiner = counting()
    combiner._queue.extend(_Request([Batch("s", ())] * batches, size_bytes) for _ in range(callers))

    finish(combiner.wait_until_idle())

    assert flushed == expected


def test_the_batches_of_one_call_are_flushed_up_to_the_limits() -> None:
    flushed, combiner = counting()
    count = 2 * FLUSH_BATCHES + 1

    finish(combiner.apply_all([Batch("s", ())] * count, [0] * count))
    finish(combiner.apply_all([Batch("s", ())] * 5, [FLUSH_BYTES // 3] * 5))

    assert flushed == [FLUSH_BATCHES, FLUSH_BATCHES, 1, 3, 2]


def counting() -> tuple[list[int], Combiner]:
    """Return a combiner, and the list of the numbers of batches that it has flushed."""
    flushed: list[int] = []

    async def flush(batches: Sequence[Batch]) -> list[Outcome]:
        flushed.append(len(batches))
        return [Applied(1, now_ms=1)] * len(batches)

    return flushed, Combiner(ThreadRunner(), flush)
