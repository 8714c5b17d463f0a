"""Bugs of approvals, planted from outside: each of them is noticed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from keepstate.engine.approvals import approvals
from keepstate.engine.approvals.approval_reads import ApprovalReads
from keepstate.engine.approvals.approvals import Approvals
from keepstate.engine.queue.queue import Queue
from tests.engine import test_approvals, test_asking_tasks
from tests.engine.conftest import Turned

Plant = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[Any], Awaitable[None]]


def wake_up_lost(planting: pytest.MonkeyPatch) -> None:
    """Let a task wait also if its question was answered before."""
    suspend = Queue.suspend

    async def blind(self: Queue, task: Any, wait_s: float | None, **waits: Any) -> None:
        await suspend(self, task, wait_s, **(waits | {"marks": None}))

    planting.setattr(Queue, "suspend", blind)


def task_left_waiting(planting: pytest.MonkeyPatch) -> None:
    """Settle an approval without waking its task."""

    async def wake(*_: object) -> None:
        return

    planting.setattr(Approvals, "_wake", wake)


def expiry_ignored(planting: pytest.MonkeyPatch) -> None:
    """Take a pending approval for pending, whatever the time."""
    read = ApprovalReads._read  # pyright: ignore[reportPrivateUsage]

    async def timeless(self: Any, unit: Any, id: str) -> Any:
        found = await read(self, unit, id)
        if found is None or found.record.state != "expired":
            return found
        return approvals.ReadApproval(msgspec.structs.replace(found.record, state="pending"), found.shown)

    planting.setattr(ApprovalReads, "_read", timeless)


def asker_may_answer(planting: pytest.MonkeyPatch) -> None:
    """Let everyone answer."""
    planting.setattr(Approvals, "require_right", lambda *_: None)


def votes_of_removed_people_count(planting: pytest.MonkeyPatch) -> None:
    """Keep the yes of people who may not answer any more."""

    def write(self: Any, unit: Any, record: Any, line: Any) -> Any:
        kept = self._planted_votes = getattr(self, "_planted_votes", ()) or record.votes
        return plain(self, unit, msgspec.structs.replace(record, votes=record.votes or kept), line)

    plain = Approvals._write  # pyright: ignore[reportPrivateUsage]
    planting.setattr(Approvals, "_write", write)


def digest_not_compared(planting: pytest.MonkeyPatch) -> None:
    """Take every digest for the right one."""
    planting.setattr(approvals, "compare_digest", lambda *_: True)


def on_space(test: Callable[[Any], Awaitable[None]]) -> Test:
    """Return a test of a space as one of a space with its clock."""
    return lambda turned: test(turned.space)


PLANTED: list[tuple[Plant, Test]] = [
    (wake_up_lost, on_space(test_asking_tasks.test_an_answer_between_asking_and_waiting_wakes_the_task)),
    (task_left_waiting, on_space(test_asking_tasks.test_a_handler_waits_for_two_people_and_holds_no_worker)),
    (expiry_ignored, test_approvals.test_the_time_of_the_store_decides_about_the_last_answer),
    (asker_may_answer, test_approvals.test_who_asked_may_not_answer_by_any_way),
    (votes_of_removed_people_count, test_approvals.test_the_yes_of_a_removed_person_does_not_count),
    (digest_not_compared, test_approvals.test_a_person_who_saw_something_else_answers_nothing),
]


@pytest.mark.parametrize(("plant", "test"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
async def test_a_planted_bug_is_noticed(
    turned: Turned, monkeypatch: pytest.MonkeyPatch, plant: Plant, test: Test
) -> None:
    plant(monkeypatch)

    with pytest.raises((Exception, pytest.fail.Exception)):  # an error, or a failed check
        await test(turned)
