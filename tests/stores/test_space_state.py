"""The state machine of a space: the memory it takes, and interrupts at any line of it."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from types import FrameType

import msgspec
import pytest

from keepstate.stores import space_state
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.space_state import SpaceState
from keepstate.values import limits


def test_replaced_values_that_the_log_does_not_tell_are_let_go() -> None:
    state = SpaceState()
    tracemalloc.start()
    try:
        for i in range(300):
            state.apply(
                Batch("space", [Put(b"\x01queue", bytes(100_000)), Put(b"\x00%d" % (i % 2), bytes(50_000))]),
                i,
            )
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(state.changes("space", 0, 1_000).items) == 300
    assert held < 3_000_000


def test_an_entry_renewed_without_end_does_not_fill_memory() -> None:
    state = SpaceState()
    for i in range(2_000):
        state.apply(Batch("space", [Put(b"\x01lease", b"", ttl_ms=30_000)]), i)

    state.sweep(10_000_000, 16)

    assert state.changes("space", 2_000, 10).upto == 2_001
    assert not state.expires


# ---- interrupted at any line

PUTS = [Batch("space", [Put(b"\x02doc", b"%d" % i, ttl_ms=1_000)], token=b"t%d" % i) for i in range(6)]
NONCE = b"nonce.01"


class Interrupting:
    """A trace function that interrupts the state machine's code once, before a given line of its run."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, argument: object) -> Interrupting | None:
        if frame.f_code.co_filename != space_state.__file__:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def told(state: SpaceState) -> object:
    """Return all that readers are told; the first one completes what was interrupted."""
    [doc] = state.read("space", [b"\x02doc"], 0).entries
    assert doc is not None
    revision, floor = state.revision, state.floor
    logged = [change.revision for change in state.changes("space", floor, 1_000).items]
    retries = [msgspec.structs.replace(put, retry_of=0) for put in PUTS[:revision]]
    outcomes = [state.apply(retry, 0)[0] for retry in retries]
    known = [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)]
    return revision, floor, doc.version, doc.value, logged, known


def expected(revision: int, floor: int) -> object:
    kept = list(range(floor + 1, revision + 1))
    return revision, floor, revision, b"%d" % (revision - 1), kept, kept


def filled(revisions: int) -> SpaceState:
    state = SpaceState(NONCE)
    for number in range(revisions):
        state.apply(PUTS[number], 0)
    return state


def interrupted_at(line: int) -> SpaceState | None:
    """Return a state whose last batch was interrupted, or None if it ended before that line."""
    state, before = filled(5), sys.gettrace()
    sys.settrace(Interrupting(line))
    try:
        state.apply(PUTS[5], 0)
    except KeyboardInterrupt:
        return state
    finally:
        sys.settrace(before)
    return None


def test_a_batch_interrupted_at_any_line_applies_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "LOG_REVISIONS", 3)
    before, uncut, after = (expected(5, 2), expected(6, 2), expected(6, 3))

    states = [state for state in map(interrupted_at, range(1, 200)) if state is not None]

    all_told = [told(state) for state in states]
    assert [each for each in all_told if each not in (before, uncut, after)] == []
    assert all(each in all_told for each in (before, uncut, after))
