"""Bugs of the ends of tasks and of workers, planted from outside: each of them is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import keepstate
from keepstate import Claim
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import endings, followers, tasks
from keepstate.engine.queue.held_tasks import HeldTasks
from keepstate.engine.queue.queue import Queue, Task
from tests.engine import test_steps, test_task_ends, test_worker

Plant = Callable[[pytest.MonkeyPatch], None]
Test = Callable[..., Awaitable[None]]


def follower_released_too_early(planting: pytest.MonkeyPatch) -> None:
    """Make a follower ready with the first of its leaders."""
    proceed = followers.proceed

    def early(unit: Any, record: Any, left: Any, now_ms: int) -> None:
        proceed(unit, record, (), now_ms)

    planting.setattr(followers, "proceed", early)


def followers_left(planting: pytest.MonkeyPatch) -> None:
    """End a task without telling its followers."""

    async def settle(*_: object) -> list[str]:
        return []

    planting.setattr(endings, "settle", settle)


def rest_of_followers_left(planting: pytest.MonkeyPatch) -> None:
    """Forget the followers that the first batch has no room for."""

    async def resume(*_: object) -> None:
        return

    planting.setattr(endings, "resume", resume)


def token_used_again(planting: pytest.MonkeyPatch) -> None:
    """Number the claims of each life of an id from 1."""
    planting.setattr(tasks, "next_token", lambda record, _: record.token + 1)


def cancel_not_seen(planting: pytest.MonkeyPatch) -> None:
    """Let the thread of heartbeats read no records."""

    async def look(*_: object) -> None:
        return

    planting.setattr(HeldTasks, "_look", look)


def step_recorded_without_the_claim(planting: pytest.MonkeyPatch) -> None:
    """Record steps whoever holds the task."""

    async def unfenced(_: Queue, task: Task, unit: Unit) -> tuple[tasks.TaskRecord, int]:
        entry = await unit.get(tasks.task_key(task.id))
        assert entry is not None
        return tasks.decode_record(entry.value, "the task"), entry.version

    planting.setattr(Queue, "held_record", unfenced)


def waiting_uses_an_attempt(planting: pytest.MonkeyPatch) -> None:
    """Refund no attempt to a task that waits."""
    replaced = tasks.replaced

    def unrefunded(record: tasks.TaskRecord, **changes: Any) -> tasks.TaskRecord:
        if changes.get("is_suspended"):
            changes["attempt"] = record.attempt
        return replaced(record, **changes)

    planting.setattr(tasks, "replaced", unrefunded)


def claim_given_back_twice(planting: pytest.MonkeyPatch) -> None:
    """Let a former holder give back the claim of the present one."""

    async def release(self: Queue, task: Task) -> None:
        info = await self.get(task.id)
        assert info is not None
        await self._change_held(Claim(task.id, info.token), _make_ready)

    async def _make_ready(unit: Unit, record: tasks.TaskRecord) -> None:
        tasks.move(unit, record, "ready", due_at_ms=await unit.now_ms())

    planting.setattr(Queue, "release", release)


PLANTED: list[tuple[Plant, Test, dict[str, Any]]] = [
    (
        follower_released_too_early,
        test_task_ends.test_a_follower_is_ready_only_when_all_that_it_waits_for_are_done,
        {},
    ),
    (
        followers_left,
        test_task_ends.test_a_follower_is_ready_only_when_all_that_it_waits_for_are_done,
        {},
    ),
    (rest_of_followers_left, test_task_ends.test_thousands_of_followers_are_told_in_steps, {}),
    (token_used_again, test_task_ends.test_the_token_of_a_replaced_task_is_never_accepted_again, {}),
    (step_recorded_without_the_claim, test_steps.test_a_worker_that_lost_its_claim_records_nothing, {}),
    (waiting_uses_an_attempt, test_worker.test_a_suspended_handler_waits_without_an_attempt_and_goes_on, {}),
    (claim_given_back_twice, test_task_ends.test_a_claim_is_given_back_once, {}),
    (cancel_not_seen, test_worker.test_cancelling_reaches_a_running_handler_at_once, {"kind": "coroutine"}),
]


@pytest.mark.parametrize(("plant", "test", "options"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED])
async def test_a_planted_bug_is_noticed(
    plant: Plant, test: Test, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keepstate.open("memory://") as ks:
        async with asyncio.timeout(60):
            await test(ks.space("unharmed"), **options)
        with monkeypatch.context() as planting:
            plant(planting)
            with pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception)):
                async with asyncio.timeout(3):
                    await test(ks.space("harmed"), **options)
