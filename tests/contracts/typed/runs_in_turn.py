"""Runs one after the other: what a next one finds, what can be resumed, and who is told."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate._finish import finish
from keepstate.errors import StateConflictError, StateError
from keepstate.typed.batch import MutationBatch
from keepstate.typed.changes import CommitEvent
from keepstate.typed.registry import Keys
from keepstate.typed.run import AgentRun
from keepstate.typed.tools import ToolCallContext
from tests.contracts.typed.keys import Draft, Notes, Plan, Steps, Visits
from tests.contracts.typed.stage import TypedStage, update


class RunsInTurnContract(TypedStage):
    """`AgentRun`, from one run to the next, and tools that do what they should not."""

    async def _begun(self, run_id: str = "r1", **options: Any) -> AgentRun:
        run = self.run(**options)
        await run.start_run("t", run_id)
        return run

    # ---- what can be resumed

    async def test_a_run_whose_values_are_gone_is_not_resumed_as_if_it_had_none(self) -> None:
        run = await self._begun("r1")
        await run.step(lambda ctx: update(Steps, 5))
        await run.finish_run()
        await run.start_run("t", "r2")
        await run.finish_run()

        with pytest.raises(StateError, match="'r1' of thread 't' cannot be resumed"):
            await run.start_run("t", "r1", resume=True)

        assert (await run.start_run("t", "r1")).steps == 0

    async def test_of_runs_that_were_interrupted_the_last_sixteen_can_be_resumed(self) -> None:
        for number in range(18):
            crashed = await self._begun(f"r{number}")
            await crashed.commit(update(Steps, number + 1))
            await crashed.close()

        with pytest.raises(StateError, match="cannot be resumed"):
            await self.run().start_run("t", "r0", resume=True)
        again = self.run()
        await again.start_run("t", "r2", resume=True)

        assert (again.read(Steps), again.record.steps) == (3, 1)

    # ---- who reads what a beginning run removes

    async def test_who_reads_a_run_learns_that_it_began_anew(self) -> None:
        run = await self._begun("r1")
        await run.commit(update(Steps, 5).update(Draft, "d"))
        reader = await self.state(run_id="r1")
        late = reader.begin_mutation().update(Draft, "late")
        await run.close()

        again = await self._begun("r1")

        await reader.refresh()
        assert (reader.read(Steps), again.read(Steps)) == (None, None)
        with pytest.raises(StateConflictError, match="'draft'"):
            await reader.commit(late)

    async def test_who_reads_a_run_learns_that_it_has_ended_and_another_began(self) -> None:
        run = await self._begun("r1")
        await run.commit(update(Steps, 5))
        reader = await self.state(run_id="r1")
        await run.finish_run()

        await run.start_run("t", "r2")

        await reader.refresh()
        assert reader.read(Steps) is None

    async def test_values_of_no_run_live_until_a_run_begins(self) -> None:
        state = await self.state()
        await state.commit(update(Steps, 5).update(Visits, 1))
        crashed = await self._begun("r1")
        await crashed.commit(update(Steps, 1))
        await state.refresh()
        assert (state.read(Steps), state.read(Visits)) == (None, 1)
        await state.commit(update(Steps, 7))
        await crashed.close()

        await self.run().start_run("t", "r1", resume=True)

        await state.refresh()
        assert (state.read(Steps), (await self.state()).read(Steps)) == (7, 7)

    async def test_a_run_that_begins_disturbs_no_other(self) -> None:
        first = await self._begun("r1")
        await first.commit(update(Steps, 1))
        await first.finish_run()
        other = await self._begun("r2", on_conflict="raise")
        await other.commit(update(Draft, "a"))
        await other.finish_run()
        await other.start_run("t", "r3")

        async def begins() -> None:
            await self.run().start_run("t", "r4")

        await begins()
        batch = MutationBatch(0).update(Plan, "p")
        await other.commit(batch)

        assert other.read(Plan) == "p"

    async def test_a_step_that_another_run_outran_names_key_and_tool_where_nothing_is_to_run_again(
        self,
    ) -> None:
        one, other = await self._begun("r1", on_conflict="raise"), await self._begun("r2")

        def late(ctx: ToolCallContext) -> MutationBatch:
            self.do_inside(other.commit(update(Plan, "theirs")))
            return update(Plan, "mine")

        with pytest.raises(StateConflictError, match=r"'late'.*'plan'") as refused:
            await one.step(lambda ctx: update(Visits, 1), late)

        assert (refused.value.state_key, refused.value.tools) == ("plan", ("late",))
        assert (one.read(Plan), one.read(Visits)) == ("theirs", None)

    # ---- hooks and plugins

    async def test_hooks_and_plugins_of_a_run_go_on_with_the_next(self) -> None:
        run, told = self.run(keys=[Visits]), list[tuple[str, int]]()
        run.add_hook(lambda event: told.append(("run", event.new_revision)))
        await run.start_run("t", "r1")

        def hook(event: CommitEvent) -> None:
            told.append(("state", event.new_revision))

        run.state.add_hook(hook)
        await run.state.install_plugin(Keys([Notes], "notes"))
        await run.commit(update(Visits, 1))
        await run.finish_run()
        await run.start_run("t", "r2")
        await run.commit(update(Notes, ["a"]))

        assert told == [("run", 1), ("state", 1), ("run", 2), ("state", 2)]

    async def test_what_a_hook_commits_is_counted_with_the_run_too(self) -> None:
        run = await self._begun("r1")

        def follows(event: CommitEvent) -> Any:
            if event.new_revision > 2:
                return None
            work = run.commit(update(Notes, ["n"]), messages=["inner"])
            return finish(work) if self.mode_name == "blocking" else work

        run.add_hook(follows)
        await run.commit(update(Visits, 1), messages=["outer"])
        await run.commit(update(Visits, 1), messages=["later"])

        assert len(await run.messages()) == run.record.messages == 4
        assert (run.record.steps, run.record.revision) == (4, 4)
        await run.close()
        record = await self.run().start_run("t", "r1", resume=True)
        assert (record.steps, record.messages, record.revision) == (4, 4, 4)

    # ---- tools

    async def test_a_tool_may_give_a_batch_on_a_newer_revision_than_the_step_began_with(self) -> None:
        run = await self._begun("r1")

        def commits(ctx: ToolCallContext) -> MutationBatch:
            self.do_inside(run.commit(update(Visits, 1)))
            return run.state.begin_mutation().update(Visits, 1).update(Plan, "p")

        step = await run.step(commits, lambda ctx: update(Visits, 1))

        assert (step.reruns, run.read(Visits), run.read(Plan)) == ([], 3, "p")

    async def test_a_tool_that_gives_a_batch_on_an_older_revision_is_named(self) -> None:
        run = await self._begun("r1")
        old = run.state.begin_mutation().update(Plan, "old")
        await run.commit(update(Plan, "new"))

        def stale(ctx: ToolCallContext) -> MutationBatch:
            return old

        with pytest.raises(StateError, match="Tool 'stale' returned a batch on revision 0"):
            await run.step(stale, lambda ctx: update(Visits, 1))

        assert (run.read(Plan), run.read(Visits)) == ("new", None)

    async def test_where_two_tools_fail_both_are_told(self, caplog: pytest.LogCaptureFixture) -> None:
        run = await self._begun()

        def first(ctx: ToolCallContext) -> None:
            raise ZeroDivisionError

        def second(ctx: ToolCallContext) -> None:
            raise KeyError("second")

        with pytest.raises(ZeroDivisionError) as refused:
            await run.step(first, second)

        assert "'first'" in refused.value.__notes__[0]
        assert "KeyError('second')" in refused.value.__notes__[1]
        assert "'second'" in refused.value.__notes__[1]
        assert "KeyError" in caplog.text
