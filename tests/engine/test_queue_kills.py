"""Kills of a process before each call of each operation of a queue: every task stays whole, in one state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from keepstate._runner import TaskRunner
from keepstate.engine.kernel import layout
from keepstate.engine.queue import tasks
from keepstate.engine.queue.attempts import attempts_key
from keepstate.engine.queue.queue import Claim, Queue
from keepstate.engine.space.space import Space
from keepstate.errors import LeaseLostError, NotFoundError, StoreUnavailableError, TransitionError
from keepstate.opening import PassedStore
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import TurnedKeepstate
from tests.engine.test_expunge import Dying


class Killed(Dying):
    """Fails from a call on, as if its process had been killed."""

    def _live(self) -> None:
        self.calls_left -= 1
        if self.calls_left < 0:
            raise StoreUnavailableError("the process was killed here")


@dataclass(frozen=True)
class Operation:
    """An operation that is killed, and then done again by a process that lives.

    Attributes:
        prepare: Writes what the operation needs.
        act: The operation. Done again after it was applied, it does nothing or is refused.
        ends: The states of all tasks in the end, by id or by the beginning of the id.
        lapse_ms: The time between the kill and the repetition.
    """

    prepare: Callable[[Space, ManualClock], Awaitable[object]]
    act: Callable[[Space], Awaitable[object]]
    ends: dict[str, str]
    lapse_ms: int = 0


async def nothing(space: Space, _: ManualClock) -> None:
    """An empty queue."""


async def ready(space: Space, _: ManualClock) -> None:
    """A task, and one that waits for it."""
    await space.queue.put("payload", id="a", key="ann")
    await space.queue.put("next", id="f", after=["a"])


async def held(space: Space, clock: ManualClock) -> None:
    """The same; a worker holds the first one."""
    await ready(space, clock)
    await space.queue.take("a", "w", lease_s=600)


async def lapsed(space: Space, clock: ManualClock) -> None:
    """The same; the lease of the last attempt has lapsed."""
    await space.queue.put("payload", id="a", max_attempts=1)
    await space.queue.put("next", id="f", after=["a"])
    await space.queue.take("a", "w", lease_s=1)
    clock.advance(2_000)


async def dead(space: Space, clock: ManualClock) -> None:
    """The same; the first one is dead."""
    await held(space, clock)
    await space.queue.fail(await claim_of(space), "no", is_final=True)


async def done(space: Space, clock: ManualClock) -> None:
    """The same; the first one is done."""
    await held(space, clock)
    await space.queue.complete(await claim_of(space), "result")


async def suspended(space: Space, clock: ManualClock) -> None:
    """The same; the first one waits for a message."""
    await held(space, clock)
    await space.queue.suspend(await claim_of(space), None, messages=["go"])


async def keyed(space: Space, _: ManualClock) -> None:
    """Three tasks of two keys."""
    for number in range(3):
        await space.queue.put(number, id=f"t{number}", key="ab"[number % 2])


async def scheduled(space: Space, clock: ManualClock) -> None:
    """A schedule that is due."""
    await space.schedules.put("n", every_s=60)
    clock.advance(60_000)


async def claim_of(space: Space) -> Claim:
    info = await space.queue.get("a")
    assert info is not None
    return Claim("a", info.token)


async def complete(space: Space) -> None:
    await space.queue.complete(await claim_of(space), "result")


async def fail(space: Space) -> None:
    await space.queue.fail(await claim_of(space), "no", retry_in_s=3_600)


async def die(space: Space) -> None:
    await space.queue.fail(await claim_of(space), "no", is_final=True)


async def release(space: Space) -> None:
    await space.queue.release(await claim_of(space))


async def suspend(space: Space) -> None:
    await space.queue.suspend(await claim_of(space), None, messages=["go"])


async def claim(space: Space) -> None:
    await space.queue.claim("w", lease_s=60, count=3)


OPERATIONS: dict[str, Operation] = {
    "put": Operation(nothing, lambda space: space.queue.put(1, id="a"), {"a": "ready"}),
    "put after": Operation(
        ready,
        lambda space: space.queue.put(1, id="g", after=["a", "f"]),
        {"a": "ready", "f": "waiting", "g": "waiting"},
    ),
    "put in place": Operation(
        ready,
        lambda space: space.queue.put(1, id="a", if_present="replace"),
        {"a": "ready", "f": "waiting"},
    ),
    "claim": Operation(keyed, claim, {"t": "claimed"}, lapse_ms=61_000),
    "take": Operation(
        ready, lambda space: space.queue.take("a", "w", lease_s=60), {"a": "claimed", "f": "waiting"}, 61_000
    ),
    "complete": Operation(held, complete, {"a": "done", "f": "ready"}),
    "fail": Operation(held, fail, {"a": "waiting", "f": "waiting"}),
    "die": Operation(held, die, {"a": "dead", "f": "dead"}),
    "lapse": Operation(lapsed, claim, {"a": "dead", "f": "dead"}),
    "cancel": Operation(held, lambda space: space.queue.cancel("a"), {"a": "cancelled", "f": "dead"}),
    "release": Operation(held, release, {"a": "ready", "f": "waiting"}),
    "suspend": Operation(held, suspend, {"a": "waiting", "f": "waiting"}),
    "send": Operation(
        suspended,
        lambda space: space.queue.send("a", "go", 1, send_id="m"),
        {"a": "ready", "f": "waiting"},
    ),
    "requeue": Operation(dead, lambda space: space.queue.requeue("a", "f"), {"a": "ready", "f": "waiting"}),
    "rerun": Operation(done, lambda space: space.queue.rerun("a"), {"a": "ready", "f": "ready"}),
    "remove": Operation(done, lambda space: space.queue.remove("a"), {"f": "ready"}),
    "discard": Operation(held, lambda space: space.queue.discard("a"), {"f": "dead"}),
    "tick": Operation(scheduled, lambda space: space.schedules.tick(), {"schedule/n/": "ready"}),
}


async def records_of(space: Space) -> list[tasks.TaskRecord]:
    """Return the records of all tasks, and raise `AssertionError` unless each is whole."""
    store, name = await space.executor.store(), space.executor.stored_name

    async def entries(part: bytes) -> Any:
        return (await store.scan(name, part)).entries

    records = [tasks.decode_record(entry.value, "a task") for entry in await entries(layout.TASKS)]
    placed = [
        (state, tasks.id_in(entry)) for state, part in layout.INDEXES.items() for entry in await entries(part)
    ]
    assert sorted(placed) == sorted((each.state, each.id) for each in records)
    for part, keys in (
        (layout.PAYLOADS, [tasks.payload_key(each.id) for each in records]),
        (layout.RESULTS, [tasks.result_key(each.id) for each in records if each.has_result]),
        (layout.ATTEMPTS, [attempts_key(each.id) for each in records if each.has_attempts]),
    ):
        assert [entry.key for entry in await entries(part)] == sorted(keys)
    return records


async def survived(operation: Operation, call: int) -> bool:
    """Kill an operation before a call, do it again, and return whether it was killed."""
    clock = ManualClock()
    store = MemoryStore(runner=TaskRunner(), clock=clock)
    await store.open()
    dying = Killed(store)
    handles = [TurnedKeepstate(PassedStore(each, "async")) for each in (store, dying)]
    for handle in handles:
        handle.turned = clock
    living, killed = (handle.space("run/1") for handle in handles)
    is_killed = False
    try:
        await operation.prepare(living, clock)
        dying.calls_left = call
        try:
            await operation.act(killed)
        except StoreUnavailableError:
            is_killed = True
        await records_of(living)
        clock.advance(operation.lapse_ms)
        with suppress(LeaseLostError, NotFoundError, TransitionError):
            await operation.act(living)
        for _ in range(2):  # a worker looks for the followers that the killed process has left
            await living.queue.claim("w", lease_s=60, kinds=["none"])
            clock.advance(6_000)
        found = {each.id: each for each in await records_of(living)}

        assert len(found) == (3 if operation.ends == {"t": "claimed"} else len(operation.ends))
        for id, record in found.items():
            start = next(start for start in operation.ends if id.startswith(start))
            assert (id, record.state) == (id, operation.ends[start])
            assert record.attempt <= 2
    finally:
        for handle in handles:
            await handle.close()
        await store.close()
    return is_killed


@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_kill_before_any_call_leaves_every_task_whole(name: str) -> None:
    call = 0
    while await survived(OPERATIONS[name], call):
        call += 1

    assert call >= 1


async def test_an_operation_in_two_batches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Queue.release

    async def release_in_two(self: Queue, task: Any) -> None:
        async def leave_index(unit: Any) -> None:
            entry = await unit.get(tasks.task_key(task.id))
            unit.delete(tasks.index_key(tasks.decode_record(entry.value, "a task"), entry.version))

        await self.executor.run(leave_index)
        await whole(self, task)

    monkeypatch.setattr(Queue, "release", release_in_two)

    with pytest.raises(AssertionError):
        for call in range(9):
            await survived(OPERATIONS["release"], call)
