"""What a published space keeps in memory of what was drafted upon it."""

from __future__ import annotations

from keepstate.stores.file.state import Draft, JournaledState
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.space_state import RETRY_KEPT_MS
from keepstate.values import limits


def test_published_answers_of_retries_are_forgotten_after_an_hour() -> None:
    state = JournaledState()

    for hour in range(100):
        draft = Draft(state)
        draft.apply(Batch("s", [Put(b"\x01k", b"")], token=b"%d" % hour, retry_of=0), hour * RETRY_KEPT_MS)
        state = draft.publish()

    assert list(state._retries) == [b"99"]
    assert state.revision == 100


def test_a_restored_log_is_cut_where_the_one_before_it_would_have_been() -> None:
    state, value = JournaledState(), bytes(limits.VALUE_BYTES)
    for _ in range(limits.LOG_BYTES // (2 * limits.VALUE_BYTES) - 1):
        state.apply(Batch("s", [Put(b"\x02doc", value)]), 0)
    restored = JournaledState()
    for item in state.snapshot("s"):
        restored.replay(item)
    assert state.floor == restored.floor == 0

    for each in (state, restored):
        for _ in range(4):
            each.apply(Batch("s", [Put(b"\x02doc", value)]), 0)

    assert 0 < state.floor == restored.floor
