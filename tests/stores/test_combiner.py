"""The combiner of blocking callers: an interrupt of the leader ends its own call, never another's answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import OutcomeUnknownError
from keepstate.stores.combiner import Combiner
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
            assert is_queued.wait(30)
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
    assert is_leading.wait(30)
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
