"""What the saver's calls cost in round trips, whatever the store and the machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.types import Interrupt

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.names import INDEX_SPACE
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Page, Reading

COUNT = 30
ROOT: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


class CountedStore(MemoryStore):
    """A store that counts its calls."""

    trips = 0

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.trips += 1
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.trips += space != INDEX_SPACE  # which the background delivery looks for
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self.trips += 1
        return await super().scan(space, prefix, **options)


@pytest.fixture
def store() -> Iterator[CountedStore]:
    opened = CountedStore(runner=ThreadRunner())
    finish(opened.open())
    yield opened
    finish(opened.close())


def fill(saver: KeepstateSaver, line: str = "", writes: int = 2) -> None:
    """Store a conversation of `COUNT` checkpoints with writes of two tasks on each."""
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": line}}
    said: list[str] = []
    for number in range(COUNT):
        said = [*said, f"message {number} " * 20]
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"said": said}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"said": number})
        for task in range(writes):
            saver.put_writes(config, [("said", [line, number])], f"task {task}")


@pytest.mark.parametrize(
    ("config", "limit", "trips"),
    [(ROOT, 10, 2), ({"configurable": {"thread_id": "t"}}, 10, 3), (ROOT, None, 2)],
    ids=["a namespace", "a thread", "all of a namespace"],
)
def test_a_listing_reads_the_writes_on_all_its_checkpoints_at_once(
    store: CountedStore, config: Any, limit: int | None, trips: int
) -> None:
    saver = KeepstateSaver(store)
    fill(saver)
    before = store.trips

    found = list(saver.list(config, limit=limit))

    assert store.trips - before == trips
    assert len(found) == (limit or COUNT)
    assert [[write[2] for write in one.pending_writes or ()] for one in found] == [
        [["", number]] * 2 for number in range(COUNT - 1, COUNT - 1 - len(found), -1)
    ]


def test_a_listing_of_two_namespaces_gives_each_checkpoint_its_own_writes(store: CountedStore) -> None:
    saver = KeepstateSaver(store)
    for line in ("", "child"):
        fill(saver, line)

    for one in saver.list({"configurable": {"thread_id": "t"}}):
        own = one.config["configurable"]["checkpoint_ns"]
        step = one.metadata["step"]
        assert [write[2] for write in one.pending_writes or ()] == [[own, step]] * 2


def test_a_listing_before_a_checkpoint_finds_its_writes_among_many(store: CountedStore) -> None:
    saver = KeepstateSaver(store)
    fill(saver, writes=9)
    newest = list(saver.list(ROOT, limit=12))

    found = list(saver.list(ROOT, before=newest[-1].config, limit=3))

    assert [one.metadata["step"] for one in found] == [COUNT - 13, COUNT - 14, COUNT - 15]
    assert all(len(one.pending_writes or ()) == 9 for one in found)


def test_a_checkpoint_that_follows_the_last_one_is_stored_in_one_trip(store: CountedStore) -> None:
    saver = KeepstateSaver(store)
    fill(saver)
    (latest,) = saver.list(ROOT, limit=1)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"said": [*latest.checkpoint["channel_values"]["said"], "more"]}
    before = store.trips

    saver.put(latest.config, checkpoint, {"source": "loop", "step": COUNT}, {"said": COUNT})

    assert store.trips - before == 1


@pytest.mark.parametrize("is_pending", [False, True])
def test_a_saver_that_asks_takes_one_scan_more(store: CountedStore, is_pending: bool) -> None:
    saver = KeepstateSaver(store, approvals=True)
    fill(saver)
    (latest,) = saver.list(ROOT, limit=1)
    if is_pending:  # of the next checkpoint, whose writes may come first
        after: Any = {"configurable": {**ROOT["configurable"], "checkpoint_id": "z"}}
        saver.put_writes(after, [(INTERRUPT, [Interrupt("Go?", "0" * 32)])], "task")
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"said": [*latest.checkpoint["channel_values"]["said"], "more"]}
    before = store.trips

    saver.put(latest.config, checkpoint, {"source": "loop", "step": COUNT}, {"said": COUNT})

    assert store.trips - before == 2


def test_an_interrupt_that_asks_takes_one_batch(store: CountedStore) -> None:
    costs: dict[bool, int] = {}
    for approvals in (False, True):
        saver = KeepstateSaver(store, approvals=approvals)
        fill(saver)
        (latest,) = saver.list(ROOT, limit=1)
        before = store.trips
        saver.put_writes(latest.config, [(INTERRUPT, [Interrupt("Go?", "0" * 32)])], f"task {approvals}")
        costs[approvals] = store.trips - before

    assert costs == {False: 2, True: 5}
