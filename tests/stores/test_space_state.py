"""What the state machine of a space keeps in memory, beside what the contract can see."""

from __future__ import annotations

import gc
import tracemalloc

from keepstate.stores.protocol import Batch, Put
from keepstate.stores.space_state import SpaceState


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
