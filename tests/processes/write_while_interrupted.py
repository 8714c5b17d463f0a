"""A process that is interrupted hundreds of times while it writes, and says what it then finds.

`python -m tests.processes.write_while_interrupted URL SEED ROUNDS`. Each round arms a timer whose handler
raises `KeyboardInterrupt`, as Ctrl-C does, after about as long as a call takes, and often once more
while the first is dealt with. A second thread writes beside it and is never interrupted.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from types import FrameType

import keepstate.sync
from keepstate._finish import finish, interrupt_behind
from keepstate.errors import ConflictError, OutcomeUnknownError
from keepstate.sync import Keepstate

_SHORTEST_S = 1e-6
PACE = 1.02
"""Interrupts come sooner by this factor after a call without one, so that a third of all calls has one."""


class Storm:
    """Interrupts of the main thread, at random moments, as long as it is armed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.is_armed = False
        self.usual_s = 0.001
        self.raised = 0
        signal.signal(signal.SIGALRM, self._interrupt)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if not self.is_armed:
            return
        self.raised += 1
        if self._random.random() < 0.5:
            self._again_after(self._random.choice((20e-6, 100e-6, self.usual_s)))
        raise KeyboardInterrupt

    def _again_after(self, longest_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, max(self._random.random() * longest_s, _SHORTEST_S))

    def arm(self) -> None:
        self.is_armed = True
        self._again_after(1.3 * self.usual_s)


class Beside:
    """A thread that counts in a document of its own."""

    def __init__(self, ks: Keepstate) -> None:
        self._documents = ks.space("storm").documents
        self._is_over = False
        self.applied = self.unknown = 0
        self.error = ""
        self._thread = threading.Thread(target=self._run, daemon=True)  # a failure ends all
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over:
                try:
                    self._documents.update("beside", lambda n: n + 1, default=0)
                    self.applied += 1
                except OutcomeUnknownError:
                    self.unknown += 1
                time.sleep(0.002)
        except BaseException as error:
            self.error = repr(error)
            raise

    def stop(self) -> None:
        self._is_over = True
        self._thread.join()


def _write(ks: Keepstate, number: int) -> None:
    space = ks.space("storm")
    if number % 3 == 0:
        space.documents.update("counter", lambda n: n + 1, default=0)
    elif number % 3 == 1:
        with space.transaction() as tx:
            tx.documents.put("left", number)
            tx.documents.put("right", number)
    else:
        space.documents.put("text", "x" * (number % 3000))
        space.documents.get("text")


def _measure(storm: Storm, ks: Keepstate) -> None:
    began_s = time.monotonic()
    for number in range(30):
        _write(ks, number)
    storm.usual_s = (time.monotonic() - began_s) / 30


def _is_whole(ks: Keepstate) -> bool:
    """Whether both documents of a batch are there; a server may still be at work on one that was given up."""
    while True:
        with suppress(ConflictError), ks.space("storm").transaction() as tx:
            return tx.documents.get("left") == tx.documents.get("right")


def _folded(ks: Keepstate) -> dict[str, object]:
    """Return what the log of all changes comes to."""
    folded: dict[str, object] = {}
    with ks.space("storm").documents.watch(after=0, timeout_s=0) as changes:
        for change in changes:
            folded[change.key] = change.new
    return folded


def is_raised_by_us(error: BaseException) -> bool:
    """Whether a SystemError came out of a coroutine that `finish` ran, which must have unwrapped it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    *above, _interrupted, _handler = frames
    return isinstance(error, SystemError) and any(frame.f_code is finish.__code__ for frame in above)


def run(url: str, seed: int, rounds: int) -> dict[str, object]:
    storm = Storm(seed)
    with keepstate.sync.open(url) as ks:
        _measure(storm, ks)
        beside = Beside(ks)
        begun_at = int(ks.space("storm").documents.get("counter"))
        applied = unknown = halves = 0
        for number in range(rounds):
            try:
                storm.arm()
                _write(ks, number)
                storm.is_armed = False  # an assignment is no place where a handler runs
                applied += number % 3 == 0
                storm.usual_s /= PACE  # also where a busy machine made the first calls slow
            except (KeyboardInterrupt, SystemError) as error:
                storm.is_armed = False
                # Python 3.11.2 may turn an interrupt between two calls of keepstate's into a SystemError.
                if not isinstance(interrupt_behind(error), KeyboardInterrupt) or is_raised_by_us(error):
                    raise
                unknown += number % 3 == 0
                storm.usual_s *= PACE**2
            halves += not _is_whole(ks)
        ks.space("storm").documents.put("after", 1)  # a lock that was left taken makes it fail as busy
        beside.stop()
        documents = dict(ks.space("storm").documents.items())
        counted = int(documents["counter"]) - begun_at
        folded = _folded(ks)
    reopened = documents
    if not url.startswith("memory"):
        with keepstate.sync.open(url) as again:
            reopened = dict(again.space("storm").documents.items())
    return {
        "is_the_same_when_reopened": reopened == documents,
        "interrupts": storm.raised,
        "applied": applied,
        "unknown": unknown,
        "counted": counted,
        "halves": halves,
        "beside": [beside.applied, beside.unknown, int(documents.get("beside", 0))],
        "beside_error": beside.error,
        "log_is_whole": folded == documents,
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
