"""Claims of one process are served together, in few calls, and hand every task to one worker."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast
from unittest.mock import patch

import msgspec
import pytest

import keepstate
from keepstate._finish import finish
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import claimer, queue_cache, tasks
from keepstate.engine.queue.claim_requests import ClaimRequest, PendingClaim
from keepstate.engine.space.space import Space
from keepstate.errors import CorruptError, InvalidError, LeaseLostError
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Outcome, Page, Put, Reading, Sizes
from tests.engine.conftest import Turned

CONSUMERS = 64


class Counted(MemoryStore):
    """Counts the calls, and notes the keys that are read."""

    made: ClassVar[list[Counted]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(self)
        self.calls: list[str] = []
        self.read_keys: list[bytes] = []

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        self.calls.append("apply")
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        self.calls += ["read"] * (space != "keepstate:index")  # which the background delivery looks for
        self.read_keys += keys
        await asyncio.sleep(0)  # as a store that waits, so that others can join
        return await super().read(space, keys, at_ms=at_ms)

    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        self.calls.append("scan")
        await asyncio.sleep(0)
        return await super().scan(space, prefix, **options)

    async def sizes(self, space: str) -> Sizes:
        self.calls.append("sizes")
        return await super().sizes(space)


async def opened(store: Counted) -> keepstate.Keepstate:
    if not store.is_open:
        await store.open()
    return keepstate.open(store)


async def test_a_task_is_put_claimed_and_completed_in_three_calls() -> None:
    store = Counted()
    queue = (await opened(store)).space("run").queue
    for number in range(5):
        store.calls.clear()
        await queue.put(number)
        (task,) = await queue.claim("w", lease_s=60)
        await task.complete("result")

    assert task.payload == 4
    assert store.calls == ["apply"] * 3
    await store.close()


async def test_counts_and_sizes_are_one_call_each() -> None:
    store = Counted()
    space = (await opened(store)).space("run")
    for number in range(3000):
        await space.queue.put(number)
    store.calls.clear()

    counts, size = await space.queue.counts(), await space.size()

    assert (counts["ready"], size.entries) == (3000, 9001)  # and the outbox of the queue
    assert store.calls == ["sizes"] * 2
    await store.close()


async def test_claims_that_wait_share_a_scan_a_read_and_a_batch() -> None:
    store = Counted()
    ks = await opened(store)
    queue = ks.space("run").queue
    for number in range(CONSUMERS):
        await queue.put(number)
    other = (await opened(store)).space("run").queue  # knows nothing of what was put
    await other.claim("w", lease_s=60, kinds=["none"])
    store.calls.clear()

    found = await asyncio.gather(*(other.claim(f"w{n}", lease_s=60) for n in range(CONSUMERS)))

    assert [task.payload for ((task),) in found] == list(range(CONSUMERS))
    assert store.calls.count("apply") <= 2
    assert len(store.calls) <= 8
    await store.close()


async def test_each_of_many_tasks_goes_to_one_of_many_consumers(space: Space) -> None:
    claimed = Counter[str]()

    async def consume(worker: str) -> None:
        while found := await space.queue.claim(worker, lease_s=600, count=2):
            for task in found:
                claimed[task.id] += 1
                await task.complete()

    await asyncio.gather(*(space.queue.put(number, id=f"t{number}") for number in range(100)))
    await asyncio.gather(*(consume(f"w{number}") for number in range(16)))

    assert claimed == {f"t{number}": 1 for number in range(100)}
    assert await space.queue.counts() == {
        "ready": 0,
        "waiting": 0,
        "claimed": 0,
        "done": 100,
        "dead": 0,
        "cancelled": 0,
    }


@pytest.mark.parametrize("shared", ["sqlite", "redis", "postgres"])
async def test_claimers_of_two_handles_hand_no_task_to_two(
    shared: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    url = (
        f"sqlite:///{tmp_path}/k.db?durability=normal"
        if shared == "sqlite"
        else request.getfixturevalue(f"{shared}_url")
    )
    claimed = Counter[str]()

    async def consume(queue: Any, worker: str) -> None:
        while found := await queue.claim(worker, lease_s=600):
            claimed[found[0].id] += 1
            await found[0].complete()

    async with keepstate.open(url) as one, keepstate.open(url) as other:
        queues = [handle.space("run/two").queue for handle in (one, other)]
        await asyncio.gather(*(queues[n % 2].put(n, id=f"t{n}") for n in range(60)))
        await asyncio.gather(*(consume(queues[n % 2], f"w{n}") for n in range(8)))

        assert claimed == {f"t{number}": 1 for number in range(60)}
        await one.drop("run/two")


def test_threads_share_a_claimer_too() -> None:
    claimed = Counter[str]()
    with keepstate.sync.open("memory://") as ks:
        queue = ks.space("run").queue
        for number in range(200):
            queue.put(number, id=f"t{number}")

        def consume(worker: str) -> None:
            while found := queue.claim(worker, lease_s=600):
                claimed[found[0].id] += 1
                found[0].complete()

        threads = [threading.Thread(target=consume, args=(f"w{n}",)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert claimed == {f"t{number}": 1 for number in range(200)}


# ---- what this process supposes


async def test_a_better_task_of_another_process_comes_first() -> None:
    store = Counted()
    mine, others = [(await opened(store)).space("run").queue for _ in range(2)]
    await mine.claim("w", lease_s=60)
    await mine.put("mine")
    await others.put("better", priority=1)

    found = [(await mine.claim("w", lease_s=60))[0].payload for _ in range(2)]

    assert found == ["better", "mine"]
    await store.close()


async def test_what_another_process_has_claimed_is_not_claimed_again() -> None:
    store = Counted()
    mine, others = [(await opened(store)).space("run").queue for _ in range(2)]
    await mine.claim("w", lease_s=60)
    await mine.put("only")
    (theirs,) = await others.claim("other", lease_s=60)

    assert await mine.claim("w", lease_s=60) == []
    await theirs.complete()
    await store.close()


async def test_what_another_process_has_discarded_or_put_again_is_read() -> None:
    store = Counted()
    mine, others = [(await opened(store)).space("run").queue for _ in range(2)]
    await mine.claim("w", lease_s=60)
    await mine.put("old", id="t")
    await others.discard("t")
    await others.put("new", id="t")

    (task,) = await mine.claim("w", lease_s=60)

    assert task.payload == "new"
    assert not (await mine.put("third", id="t")).added
    await store.close()


async def test_a_task_that_was_replaced_is_claimed_once_and_new() -> None:
    store = Counted()
    space = (await opened(store)).space("run")
    await space.queue.claim("w", lease_s=60)
    await space.queue.put("old", id="t")
    await space.queue.put("new", id="t", if_present="replace")

    found = await space.queue.claim("w", lease_s=60, count=2)

    assert [task.payload for task in found] == ["new"]
    assert await space.queue.counts() == {
        "ready": 0,
        "waiting": 0,
        "claimed": 1,
        "done": 0,
        "dead": 0,
        "cancelled": 0,
    }
    await store.close()


async def test_a_lease_counts_from_the_time_of_the_store(turned: Turned) -> None:
    """A process that was suspended supposes a time that is long over."""
    queue, clock = turned.space.queue, turned.clock
    await queue.claim("w", lease_s=60)
    await queue.put(1, id="t")
    known = claimer.claimer_of(turned.space.executor).known
    assert known._time is not None
    known.learn_time(known._time[0] - 3_600_000, clock.awake_or_asleep_s())

    (task,) = await queue.claim("w", lease_s=60)

    info = await queue.get("t")
    assert info is not None and info.due_at.timestamp() * 1000 == clock.now_ms() + 60_000
    await task.complete()


async def test_a_handle_remembers_a_bounded_number_of_spaces() -> None:
    async with keepstate.open("memory://") as ks:
        for number in range(claimer._MOST_SPACES + 10):
            await ks.space(f"run/{number}").queue.put(1)

        assert len(claimer._known[ks.space("run/1").executor.home]) == claimer._MOST_SPACES


async def test_a_holder_that_lost_its_task_cannot_complete_it_by_what_it_supposes() -> None:
    store = Counted()
    mine, others = [(await opened(store)).space("run").queue for _ in range(2)]
    await mine.put("only", id="t")
    (task,) = await mine.claim("w", lease_s=60)
    await others.discard("t")
    await others.put("new", id="t")
    await others.take("t", "other", lease_s=60)

    with pytest.raises(LeaseLostError):
        await task.complete("wrong")
    assert (await mine.counts())["claimed"] == 1
    await store.close()


async def test_a_released_and_a_requeued_task_are_claimed_again(space: Space) -> None:
    await space.queue.put("a", id="a", max_attempts=1)
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.release()
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.fail("no")
    await space.queue.requeue("a")
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.heartbeat(90)
    await task.complete("at last")

    info = await space.queue.get("a")
    assert info is not None and (info.state, info.result) == ("done", "at last")


async def test_a_large_payload_is_claimed_whole(space: Space) -> None:
    await space.queue.claim("w", lease_s=60)
    await space.queue.put("x" * 1_500_000, id="large")

    (task,) = await space.queue.claim("w", lease_s=60)

    assert len(task.payload) == 1_500_000


def test_views_that_were_refused_are_left_alone_for_a_while() -> None:
    known = queue_cache.QueueCache()
    pauses: list[int] = []
    for _ in range(4):
        known.refuse()
        pauses.append(known._pause)
        while known._pause:
            assert known.take_view() is None

    assert pauses == [1, 2, 4, 8]


# ---- kinds and keys


async def test_a_claim_by_kind_reads_no_payload_that_it_does_not_take() -> None:
    store = Counted()
    ks = await opened(store)
    for number in range(50):
        await ks.space("run").queue.put(number, id=f"mail{number}", kind="mail")
    await ks.space("run").queue.put("print me", id="print", kind="print", key="customer 7")
    queue = (await opened(store)).space("run").queue
    store.read_keys.clear()

    (task,) = await queue.claim("w", lease_s=60, kinds=["print", "scan"])

    assert (task.payload, task.kind, task.key) == ("print me", "print", "customer 7")
    assert [key for key in store.read_keys if key.startswith(layout.PAYLOADS)] == [tasks.payload_key("print")]
    assert await queue.claim("w", lease_s=60, kinds=["print"]) == []
    await store.close()


async def test_kind_and_key_are_listed_and_stand_in_the_index(space: Space) -> None:
    await space.queue.put(1, id="a", kind="mail", key="customer 7", delay_s=60)
    store = await space.executor.home.opened()

    (info,) = await space.queue.list("waiting")
    (entry,) = (await store.scan(space.executor.stored_name, layout.WAITING)).entries

    assert (info.kind, info.key) == ("mail", "customer 7")
    assert tasks.index_in(entry) == tasks.IndexRecord("a", "mail", "customer 7")


@pytest.mark.parametrize(
    "wrong", [{"kind": "x" * 201}, {"key": ""}, {"key": "x" * 201}, {"kind": 7}, {"keep_s": -1}]
)
async def test_a_wrong_kind_or_key_is_rejected(space: Space, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(wrong))):
        await space.queue.put(1, **wrong)


async def test_kinds_to_claim_are_a_list(space: Space) -> None:
    for wrong in ("mail", []):
        with pytest.raises(InvalidError, match="kinds"):
            await space.queue.claim("w", lease_s=1, kinds=wrong)


# ---- errors and interrupts of claims that are served together


class UncopyableError(Exception):
    """An error of a store, as many libraries have them: its constructor wants more than a message."""

    def __init__(self, message: str, *, answer: int) -> None:
        super().__init__(message)
        self.answer = answer


async def test_an_error_that_cannot_be_copied_reaches_every_claim() -> None:
    store = Counted()
    queue = (await opened(store)).space("run").queue
    error = UncopyableError("no answer", answer=7)

    with patch.object(Counted, "scan", side_effect=error):
        claims = [queue.claim(worker, lease_s=60) for worker in ("a", "b")]
        async with asyncio.timeout(60):
            found = await asyncio.gather(*claims, return_exceptions=True)

    assert found == [error, error]
    await store.close()


async def test_an_unreadable_task_of_another_kind_is_no_error_of_a_claim() -> None:
    store = Counted()
    ks = await opened(store)
    space = ks.space("run")
    await space.queue.put(1, id="broken", kind="a")
    damaged = Put(tasks.payload_key("broken"), b"\xc1 damaged")
    await store.apply([Batch(space.executor.stored_name, writes=(damaged,))])

    leading = asyncio.create_task(space.queue.claim("w", lease_s=60, kinds=["none"]))
    await asyncio.sleep(0)
    both = [space.queue.claim("w", lease_s=60, kinds=[kind]) for kind in ("a", "b")]
    broken, other = await asyncio.gather(*both, return_exceptions=True)

    assert isinstance(broken, CorruptError)
    assert (other, await leading) == ([], [])
    await store.close()


def test_an_interrupted_thread_leaves_no_task_claimed_that_another_thread_took_for_it() -> None:
    waits, serves = threading.Event(), threading.Event()
    serve = claimer.ClaimExecutor._serve

    class Lead:
        """The lock of a claimer: a thread is interrupted in it while the other one serves its claim."""

        def __enter__(self) -> bool:
            if threading.current_thread() is interrupted:
                waits.set()
                assert serves.wait(60)
                raise KeyboardInterrupt
            return True

        def __exit__(self, *_: object) -> None:
            return

    async def serve_slowly(self: claimer.ClaimExecutor, tickets: Sequence[PendingClaim]) -> None:
        serves.set()
        interrupted.join(60)
        await serve(self, tickets)

    def claim() -> None:
        with pytest.raises(KeyboardInterrupt):
            queue.claim("interrupted", lease_s=600)

    interrupted = threading.Thread(target=claim)
    with (
        keepstate.sync.open("memory://") as ks,
        patch.object(claimer, "reentrant_lock", Lead),
        patch.object(claimer.ClaimExecutor, "_serve", serve_slowly),
    ):
        queue = ks.space("run").queue
        for number in range(2):
            queue.put(number)
        interrupted.start()
        assert waits.wait(60)

        (task,) = queue.claim("w", lease_s=600)

        assert [info.id for info in queue.list("claimed")] == [task.id]
        assert queue.counts()["ready"] == 1


def test_a_claim_that_an_interrupt_lost_in_another_thread_is_served() -> None:
    class Rounds:
        async def serve(self, tickets: Sequence[PendingClaim]) -> None:
            assert tickets, "it serves nobody, for ever"
            for ticket in tickets:
                ticket.finish()

    request, lost = ClaimRequest("w", 1000, cast("Any", None)), claimer.Claimer()

    class Lead:
        def __enter__(self) -> bool:
            lost._waiting.clear()  # another thread took the claim out, and was interrupted before it served
            return True

        def __exit__(self, *_: object) -> None:
            return

    lost._lead = cast("Any", Lead())
    ticket = PendingClaim(request, None, cast("Any", None))

    finish(lost.serve(ticket, cast("Any", Rounds())))

    assert ticket.is_over


async def test_a_claim_of_a_rare_kind_looks_through_a_long_queue_in_large_pages() -> None:
    store = Counted()
    queue = (await opened(store)).space("run").queue
    await asyncio.gather(*(queue.put(number, kind="frequent") for number in range(3000)))
    store.calls.clear()

    assert await queue.claim("w", lease_s=60, kinds=["rare"]) == []

    assert store.calls.count("scan") <= 12
    await store.close()


async def test_a_claim_does_not_wait_for_the_search_of_a_rare_kind() -> None:
    store = Counted()
    queue = (await opened(store)).space("run").queue
    await asyncio.gather(*(queue.put(number, kind="frequent") for number in range(5)))
    searching, go_on = asyncio.Event(), asyncio.Event()
    scan = Counted.scan

    async def wait_within(self: Counted, space: str, prefix: bytes, **options: Any) -> Page:
        if prefix == layout.READY and not searching.is_set():
            searching.set()
            await go_on.wait()
        return await scan(self, space, prefix, **options)

    with patch.object(Counted, "scan", wait_within):
        rare = asyncio.create_task(queue.claim("w", lease_s=60, kinds=["rare"]))
        await searching.wait()
        async with asyncio.timeout(60):
            (task,) = await queue.claim("w", lease_s=60)
        go_on.set()

    assert (task.payload, await rare) == (0, [])
    await store.close()


# ---- how long a done task is kept


async def test_a_done_task_is_kept_as_long_as_it_says(turned: Turned) -> None:
    queue = turned.space.queue
    for name, keep_s in (("short", 60), ("ever", None), ("week", 604_800)):
        await queue.put(1, id=name, keep_s=keep_s)
        (task,) = await queue.claim("w", lease_s=10)
        await task.complete("result")

    turned.clock.advance(61_000)
    assert (await queue.counts())["done"] == 2
    assert {info.id for info in await queue.list("done")} == {"ever", "week"}
    turned.clock.advance(604_800_000)

    assert (await queue.counts())["done"] == 1
    info = await queue.get("ever")
    assert info is not None and info.result == "result"


# ---- listing by id, and both ways


async def test_tasks_are_listed_by_the_prefix_of_their_ids(space: Space) -> None:
    for name in ("mail/1", "mail/2", "mail/3", "mail\0", "print/1"):
        await space.queue.put(name, id=name)
    (task,) = await space.queue.claim("w", lease_s=60)
    assert task.id == "mail/1"

    listed = [info.id for info in await space.queue.list(id_prefix="mail/")]
    ready = [info.id for info in await space.queue.list("ready", id_prefix="mail")]
    everything = [info.id for info in await space.queue.list()]

    assert listed == ["mail/1", "mail/2", "mail/3"]
    assert ready == ["mail\0", "mail/2", "mail/3"]
    assert everything == ["mail\0", "mail/1", "mail/2", "mail/3", "print/1"]


async def test_a_rare_state_is_listed_by_id_without_reading_the_other_tasks() -> None:
    store = Counted()
    queue = (await opened(store)).space("run").queue
    await asyncio.gather(*(queue.put(number, id=f"t{number:03}") for number in range(300)))
    await queue.put(1, id="t999", delay_s=60)
    store.calls.clear()

    (info,) = await queue.list("waiting", id_prefix="t", limit=1)

    assert info.id == "t999"
    assert store.calls.count("read") == 1
    await store.close()


@pytest.mark.parametrize("by", [{"state": "ready"}, {"id_prefix": "t"}], ids=["state", "id"])
async def test_a_listing_is_paged_both_ways(space: Space, by: dict[str, Any]) -> None:
    names = [f"t{number}" for number in range(7)]
    for name in names:
        await space.queue.put(name, id=name)

    pages: list[list[str]] = []
    before: str | None = None
    while page := await space.queue.list(**by, reverse=True, before=before, limit=3):
        pages.append([info.id for info in page])
        before = page[-1].cursor
    all_of_them = await space.queue.list(**by)
    middle = await space.queue.list(**by, after=all_of_them[1].cursor, before=all_of_them[5].cursor)

    assert pages == [["t6", "t5", "t4"], ["t3", "t2", "t1"], ["t0"]]
    assert [info.id for info in middle] == ["t2", "t3", "t4"]


async def test_a_transaction_lists_backwards_too(space: Space) -> None:
    for number in range(3):
        await space.queue.put(number, id=f"t{number}")
    async with space.transaction() as tx:
        listed = [info.id for info in await tx.queue.list("ready", reverse=True)]

    assert listed == ["t2", "t1", "t0"]


# ---- fields of a later version


async def test_fields_of_a_later_version_survive_a_claim_by_what_is_supposed(space: Space) -> None:
    store = await space.executor.home.opened()
    key = tasks.task_key("t")
    await space.queue.put(1, id="t")
    (entry,) = (await store.read(space.executor.stored_name, [key])).entries
    assert entry is not None
    record = tasks.decode_record(entry.value, "t")
    later = tasks.encode_record(msgspec.structs.replace(record, later=(42,)))
    await store.apply([Batch(space.executor.stored_name, [Put(key, later)])])
    # The index entry of a ready task follows from the record's revision, so it is made ready again.
    await space.queue.take("t", "w", lease_s=60)
    (held,) = await space.queue.list("claimed")
    await space.queue.release(keepstate.Claim("t", held.token))
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.heartbeat(60)
    await task.complete()

    (entry,) = (await store.read(space.executor.stored_name, [key])).entries
    assert entry is not None
    assert tasks.decode_record(entry.value, "t").later == (42,)


def test_a_claimer_belongs_to_a_handle_and_a_space() -> None:
    with keepstate.sync.open("memory://") as ks, keepstate.sync.open("memory://") as other:
        one = claimer.claimer_of(ks.space("a")._inner.executor)

        assert claimer.claimer_of(ks.space("a")._inner.executor) is one
        assert claimer.claimer_of(ks.space("b")._inner.executor) is not one
        assert claimer.claimer_of(other.space("a")._inner.executor) is not one


# ---- planted bugs


def _believe_the_view() -> Any:
    """Claim by a view without requiring its revision, and check no record."""

    def assume(self: Unit, entries: Any, revision: int, now_ms: int, *, until_ms: int) -> None:
        self.assume_cached(entries, revision, now_ms)
        self._found.clear()

    return patch.multiple(Unit, assume_scanned=assume, check=lambda *_, **__: None)


def _pass_over_what_was_claimed_before() -> Any:
    """Leave a task that was claimed once in the index of ready tasks."""

    def record(executor: Any, stored: Any, index: Any) -> Any:
        found = right(executor, stored, index)
        return None if found is None or found.token else found

    right = claimer.ready_record
    return patch.object(claimer, "ready_record", record)


def _serve_a_claim_twice() -> Any:
    """Leave the claims of a round in the queue, so that the next round serves them too."""

    async def serve_next(self: Any, rounds: Any) -> list[Any]:
        served = list(self._waiting)
        for ticket in served:
            ticket.request = replace(ticket.request, count=2 * ticket.request.count)
        return await right(self, rounds)

    right = claimer.Claimer._serve_next
    return patch.object(claimer.Claimer, "_serve_next", serve_next)


def _drop_later_fields() -> Any:
    """Write back only the fields that this version knows."""
    right = tasks.encode_record
    return patch.object(
        tasks, "encode_record", lambda record: right(msgspec.structs.replace(record, later=()))
    )


def _hand_out_by_the_scan_alone() -> Any:
    """Claim without checking that nobody else did."""
    return patch.object(Unit, "_all_checks", lambda self: list(self._checks))


@pytest.mark.parametrize(
    ("bug", "test"),
    [
        (_believe_the_view, test_a_better_task_of_another_process_comes_first),
        (_believe_the_view, test_what_another_process_has_claimed_is_not_claimed_again),
        (_pass_over_what_was_claimed_before, test_a_released_and_a_requeued_task_are_claimed_again),
        (_drop_later_fields, test_fields_of_a_later_version_survive_a_claim_by_what_is_supposed),
        (_serve_a_claim_twice, test_claims_that_wait_share_a_scan_a_read_and_a_batch),
        (_hand_out_by_the_scan_alone, test_claimers_of_two_handles_hand_no_task_to_two),
    ],
)
async def test_a_planted_bug_is_found(bug: Any, test: Any, tmp_path: Any) -> None:
    given: dict[str, Any] = {}
    wanted = test.__code__.co_varnames[: test.__code__.co_argcount]
    async with keepstate.open("memory://") as ks:
        if "space" in wanted:
            given["space"] = ks.space("run")
        if "shared" in wanted:
            given |= {"shared": "sqlite", "request": None, "tmp_path": tmp_path}
        with bug(), pytest.raises((AssertionError, ValueError, keepstate.KeepstateError)):
            await test(**given)
    while Counted.made:
        await Counted.made.pop().close()
