"""Steps: what is recorded is not done again, and a worker that lost its claim records nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from keepstate import NOT_DONE, StepUnknownError, Suspended, sync
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.queue import Queue, Task
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import (
    InvalidError,
    LeaseLostError,
    NotFoundError,
    TaskCancelledError,
    TaskFailedError,
    TransitionError,
)
from tests.engine.conftest import Turned
from tests.engine.step_work import Log, random_bytes, result, work
from tests.processes import PROCESSES, run

# ---- on every backend


async def test_a_recorded_step_is_not_done_again(space: Space) -> None:
    log = Log()

    async def handler(task: Task) -> Any:
        first = await task.step("first", log.say, "a")
        several = await asyncio.gather(*(task.step(f"each/{n}", log.say, str(n)) for n in range(3)))
        if task.attempt < 3:
            raise RuntimeError
        return [first, *several]

    await space.queue.put(1, id="t")
    raised = await work(space, handler)

    assert len(raised) == 2
    assert await result(space) == [{"said": text} for text in "a012"]
    assert sorted(log.calls) == ["0", "1", "2", "a"]
    assert (await space.queue.steps("t"))[0].name == "first"


async def test_a_transaction_and_its_result_are_applied_once(space: Space) -> None:
    async def add(tx: Transaction) -> int:
        count: int = await tx.documents.update("n", lambda old: old + 1, default=0)
        return count

    async def handler(task: Task) -> Any:
        count = await task.transact("add", add)
        if task.attempt < 3:
            raise RuntimeError
        return count

    await space.queue.put(1, id="t")
    await work(space, handler)

    assert await space.documents.get("n") == await result(space) == 1


async def test_a_message_a_child_and_a_sleep_wake_a_task_that_holds_no_worker(space: Space) -> None:
    async def handler(task: Task) -> Any:
        if task.kind == "child":
            return task.payload * 2
        said = await task.receive("go")
        ids = [await task.spawn(f"child/{n}", n, kind="child") for n in range(2)]
        doubled = await task.results(*ids)
        await task.sleep("a moment", 5.2)
        return said, doubled

    await space.queue.put(1, id="t", max_attempts=1)
    await work(space, handler)
    counts = await space.queue.counts()
    assert (counts["waiting"], counts["claimed"]) == (1, 0)

    await space.queue.send("t", "go", {"by": "Ann"})
    await work(space, handler)
    while (await space.queue.counts())["waiting"]:
        await asyncio.sleep(0.2)
        await work(space, handler)

    assert await result(space) == ({"by": "Ann"}, [0, 2])
    assert {(step.name.partition("/")[0], step.kind) for step in await space.queue.steps("t")} == {
        ("go", "receive"), ("child", "spawn"), ("results", "results"), ("a moment", "sleep"),
    }  # fmt: skip


async def test_a_worker_that_lost_its_claim_records_nothing(space: Space) -> None:
    await space.queue.put(1, id="t")
    (late,) = await space.queue.claim("late", lease_s=0.05)
    await asyncio.sleep(0.1)
    (task,) = await space.queue.claim("w", lease_s=60, wait_s=30)
    log = Log()

    with pytest.raises(LeaseLostError):
        await late.step("a", log.say, "late")
    with pytest.raises(LeaseLostError):
        await late.transact("b", lambda tx: tx.documents.put("x", 1))
    with pytest.raises(LeaseLostError):
        await late.step("c", log.say, "never", once=True)
    with pytest.raises(LeaseLostError):
        await late.sleep("d", 60)
    with pytest.raises(LeaseLostError):
        await late.spawn("e", 1, kind="child")

    assert log.calls == ["late"]
    assert await space.documents.get("x") is None
    assert await task.steps() == []
    assert await task.step("a", log.say, "in time") == {"said": "in time"}


async def test_a_transaction_that_ends_a_task_with_steps_ignores_other_writes(space: Space) -> None:
    log = Log()
    await space.queue.put(1, id="t")
    (task,) = await space.queue.claim("w", lease_s=60)
    await task.step("a", log.say, "a")

    async with space.transaction() as tx:
        await tx.queue.complete(task, "done")
        await space.documents.put("x", 1)  # by another writer

    assert await result(space) == "done"


async def test_results_of_any_size_come_back(space: Space) -> None:
    async def handler(task: Task) -> Any:
        found = [await task.step(f"{size}", random_bytes, size) for size in (1, 20_000, 3_000_000)]
        if task.attempt == 1:
            raise RuntimeError
        return [len(each) for each in found]

    await space.queue.put(1, id="t")
    await work(space, handler)

    assert await result(space) == [1, 20_000, 3_000_000]
    assert [step.size_bytes > 16_384 for step in await space.queue.steps("t")] == [False, True, True]


async def test_steps_end_with_their_task(space: Space) -> None:
    async def handler(task: Task) -> None:
        await asyncio.gather(*(task.step(str(n), random_bytes, 20_000) for n in range(5)))

    before = await space.size()
    await space.queue.put(1, id="t")
    await work(space, handler)
    assert await space.queue.remove("t")
    assert (await space.size()).entries <= before.entries + 1  # of the index

    await space.queue.put(1, id="t")
    (task,) = await space.queue.claim("w", lease_s=60)
    await handler(task)
    assert await space.queue.discard("t")

    assert (await space.size()).entries <= before.entries + 1  # of the index


async def test_a_worker_runs_handlers_that_wait_and_goes_on_when_they_are_woken(space: Space) -> None:
    log = Log()

    async def trip(task: Task) -> Any:
        await task.step("plan", log.say, "plan")
        ids = [await task.spawn(part, part, kind="part") for part in ("flight", "hotel")]
        return [await task.receive("go"), await task.results(*ids)]

    async def swallow(task: Task) -> None:
        with contextlib.suppress(BaseException):
            await task.receive("never")

    await space.queue.put(1, id="t", kind="trip", max_attempts=1)
    await space.queue.put(1, id="s", kind="swallow", max_attempts=1)
    await space.queue.send("t", "go", "now")
    handlers = {"trip": trip, "part": lambda task: f"{task.payload} is booked", "swallow": swallow}

    await space.queue.run(handlers, idle_s=0.5)

    assert await result(space) == ["now", ["flight is booked", "hotel is booked"]]
    assert log.calls == ["plan"]
    with pytest.raises(TaskFailedError, match="caught Suspended"):
        await result(space, "s")


# ---- rules


async def test_errors_are_not_recorded(turned: Turned) -> None:
    log = Log()

    async def handler(task: Task) -> Any:
        await task.step("said", log.say, "a")
        await task.step("failed", log.fail)

    await turned.space.queue.put(1, id="t", max_attempts=3)
    raised = await work(turned.space, handler)

    assert [type(error) for error in raised] == [RuntimeError] * 3
    assert log.calls == ["a", "fail", "fail", "fail"]
    assert [step.name for step in await turned.space.queue.steps("t")] == ["said"]


async def test_a_step_twice_in_an_attempt_or_inside_another_is_refused(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)
    log = Log()

    async def outer() -> Any:
        return await task.step("inner", log.say, "inner")

    await task.step("a", log.say, "a")
    with pytest.raises(InvalidError, match="twice"):
        await task.step("a", log.say, "a")
    with pytest.raises(InvalidError, match="inside step 'outer'"):
        await task.step("outer", outer)
    with pytest.raises(InvalidError, match="inside step 'tx'"):
        await task.transact("tx", lambda tx: task.step("inner", log.say, "inner"))
    with pytest.raises(InvalidError, match="inside its step 'end'"):
        await task.step("end", task.complete)

    assert log.calls == ["a"]


async def test_an_order_that_changes_and_a_new_name_are_followed(turned: Turned) -> None:
    log = Log()

    async def before(task: Task) -> Any:
        await task.step("a", log.say, "a")
        await task.step("b", log.say, "b")
        raise RuntimeError

    async def after(task: Task) -> Any:
        return [await task.step(name, log.say, name) for name in ("b", "new", "a")]

    await turned.space.queue.put(1, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)
    with pytest.raises(RuntimeError):
        await before(task)
    await task.fail("deployed", retry_in_s=0)
    await work(turned.space, after)

    assert log.calls == ["a", "b", "new"]
    assert await result(turned.space) == [{"said": name} for name in ("b", "new", "a")]


async def test_a_step_with_once_that_failed_is_not_done_again_until_it_is_settled(turned: Turned) -> None:
    space, log = turned.space, Log()

    async def handler(task: Task) -> Any:
        return await task.step("pay", log.fail, once=True)

    await space.queue.put(1, id="t", max_attempts=2)
    raised = await work(space, handler)
    assert [type(error) for error in raised] == [RuntimeError, StepUnknownError]
    assert isinstance(raised[1], StepUnknownError) and (raised[1].task, raised[1].step) == ("t", "pay")
    assert [step.state for step in await space.queue.steps("t")] == ["open"]

    await space.queue.settle("t", "pay", {"paid": 5})
    await space.queue.requeue("t")
    await work(space, handler)

    assert await result(space) == {"paid": 5}
    assert log.calls == ["fail"]
    with pytest.raises(TransitionError, match="is done, not open"):
        await space.queue.settle("t", "pay", 1)


async def test_a_step_that_was_not_done_runs_again(turned: Turned) -> None:
    space, log = turned.space, Log()

    async def handler(task: Task) -> Any:
        if task.attempt == 1 and not log.calls:
            return await task.step("pay", log.fail, once=True)
        return await task.step("pay", log.say, "paid", once=True)

    await space.queue.put(1, id="t", max_attempts=1)
    await work(space, handler)
    await space.queue.settle("t", "pay", NOT_DONE)
    await space.queue.requeue("t")
    await work(space, handler)

    assert await result(space) == {"said": "paid"}


async def test_a_step_that_may_be_running_is_not_settled(turned: Turned) -> None:
    space = turned.space
    await space.queue.put(1, id="t")
    (task,) = await space.queue.claim("w", lease_s=60)

    async def settle() -> None:
        with pytest.raises(TransitionError, match="may be running"):
            await space.queue.settle("t", "pay", 1)

    await task.step("pay", settle, once=True)
    for id, name in (("t", "other"), ("gone", "pay")):
        with pytest.raises(NotFoundError):
            await space.queue.settle(id, name, 1)


async def test_a_sleep_counts_from_the_first_attempt(turned: Turned) -> None:
    space = turned.space
    until = await space.now() + timedelta(days=2)

    async def handler(task: Task) -> Any:
        await task.sleep("a day", 86_400)
        await task.sleep("until", until=until)
        return "awake"

    await space.queue.put(1, id="t", max_attempts=1)
    await work(space, handler)
    turned.clock.advance(86_399_000)
    assert await work(space, handler) == []
    turned.clock.advance(1_000)
    assert [type(each) for each in await work(space, handler)] == [Suspended]
    turned.clock.advance(86_400_000)
    await work(space, handler)

    assert await result(space) == "awake"


async def test_a_receipt_times_out_for_good(turned: Turned) -> None:
    space = turned.space

    async def handler(task: Task) -> Any:
        try:
            return await task.receive("go", timeout_s=60)
        except TimeoutError:
            await space.queue.send("t", "go", "late")
            if task.attempt == 1:
                raise
            return "timed out"

    await space.queue.put(1, id="t")
    await work(space, handler)
    turned.clock.advance(59_000)
    assert await work(space, handler) == []
    turned.clock.advance(1_000)
    assert [type(each) for each in await work(space, handler)] == [TimeoutError]

    assert await result(space) == "timed out"


async def test_messages_are_received_in_order_one_by_each_name(turned: Turned) -> None:
    space = turned.space

    async def handler(task: Task) -> Any:
        return [await task.receive("a"), await task.receive("b")]

    await space.queue.put(1, id="t", max_attempts=1)
    for number in range(3):
        await space.queue.send("t", "a", number)
    await work(space, handler)
    await space.queue.send("t", "b", "last")
    await work(space, handler)

    assert await result(space) == [0, "last"]


async def test_waits_side_by_side_end_with_the_first(turned: Turned) -> None:
    space = turned.space

    async def handler(task: Task) -> Any:
        done = await asyncio.gather(task.receive("go"), task.sleep("long", 3600), return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException):
                raise each
        return done

    await space.queue.put(1, id="t", max_attempts=1)
    await work(space, handler)
    await space.queue.send("t", "go", 1)
    assert [type(each) for each in await work(space, handler)] == [Suspended]
    turned.clock.advance(3_600_000)
    await work(space, handler)

    assert await result(space) == [1, None]


async def test_steps_that_run_are_awaited_before_the_attempt_ends(turned: Turned) -> None:
    space = turned.space

    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "paid"

    async def handler(task: Task) -> Any:
        return await asyncio.gather(task.step("pay", slow, once=True), task.receive("go"))

    await space.queue.put(1, id="t", max_attempts=1)
    await work(space, handler)
    assert [(step.name, step.state) for step in await space.queue.steps("t")] == [("pay", "done")]
    await space.queue.send("t", "go", 1)
    await work(space, handler)

    assert await result(space) == ["paid", 1]


async def test_a_handler_that_catches_its_suspension_cannot_complete(turned: Turned) -> None:
    space = turned.space
    await space.queue.put(1, id="t")
    (task,) = await space.queue.claim("w", lease_s=60)
    with pytest.raises(Suspended) as raised:
        await task.receive("go")

    with pytest.raises(Suspended):
        await task.step("more", lambda: 1)
    with pytest.raises(InvalidError, match="caught `Suspended`"):
        await task.complete()
    await task.suspend(raised.value)

    info = await space.queue.get("t")
    assert info is not None and (info.state, info.attempt) == ("waiting", 0)


@pytest.mark.parametrize(("end", "error"), [("dead", TaskFailedError), ("cancel", TaskCancelledError)])
async def test_a_child_that_does_not_end_well_is_told(turned: Turned, end: str, error: type) -> None:
    space = turned.space

    async def handler(task: Task) -> Any:
        if task.kind == "child":
            raise RuntimeError("no")
        id = await task.spawn("child", 1, kind="child", max_attempts=1, delay_s=60)
        assert id == "t/child"
        return await task.results(id)

    await space.queue.put(1, id="t", max_attempts=1)
    assert [type(each) for each in await work(space, handler)] == [Suspended]
    if end == "cancel":
        await space.queue.cancel("t/child")
    turned.clock.advance(60_000)

    assert error in [type(each) for each in await work(space, handler)]


async def test_a_child_gets_another_id_if_an_earlier_run_has_left_one(turned: Turned) -> None:
    space = turned.space

    async def handler(task: Task) -> Any:
        return task.payload if task.kind == "child" else await task.spawn("child", task.token, kind="child")

    await space.queue.put(1, id="t")
    await work(space, handler)
    await space.queue.rerun("t")
    await work(space, handler)

    second = await result(space)
    assert second.startswith("t/child/")
    assert await result(space, second) > await result(space, "t/child")


def test_the_blocking_twin_has_steps() -> None:
    with sync.open("memory://") as ks:
        space = ks.space("run/1")
        space.queue.put(1, id="t")
        (task,) = space.queue.claim("w", lease_s=60)

        def write(tx: sync.Transaction) -> int:
            tx.documents.put("x", 1)
            return 7

        assert task.step("a", lambda: 5) == 5
        assert task.transact("b", write) == 7
        with pytest.raises(TimeoutError):
            task.step("c", threading.Event().wait, timeout_s=0.01)
        with pytest.raises(Suspended) as raised:
            task.receive("go")
        task.suspend(raised.value)
        assert [step.name for step in space.queue.steps("t")] == ["a", "b"]


# ---- planted bugs


async def test_a_result_without_a_fence_is_found(turned: Turned) -> None:
    space = turned.space
    await space.queue.put(1, id="t")
    (late,) = await space.queue.claim("late", lease_s=1)
    turned.clock.advance(2_000)
    await space.queue.claim("w", lease_s=60)

    async def unfenced(self: Queue, task: Task, unit: Unit) -> tuple[tasks.TaskRecord, int]:
        entry = await unit.get(tasks.task_key(task.id))
        assert entry is not None
        return tasks.decode_record(entry.value, "the task"), entry.version

    with patch.object(Queue, "held_record", unfenced):
        await late.transact("b", lambda tx: tx.documents.put("x", 1))

    assert await space.documents.get("x") == 1  # what the fence prevents


# ---- kills


@pytest.mark.parametrize(
    "stride", [pytest.param(9, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.deep)]
)
def test_a_kill_between_any_two_lines_loses_and_repeats_nothing(tmp_path: Path, stride: int) -> None:
    url = f"sqlite:///{tmp_path}/steps.db?durability=normal"

    told = json.loads(run(PROCESSES / "die_between_lines.py", url, tmp_path, stride).stdout)

    assert told["kills"] > 30
    assert told["wrong"] == []
    assert told["unknown"] > 0  # some kills came between the intent and the result
