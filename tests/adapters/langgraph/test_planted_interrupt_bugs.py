"""Bugs of interrupts, planted from outside: each of them is noticed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from keepstate.adapters.langgraph import KeepstateSaver, deletion, interrupts, put, resumption
from keepstate.adapters.langgraph.interrupts import Interrupts
from keepstate.engine.queue.lease import Leases
from tests.adapters.langgraph import test_interrupt_questions as questions
from tests.adapters.langgraph import test_interrupts as asking
from tests.adapters.langgraph.test_interrupts import Interrupted, interrupted

__all__ = ["interrupted"]

Plant = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[Interrupted], Awaitable[None]]

Run: Any = resumption._Run  # pyright: ignore[reportPrivateUsage]


async def nothing(*_: object) -> None:
    """Do nothing."""


def asked_in_a_batch_of_its_own(planting: pytest.MonkeyPatch) -> None:
    """Store an interrupt, and ask afterwards."""
    plain = put.put_writes

    async def apart(state: Any, handle: Any, names: Any, task: str, record: Any, asked: Any = ()) -> None:
        await plain(state, handle, names, task, record)
        if asked:
            executor = state.executor(handle, names.thread)
            await executor.run(
                lambda unit: state.interrupts.ask(unit, executor, names, asked),
            )

    planting.setattr(put, "put_writes", apart)


def answer_by_other_means_ignored(planting: pytest.MonkeyPatch) -> None:
    """Leave an approval pending whose node has finished."""
    planting.setattr(Interrupts, "leave_task", nothing)


def later_checkpoint_ignored(planting: pytest.MonkeyPatch) -> None:
    """Leave the approvals of earlier checkpoints pending."""
    planting.setattr(Interrupts, "leave_before", nothing)


def task_left_behind(planting: pytest.MonkeyPatch) -> None:
    """Withdraw an approval, and let its task run."""
    planting.setattr(interrupts, "cancel_task", nothing)


def run_may_fork(planting: pytest.MonkeyPatch) -> None:
    """Resume with the saver as it is."""
    planting.setattr(KeepstateSaver, "_strict", lambda self: self)


def answer_given_twice(planting: pytest.MonkeyPatch) -> None:
    """Give an answer by its id again, though the failed run has stored it."""
    planting.setattr(Run, "_is_unfinished", lambda *_: False)
    planting.setattr(Run, "_has_failed", lambda *_: False)


def answer_of_others_given_twice(planting: pytest.MonkeyPatch) -> None:
    """Give the answer to another node again, though a failed run has stored it."""

    async def never(*_: object) -> bool:
        return False

    planting.setattr(Run, "_has_failed", lambda *_: False)
    planting.setattr(Run, "_has_begun", never)


def killed_run_dropped(planting: pytest.MonkeyPatch) -> None:
    """Take a run for ended that was killed."""
    planting.setattr(Run, "_is_unfinished", lambda *_: False)


def breakpoint_passed(planting: pytest.MonkeyPatch) -> None:
    """Continue a run that has stopped at a breakpoint."""
    planting.setattr(Run, "_may_have_stopped", lambda *_: False)


def lease_not_held(planting: pytest.MonkeyPatch) -> None:
    """Resume without waiting for other runs."""
    acquire = Leases.acquire

    async def anyway(self: Leases, name: str, ttl_s: float, **options: Any) -> Any:
        anyway.count += 1  # type: ignore[attr-defined]
        return await acquire(self, f"{name}/{anyway.count}", ttl_s, **options)  # type: ignore[attr-defined]

    anyway.count = 0  # type: ignore[attr-defined]
    planting.setattr(Leases, "acquire", anyway)


def resumed_though_not_pending(planting: pytest.MonkeyPatch) -> None:
    """Resume a thread whatever it waits for."""
    planting.setattr(Run, "_is_pending", lambda *_: True)


def each_answer_alone(planting: pytest.MonkeyPatch) -> None:
    """Resume with the task's own answer only."""
    answers = Run._answers

    async def own(self: Any, state: Any) -> dict[str, Any]:
        found = await answers(self, state)
        return {self._payload["interrupt"]: found[self._payload["interrupt"]]}

    planting.setattr(Run, "_answers", own)


