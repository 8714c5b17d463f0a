"""One blocking handle serves many threads, and a thread with a running event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from time import sleep
from types import FrameType

import keepstate
from keepstate import sync
from keepstate.stores.protocol import Store
from keepstate.sync import of

THREADS, UPDATES = 16, 50


def test_no_update_of_sixteen_threads_is_lost(ks: sync.Keepstate) -> None:
    def work(_: int) -> None:
        documents = ks.space("shared").documents
        for _ in range(UPDATES):
            documents.update("count", lambda count: count + 1, default=0)

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, range(THREADS)))

    assert ks.space("shared").documents.get("count") == THREADS * UPDATES


def test_threads_share_one_space_and_its_parts(space: sync.Space) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(space.queue.put, range(40)))
        claimed = list(
            threads.map(lambda worker: space.queue.claim(f"w{worker}", lease_s=60, count=5), range(8))
        )

    assert sorted(task.payload for tasks in claimed for task in tasks) == list(range(40))


def test_no_update_of_threads_in_one_transaction_is_lost(space: sync.Space) -> None:
    def slow(count: int) -> int:
        sleep(0)  # hands the interpreter to another thread between reading and writing
        return count + 1

    with space.transaction() as tx, ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda _: tx.documents.update("count", slow, default=0), range(THREADS * 10)))
        list(threads.map(tx.events.append, range(THREADS)))

    assert space.documents.get("count") == THREADS * 10
    assert sorted(event.data for event in space.events.read()) == list(range(THREADS))
    assert space.revision() == 1


def test_a_function_that_updates_may_use_its_transaction(space: sync.Space) -> None:
    with space.transaction() as tx:
        tx.documents.put("a", 1)
        tx.documents.update("b", lambda b: b + tx.documents.update("a", lambda a: a + 1), default=0)

    assert dict(space.documents.items()) == {"a": 2, "b": 2}


def test_a_transaction_goes_on_after_an_interrupt_on_entering_any_function(ks: sync.Keepstate) -> None:
    space = ks.space("interrupted")
    calls = place = 0
    while calls >= place:
        place += 1
        with space.transaction() as tx:
            with suppress(KeyboardInterrupt), interrupted_on_entering(place) as entered:
                tx.documents.put("a", place)
            tx.documents.put("b", place)
        calls = next(entered) - 1

    assert place > 4
    assert space.documents.get("b") == place


@contextmanager
def interrupted_on_entering(place: int) -> Iterator[Iterator[int]]:
    """Raise `KeyboardInterrupt`, as Ctrl-C does, on entering the so-manieth function of a call's turn."""
    entered = count(1)

    def trace(frame: FrameType, event: str, _arg: object) -> None:
        if Path(frame.f_code.co_filename).name == "locks.py" and next(entered) == place:
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield entered
    finally:
        sys.settrace(before)


def test_a_lazy_handle_is_opened_once_by_whichever_thread_comes_first(tmp_path: Path) -> None:
    async def stores() -> set[Store]:
        with ThreadPoolExecutor(8) as threads:
            async with keepstate.open(f"sqlite:///{tmp_path}/state.db") as ks:
                list(threads.map(lambda _: of(ks).space("s").revision(), range(8)))
                return {of(ks).store for _ in range(8)}

    assert len(asyncio.run(stores())) == 1


def test_every_kind_of_call_works_inside_a_running_event_loop(ks: sync.Keepstate) -> None:
    async def notebook() -> list[object]:
        space = ks.space("cell")
        with space.transaction() as tx:
            tx.documents.put("a", 1)
        with space.documents.watch(timeout_s=0.01) as changes:
            space.documents.put("b", 2)
            seen = [change.key for change in changes]
        space.events.append("one", "two")
        return [list(space.documents.keys()), seen, space.transact(lambda tx: tx.documents.get("a"))]

    assert asyncio.run(notebook()) == [["a", "b"], ["b"], 1]


def test_a_running_event_loop_hears_nothing_of_iterators_left_early(ks: sync.Keepstate) -> None:
    async def notebook() -> set[asyncio.Task[object]]:
        space = ks.space("cell")
        space.events.append("one", "two")
        hooks = sys.get_asyncgen_hooks()
        following = space.events.stream().follow()
        assert next(following).data == "one"
        following.close()  # type: ignore[attr-defined]
        with space.documents.watch():
            pass
        assert sys.get_asyncgen_hooks() == hooks
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]

    assert asyncio.run(notebook()) == set()


def test_a_blocking_iterator_can_be_closed_by_another_thread(space: sync.Space) -> None:
    space.events.append("one")
    following = space.events.follow()
    next(following)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(following.close).result()  # type: ignore[attr-defined]

    assert next(following, "ended") == "ended"
