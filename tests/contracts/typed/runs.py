"""Runs: tools in parallel, steps that commit whole, and processes that do the same."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate._finish import finish
from keepstate.errors import ConflictError, InvalidError, LeaseLostError, StateConflictError, StateError
from keepstate.typed.batch import MutationBatch
from keepstate.typed.run import AgentRun
from keepstate.typed.tools import ToolCallContext, ToolOutput
from tests.contracts.typed.keys import Draft, Evens, Goal, Notes, Plan, Score, Socket, Visits
from tests.contracts.typed.runs_in_turn import RunsInTurnContract
from tests.contracts.typed.stage import update


def adds(ctx: ToolCallContext) -> MutationBatch:
    """Count."""
    return update(Visits, 1)


def plans(ctx: ToolCallContext) -> ToolOutput:
    """Add to the plan what it saw of it."""
    seen = ctx.snapshot.get(Plan) or ""
    return ToolOutput(seen, update(Plan, seen + "p"), [f"saw {seen!r}"])


def plots(ctx: ToolCallContext) -> MutationBatch:
    """Do the same."""
    return update(Plan, (ctx.snapshot.get(Plan) or "") + "q")


class AgentRunContract(RunsInTurnContract):
    """`AgentRun`."""

    async def begun(self, run_id: str = "r1", **options: Any) -> AgentRun:
        """Return a run of thread `t` that has begun."""
        run = self.run(**options)
        await run.start_run("t", run_id)
        return run

    async def test_a_run_begins_without_run_scoped_values_and_with_those_of_the_thread(self) -> None:
        run = await self.begun()
        await run.commit(update(Visits, 1).update(Draft, "a"))
        await run.finish_run()

        await run.start_run("t", "r2")
        assert (run.read(Visits), run.read(Draft)) == (1, None)
        await run.finish_run()
        await run.start_run("t", "r1")
        assert (run.read(Visits), run.read(Draft)) == (1, None)

    async def test_another_process_loads_what_the_thread_has(self) -> None:
        run = await self.begun()
        await run.step(adds, messages=["hello"])
        await run.finish_run()

        other = await self.begun("r2")

        assert other.read(Visits) == 1
        assert [event.data for event in await other.messages()] == ["hello"]
        state = await self.state()
        assert (state.read(Visits), state.revision) == (1, 1)

    async def test_tools_see_one_snapshot_and_their_updates_are_merged(self) -> None:
        run, seen = await self.begun(), list[tuple[int, str, str]]()

        def looks(ctx: ToolCallContext) -> MutationBatch:
            seen.append((ctx.snapshot.revision, ctx.run_id, ctx.thread_id))
            return update(Visits, 1).update(Notes, ["x"])

        step = await run.step(looks, adds, looks)

        assert seen == [(0, "r1", "t")] * 2
        assert (run.read(Visits), run.read(Notes), step.revision) == (3, ["x", "x"], 1)

    async def test_a_step_is_one_batch_with_its_messages_and_record(self) -> None:
        run = await self.begun()
        space = self.handle().space("thread/t")
        before = await space.revision()

        await run.step(adds, plans, messages=["hello"])

        assert await space.revision() == before + 1
        assert [event.data for event in await run.messages()] == ["hello", "saw ''"]
        record = run.record
        assert (record.steps, record.messages, record.revision, record.status) == (1, 2, 1, "running")

    async def test_what_tools_give_beside_updates_comes_back_in_their_order(self) -> None:
        run = await self.begun()

        step = await run.step(lambda ctx: "text", adds, plans, lambda ctx: None, lambda ctx: ToolOutput(3))

        assert step.values == ["text", None, "", None, 3]

    async def test_where_exclusive_keys_overlap_the_later_tool_runs_again_on_the_result(
        self,
    ) -> None:
        run = await self.begun()

        step = await run.step(plans, adds, plots, plans)

        assert (run.read(Plan), run.read(Visits)) == ("pqp", 1)
        assert step.reruns == ["plots", "plans"]
        assert step.values[3] == "pq"
        assert (run.record.steps, run.record.pending) == (1, [])
        assert [event.data for event in await run.messages()] == ["saw ''", "saw 'pq'"]

    async def test_or_the_step_is_refused_and_names_the_key_and_both_tools(self) -> None:
        run = await self.begun(on_conflict="raise")

        with pytest.raises(StateConflictError, match=r"'plans'.*'plots'.*'plan'") as refused:
            await run.step(adds, plans, plots)

        assert (refused.value.state_key, refused.value.tools) == ("plan", ("plans", "plots"))
        assert (run.read(Visits), run.record.steps) == (None, 0)

    async def test_exclusive_keys_that_are_different_do_not_overlap(self) -> None:
        run = await self.begun(on_conflict="raise")

        await run.step(plans, lambda ctx: update(Goal, "g"))

        assert (run.read(Plan), run.read(Goal)) == ("p", "g")

    async def test_where_a_tool_raises_nothing_of_the_step_is_committed(self) -> None:
        run = await self.begun()

        def breaks(ctx: ToolCallContext) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError) as refused:
            await run.step(adds, breaks, messages=["hello"])
        with pytest.raises(ValueError, match="odd"):
            await run.step(adds, lambda ctx: update(Evens, 1), messages=["hello"])

        assert "'breaks'" in refused.value.__notes__[0]
        assert (run.read(Visits), await run.messages(), run.record.steps) == (None, [], 0)

    async def test_what_is_no_tool_or_batch_is_refused(self) -> None:
        run = await self.begun()
        wrong: Any = "tool"

        with pytest.raises(InvalidError):
            await run.step(wrong)
        with pytest.raises(InvalidError):
            await run.step(lambda ctx: ToolOutput(batch=wrong))

    async def test_a_step_without_tools_adds_messages(self) -> None:
        run = await self.begun()

        step = await run.step(messages=["one", {"role": "user"}])

        assert (step.values, step.revision) == ([], 0)
        assert [event.data for event in await run.messages()] == ["one", {"role": "user"}]

    async def test_tools_read_and_change_profiles(self) -> None:
        run = await self.begun()

        def scores(ctx: ToolCallContext) -> Any:
            work = ctx.profile.update(Score, "alice", lambda score: score + 1)
            return finish(work) if self.mode_name == "blocking" else work

        step = await run.step(scores, scores)

        assert sorted(step.values) == [1, 2]
        assert await self.profiles().read(Score, "alice") == 2

    async def test_steps_at_once_count_each(self) -> None:
        run = await self.begun()

        await self.together(*[run.step(adds, messages=[number]) for number in range(6)])

        assert (run.record.steps, run.record.messages, run.read(Visits)) == (6, 6, 6)
        await run.finish_run()
        record = await self.run().start_run("t", "r1", resume=True)
        assert (record.steps, record.messages) == (6, 6)

    # ---- two processes

    async def test_the_same_run_is_done_by_one_process_only(self) -> None:
        await self.begun(author="first")

        with pytest.raises(ConflictError, match="first"):
            await self.run().start_run("t", "r1")

    async def test_who_was_taken_over_commits_nothing_more(self) -> None:
        old = await self.begun(lease_ttl_s=1)
        fence = old.record.fence
        await self._stops_renewing(old)
        await self.pass_time(1020)
        new = await self.begun()

        with pytest.raises(LeaseLostError):
            await old.step(adds, messages=["from the grave"])
        with pytest.raises(LeaseLostError):
            await old.state.commit(update(Visits, 1))

        await new.step(adds)
        assert (new.read(Visits), await new.messages()) == (1, [])
        with pytest.raises(LeaseLostError):
            await old.finish_run()
        with pytest.raises(StateError, match="No run"):
            old.snapshot()
        assert new.record.fence > fence

    async def _stops_renewing(self, run: AgentRun) -> None:
        held = run._current_run()  # pyright: ignore[reportPrivateUsage]
        await held.heartbeat._work.stop()  # pyright: ignore[reportPrivateUsage]

    async def test_two_runs_on_one_thread_keep_the_updates_of_both(self) -> None:
        one, other = await self.begun("r1"), await self.begun("r2")

        async def work(run: AgentRun) -> None:
            for _ in range(5):
                await run.step(adds, lambda ctx: update(Notes, ["n"]))

        await self.together(work(one), work(other))

        state = await self.state()
        assert (state.read(Visits), state.read(Notes)) == (10, ["n"] * 10)

    async def test_a_step_begins_with_what_others_have_changed(self) -> None:
        one, other = await self.begun("r1"), await self.begun("r2")
        await other.step(plans)

        step = await one.step(plans)

        assert (step.values, step.reruns, one.read(Plan)) == (["p"], [], "pp")

    async def test_a_tool_runs_again_where_another_run_was_faster(self) -> None:
        one, other = await self.begun("r1"), await self.begun("r2")
        calls: list[str | None] = []

        def slow(ctx: ToolCallContext) -> MutationBatch:
            calls.append(ctx.snapshot.get(Plan))
            if len(calls) == 1:
                self.do_inside(other.commit(update(Plan, "2")))
            return update(Plan, (ctx.snapshot.get(Plan) or "") + "1")

        step = await one.step(slow, adds)

        assert calls == [None, "2"]
        assert (step.reruns, one.read(Plan), one.read(Visits)) == (["slow"], "21", 1)
        assert one.record.steps == 1

    # ---- interruptions

    async def test_an_interrupted_run_is_resumed_with_what_it_had_though_others_came_and_went(self) -> None:
        crashed = await self.begun("r1")
        await crashed.step(lambda ctx: update(Draft, "half"), messages=["m"])
        await crashed.close()
        between = await self.begun("r2")
        await between.step(lambda ctx: update(Draft, "other"))
        await between.finish_run()

        again = self.run()
        record = await again.start_run("t", "r1", resume=True)

        assert (record.steps, record.messages, again.read(Draft)) == (1, 1, "half")

    async def test_an_interrupted_run_that_begins_anew_has_nothing_of_what_it_had(self) -> None:
        crashed = await self.begun("r1")
        await crashed.step(lambda ctx: update(Draft, "half").update(Visits, 1))
        await crashed.close()

        again = await self.begun("r1")

        assert (again.read(Draft), again.read(Visits), again.record.steps) == (None, 1, 0)

    async def test_values_of_runs_that_ended_are_removed_when_another_begins(self) -> None:
        run = await self.begun("r1")
        await run.commit(update(Draft, "a"))
        await run.finish_run("failed")
        await run.start_run("t", "r2")

        names = [name async for name in self.handle().space("thread/t").documents.keys("typed/run/*")]

        assert names == []

    async def test_a_run_that_has_ended_says_so(self) -> None:
        run = await self.begun()

        record = await run.finish_run("failed", messages=["sorry"])

        assert (record.status, record.steps, record.messages) == ("failed", 0, 1)
        with pytest.raises(StateError, match="No run"):
            run.snapshot()
        with pytest.raises(StateError, match="No run"):
            await run.step(adds)

    async def test_one_run_at_a_time(self) -> None:
        run = await self.begun()

        with pytest.raises(StateError, match="'r1' is active"):
            await run.start_run("t", "r2")
        for wrong in ("", "x" * 600, "/" * 200):
            with pytest.raises(InvalidError):
                await self.run().start_run("t", wrong)
        with pytest.raises(InvalidError):
            await self.run().start_run("", "r")

    async def test_of_two_runs_that_begin_at_once_one_is_refused_and_held_by_nobody(self) -> None:
        run = self.run()

        async def begins(run_id: str) -> str:
            try:
                return (await run.start_run("t", run_id)).run_id
            except StateError:
                return ""

        begun = await self.together(begins("r1"), begins("r2"))

        assert sorted(begun) == ["", run.record.run_id]
        await run.close()
        for run_id in ("r1", "r2"):
            record = await self.run().start_run("t", run_id)
            assert record.status == "running"

    async def test_ids_may_be_any_text(self) -> None:
        for name in ("a/b", "a%2Fb", "c:d", "e f", "ü✓", "*?[x]"):
            run = self.run()
            await run.start_run(name, name)
            await run.step(lambda ctx: update(Draft, ctx.run_id).update(Visits, 1), messages=[name])
            assert (run.read(Draft), run.read(Visits)) == (name, 1)
            assert [event.data for event in await run.messages()] == [name]

    async def test_runs_of_several_threads_in_one_space_are_apart(self) -> None:
        space = self.handle().space("shared")
        runs = [self.run(space=space) for _ in range(2)]
        for number, run in enumerate(runs):
            await run.start_run(f"t{number}", "r")
            await run.step(adds, messages=[number])

        assert [run.read(Visits) for run in runs] == [1, 1]
        assert [[event.data for event in await run.messages()] for run in runs] == [[0], [1]]

    async def test_a_run_is_no_part_of_a_transaction(self) -> None:
        async with self.handle().space("shared").transaction() as tx:
            with pytest.raises(InvalidError):
                self.run(space=tx)

    async def test_what_is_not_stored_goes_on_with_the_thread_in_one_process(self) -> None:
        run = await self.begun()
        await run.commit(update(Socket, 1))
        await run.finish_run()

        await run.start_run("t", "r2")
        assert run.read(Socket) == 1
        await run.finish_run()
        await run.start_run("other", "r3")
        assert run.read(Socket) is None

    async def test_steps_are_recorded_on_request(self) -> None:
        run = await self.begun(record=True, author="planner")
        await run.step(plans)
        await run.step(plots)

        assert (await run.state.at("main~1")).get(Plan) == "p"
        assert [each.key for each in await run.state.diff("main~1")] == ["plan"]
        commit = await self.handle().space("thread/t").history.find("main")
        assert (commit.author, commit.message) == ("planner", "run r1: step 2")
