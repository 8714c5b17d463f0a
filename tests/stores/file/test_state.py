"""What a published space keeps in memory of what was drafted upon it."""

from __future__ import annotations

from keepstate.stores.file.state import Draft, JournaledState
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.space_state import RETRY_KEPT_MS


def test_published_answers_of_retries_are_forgotten_after_an_hour() -> None:
    state = JournaledState()

    for hour in range(100):
        draft = Draft(state)
        draft.apply(Batch("s", [Put(b"\x01k", b"")], token=b"%d" % hour, retry_of=0), hour * RETRY_KEPT_MS)
        state = draft.publish()

    assert list(state._retries) == [b"99"]
    assert state.revision == 100
