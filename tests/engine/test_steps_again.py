"""Steps of tasks that run again, their bounds, and wrong or damaged ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest

from keepstate.engine.kernel import layout
from keepstate.engine.queue import step_records
from keepstate.engine.queue.queue import Task
from keepstate.errors import (
    CorruptError,
    InvalidError,
    NotFoundError,
    TransitionError,
)
from keepstate.stores.protocol import Batch
from keepstate.stores.protocol import Put as StorePut
from keepstate.values import limits
from tests.engine.conftest import Turned
from tests.engine.step_work import Log, result, run_three_steps, work


@pytest.mark.parametrize(
    ("from_step", "again"), [(None, ["z", "a", "m"]), ("z", ["z", "a", "m"]), ("a", ["a", "m"]), ("m", ["m"])]
)
@pytest.mark.parametrize("as_id", [None, "copy"])
async def test_a_task_runs_again_from_a_step(
    turned: Turned, from_step: str | None, again: list[str], as_id: str | None
) -> None:
    log = Log()
    handler = await run_three_steps(turned, log)

    await turned.space.queue.rerun("t", from_step=from_step, as_id=as_id)
    await work(turned.space, handler)

    assert log.calls == again
    names = [step.name for step in await turned.space.queue.steps(as_id or "t")]
    assert names == ["z", "a", "m"]


async def test_steps_of_a_task_that_runs_again_do_not_end_meanwhile(turned: Turned) -> None:
    log = Log()
    handler = await run_three_steps(turned, log)
    await turned.space.queue.rerun("t", from_step="m")

    turned.clock.advance(8 * 86_400_000)
    await turned.ks.sweep()
    await work(turned.space, handler)

    assert log.calls == ["m"]


async def test_steps_expire_with_their_task(turned: Turned) -> None:
    await run_three_steps(turned, Log())
    turned.clock.advance(8 * 86_400_000)
    await turned.ks.sweep()

    assert (await turned.space.size()).entries <= 1  # the entry of the index


async def test_a_missing_step_to_run_from_is_named(turned: Turned) -> None:
    await run_three_steps(turned, Log())

    with pytest.raises(NotFoundError, match="'other'"):
        await turned.space.queue.rerun("t", from_step="other")
    with pytest.raises(NotFoundError):
        await turned.space.queue.steps("gone")


async def test_a_task_with_more_steps_than_a_batch_holds_ends_runs_again_and_is_deleted(
    turned: Turned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_records, "_AT_ONCE", 3)
    space, log = turned.space, Log()

    async def handler(task: Task) -> Any:
        return [(await task.step(f"{n}", log.say, f"{n}"))["said"] for n in range(20)]

    await space.queue.put(1, id="t", keep_s=60)
    await work(space, handler)
    assert await result(space) == [f"{n}" for n in range(20)]
    store = await space.executor.store()
    entries = (await store.scan(space.executor.stored_name, layout.STEPS)).entries
    assert all(entry.expires_at_ms is not None for entry in entries)

    await space.queue.rerun("t", from_step="15")
    await work(space, handler)
    assert len(log.calls) == 25
    with pytest.raises(InvalidError, match="more steps"):
        await space.queue.rerun("t", from_step="15", as_id="copy")
    async with space.transaction() as tx:
        with pytest.raises(TransitionError, match="too many steps"):
            await tx.queue.remove("t")
    assert await space.queue.remove("t")
    assert (await space.size()).entries <= 1  # the entry of the index

    await space.queue.put(1, id="t")
    (task,) = await space.queue.claim("w", lease_s=60)
    await handler(task)
    assert await space.queue.discard("t")
    assert (await space.size()).entries <= 1  # the entry of the index


async def test_a_later_task_of_the_same_id_has_none_of_the_steps_before(turned: Turned) -> None:
    log = Log()
    await run_three_steps(turned, log)
    store = await turned.space.executor.store()
    entries = (await store.scan(turned.space.executor.stored_name, layout.STEPS)).entries
    turned.clock.advance(1_000)
    await turned.space.queue.remove("t")
    await store.apply(  # as an older keepstate, or a store that brought them back, could leave them
        [Batch(turned.space.executor.stored_name, [StorePut(each.key, each.value) for each in entries])]
    )

    await run_three_steps(turned, log)
    await turned.space.queue.put(1, id="other")

    assert len(await turned.space.queue.steps("t")) == 3
    assert [step.at for step in await turned.space.queue.steps("t")] == [await turned.space.now()] * 3


# ---- arguments, bounds and damage


async def test_steps_are_bounded(turned: Turned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEPS", 3)
    monkeypatch.setattr(limits, "STEPS_BYTES", 1_000)
    await turned.space.queue.put(1, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)
    with pytest.raises(InvalidError, match="over 0 MiB"):
        await task.step("large", lambda: "x" * 2_000)
    for number in range(3):
        await task.step(str(number), lambda: 1)

    for call in (
        task.step("more", lambda: 1), task.transact("tx", lambda _: 1), task.sleep("s", 60),
        task.spawn("child", 1, kind="c"),
    ):  # fmt: skip
        with pytest.raises(InvalidError, match="3 steps"):
            await call


@pytest.mark.parametrize("name", ["", "x" * 201, 5, None, "\ud800"])
async def test_a_wrong_name_is_refused(turned: Turned, name: Any) -> None:
    await turned.space.queue.put(1, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)

    for call in (
        task.step(name, lambda: 1), task.transact(name, lambda _: 1), task.sleep(name, 60),
        task.receive(name), task.spawn(name, 1, kind="c"), turned.space.queue.settle("t", name, 1),
    ):  # fmt: skip
        with pytest.raises(InvalidError):
            await call


async def test_names_that_are_too_long_together_are_refused(turned: Turned) -> None:
    id = "\0" * 200
    await turned.space.queue.put(1, id=id)
    (task,) = await turned.space.queue.claim("w", lease_s=60)

    with pytest.raises(InvalidError, match="too long together"):
        await task.step("\0" * 200, lambda: 1)


async def test_wrong_arguments_are_refused_before_any_work(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)
    revision = await turned.space.revision()

    wrong: list[Awaitable[Any]] = [
        task.step("a", 5),  # type: ignore[call-overload]
        task.step("a", lambda: 1, once=1),  # type: ignore[call-overload]
        task.step("a", lambda: 1, timeout_s=0),
        task.step("a", lambda: 1, type="int"),
        task.transact("a", 5),  # type: ignore[arg-type]
        task.sleep("a"),
        task.sleep("a", 1, until=await turned.space.now()),
        task.sleep("a", -1),
        task.sleep("a", until="tomorrow"),  # type: ignore[arg-type]
        task.receive("a", timeout_s=-1),
        task.results(),
        task.results("t"),
        task.results(*map(str, range(101))),
        task.results(5),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(InvalidError):
            await call
    assert await turned.space.revision() == revision


async def test_a_result_that_cannot_be_stored_or_is_no_such_type_is_not_recorded(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)

    with pytest.raises(InvalidError, match="the result of step 'a'"):
        await task.step("a", object)
    with pytest.raises(InvalidError):
        await task.step("b", lambda: "text", type=int)
    with pytest.raises(InvalidError, match="the result of step 'c'"):
        await task.transact("c", lambda tx: object())

    assert await task.step("d", lambda: (1, 2), type=tuple[int, int]) == (1, 2)
    assert [step.name for step in await task.steps()] == ["d"]


async def test_a_step_that_takes_too_long_fails(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)
    gate = threading.Event()

    with pytest.raises(TimeoutError, match="took longer than"):
        await task.step("coroutine", asyncio.sleep, 60, timeout_s=0.01)
    with pytest.raises(TimeoutError, match="took longer than"):
        await task.step("function", gate.wait, timeout_s=0.01)
    gate.set()

    async def own() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await task.step("own", own, timeout_s=60)


async def test_a_plain_function_does_not_block_the_loop(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t")
    (task,) = await turned.space.queue.claim("w", lease_s=60)
    gate = threading.Event()

    waiting = asyncio.create_task(task.step("wait", gate.wait, 30))
    await asyncio.sleep(0.01)
    gate.set()

    assert await waiting is True


async def test_a_task_that_was_taken_in_a_transaction_has_no_steps(turned: Turned) -> None:
    await turned.space.queue.put(1, id="t")
    async with turned.space.transaction() as tx:
        task = await tx.queue.take("t", "w", lease_s=60)
        with pytest.raises(InvalidError, match="in a transaction"):
            await task.step("a", lambda: 1)


async def test_fields_of_a_later_version_are_kept(turned: Turned) -> None:
    space, log = turned.space, Log()

    async def handler(task: Task) -> Any:
        return await task.step("pay", log.fail, once=True)

    await space.queue.put(1, id="t", max_attempts=1)
    await work(space, handler)
    store, key = await space.executor.store(), step_records.step_key("t", "pay")
    entry = (await store.read(space.executor.stored_name, [key])).entries[0]
    assert entry is not None
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(entry.value), "new"])
    await store.apply([Batch(space.executor.stored_name, [StorePut(key, later)])])

    await space.queue.settle("t", "pay", 1)

    entry = (await store.read(space.executor.stored_name, [key])).entries[0]
    assert entry is not None and msgspec.msgpack.decode(entry.value)[-1] == "new"


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x90", b"\xdc\xff\xff", b"\x81\x01\x02"])
async def test_a_damaged_step_is_reported(turned: Turned, value: bytes) -> None:
    space = turned.space
    await run_three_steps(turned, Log())
    store, key = await space.executor.store(), step_records.step_key("t", "a")
    await store.apply([Batch(space.executor.stored_name, [StorePut(key, value)])])

    with pytest.raises(CorruptError, match="step 'a' of task 't'"):
        await space.queue.steps("t")
