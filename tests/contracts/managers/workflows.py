"""`WorkflowStateManager`: steps in any order, as often as they are reported; paused, resumed, gone back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    StoreUnavailableError,
    TransitionError,
)
from keepstate.managers.workflows.manager import WorkflowStateManager
from keepstate.managers.workflows.records import (
    WORKFLOW,
    StepState,
    WorkflowCheckpoint,
    WorkflowState,
    WorkflowStatus,
)
from keepstate.opening import source_of
from tests.contracts.managers.agents import AWKWARD_IDS
from tests.contracts.managers.stage import ManagerStage
from tests.contracts.managers.trouble import TroubledStore

PENDING, RUNNING, PAUSED = WorkflowStatus.PENDING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED
COMPLETED, FAILED, CANCELLED = WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED


def done(number: int, result: Any = None, **more: Any) -> StepState:
    """Return a completed step."""
    return StepState(step_number=number, name=f"step {number}", status="completed", result=result, **more)


class WorkflowContract(ManagerStage):
    """What a `WorkflowStateManager` does, whatever it is kept in."""

    def workflows(self, **options: Any) -> WorkflowStateManager:
        return self.made(WorkflowStateManager, **options)

    async def created(self, total_steps: int = 10, **options: Any) -> WorkflowStateManager:
        workflows = self.workflows(**options)
        await workflows.create(
            WorkflowState(workflow_id="w", total_steps=total_steps, context={"topic": "AI"})
        )
        return workflows

    # ---- workflows

    async def test_a_workflow_comes_back_as_it_was_created(self) -> None:
        workflows = self.workflows()
        state = WorkflowState(
            workflow_id="w", status=PENDING, total_steps=10, current_step=0, context={"a": {1}, "b": ...}
        )
        await workflows.create(state)

        assert await workflows.get("w") == state
        assert await workflows.get("other") is None and await workflows.get_status("other") is None

    async def test_an_id_is_taken_once(self) -> None:
        workflows = await self.created()

        with pytest.raises(AlreadyExistsError):
            await workflows.create(WorkflowState(workflow_id="w"))

    async def test_steps_that_were_done_elsewhere_count(self) -> None:
        workflows = self.workflows(checkpoint_interval=None)
        created = await workflows.create(WorkflowState("w", RUNNING, total_steps=5, current_step=3))
        await workflows.checkpoint(WorkflowCheckpoint("w", "c", step=3))
        again = await workflows.update_step("w", done(2))
        await workflows.update_step("w", done(4))
        back = await workflows.resume_from("w", "c")
        behind = await workflows.get("w")
        await workflows.update_step("w", done(5))
        whole = await workflows.update_step("w", done(4))

        assert back.step == 3 and behind is not None
        assert [each.steps_completed for each in (created, again, behind, whole)] == [3, 3, 3, 5]
        assert whole.status is COMPLETED

    async def test_going_back_behind_what_was_done_elsewhere_has_it_done_again(self) -> None:
        workflows = self.workflows(checkpoint_interval=None)
        await workflows.create(WorkflowState("w", RUNNING, total_steps=4, current_step=3, steps_completed=3))
        await workflows.checkpoint(WorkflowCheckpoint("w", "c", step=1))
        await workflows.resume_from("w", "c")
        counts = [(await workflows.update_step("w", done(number))).steps_completed for number in (2, 3, 4)]

        assert counts == [2, 3, 4] and await workflows.get_status("w") is COMPLETED

    async def test_numbers_that_do_not_agree_are_refused(self) -> None:
        workflows = self.workflows()
        for state, told in (
            (WorkflowState("w", total_steps=2, current_step=9), "has 2 steps"),
            (WorkflowState("w", total_steps=9, current_step=5, steps_completed=3), "steps_completed"),
            (WorkflowState("w", RUNNING, total_steps=2, current_step=2), "COMPLETED"),
            (WorkflowState("w", total_steps=-1), "total_steps"),
            (WorkflowState("w", total_steps=cast("int", "2")), "total_steps"),
            (WorkflowState("w", context=cast("dict[str, Any]", 5)), "context"),
        ):
            with pytest.raises(InvalidError, match=told):
                await workflows.create(state)
        await workflows.create(WorkflowState("w", total_steps=2))
        for refused in (
            workflows.update_step("w", done(1, duration_ms=-1)),
            workflows.update_step("w", done(1, duration_ms=float("nan"))),
            workflows.checkpoint(WorkflowCheckpoint("w", "c", step=3)),
        ):
            with pytest.raises(InvalidError, match=r"duration_ms|has 2 steps"):
                await refused

        assert await workflows.list_steps("w") == [] and await workflows.list_checkpoints("w") == []

    async def test_what_is_no_id_or_status_is_refused_by_its_name(self) -> None:
        workflows = await self.created()
        for wrong in (None, 5, b"a", ["a"]):
            id = cast("str", wrong)
            for name, refused in (
                ("workflow_id", workflows.get(id)),
                ("checkpoint_id", workflows.get_checkpoint("w", id)),
                ("checkpoint_id", workflows.resume_from("w", id)),
                ("patch", workflows.update_context("w", cast("dict[str, Any]", id))),
                ("step", workflows.update_step("w", cast("StepState", id))),
            ):
                with pytest.raises(InvalidError, match=f"`{name}`"):
                    await refused
        with pytest.raises(InvalidError, match="`status`"):
            await workflows.list_workflows(cast("WorkflowStatus", "running"))

    async def test_a_workflow_of_many_steps_is_removed_and_holds_no_cleanup_up(self) -> None:
        workflows = self.workflows()
        for id in ("a", "b"):
            await workflows.create(WorkflowState(id, COMPLETED))
        space = self.run_space() if self.in_passed_space else self.handle().space("workflow/a")
        prefix = "workflow/a/" if self.in_passed_space else ""
        for begin in (0, 600):
            async with space.transaction() as tx:
                for number in range(begin, begin + 600):
                    await tx.documents.put(f"{prefix}step/{number:09d}", None)
        await self.pass_time(20)

        assert await workflows.cleanup(older_than=timedelta(0)) == 2
        assert await workflows.list_workflows() == [] and await workflows.get("a") is None

    async def test_a_failed_workflow_is_resumed_or_cleaned_up_and_never_both(self) -> None:
        store, workflows, others = await self.in_trouble(WorkflowStateManager)
        await workflows.create(WorkflowState("w", RUNNING, total_steps=5))
        await workflows.checkpoint(WorkflowCheckpoint("w", "c", 0))
        refused: list[TransitionError] = []

        async def resume() -> None:
            try:
                await others.resume_from("w", "c")
            except TransitionError as error:
                refused.append(error)

        async def resume_next() -> None:
            store.meanwhile = resume

        removed: list[int] = []
        for meanwhile in (resume, resume_next):  # before its end is made sure, and before it is removed
            await workflows.fail("w", "no")
            await self.pass_time(20)
            store.meanwhile = meanwhile
            removed.append(await workflows.cleanup(older_than=timedelta(0)))
            assert await others.get_status("w") is (None if removed[-1] else RUNNING)

        assert removed == [0, 1] and len(refused) == 1

    async def test_a_removal_that_broke_off_leaves_the_workflow_to_be_removed(self) -> None:
        space = self.run_space()
        async with space.transaction() as tx:
            for number in range(1, 700):
                await tx.documents.put(f"workflow/a/step/{number:09d}", None)
        inner: Any = await self.handle().opened()
        store = TroubledStore(inner)
        outer = Keepstate(source_of(store, self.mode_name)).space("run/42")
        workflows = WorkflowStateManager(space=outer, _mode=self.mode_name)
        await workflows.create(WorkflowState("a", RUNNING))
        store.batches_left = 1
        with pytest.raises(StoreUnavailableError):
            await workflows.delete("a")
        store.batches_left = None

        assert await workflows.get_status("a") is RUNNING
        assert await workflows.delete("a") and await workflows.list_workflows() == []

    async def test_no_workflow_touches_another(self) -> None:
        workflows = self.workflows()
        for id in AWKWARD_IDS:
            await workflows.create(WorkflowState(workflow_id=id, total_steps=2))
            await workflows.update_step(id, done(1))
        removed = await workflows.delete("1")

        assert removed and not await workflows.delete("1")
        assert sorted(await workflows.list_workflows()) == sorted(AWKWARD_IDS[1:])
        assert [await workflows.get_status(id) for id in AWKWARD_IDS[1:]] == [RUNNING] * len(AWKWARD_IDS[1:])
        assert await workflows.list_workflows(PENDING) == []

    async def test_what_is_absent_cannot_be_changed(self) -> None:
        workflows = self.workflows()
        for change in (
            workflows.update_step("w", done(1)),
            workflows.pause("w"),
            workflows.cancel("w", "why"),
            workflows.resume_from("w"),
            workflows.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="c", step=1)),
            workflows.wait_until_resumed("w"),
        ):
            with pytest.raises(NotFoundError):
                await change

    async def test_context_is_shared_without_loss(self) -> None:
        workflows = await self.created()
        others = [self.workflows() for _ in range(3)]
        await self.together(
            *(other.update_context("w", {f"k{number}": number}) for number, other in enumerate(others))
        )

        state = await workflows.get("w")
        assert state is not None and state.context == {"topic": "AI", "k0": 0, "k1": 1, "k2": 2}

    # ---- steps

    async def test_steps_may_end_in_any_order(self) -> None:
        workflows = await self.created(4)
        seen = [(await workflows.update_step("w", done(number))).current_step for number in (2, 1, 4, 3)]

        assert seen == [2, 2, 4, 4]
        assert [step.step_number for step in await workflows.list_steps("w")] == [1, 2, 3, 4]
        assert await workflows.get_status("w") is COMPLETED

    async def test_a_step_that_is_reported_again_changes_nothing(self) -> None:
        workflows = await self.created(2)
        await workflows.update_step("w", done(1, {"documents": 150}, duration_ms=5_400))
        again = await workflows.update_step("w", done(1, {"documents": 150}, duration_ms=99))
        step = await workflows.get_step("w", 1)

        assert again.steps_completed == 1 and step is not None and step.duration_ms == 5_400
        with pytest.raises(TransitionError, match="another result"):
            await workflows.update_step("w", done(1, "other"))
        with pytest.raises(TransitionError, match="completed"):
            await workflows.update_step("w", StepState(step_number=1, status="running"))
        await workflows.update_step("w", done(2))
        assert (await workflows.update_step("w", done(2))).status is COMPLETED

    async def test_a_failed_step_may_be_tried_again(self) -> None:
        workflows = await self.created(2)
        await workflows.update_step("w", StepState(step_number=1, status="running"))
        await workflows.update_step("w", StepState(step_number=1, status="failed", error="timeout"))
        state = await workflows.update_step("w", done(1))

        assert (state.status, state.current_step, state.steps_completed) == (RUNNING, 1, 1)

    async def test_steps_are_refused_by_number_and_status(self) -> None:
        workflows = await self.created(3)
        for step in (StepState(step_number=0), StepState(step_number=-1), done(4)):
            with pytest.raises(InvalidError):
                await workflows.update_step("w", step)
        with pytest.raises(InvalidError, match="'pending', 'running'"):
            await workflows.update_step("w", StepState(step_number=1, status="finished"))

        assert await workflows.list_steps("w") == []

    async def test_concurrent_steps_are_all_counted(self) -> None:
        workflows = await self.created(12)
        others = [self.workflows() for _ in range(3)]

        async def report(number: int) -> None:
            for step in range(number + 1, 13, 3):
                await others[number].update_step("w", done(step, step))

        await self.together(*(report(number) for number in range(3)))

        state = await workflows.get("w")
        assert state is not None and (state.status, state.steps_completed) == (COMPLETED, 12)

    # ---- transitions

    async def test_every_transition_of_the_table_is_allowed_and_no_other(self) -> None:
        workflows = self.workflows()
        actions = {
            RUNNING: "resume",
            PAUSED: "pause",
            FAILED: "fail",
            CANCELLED: "cancel",
            COMPLETED: "complete",
        }
        for start in WorkflowStatus:
            for wanted, action in actions.items():
                id = f"{start.name} {wanted.name}"
                await workflows.create(WorkflowState(workflow_id=id, status=start))
                allowed = start is wanted or WORKFLOW.allows(start, wanted)
                if wanted is RUNNING:
                    allowed = start in (
                        RUNNING,
                        PAUSED,
                    )  # the others begin by a step, or go back to a checkpoint
                change = workflows.fail(id, "why") if action == "fail" else getattr(workflows, action)(id)
                if allowed:
                    assert (await change).status is wanted, id
                    continue
                with pytest.raises(TransitionError) as refused:
                    await change
                assert start.name in str(refused.value) and wanted.name in str(refused.value), id
                assert await workflows.get_status(id) is start

    async def test_a_cancelled_workflow_tells_why_and_begins_nothing(self) -> None:
        workflows = await self.created()
        await workflows.update_step("w", done(1))
        await workflows.cancel("w", reason="User requested cancellation")
        again = await workflows.cancel("w", reason="other")

        assert (again.status, again.reason) == (CANCELLED, "User requested cancellation")
        for step in (StepState(step_number=2, status="running"), done(2)):
            with pytest.raises(TransitionError, match="CANCELLED"):
                await workflows.update_step("w", step)
        assert (await workflows.update_step("w", done(1))).status is CANCELLED

    async def test_while_paused_steps_end_and_none_begins(self) -> None:
        workflows = await self.created(2)
        await workflows.update_step("w", done(1))
        await workflows.pause("w")
        with pytest.raises(TransitionError, match="PAUSED"):
            await workflows.update_step("w", StepState(step_number=2, status="running"))
        paused = await workflows.update_step("w", done(2))
        resumed = await workflows.resume("w")

        assert (paused.status, paused.current_step, resumed.status) == (PAUSED, 2, COMPLETED)

    async def test_a_worker_waits_until_the_workflow_is_resumed(self) -> None:
        workflows = await self.created()
        other = self.workflows()
        await workflows.pause("w")
        early = await workflows.wait_until_resumed("w", timeout_s=0.02)

        async def wait() -> WorkflowStatus:
            return await other.wait_until_resumed("w", timeout_s=20)

        async def resume() -> WorkflowStatus:
            await self.pass_time(50)
            return (await workflows.resume("w")).status

        assert early is PAUSED
        assert await self.together(wait(), resume()) == [RUNNING, RUNNING]
        assert await workflows.wait_until_resumed("w") is RUNNING

    # ---- checkpoints

    async def test_a_checkpoint_is_made_by_itself_every_few_steps(self) -> None:
        workflows = await self.created(11, checkpoint_interval=5)
        for number in range(1, 12):
            await workflows.update_step("w", done(number))
            await workflows.update_step("w", done(number))
        found = await workflows.list_checkpoints("w")

        assert [(each.checkpoint_id, each.step) for each in found] == [("auto-5", 5), ("auto-10", 10)]
        assert found[0].context == {"topic": "AI"} and found[0].state.current_step == 5

    async def test_checkpoints_are_listed_in_the_order_of_saving_and_replaced_by_id(self) -> None:
        workflows = await self.created(11, checkpoint_interval=None)
        at = datetime(2001, 1, 1)
        for step in range(11, 0, -1):
            await workflows.checkpoint(
                WorkflowCheckpoint(
                    workflow_id="w", checkpoint_id=f"step_{step}", step=step, state={"n": step}, timestamp=at
                )
            )
        await workflows.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="step_9", step=10))
        listed = await workflows.list_checkpoints("w")

        assert [each.step for each in listed] == [11, 10, 8, 7, 6, 5, 4, 3, 2, 1, 10]
        assert listed[0].timestamp == at and listed[0].state == {"n": 11}
        assert (await workflows.get_checkpoint("w", "step_9")) == listed[-1]
        assert await workflows.get_checkpoint("w", "none") is None

    async def test_a_workflow_goes_back_to_a_checkpoint_and_does_the_rest_again(self) -> None:
        workflows = await self.created(6, checkpoint_interval=None)
        for number in range(1, 5):
            await workflows.update_step("w", done(number, f"first {number}"))
        await workflows.checkpoint(
            WorkflowCheckpoint(workflow_id="w", checkpoint_id="two", step=2, context={"topic": "again"})
        )
        back = await workflows.resume_from(workflow_id="w", checkpoint_id="two")
        state = await workflows.get("w")

        assert back.step == 2 and state is not None
        assert (state.current_step, state.steps_completed, state.context) == (2, 2, {"topic": "again"})
        assert [step.step_number for step in await workflows.list_steps("w")] == [1, 2]
        assert await workflows.get_step("w", 4) is None
        for number in range(3, 7):
            state = await workflows.update_step("w", done(number, f"second {number}"))
        assert (state.status, state.steps_completed) == (COMPLETED, 6)
        assert [step.result for step in await workflows.list_steps("w")][1:3] == ["first 2", "second 3"]

    async def test_a_repeated_result_is_the_same_where_it_is_stored_the_same(self) -> None:
        workflows = await self.created(6, checkpoint_interval=None)
        await workflows.update_step("w", done(1, float("nan")))
        await workflows.update_step("w", done(1, float("nan")))
        await workflows.update_step("w", done(2, True))

        with pytest.raises(TransitionError, match="another result"):
            await workflows.update_step("w", done(2, 1))

    async def test_a_checkpoint_without_a_context_keeps_that_of_the_workflow(self) -> None:
        workflows = await self.created(6, checkpoint_interval=None)
        await workflows.checkpoint(WorkflowCheckpoint(workflow_id="w", checkpoint_id="as it is", step=1))
        await workflows.checkpoint(
            WorkflowCheckpoint(workflow_id="w", checkpoint_id="none", step=1, context={})
        )
        await workflows.update_context("w", {"topic": "other"})
        contexts: list[Any] = []
        for id in ("as it is", "none"):
            await workflows.resume_from("w", id)
            state = await workflows.get("w")
            contexts.append(None if state is None else state.context)

        assert contexts == [{"topic": "AI"}, {}]

    async def test_going_back_twice_forgets_what_was_done_between(self) -> None:
        workflows = await self.created(6, checkpoint_interval=None)
        for step in (1, 3):
            await workflows.checkpoint(
                WorkflowCheckpoint(workflow_id="w", checkpoint_id=f"c{step}", step=step)
            )
        for number in range(1, 6):
            await workflows.update_step("w", done(number))
        await workflows.resume_from("w", "c3")
        await workflows.update_step("w", done(4))
        await workflows.resume_from("w", "c1")
        await workflows.update_step("w", done(2))

        assert [step.step_number for step in await workflows.list_steps("w")] == [1, 2]

    async def test_what_failed_resumes_from_the_latest_and_what_is_paused_stays_so(self) -> None:
        workflows = await self.created(9, checkpoint_interval=2)
        for number in range(1, 6):
            await workflows.update_step("w", done(number))
        await workflows.fail("w", "out of money")
        failed = await workflows.get("w")
        back = await workflows.resume_from("w", "latest")
        running = await workflows.get("w")
        await workflows.pause("w")
        await workflows.resume_from("w", "auto-2")

        assert (
            failed is not None
            and running is not None
            and (failed.status, failed.error) == (FAILED, "out of money")
        )
        assert (back.step, running.status, running.error) == (4, RUNNING, None)
        assert await workflows.get_status("w") is PAUSED
        with pytest.raises(NotFoundError):
            await workflows.resume_from("w", "none")
        await workflows.cancel("w")
        with pytest.raises(TransitionError):
            await workflows.resume_from("w", "auto-2")

    async def test_cleanup_removes_what_has_ended(self) -> None:
        workflows = self.workflows()
        for id, status in (("on", RUNNING), ("done", COMPLETED), ("off", CANCELLED), ("waits", PAUSED)):
            await workflows.create(WorkflowState(workflow_id=id, status=status))
        kept = await workflows.cleanup(older_than=timedelta(hours=1))
        await self.pass_time(20)
        removed = await workflows.cleanup(older_than=timedelta(0))

        assert (kept, removed) == (0, 2)
        assert await workflows.list_workflows() == ["on", "waits"]

    async def test_cleanup_makes_a_workflow_that_goes_on_smaller_and_keeps_its_newest_checkpoint(
        self,
    ) -> None:
        if self.in_passed_space:
            return  # its history is its owner's
        workflows = await self.created(100, checkpoint_interval=5)
        for number in range(1, 31):
            await workflows.update_step("w", done(number, f"{number} " * 200))
            await workflows.update_context("w", {"notes": f"{number} " * 400})
        before = await workflows.size()
        await self.pass_time(20)
        removed = await workflows.cleanup(older_than=timedelta(0))
        (left,) = await workflows.list_checkpoints("w")
        back = await workflows.resume_from("w")

        assert removed == 5 and back == left and left.step == 30
        assert len(await workflows.list_steps("w")) == 30
        assert (await workflows.size()).size_bytes < before.size_bytes / 2
