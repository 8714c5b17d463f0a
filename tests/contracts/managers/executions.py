"""Are executions of tools counted once, and those of dead processes found, on every backend?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.managers.tools.manager import ToolStateManager
from keepstate.managers.tools.records import EXECUTION_STEPS, ToolExecution, ToolExecutionStatus, ToolStats
from tests.contracts.managers.agents import AWKWARD_IDS, LONG_AND_ODD
from tests.contracts.managers.effects import EffectContract

PENDING, RUNNING = ToolExecutionStatus.PENDING, ToolExecutionStatus.RUNNING
COMPLETED, FAILED = ToolExecutionStatus.COMPLETED, ToolExecutionStatus.FAILED
CANCELLED = ToolExecutionStatus.CANCELLED
NAIVE = datetime(2001, 1, 1, 12, 30)


def giving(result: int) -> Callable[..., int]:
    """Return a tool that gives this, whatever it is asked."""
    return lambda *_: result


class ExecutionContract(EffectContract):
    """What a `ToolStateManager` does for executions, however they came about."""

    # ---- executions

    async def test_an_execution_comes_back_as_it_was_told(self) -> None:
        tools = self.tools()
        told = ToolExecution("e", "search", RUNNING, NAIVE, {"query": "AI", "n": (1, {2})})
        await tools.start_execution(told)
        running = await self.tools().get_execution("e")
        done = await tools.complete_execution("e", {"results": [...]}, duration_ms=1500)
        found = await self.tools().get_execution("e")

        assert (running, found) == (told, done)
        assert (done.status, done.result, done.duration_ms) == (COMPLETED, {"results": [...]}, 1500)
        assert done.started_at == NAIVE and done.completed_at is not None and repr(done.duration_ms) == "1500"
        assert await tools.get_execution("none") is None

    async def test_an_end_is_counted_once_and_cannot_be_another(self) -> None:
        tools = self.tools()
        await self.ran(tools, "e", {"b": 1, "a": 2})
        await tools.complete_execution("e", {"a": 2, "b": 1}, 77)

        for change in (
            tools.complete_execution("e", None),
            tools.fail_execution("e", "no"),
            tools.cancel_execution("e"),
            tools.start_execution(ToolExecution("e", "search")),
        ):
            with pytest.raises(TransitionError):
                await change
        stats = await tools.get_tool_stats("search")
        assert (stats.total_executions, stats.completed, stats.failed) == (1, 1, 0)

    async def test_steps_follow_the_table(self) -> None:
        tools = self.tools()
        to: dict[ToolExecutionStatus, list[ToolExecutionStatus]] = {
            PENDING: [PENDING],
            RUNNING: [RUNNING],
            COMPLETED: [RUNNING, COMPLETED],
            FAILED: [RUNNING, FAILED],
            CANCELLED: [RUNNING, CANCELLED],
        }

        async def go(id: str, status: ToolExecutionStatus) -> Any:
            if status in (PENDING, RUNNING):
                return await tools.start_execution(ToolExecution(id, "t", status))
            if status is COMPLETED:
                return await tools.complete_execution(id)
            end = tools.fail_execution if status is FAILED else tools.cancel_execution
            return await end(id, "why")

        for before, way in to.items():
            for after in to:
                if before is after:
                    continue
                id = f"{before.name} {after.name}"
                for step in way:
                    await go(id, step)
                if EXECUTION_STEPS.allows(before, after):
                    assert (await go(id, after)).status is after
                    continue
                with pytest.raises(TransitionError):
                    await go(id, after)

    async def test_what_was_never_started_cannot_end_and_what_runs_cannot_start(self) -> None:
        tools = self.tools()
        await tools.start_execution(ToolExecution("e", "search"))

        with pytest.raises(NotFoundError):
            await tools.complete_execution("none")
        with pytest.raises(AlreadyExistsError):
            await tools.start_execution(ToolExecution("e", "search"))
        with pytest.raises(InvalidError, match="COMPLETED"):
            await tools.start_execution(ToolExecution("f", "search", COMPLETED))
        with pytest.raises(InvalidError, match="duration_ms"):
            await tools.complete_execution("e", duration_ms=-1)

    async def test_a_failed_one_that_is_given_up_keeps_why_it_failed(self) -> None:
        tools = self.tools()
        for id in ("no reason", "reason"):
            await tools.start_execution(ToolExecution(id, "search"))
            await tools.fail_execution(id, "cut", duration_ms=12)
        kept = await tools.cancel_execution("no reason")
        told = await tools.cancel_execution("reason", "too expensive")

        assert (kept.status, kept.error, kept.duration_ms) == (CANCELLED, "cut", 12)
        assert (told.error, told.duration_ms) == ("too expensive", 12)

    async def test_one_that_is_tried_again_counts_once(self) -> None:
        tools = self.tools()
        first = await tools.start_execution(ToolExecution("e", "search"))
        await tools.fail_execution("e", TimeoutError("slow"), timed_out=True)
        failed = await tools.get_tool_stats("search")
        second = await tools.start_execution(ToolExecution("e", "search"))
        await tools.complete_execution("e", 1)
        done = await tools.get_tool_stats("search")

        assert (first.attempt, second.attempt) == (1, 2)
        assert (failed.total_executions, failed.failed, failed.error_rate) == (1, 1, 1.0)
        assert (done.total_executions, done.failed, done.success_rate, done.error_rate) == (1, 0, 1.0, 0.0)

    async def test_the_history_begins_with_the_newest_and_goes_on_page_by_page(self) -> None:
        tools = self.tools()
        for number in range(25):
            await tools.start_execution(ToolExecution(f"e{number}", "search", started_at=NAIVE))
            if number % 4 == 0:
                await self.pass_time(3)
        await self.ran(tools, "other", tool="search2")
        whole = await tools.get_execution_history(tool_name="search", limit=100)
        pages: list[ToolExecution] = []
        while page := await tools.get_execution_history(
            "search", 7, after=pages[-1].execution_id if pages else None
        ):
            pages += page

        assert pages == whole and len(whole) == 25
        numbers = [int(each.execution_id[1:]) for each in whole]
        # Those of one moment of the store may stand in any order.
        assert all(earlier // 4 >= (later - 1) // 4 - 1 for earlier, later in pairwise(numbers))
        assert numbers[0] >= 21 and numbers[-1] == 0
        with pytest.raises(NotFoundError):
            await tools.get_execution_history("search", after="none")
        assert await tools.get_execution_history("nothing") == []

    async def test_no_tool_and_no_execution_touches_another(self) -> None:
        tools = self.tools()
        for id in AWKWARD_IDS:
            await self.ran(tools, id, id, tool=id)

        for id in AWKWARD_IDS:
            assert [each.result for each in await tools.get_execution_history(id)] == [id]
            assert (await tools.get_tool_stats(id)).completed == 1

    async def test_long_names_and_ids_are_told_apart_by_all_that_is_asked(self) -> None:
        tools = self.tools(cache_results=True)
        for number, id in enumerate(LONG_AND_ODD):
            await self.ran(tools, id, number, tool=id)
            await tools.run(id, {}, giving(number))
            await tools.start_execution(ToolExecution(f"stale {id}", id), lease_s=0.001)
            await tools.schedule_retry(f"stale {id}", "no")
            await tools.begin_effect(id, lease_s=0.001)
            await tools.perform_effect(id, giving(number), name="mail")
        await self.pass_time(20)

        for number, id in enumerate(LONG_AND_ODD):
            history = await tools.get_execution_history(id)
            assert Counter(each.result for each in history) == Counter([number, number, None])
            assert (await tools.get_tool_stats(id)).total_executions == 3
            assert (await tools.run(id, {}, giving(-1))).result == number
            assert await tools.perform_effect(id, giving(-1), name="mail") == number
        assert [each.execution_id for each in await tools.get_unknown_effects()] == LONG_AND_ODD
        stale = [f"stale {id}" for id in LONG_AND_ODD]
        assert sorted(each.execution_id for each in await tools.get_stale_executions()) == stale
        assert sorted(each.execution_id for each in await tools.get_pending_retries()) == stale
        assert await tools.cleanup(older_than=timedelta(0)) == 9
        assert [await tools.delete_tool(id) for id in LONG_AND_ODD] == [0, 0, 0]

    async def test_names_that_cannot_be_are_refused_by_what_they_are(self) -> None:
        tools = self.tools()
        for wrong, told in (("", "has 1 to 512"), ("t" * 513, "has 1 to 512")):
            with pytest.raises(InvalidError, match=f"`tool_name`.*{told}"):
                await tools.start_execution(ToolExecution("e", wrong))
        for wrong, told in (("", "has 1 to 512"), ("e" * 513, "has 1 to 512"), ("e" * 512, "at most [45]..")):
            with pytest.raises(InvalidError, match=f"`execution_id`.*{told}"):
                await tools.start_execution(ToolExecution(wrong, "t"))
        for wrong, told in (("", "empty"), ("e" * 513, "at most [45]..")):
            with pytest.raises(InvalidError, match=f"`name`.*{told}"):
                await tools.begin_effect("e", wrong)

    # ---- sums

    async def test_sums_are_those_of_what_happened(self) -> None:
        tools = self.tools()
        empty = await tools.get_tool_stats("search")
        for number in range(6):
            await tools.start_execution(ToolExecution(f"e{number}", "search"))
        await tools.complete_execution("e0", 0, 100)
        await tools.complete_execution("e1", 1, 200.5)
        await tools.complete_execution("e2", 2, 300)
        await tools.fail_execution("e3", "no")
        await tools.cancel_execution("e4")
        found = await self.tools().get_tool_stats("search")

        assert empty == ToolStats("search")
        assert (empty.success_rate, empty.error_rate, empty.avg_duration_ms, empty.cache_hit_rate) == (
            (0.0,) * 4
        )
        assert (found.total_executions, found.completed, found.failed, found.cancelled) == (6, 3, 1, 1)
        assert (found.running, found.success_rate, found.error_rate) == (1, 0.75, 0.25)
        assert found.avg_duration_ms == 600.5 / 3

    async def test_executions_of_many_at_once_are_all_counted(self) -> None:
        tools = [self.tools() for _ in range(4)]

        async def work(number: int) -> None:
            for each in range(8):
                await self.ran(tools[number], f"{number} {each}")

        await self.together(*(work(number) for number in range(4)))

        stats = await tools[0].get_tool_stats("search")
        assert (stats.total_executions, stats.completed) == (32, 32)
        assert len(await tools[0].get_execution_history("search")) == 32

    # ---- who is at it

    async def test_an_execution_that_nobody_is_at_any_more_is_stale(self) -> None:
        tools = self.tools()
        for id, lease_s in (("second", 0.3), ("first", 0.02), ("held", 0.3), ("on", 600)):
            await tools.start_execution(ToolExecution(id, "search"), lease_s=lease_s)
        await tools.start_execution(ToolExecution("later", "search", PENDING), lease_s=0.01)
        fresh = await tools.get_stale_executions()
        await tools.heartbeat_execution("held", lease_s=600)
        await self.pass_time(400)
        stale = await self.tools().get_stale_executions()

        assert [each.execution_id for each in fresh if each.execution_id in ("on", "later")] == []
        assert [each.execution_id for each in stale] == ["first", "second"]
        assert {each.status for each in stale} == {RUNNING}
        await tools.complete_execution("first", "late")  # it was done after all
        again = await tools.start_execution(ToolExecution("second", "search"))
        assert again.attempt == 2 and await tools.get_stale_executions() == []
        with pytest.raises(AlreadyExistsError):
            await tools.start_execution(ToolExecution("second", "search"))
        stats = await tools.get_tool_stats("search")
        assert (stats.total_executions, stats.running, stats.completed, stats.failed) == (5, 4, 1, 0)

    async def test_only_who_runs_is_heard_of(self) -> None:
        tools = self.tools()
        await self.ran(tools, "done")
        await tools.start_execution(ToolExecution("later", "search", PENDING))

        for id in ("done", "later"):
            with pytest.raises(TransitionError):
                await tools.heartbeat_execution(id)
        with pytest.raises(NotFoundError):
            await tools.heartbeat_execution("none")
        with pytest.raises(InvalidError, match="lease_s"):
            await tools.start_execution(ToolExecution("e", "search"), lease_s=0)

    async def test_cleanup_removes_executions_of_processes_that_died(self) -> None:
        tools = self.tools()
        await tools.start_execution(ToolExecution("died", "search"), lease_s=0.01)
        await tools.start_execution(ToolExecution("on", "search"))
        await self.pass_time(30)
        kept = await tools.cleanup(older_than=timedelta(hours=1))
        removed = await tools.cleanup(older_than=timedelta(0))

        assert (kept, removed) == (0, 1)
        assert [each.execution_id for each in await tools.get_execution_history("search")] == ["on"]
        stats = await tools.get_tool_stats("search")
        assert (stats.total_executions, stats.running, stats.failed) == (2, 1, 1)

    # ---- all of it

    async def test_a_tool_is_deleted_with_its_executions_and_leaves_what_was_done(self) -> None:
        tools = self.tools()
        for tool in ("search", "search/2"):
            await self.ran(tools, f"done {tool}", tool=tool)
            await tools.start_execution(ToolExecution(f"on {tool}", tool))
            await tools.schedule_retry(f"on {tool}", "no")
        await tools.perform_effect("done search", lambda: "receipt")
        removed = [await tools.delete_tool("search") for _ in range(2)]

        assert removed == [2, 0] and await tools.get_execution_history("search") == []
        assert await tools.get_tool_stats("search") == ToolStats("search")
        assert [each.execution_id for each in await tools.get_pending_retries()] == ["on search/2"]
        assert len(await tools.get_execution_history("search/2")) == 2
        assert await tools.perform_effect("done search", lambda: "again") == "receipt"

    async def test_what_is_recorded_of_tools_names_them_and_no_number(self) -> None:
        space = self.handle().space("shared", record=True)
        for author in (None, "agent 7"):
            async with space.by(author).transaction() as tx:
                tools = ToolStateManager(space=tx, _mode=self.mode_name)
                await tools.start_execution(ToolExecution(f"of {author}", "search"))

        authors = [commit.author async for commit in space.history.log()]
        assert authors == ["agent 7", "tools"]

    async def test_cleanup_removes_what_is_over(self) -> None:
        tools = self.tools()
        for id in ("done", "failed", "on"):
            await tools.start_execution(ToolExecution(id, "search"))
        await tools.complete_execution("done")
        await tools.fail_execution("failed", "no")
        await tools.schedule_retry("failed", "no")
        await tools.perform_effect("done", lambda: 1)
        await tools.refute_effect(await tools.begin_effect("failed"), "no")
        await tools.begin_effect("on")
        kept = await tools.cleanup(older_than=timedelta(hours=1))
        await self.pass_time(20)
        removed = await tools.cleanup(older_than=timedelta(0))

        assert (kept, removed) == (0, 3)
        assert [each.execution_id for each in await tools.get_execution_history("search")] == ["on"]
        assert await tools.get_effect("on") is not None and await tools.get_pending_retries() == []
        assert await tools.perform_effect("done", lambda: 2) == 1 and await tools.get_effect("failed") is None
        assert (await tools.get_tool_stats("search")).total_executions == 3

    # ---- a plain model

    async def test_tools_do_what_a_plain_model_does(self) -> None:
        for seed in range(2):
            tools, dice, tool = self.tools(), random.Random(seed), f"tool {seed}"
            model: dict[str, ToolExecutionStatus] = {}
            for _ in range(30):
                id = f"{seed} {dice.randrange(8)}"
                wanted = dice.choice([RUNNING, RUNNING, COMPLETED, FAILED, CANCELLED])
                try:
                    if wanted is RUNNING:
                        await tools.start_execution(ToolExecution(id, tool))
                    elif wanted is COMPLETED:
                        await tools.complete_execution(id, id, 10)
                    elif wanted is FAILED:
                        await tools.fail_execution(id, "no")
                    else:
                        await tools.cancel_execution(id)
                except NotFoundError:
                    assert id not in model
                except (TransitionError, AlreadyExistsError):
                    assert id in model and not EXECUTION_STEPS.allows(model[id], wanted)
                else:
                    assert id not in model or model[id] is wanted or EXECUTION_STEPS.allows(model[id], wanted)
                    model[id] = wanted
            history = await tools.get_execution_history(tool)
            stats = await tools.get_tool_stats(tool)

            assert {each.execution_id: each.status for each in history} == model
            ends = Counter(model.values())
            assert (stats.total_executions, stats.completed, stats.failed, stats.cancelled) == (
                len(model),
                ends[COMPLETED],
                ends[FAILED],
                ends[CANCELLED],
            )
            assert stats.duration_ms == 10 * ends[COMPLETED]
