"""Bugs of machines and workflow steps that ask people, planted from outside: each of them is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keepstate import Question, StepState
from keepstate.engine.approvals.approvals import Approvals
from keepstate.managers.workflows import approvals as steps
from keepstate.managers.workflows.manager import WorkflowStateManager
from keepstate.sessions.questions import Questions
from tests.engine.conftest import Turned
from tests.managers import test_asking_steps
from tests.sessions import test_machine_questions

Plant = Callable[[pytest.MonkeyPatch], None]


def question_left_pending(planting: pytest.MonkeyPatch) -> None:
    """Leave a waiting state without withdrawing its question."""

    async def leave(*_: Any) -> None:
        return

    planting.setattr(Questions, "leave", leave)


def old_answer_taken(planting: pytest.MonkeyPatch) -> None:
    """Ask under an id that an earlier machine may have used."""
    get = Approvals.get

    async def absent(self: Any, id: str) -> Any:
        return None if id == "machine/1" else await get(self, id)

    planting.setattr(Approvals, "get", absent)


def guard_takes_the_same_answer(planting: pytest.MonkeyPatch) -> None:
    """Wait for the answer that a guard has forbidden."""
    enter = Questions.enter

    async def same(self: Any, tx: Any, record: Any, times: int = 1) -> Any:
        return record.asked if times > 1 else await enter(self, tx, record)

    planting.setattr(Questions, "enter", same)


def no_means_yes(planting: pytest.MonkeyPatch) -> None:
    """Go on as after a yes, whatever the answer."""
    planting.setattr(Questions, "event_of", lambda *_: "agree")


def events_not_checked(planting: pytest.MonkeyPatch) -> None:
    """Ask what no event follows."""
    planting.setattr(Questions, "_check", lambda *_: None)


def step_left_waiting(planting: pytest.MonkeyPatch) -> None:
    """Settle the approval, and leave the step."""

    async def end(self: Any, inside: Any, now: Any, *_: Any) -> Any:
        return now

    planting.setattr(WorkflowStateManager, "_end_step", end)


def refusal_completes(planting: pytest.MonkeyPatch) -> None:
    """Complete a step by any answer."""
    planting.setattr(
        steps,
        "end_of",
        lambda step, approval: StepState(step.step_number, step.name, "completed", True),
    )


def dropped_steps_keep_asking(planting: pytest.MonkeyPatch) -> None:
    """Leave the approval of a step that does not wait."""

    async def withdraw(*_: Any) -> None:
        return

    planting.setattr(steps, "withdraw", withdraw)


machines, asking = test_machine_questions, test_asking_steps
dropped = asking.test_a_step_that_does_not_wait_any_more_withdraws_its_approval
PLANTED: list[tuple[Plant, Callable[[Turned], Any]]] = [
    (question_left_pending, machines.test_another_transition_withdraws_the_question),
    (old_answer_taken, machines.test_an_answer_to_a_machine_that_was_deleted_is_not_taken),
    (guard_takes_the_same_answer, machines.test_an_answer_that_a_guard_forbids_is_asked_for_again),
    (no_means_yes, lambda turned: machines.test_what_is_provided_answers_the_approval(
        turned, answer=False, state="refused")),
    (events_not_checked, lambda turned: machines.test_a_question_with_an_answer_that_leads_nowhere_is_refused(
        turned, Question("?", yes="agree"))),
    (step_left_waiting, asking.test_an_answer_by_another_door_wakes_a_task_that_settles_the_step),
    (refusal_completes, asking.test_a_no_fails_the_step_which_may_ask_again),
    (dropped_steps_keep_asking, lambda turned: dropped(turned, asking.cancel)),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "test"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
async def test_a_planted_bug_is_noticed(
    turned: Turned, monkeypatch: pytest.MonkeyPatch, plant: Plant, test: Callable[[Turned], Any]
) -> None:
    plant(monkeypatch)

    with pytest.raises((Exception, pytest.fail.Exception)):  # an error, or a failed check
        await test(turned)
