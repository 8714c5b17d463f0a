"""Letting go in many batches: what is interrupted is finished, nothing stays, and putting stays as fast."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

import keepstate.sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.engine.history import history as histories
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.subjects import Subject
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import StoreUnavailableError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome
from keepstate.stores.wrappers.measured import MeasuredStore, Measurement
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.testing.clocks import ManualClock
from tests.adapters.langgraph.saving import config, put, values

HOUR_MS = 3_600_000


class Cut(StoreWrapper):
    """A store whose server goes away when a batch is refused by a test."""

    refuses: Callable[[Batch], bool] = staticmethod(lambda _: False)

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        """Apply batches, unless one is refused."""
        if any(self.refuses(batch) for batch in batches):
            raise StoreUnavailableError("the server has gone away")
        return await super().apply(batches)


@contextmanager
def saving(**options: Any) -> Iterator[tuple[KeepstateSaver, Cut, ManualClock]]:
    """Yield a saver, its store and the clock of that."""
    clock = ManualClock(round(time.time() * 1000))  # ids tell when they were made
    store = Cut(finish(MemoryStore(runner=ThreadRunner(), clock=clock).open()))
    with KeepstateSaver(store, **options) as saver:
        yield saver, store, clock
    finish(store.close())


def line(
    saver: KeepstateSaver, count: int, *, name: str = "", tasks: int = 1, after: Any = None
) -> list[Any]:
    """Store checkpoints, one after the other, with writes of tasks on each."""
    at, stored = after or config(line=name), []
    for step in range(count):
        at = put(saver, at, step, {"run_id": "ab"[step % 2]}, n=step)
        for task in range(tasks):
            saver.put_writes(at, [("n", task)], f"task {task}")
        stored.append(at)
    return stored


def entries(saver: KeepstateSaver, part: bytes, thread: str = "t") -> int:
    """Return how many entries of a kind the space of a thread has."""

    async def count(handle: Keepstate) -> int:
        store, after, found = await handle.opened(), None, 0
        while True:
            page = await store.scan(f"thread/{thread}", part, after=after)
            found, after = found + len(page.entries), page.next
            if after is None:
                return found

    return saver._handles.finish(count)


def lines(saver: KeepstateSaver) -> list[str]:
    """Return the namespaces of the checkpoints of a thread."""
    return [
        found.config["configurable"]["checkpoint_ns"]
        for found in saver.list({"configurable": {"thread_id": "t"}})
    ]


# ---- many batches


def test_what_was_written_on_checkpoints_goes_with_them_however_much_it_is() -> None:
    with saving() as (saver, _, _):
        line(saver, 9, tasks=300)

        assert saver.prune(["t"]) == 8
        assert entries(saver, layout.CHECKPOINTS) == 1
        assert entries(saver, layout.PENDING) == 300
        assert entries(saver, layout.COMMITS) == 1
        assert entries(saver, layout.LETTING_GO) == 0


def test_every_second_of_many_checkpoints_is_let_go_of_and_no_branch_is_made_of_the_others() -> None:
    with saving() as (saver, _, _):
        stored = line(saver, 1_001, tasks=0)

        saver.delete_for_runs(["b"])

        assert entries(saver, layout.CHECKPOINTS) == 501
        assert entries(saver, layout.BRANCHES) == 1
        assert entries(saver, layout.COMMITS) == 501
        assert values(saver, stored[500]) == {"n": 500}


def test_more_ends_of_lines_than_one_batch_has_go() -> None:
    with saving() as (saver, _, _):
        (begun,) = line(saver, 1)
        for _ in range(900):
            line(saver, 1, tasks=0, after=begun)
        assert entries(saver, layout.BRANCHES) == 900

        saver.prune(["t"])

        assert entries(saver, layout.BRANCHES) == 1
        assert entries(saver, layout.CHECKPOINTS) == entries(saver, layout.COMMITS) == 1


def test_a_thread_with_more_writes_than_one_batch_has_is_copied() -> None:
    with saving() as (saver, store, _):
        stored = line(saver, 3, tasks=500)
        store.refuses = lambda batch: any(write.key.startswith(layout.CHECKPOINTS) for write in batch.writes)
        with pytest.raises(StoreUnavailableError):
            saver.copy_thread("t", "copy")
        store.refuses = lambda _: False

        saver.copy_thread("t", "copy")

        copied = [*saver.list(config("copy"))]
        assert [len(found.pending_writes or ()) for found in copied] == [500] * 3
        assert len([*saver.list(config())]) == len(stored)


@pytest.mark.parametrize("after", range(0, 7, 2))
def test_a_thread_with_more_ends_of_lines_than_one_batch_has_is_copied_whole_or_seen_as_absent(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "_HEADS", 3)
    with saving() as (saver, store, _):
        (begun,) = line(saver, 1)
        for _ in range(12):
            line(saver, 1, tasks=0, after=begun)
        store.refuses = after_some(after)
        with suppress(StoreUnavailableError):
            saver.copy_thread("t", "copy")
        store.refuses = lambda _: False
        assert len([*saver.list(config("copy"))]) in (0, 13)

        saver.copy_thread("t", "copy")

        assert [found.checkpoint for found in saver.list(config("copy"))] == [
            found.checkpoint for found in saver.list(config())
        ]


# ---- interrupted


def after_some(count: int) -> Callable[[Batch], bool]:
    """Return what refuses all batches after so many."""
    left = iter(range(count))
    return lambda _: next(left, None) is None


def test_what_was_interrupted_anywhere_is_finished_by_the_next_one() -> None:
    for after in range(9):
        with saving() as (saver, store, clock):
            line(saver, 6, tasks=3)
            store.refuses = after_some(after)
            with suppress(StoreUnavailableError):
                saver.prune(["t"])
            store.refuses = lambda _: False
            assert all(len(found.pending_writes or ()) == 3 for found in saver.list(config()))
            clock.advance(2 * HOUR_MS)

            saver.prune(["t"])

            assert entries(saver, layout.CHECKPOINTS) == entries(saver, layout.COMMITS) == 1
            assert entries(saver, layout.PENDING) == 3
            assert entries(saver, layout.LETTING_GO) == 0
            assert values(saver, config()) == {"n": 5}


def test_a_checkpoint_is_stored_though_older_ones_cannot_be_let_go_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with saving(keep_last=2) as (saver, store, _):
        line(saver, 8)
        store.refuses = lambda batch: any(write.key == layout.LETTING_GO for write in batch.writes)

        stored = line(saver, 9, after=config())

        assert values(saver, stored[-1]) == {"n": 8}
        assert "stay until later" in caplog.text
        store.refuses = lambda _: False
        line(saver, 9, after=stored[-1])
        assert entries(saver, layout.CHECKPOINTS) <= 2 + 9


def test_writes_that_come_when_their_checkpoint_is_gone_go_as_well() -> None:
    with saving() as (saver, _, clock):
        stored = line(saver, 3)
        saver.prune(["t"])
        saver.put_writes(stored[0], [("n", "late")], "late")
        clock.advance(HOUR_MS // 2)
        saver.prune(["t"])
        assert entries(saver, layout.PENDING) == 2

        clock.advance(HOUR_MS)
        saver.prune(["t"])

        assert entries(saver, layout.PENDING) == 1


def test_writes_that_come_when_their_thread_is_gone_are_swept() -> None:
    with saving() as (saver, _, clock):
        (at,) = line(saver, 1)
        saver.delete_thread("t")
        saver.put_writes(at, [("n", "late")], "late")
        saver.sweep()
        assert entries(saver, layout.PENDING) == 1

        clock.advance(2 * HOUR_MS)
        saver.sweep()

        assert entries(saver, layout.PENDING) == 0


# ---- beside writers


def before_batch(count: int, act: Callable[[], object]) -> Callable[[Batch], bool]:
    """Return what refuses no batch, and acts once after so many of them."""
    places = iter(range(count + 1))

    def refuses(_: Batch) -> bool:
        if next(places, None) == count:
            act()
        return False

    return refuses


def space(saver: KeepstateSaver) -> keepstate.sync.Space:
    """Return the space of the thread."""
    return keepstate.sync.Keepstate(saver._handles.blocking()).space("thread/t")


def let_it_end(saver: KeepstateSaver) -> None:
    saver.sweep()


def begin_anew(saver: KeepstateSaver) -> None:
    put(saver, config(), 9, n=9)


def delete_its_runs(saver: KeepstateSaver) -> None:
    saver.delete_for_runs(["a", "b"])


@pytest.mark.parametrize("end", [let_it_end, begin_anew, delete_its_runs])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_checkpoint_that_is_stored_while_its_thread_ends_stays(
    end: Callable[[KeepstateSaver], None], goes_on: bool
) -> None:
    for after in range(9):
        with saving(ttl_s=100) as (saver, store, clock):
            (*_, last) = line(saver, 4)
            clock.advance(200_000)
            other, stored = KeepstateSaver(store), list[Any]()
            store.refuses = before_batch(
                after,
                lambda other=other, last=last, stored=stored: stored.append(
                    put(other, last if goes_on else config(), 5, n="meanwhile")
                ),
            )

            end(saver)

            assert all(values(other, at) == {"n": "meanwhile"} for at in stored)
            assert not space(saver).history.verify().problems


def test_what_another_part_stores_in_the_space_of_a_thread_that_ends_stays() -> None:
    for after in range(9):
        with saving(ttl_s=100) as (saver, store, clock):
            line(saver, 4)
            clock.advance(200_000)
            notes = space(saver).documents
            done = list[int]()
            store.refuses = before_batch(
                after, lambda notes=notes, done=done: done.append(notes.put("note", "mine"))
            )

            saver.sweep()

            assert notes.get("note") == ("mine" if done else None)


def test_of_a_thread_that_has_ended_nothing_is_left() -> None:
    with saving(ttl_s=100) as (saver, store, clock):
        line(saver, 40)
        put(saver, config(), 41, large="large " * 300_000)
        clock.advance(200_000)

        assert saver.sweep() == 1
        left = [page.entries for page in (finish(store.scan("thread/t", bytes((n,)))) for n in range(3))]
        keys = [entry.key for page in left for entry in page]
        assert keys == [layout.EPOCH, Subject("thread", "t").outbox_key()]  # the index has not been told yet
        assert saver.sweep() == 0


def test_a_fork_that_is_stored_while_others_are_let_go_of_keeps_what_its_delta_channels_need() -> None:
    told: dict[str, Any] = {"counters_since_delta_snapshot": {"d": (1, 1)}}
    for after in range(9):
        with saving() as (saver, store, _):
            at, stored = config(), list[Any]()
            for step in range(4):
                at = put(saver, at, step, told if step < 3 else {}, **({} if step < 3 else {"d": ["all"]}))
                saver.put_writes(at, [("d", f"write {step}")], "task")
                stored.append(at)
            other, forks = KeepstateSaver(store), list[Any]()

            def fork(other: KeepstateSaver = other, stored: Any = stored, forks: Any = forks) -> None:
                forks.append(put(other, stored[1], 9, told, n=9))
                forks.append(other.get_delta_channel_history(config=forks[0], channels=["d"]))

            store.refuses = before_batch(after, fork)

            saver.prune(["t"])

            if forks:
                found = other.get_delta_channel_history(config=forks[0], channels=["d"])
                assert found == forks[1]
            if after == 0:
                assert [write[2] for write in forks[1]["d"]["writes"]] == ["write 0", "write 1"]


def test_what_is_left_of_checkpoints_waits_where_others_store_all_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with saving() as (saver, store, _):
        (*_, last) = line(saver, 9)
        other, at = KeepstateSaver(store), [last]

        def stores_more(batch: Batch) -> bool:
            if batch.at is not None:  # as who has looked at all checkpoints asks for
                store.refuses = lambda _: False
                at.append(put(other, at[-1], len(at), n=len(at)))
                store.refuses = stores_more
            return False

        store.refuses = stores_more

        assert saver.prune(["t"]) == 8
        assert "stay until later" in caplog.text
        assert entries(saver, layout.LETTING_GO) == 1
        assert entries(saver, layout.CHECKPOINTS) == len(at)
        store.refuses = lambda _: False
        saver.prune(["t"])
        assert entries(saver, layout.CHECKPOINTS) == entries(saver, layout.COMMITS) == 1


# ---- subgraphs


class Said(TypedDict):
    text: str


def test_what_tasks_of_subgraphs_have_left_is_bounded_too() -> None:
    inner = StateGraph(Said)
    inner.add_node("say", lambda _: {"text": "said"})
    inner.add_edge(START, "say")
    outer = StateGraph(Said)
    outer.add_node("inner", inner.compile())
    outer.add_node("keeps", inner.compile(checkpointer=True))
    outer.add_edge(START, "inner")
    outer.add_edge("inner", "keeps")
    with saving(keep_last=1) as (saver, _, _):
        graph = outer.compile(checkpointer=saver)
        for _ in range(12):
            graph.invoke({"text": "asked"}, config())

        assert len(lines(saver)) < 25
        saver.prune(["t"])
        assert sorted(lines(saver)) == ["", "keeps"]
        assert entries(saver, layout.BRANCHES) == 2


def test_what_a_task_has_stored_stays_with_the_checkpoint_that_it_began_at() -> None:
    with saving() as (saver, _, _):
        for step in range(4):
            line(saver, 1, after=config())
            line(saver, 3, name=f"node:{step}")

        saver.prune(["t"], keep_last=2)

        assert sorted(lines(saver)) == ["", "", "node:2", "node:2", "node:3", "node:3"]


# ---- what has an end


def test_a_thread_whose_subgraph_is_at_work_is_not_over() -> None:
    with saving(ttl_s=100) as (saver, _, clock):
        line(saver, 2)
        clock.advance(60_000)
        (inner,) = line(saver, 1, name="node:1")
        clock.advance(60_000)

        line(saver, 1, name="node:1|node:2")

        assert saver.get_tuple(inner) is not None
        assert len(lines(saver)) == 4
        assert saver.sweep() == 0
        clock.advance(200_000)
        assert lines(saver) == []
        assert saver.sweep() == 1


def test_a_subgraph_that_begins_late_ends_no_thread() -> None:
    with saving(ttl_s=100) as (saver, _, clock):
        line(saver, 2)
        clock.advance(200_000)

        line(saver, 1, name="node:1")

        assert len(lines(saver)) == 3


# ---- what it costs


@pytest.mark.parametrize("options", [{"max_age_s": 36_000}, {"keep_last": 200}])
def test_a_checkpoint_costs_the_same_however_many_are_kept(options: dict[str, Any]) -> None:
    told: list[Measurement] = []
    store = MeasuredStore(finish(MemoryStore(runner=ThreadRunner()).open()), told.append)
    with KeepstateSaver(store, **options) as saver:
        found: list[int] = []
        at = config()
        for _ in range(4):
            told.clear()
            at = line(saver, 200, tasks=0, after=at)[-1]
            found.append(sum(one.count for one in told if one.operation != "apply"))

    assert max(found) < 200 * 30
    assert found[3] < 2 * found[1] + 200
    finish(store.close())