def other_store_trusted(planting: pytest.MonkeyPatch) -> None:
    """Resume by a saver that has none of the thread."""
    planting.setattr(Run, "_check_store", nothing)


def subject_as_it_is(planting: pytest.MonkeyPatch) -> None:
    """Show the objects of the graph's classes."""
    planting.setattr(interrupts, "plain", lambda value: value)


def old_interrupt_asked(planting: pytest.MonkeyPatch) -> None:
    """Ask for an interrupt on a checkpoint that the thread has left."""

    async def never(*_: object) -> bool:
        return False

    planting.setattr(interrupts, "_has_later", never)


def other_approvals_deleted(planting: pytest.MonkeyPatch) -> None:
    """Take all that is in a thread's space for the saver's."""
    planting.setattr(deletion, "is_own", lambda _: True)


def approvals_left_by_deletion(planting: pytest.MonkeyPatch) -> None:
    """Delete the checkpoints of a thread, and not its approvals."""
    planting.setattr(deletion, "erase", nothing)


def withdrawal_forgotten(planting: pytest.MonkeyPatch) -> None:
    """Delete a checkpoint, and leave what it asked."""
    planting.setattr(deletion, "withdraw_deleted", nothing)


PLANTED: list[tuple[Plant, Test]] = [
    (asked_in_a_batch_of_its_own, asking.test_one_batch_stores_an_interrupt_and_asks),
    (answer_by_other_means_ignored, asking.test_an_answer_by_other_means_withdraws_the_approval),
    (
        later_checkpoint_ignored,
        partial(asking.test_a_thread_that_goes_on_withdraws_what_it_asked, how="new input"),
    ),
    (task_left_behind, asking.test_an_answer_by_other_means_withdraws_the_approval),
    (run_may_fork, asking.test_a_resumed_run_that_is_overtaken_raises_and_forks_nothing),
    (answer_given_twice, asking.test_an_answer_goes_to_no_other_question_of_its_node),
    (answer_of_others_given_twice, asking.test_the_answer_to_another_node_is_not_given_again),
    (killed_run_dropped, asking.test_a_run_that_failed_in_a_later_node_goes_on),
    (
        breakpoint_passed,
        partial(asking.test_a_run_that_stopped_at_a_breakpoint_does_not_pass_it, option="interrupt_before"),
    ),
    (lease_not_held, asking.test_of_two_tasks_at_once_one_run_uses_both_answers),
    (resumed_though_not_pending, asking.test_an_answer_that_lost_against_another_one_runs_nothing),
    (each_answer_alone, asking.test_answers_that_came_together_are_resumed_together),
    (other_store_trusted, asking.test_a_worker_on_another_store_than_the_graph_says_so),
    (subject_as_it_is, questions.test_a_subject_is_readable_without_the_classes_of_the_graph),
    (old_interrupt_asked, asking.test_an_interrupt_of_an_old_checkpoint_is_not_asked),
    (other_approvals_deleted, questions.test_a_deleted_thread_leaves_what_others_keep_in_its_space),
    (approvals_left_by_deletion, questions.test_a_deleted_thread_leaves_what_others_keep_in_its_space),
    (withdrawal_forgotten, questions.test_deleting_the_checkpoint_withdraws_what_it_asked),
]


@pytest.mark.parametrize(("plant", "test"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
async def test_a_planted_bug_is_noticed(
    interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch, plant: Plant, test: Test
) -> None:
    plant(monkeypatch)

    with pytest.raises((Exception, pytest.fail.Exception)):  # an error, or a failed check
        await test(interrupted)
