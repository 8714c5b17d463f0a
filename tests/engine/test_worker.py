"""Workers: what becomes of a task by what its handler does, and by what happens to the task meanwhile."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate.engine.queue.queue import Task
from keepstate.engine.queue.retry import Retry
from keepstate.engine.queue.worker import RunReport
from keepstate.engine.space.space import Space
from keepstate.errors import (
    InvalidError,
    StoreUnavailableError,
    Suspended,
    TaskCancelledError,
    TaskFailedError,
)

AT_ONCE = Retry(first_s=0, jitter=0)


async def work(space: Space, handlers: Any, **options: Any) -> RunReport:
    """Work until there is nothing to do."""
    async with asyncio.timeout(60):
        return await space.queue.run(handlers, **({"idle_s": 0.05, "retry": AT_ONCE} | options))


async def state_of(space: Space, id: str = "t") -> str | None:
    info = await space.queue.get(id)
    return None if info is None else info.state


async def test_what_a_handler_returns_is_the_result(space: Space) -> None:
    for number in range(20):
        await space.queue.put(number, id=f"t{number}")

    async def double(task: Task) -> int:
        return 2 * int(task.payload)

    report = await work(space, double)

    assert (report.completed, report.ended) == (20, "idle")
    assert [await space.queue.result(f"t{number}") for number in range(20)] == list(range(0, 40, 2))


async def test_a_plain_function_runs_in_a_thread_and_its_task_blocks_there(space: Space) -> None:
    await space.queue.put(3, id="t")

    def triple(task: Any) -> int:
        task.heartbeat(progress="half")
        assert threading.current_thread() is not threading.main_thread()
        return 3 * int(task.payload)

    await work(space, triple)

    info = await space.queue.get("t")
    assert info is not None and (info.result, info.progress) == (9, "half")


async def test_only_kinds_with_a_handler_are_claimed(space: Space) -> None:
    for kind in ("mail", "sms", ""):
        await space.queue.put(kind, id=f"{kind}-task", kind=kind)

    async def handle(task: Task) -> str:
        return f"handled {task.kind}"

    report = await work(space, {"mail": handle, "": handle})

    assert report.completed == 2
    assert [await state_of(space, f"{kind}-task") for kind in ("mail", "sms", "")] == [
        "done",
        "ready",
        "done",
    ]


async def test_an_error_is_tried_again_and_then_dead(space: Space) -> None:
    await space.queue.put(1, id="t", max_attempts=3)

    async def fail(task: Task) -> None:
        raise ValueError(f"attempt {task.attempt}")

    report = await work(space, fail)

    assert report.failed == 3
    errors = [each.error for each in await space.queue.attempts("t")]
    assert errors == [f"ValueError: attempt {number}" for number in (1, 2, 3)]
    with pytest.raises(TaskFailedError):
        await space.queue.result("t")


async def test_a_worker_is_not_idle_after_a_claim_during_which_a_task_ended(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    await space.queue.put(1, id="t", max_attempts=2)
    claim, may_end = space.queue.claim, asyncio.Event()

    async def claim_until_it_ended(*args: Any, **options: Any) -> Any:
        found = await claim(*args, **options)
        if not found and not may_end.is_set():
            may_end.set()
            while (info := await space.queue.get("t")) is None or info.state == "claimed":
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)  # until the worker knows
        return found

    async def fail(_: Task) -> None:
        await may_end.wait()
        raise ValueError

    monkeypatch.setattr(space.queue, "claim", claim_until_it_ended)

    assert (await work(space, fail)).failed == 2


@pytest.mark.parametrize(
    ("retry", "failed"),
    [(Retry(never=(LookupError,)), 1), (Retry(first_s=0, rules={KeyError: Retry(never=(KeyError,))}), 1)],
)
async def test_some_errors_are_never_tried_again(space: Space, retry: Retry, failed: int) -> None:
    await space.queue.put(1, id="t")

    async def fail(_: Task) -> None:
        raise KeyError("no")

    report = await work(space, fail, retry=retry)

    assert (report.failed, await state_of(space)) == (failed, "dead")


def test_pauses_grow_to_the_longest_and_vary() -> None:
    retry = Retry(first_s=1, factor=3, longest_s=20, jitter=0.5)

    assert [retry.pause_s(number, ValueError(), 0.5) for number in (1, 2, 3, 4, 999)] == [1, 3, 9, 20, 20]
    assert [retry.pause_s(2, ValueError(), spread) for spread in (0.0, 0.25)] == [1.5, 2.25]


def test_names_of_classes_of_errors_have_1_to_512_bytes() -> None:
    for name in ("", "x" * 513, "\ud800"):
        with pytest.raises(InvalidError, match="the name of a class of errors"):
            Retry(never=(name,))


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_s": -1},
        {"factor": 0.5},
        {"longest_s": 0},
        {"jitter": 2},
        {"never": [ValueError]},
        {"never": (int,)},
        {"rules": {1: 2}},
        {"rules": {"ValueError": 2}},
    ],
    ids=str,
)
def test_wrong_rules_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(wrong))):
        Retry(**wrong)


async def test_a_result_that_cannot_be_stored_fails_the_task_in_clear_words(space: Space) -> None:
    await space.queue.put(1, id="t")

    async def handle(_: Task) -> object:
        return object()

    report = await work(space, handle)

    info = await space.queue.get("t")
    assert info is not None and (report.failed, info.state) == (1, "dead")
    assert info.error is not None and "the result of the handler of task 't' cannot be stored" in info.error


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_handler_that_raises_no_exception_fails_only_its_task(
    space: Space, error: BaseException, kind: str
) -> None:
    await space.queue.put(1, id="t", max_attempts=1)
    await space.queue.put(2, id="other", kind="other")

    async def raise_it(_: Task) -> None:
        raise error

    def raise_in_thread(_: Any) -> None:
        raise error

    async def handle(_: Task) -> str:
        return "done"

    report = await work(space, {"": raise_it if kind == "coroutine" else raise_in_thread, "other": handle})

    assert (report.failed, report.completed, await state_of(space)) == (1, 1, "dead")


async def test_a_handler_that_never_ends_fails_after_its_timeout(space: Space) -> None:
    await space.queue.put(1, id="t", max_attempts=1)
    await space.queue.put(1, id="stubborn", kind="stubborn", max_attempts=1)
    ended = asyncio.Event()

    async def hang(_: Task) -> None:
        await asyncio.sleep(1000)

    async def hang_stubbornly(_: Task) -> None:
        while not ended.is_set():
            try:
                await asyncio.sleep(0.1)
            except asyncio.CancelledError:
                continue

    try:
        report = await work(space, {"": hang, "stubborn": hang_stubbornly}, timeout_s=0.05)
    finally:
        ended.set()

    assert report.failed == 2
    for id in ("t", "stubborn"):
        info = await space.queue.get(id)
        assert info is not None and info.state == "dead" and "did not end in 0.05 s" in (info.error or "")


async def test_a_plain_function_that_never_ends_fails_after_its_timeout_and_is_tried_again(
    space: Space,
) -> None:
    await space.queue.put(1, id="t", max_attempts=2)
    ended = threading.Event()
    began: list[int] = []

    def hang_at_first(task: Any) -> str:
        began.append(task.attempt)
        if task.attempt == 1:
            ended.wait()
        return "done"

    try:
        report = await work(space, hang_at_first, timeout_s=0.05, idle_s=0.3)
    finally:
        ended.set()

    info = await space.queue.get("t")
    assert info is not None and (info.state, info.result, began) == ("done", "done", [1, 2])
    assert (report.ended, report.failed, report.completed) == ("idle", 1, 1)
    first, *_ = await space.queue.attempts("t")
    assert first.error == "TimeoutError: the handler did not end in 0.05 s"


async def test_plain_steps_that_never_end_take_no_thread_from_others(tmp_path: Path) -> None:
    ended = threading.Event()

    def hang() -> None:
        ended.wait()

    async def handle(task: Task) -> str:
        await task.step("hang", hang, timeout_s=0.05)
        return "never"

    async def double(task: Task) -> int:
        doubled: int = await task.step("double", lambda: 2 * int(task.payload))
        return doubled

    async with keepstate.open(f"memory://{tmp_path.name}") as ks:
        space = ks.space("run/1")
        for number in range(40):  # more than the threads that an event loop keeps for functions
            await space.queue.put(number, kind="hang", max_attempts=1)
        await space.queue.put(21, id="t", kind="double")
        try:
            report = await work(space, {"hang": handle, "double": double}, concurrency=50)
        finally:
            ended.set()

        assert (report.failed, report.completed, await space.queue.result("t")) == (40, 1, 42)


async def test_a_plain_step_that_raises_stop_iteration_fails_its_task(tmp_path: Path) -> None:
    async def handle(task: Task) -> None:
        await task.step("next", lambda: next(iter(())))

    async with keepstate.open(f"memory://{tmp_path.name}") as ks:
        space = ks.space("run/1")
        await space.queue.put(1, id="t", max_attempts=1)

        assert (await work(space, handle)).failed == 1
        assert "StopIteration" in (await space.queue.attempts("t"))[0].error


# ---- waiting


async def test_a_suspended_handler_waits_without_an_attempt_and_goes_on(space: Space) -> None:
    await space.queue.put(1, id="t", max_attempts=1)
    runs: list[int] = []

    async def handle(task: Task) -> str:
        runs.append(task.attempt)
        if len(runs) == 1:
            raise task.suspended(None, messages=["go"])
        return "done"

    report = await work(space, handle)
    assert (report.waiting, await state_of(space)) == (1, "waiting")
    await space.queue.send("t", "go", 1)
    await work(space, handle)

    assert (runs, await space.queue.result("t")) == ([1, 1], "done")


@pytest.mark.parametrize("after", ["returns", "raises"])
async def test_a_handler_that_swallows_its_suspension_fails(space: Space, after: str) -> None:
    await space.queue.put(1, id="t")

    async def handle(task: Task) -> str:
        try:
            raise task.suspended(100)
        except BaseException:  # noqa: BLE001 - what is tested
            if after == "raises":
                raise ValueError("mine") from None
            return "done"

    await work(space, handle)

    info = await space.queue.get("t")
    assert info is not None and info.state == "dead"
    assert info.error is not None and "caught Suspended" in info.error
    assert not issubclass(Suspended, Exception)


async def test_a_handler_ends_its_claim_itself(space: Space) -> None:
    for id in ("later", "done", "failed", "joined"):
        await space.queue.put(1, id=id, kind=id)

    async def later(task: Task) -> None:
        await task.later(100)

    async def complete(task: Task) -> str:
        await task.complete("own")
        return "dropped"

    async def fail(task: Task) -> None:
        await task.fail("own", is_final=True)

    async def join(task: Task) -> str:
        async with space.transaction() as tx:
            await tx.events.append("done")
            await tx.queue.complete(task, "joined")
        return "dropped"

    report = await work(space, {"later": later, "done": complete, "failed": fail, "joined": join})

    assert (report.waiting, report.completed, report.failed, report.lost) == (1, 2, 1, 0)
    assert [await state_of(space, id) for id in ("later", "failed")] == ["waiting", "dead"]
    assert [await space.queue.result(id) for id in ("done", "joined")] == ["own", "joined"]


# ---- leases


async def test_leases_are_renewed_while_a_handler_blocks_the_loop(shared_url: str) -> None:
    async with keepstate.open(shared_url) as ks:
        queue = ks.space("run/1").queue
        await queue.put(1, id="t")
        stolen: list[str] = []

        def steal() -> None:
            async def claim() -> None:
                async with keepstate.open(shared_url) as other:
                    for _ in range(15):
                        stolen.extend(
                            task.id for task in await other.space("run/1").queue.claim("thief", lease_s=60)
                        )
                        await asyncio.sleep(0.2)

            asyncio.run(claim())

        async def block(_: Task) -> str:
            thief = threading.Thread(target=steal)
            thief.start()
            thief.join()  # blocks the loop for three leases
            return "done"

        report = await work(ks.space("run/1"), block, lease_s=1)

    assert (stolen, report.completed) == ([], 1)


@pytest.mark.parametrize(
    ("attempts", "retry"), [(1, AT_ONCE), (5, Retry(never=(TimeoutError,)))], ids=["last attempt", "never"]
)
async def test_a_blocked_loop_loses_its_task_after_the_timeout(
    space: Space, monkeypatch: pytest.MonkeyPatch, attempts: int, retry: Retry
) -> None:
    monkeypatch.setattr("keepstate.engine.queue.held_tasks._LATE_S", 0.1)
    await space.queue.put(1, id="t", max_attempts=attempts)

    async def block(_: Task) -> str:
        time.sleep(1.5)
        return "too late"

    report = await work(space, block, timeout_s=0.1, lease_s=0.3, retry=retry)

    assert (report.completed, report.lost + report.failed, await state_of(space)) == (0, 1, "dead")


async def test_a_task_that_another_worker_got_is_cancelled_in_its_handler(space: Space) -> None:
    await space.queue.put(1, id="t")
    seen: list[str] = []

    async def handle(task: Task) -> None:
        try:
            await space.queue.discard(task.id)  # the loss may be known before this call returns
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            seen.append("lost")
            raise

    report = await work(space, handle)

    assert (seen, report.lost, report.failed) == (["lost"], 1, 0)


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_cancelling_reaches_a_running_handler_at_once(space: Space, kind: str) -> None:
    await space.queue.put(1, id="t")
    began, seen = asyncio.Event(), list[float]()
    loop = asyncio.get_running_loop()

    async def handle(task: Task) -> None:
        began.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            assert task.cancelled
            seen.append(time.monotonic())
            raise

    def handle_in_thread(task: Any) -> str:
        loop.call_soon_threadsafe(began.set)
        while not task.cancelled:
            time.sleep(0.005)
        seen.append(time.monotonic())
        return "dropped"

    working = asyncio.create_task(
        work(space, handle if kind == "coroutine" else handle_in_thread, lease_s=600)
    )
    await began.wait()
    assert await space.queue.cancel("t", by="ann")
    report = await working

    assert (len(seen), report.cancelled, report.failed, report.completed) == (1, 1, 0, 0)
    with pytest.raises(TaskCancelledError, match="ann"):
        await space.queue.result("t")


# ---- ends of workers


async def test_a_stopped_worker_lets_handlers_end_and_claims_nothing_more(space: Space) -> None:
    for id in ("a", "b"):
        await space.queue.put(1, id=id)
    stop = asyncio.Event()

    async def handle(_: Task) -> str:
        stop.set()
        await asyncio.sleep(0.05)
        return "done"

    report = await work(space, handle, concurrency=1, stop=stop, idle_s=None)

    assert (report.ended, report.completed, await state_of(space, "b")) == ("stopped", 1, "ready")


async def test_what_does_not_end_in_time_is_released_without_an_attempt(space: Space) -> None:
    await space.queue.put(1, id="t", max_attempts=1)
    stop = asyncio.Event()

    async def handle(_: Task) -> None:
        stop.set()
        await asyncio.sleep(1000)

    report = await work(space, handle, stop=stop, drain_s=0, idle_s=None)

    info = await space.queue.get("t")
    assert info is not None and (report.released, info.state, info.attempt) == (1, "ready", 0)


async def test_a_cancelled_worker_releases_its_tasks(space: Space) -> None:
    await space.queue.put(1, id="t", max_attempts=1)
    began = asyncio.Event()

    async def handle(_: Task) -> None:
        began.set()
        await asyncio.sleep(1000)

    working = asyncio.create_task(work(space, handle, idle_s=None))
    await began.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    info = await space.queue.get("t")
    assert info is not None and (info.state, info.attempt) == ("ready", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_a_worker_and_its_handler_is_put_back(
    space: Space, number: signal.Signals
) -> None:
    await space.queue.put(1, id="t")
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]

    async def handle(_: Task) -> str:
        signal.raise_signal(number)
        await asyncio.sleep(0.05)
        return "done"

    report = await work(space, handle, idle_s=None)

    assert (report.ended, report.completed) == ("stopped", 1)
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


async def test_a_worker_outlasts_tasks_that_it_cannot_read(
    space: Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = 0
    claim = space.queue.claim

    async def refuse_twice(*args: Any, **options: Any) -> Any:
        nonlocal refused
        refused += 1
        if refused <= 2:
            raise StoreUnavailableError("away")
        return await claim(*args, **options)

    monkeypatch.setattr(space.queue, "claim", refuse_twice)
    monkeypatch.setattr("keepstate.engine.queue.worker._LONGEST_CLAIM_S", 0.01)
    await space.queue.put(1, id="t")

    async def handle(_: Task) -> str:
        return "done"

    with caplog.at_level(logging.WARNING):
        report = await work(space, handle)

    assert report.completed == 1
    assert [
        record.getMessage().count("away") for record in caplog.records if "cannot claim" in record.message
    ] == [1]


async def test_the_end_of_a_task_is_stored_although_the_store_was_away(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    await space.queue.put(1, id="t")
    refused = 0
    complete = Task.complete

    async def refuse_once(task: Task, result: object = None) -> None:
        nonlocal refused
        refused += 1
        if refused == 1:
            raise StoreUnavailableError("away")
        await complete(task, result)

    monkeypatch.setattr(Task, "complete", refuse_once)

    async def handle(_: Task) -> str:
        return "done"

    assert (await work(space, handle)).completed == 1


@pytest.mark.parametrize(
    "wrong",
    [
        *({"handlers": None}, {"handlers": {}}, {"handlers": {"a": 1}}, {"handlers": {1: print}}),
        *({"concurrency": 0}, {"concurrency": 1001}, {"lease_s": 0}, {"timeout_s": 0}, {"drain_s": -1}),
        *({"retry": 3}, {"worker": ""}, {"stop": 1}, {"idle_s": 0}),
    ],
    ids=str,
)
async def test_wrong_options_of_a_worker_are_refused(space: Space, wrong: dict[str, Any]) -> None:
    options: dict[str, Any] = {"handlers": print} | wrong
    with pytest.raises(InvalidError, match=next(iter(wrong))):
        await space.queue.run(**options)


async def test_two_deploys_at_once_share_tasks_and_steps(shared_url: str) -> None:
    """Each task begins in one version and ends in the other, whose handler has other steps."""
    ended: dict[str, tuple[str, str]] = {}

    def version(name: str, own_step: str) -> Any:
        async def handle(task: Task) -> str:
            async def charge(tx: Any) -> str:
                count = await tx.documents.get(f"charged/{task.id}", 0)
                await tx.documents.put(f"charged/{task.id}", count + 1)
                return name

            await task.step(own_step, lambda: name)
            begun_in: str = await task.transact("charge", charge)
            if begun_in == name:
                await task.later(0.01)
            ended[task.id] = (begun_in, name)
            return name

        return handle

    old, new = version("old", "fetch"), version("new", "load")
    async with keepstate.open(shared_url) as one, keepstate.open(shared_url) as other:
        queue = one.space("run/1").queue
        for number in range(12):
            await queue.put(number, id=f"t{number}", kind="mail")
        await queue.put("sms", id="sms", kind="sms")

        async def sms(task: Task) -> str:
            return "new"

        stop = asyncio.Event()
        running = asyncio.gather(
            one.space("run/1").queue.run({"mail": old}, stop=stop, retry=AT_ONCE),
            other.space("run/1").queue.run({"mail": new, "sms": sms}, stop=stop, retry=AT_ONCE),
        )
        await queue.wait_empty(100)  # a deploy that ended before the other would leave it tasks of its own
        stop.set()
        reports = await running

        assert sum(report.completed for report in reports) == 13
        assert all(report.failed == 0 for report in reports)
        assert await queue.result("sms") == "new"
        for number in range(12):
            begun_in, ended_in = ended[f"t{number}"]
            assert {begun_in, ended_in} == {"old", "new"}
            assert await queue.result(f"t{number}") == ended_in
            assert await one.space("run/1").documents.get(f"charged/t{number}") == 1
            assert {step.name for step in await queue.steps(f"t{number}")} == {"fetch", "load", "charge"}


async def test_a_handler_may_name_the_type_of_its_payload(space: Space) -> None:
    async def twice(task: keepstate.Task[int]) -> int:
        return 2 * task.payload

    await space.queue.put(21, id="t")

    await space.queue.run(twice, idle_s=0.01)

    assert await space.queue.result("t") == 42
