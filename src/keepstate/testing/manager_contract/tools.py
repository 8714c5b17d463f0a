"""`ToolStateManager`: executions counted once, results kept for equal parameters, effects done once."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from keepstate.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    TransitionError,
)
from keepstate.managers.parameters import parameters_hash
from keepstate.managers.tool_records import (
    EXECUTION_STEPS,
    ToolCacheEntry,
    ToolExecution,
    ToolExecutionStatus,
    ToolStats,
)
from keepstate.testing.manager_contract.agents import AWKWARD_IDS
from keepstate.testing.manager_contract.effects import EffectContract

PENDING, RUNNING = ToolExecutionStatus.PENDING, ToolExecutionStatus.RUNNING
COMPLETED, FAILED = ToolExecutionStatus.COMPLETED, ToolExecutionStatus.FAILED
CANCELLED = ToolExecutionStatus.CANCELLED
NAIVE = datetime(2001, 1, 1, 12, 30)


class ToolContract(EffectContract):
    """What a `ToolStateManager` does, whatever it is kept in."""

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

    # ---- kept results

    async def test_a_completed_execution_leaves_its_result_for_equal_parameters(self) -> None:
        tools = self.tools(cache_results=True, cache_ttl=3600)
        await tools.start_execution(ToolExecution("e", "search", parameters={"q": "AI", "n": 1}))
        await tools.complete_execution("e", {"results": [1]})
        hit = await self.tools().get_cached_result("search", {"n": 1, "q": "AI"})

        assert hit is not None and (hit.result, hit.ttl) == ({"results": [1]}, 3600)
        for other in ({"q": "AI"}, {"q": "AI", "n": 1.0}, {"q": "AI", "n": True}, {"q": "AI", "n": "1"}):
            assert await tools.get_cached_result("search", other) is None
        assert await tools.get_cached_result("search2", {"q": "AI", "n": 1}) is None

    async def test_without_caching_nothing_is_left(self) -> None:
        tools = self.tools()
        await self.ran(tools, "e", 1)

        assert await tools.get_cached_result("search", {"query": "e"}) is None

    async def test_a_cached_none_is_a_hit(self) -> None:
        tools = self.tools()
        hash = parameters_hash("search", {})
        await tools.cache_result(ToolCacheEntry("search", hash, None, NAIVE))
        hit = await tools.get_cached_result("search", {})
        miss = await tools.get_cached_result("search", {"q": 1})
        stats = await tools.get_tool_stats("search")

        assert hit and hit.result is None and hit.created_at == NAIVE and miss is None
        assert (stats.cache_hits, stats.cache_misses, stats.cache_hit_rate) == (1, 1, 0.5)

    async def test_an_entry_stands_under_the_hash_that_it_names(self) -> None:
        tools = self.tools()
        await tools.cache_result(ToolCacheEntry("search", "abc123", [1], NAIVE, ttl=3600))

        assert await tools.get_cached_result("search", {"query": "AI news"}) is None

    async def test_a_result_is_kept_as_long_as_it_says(self) -> None:
        tools = self.tools()
        hash = parameters_hash("search", {})
        await tools.cache_result(ToolCacheEntry("search", hash, 1, ttl=0.3))
        early = await tools.get_cached_result("search", {})
        await self.pass_time(320)

        assert early is not None and await tools.get_cached_result("search", {}) is None
        for wrong in (0, -1):
            with pytest.raises(InvalidError, match="ttl"):
                await tools.cache_result(ToolCacheEntry("search", hash, 1, ttl=wrong))
        with pytest.raises(InvalidError, match="cache_ttl"):
            self.tools(cache_ttl=0)

    async def test_kept_results_are_removed_on_request(self) -> None:
        tools = self.tools()
        for number in range(5):
            hash = parameters_hash("search", {"n": number})
            await tools.cache_result(ToolCacheEntry("search", hash, number))
        one = await tools.remove_cached_results("search", {"n": 1})
        rest = await tools.remove_cached_results("search")

        assert (one, rest, await tools.remove_cached_results("search", {"n": 1})) == (1, 4, 0)
        assert await tools.get_cached_result("search", {"n": 2}) is None

    async def test_lookups_of_a_closed_manager_are_counted(self) -> None:
        tools, other = self.tools(), self.tools()
        for _ in range(3):
            await other.get_cached_result("search", {})
        await other.close()

        assert (await tools.get_tool_stats("search")).cache_misses == 3

    # ---- one execution for all

    async def test_many_who_ask_for_the_same_get_one_execution(self) -> None:
        tools = [self.tools(cache_results=True) for _ in range(3)]
        calls: Counter[int] = Counter()

        def search(parameters: dict[str, Any]) -> None:
            calls[parameters["n"]] += 1

        async def ask(number: int) -> Any:
            return (await tools[number % 3].run("search", {"n": number // 6}, search)).result

        answers = await self.together(*(ask(number) for number in range(12)))

        assert answers == [None] * 12 and calls == Counter({0: 1, 1: 1})
        history = await tools[0].get_execution_history("search")
        assert [each.status for each in history] == [COMPLETED] * 2

    async def test_without_caching_who_asks_later_gets_an_execution_of_its_own(self) -> None:
        tools, other = self.tools(cache_results=False), self.tools(cache_results=False)
        sent: list[str] = []

        def send(parameters: dict[str, Any]) -> int:
            sent.append(parameters["to"])
            return len(sent)

        answers = [(await each.run("send_mail", {"to": "a"}, send)).result for each in (tools, other, tools)]

        assert answers == [1, 2, 3] and sent == ["a", "a", "a"]

    async def test_a_failure_is_told_and_the_next_one_tries(self) -> None:
        tools = self.tools(cache_results=True)
        calls: list[int] = []

        def search(parameters: dict[str, Any]) -> int:
            calls.append(1)
            parameters["n"] = "changed"
            if len(calls) == 1:
                raise TimeoutError("slow")
            return len(calls)

        with pytest.raises(TimeoutError):
            await tools.run("search", {"n": 1}, search, execution_id="first")
        second = await tools.run("search", {"n": 1}, search)
        third = await tools.run("search", {"n": 1}, search)

        failed = await tools.get_execution("first")
        assert failed is not None and (failed.status, failed.error) == (FAILED, "TimeoutError: slow")
        assert (second.result, third.result, failed.parameters) == (2, 2, {"n": 1})
        stats = await tools.get_tool_stats("search")
        assert (stats.completed, stats.failed, stats.cache_hits) == (1, 1, 1)

    async def test_a_result_that_cannot_be_kept_is_a_failure(self) -> None:
        tools = self.tools()

        with pytest.raises(InvalidError):
            await tools.run("search", {}, lambda parameters: object(), execution_id="e")

        failed = await tools.get_execution("e")
        assert failed is not None and failed.status is FAILED

    # ---- all of it

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
