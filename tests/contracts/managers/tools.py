"""`ToolStateManager`: executions counted once, results kept for equal parameters, effects done once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from keepstate._finish import finish
from keepstate.errors import InvalidError, StoreUnavailableError
from keepstate.managers.records import parameters_hash
from keepstate.managers.tools.manager import ToolStateManager
from keepstate.managers.tools.records import ToolCacheEntry, ToolExecution, ToolExecutionStatus
from keepstate.testing.store_contract.stage import only_async
from tests.contracts.managers.executions import ExecutionContract

PENDING, RUNNING = ToolExecutionStatus.PENDING, ToolExecutionStatus.RUNNING
COMPLETED, FAILED = ToolExecutionStatus.COMPLETED, ToolExecutionStatus.FAILED
CANCELLED, TIMED_OUT = ToolExecutionStatus.CANCELLED, ToolExecutionStatus.TIMED_OUT
NAIVE = datetime(2001, 1, 1, 12, 30)


class ToolContract(ExecutionContract):
    """What a `ToolStateManager` does, whatever it is kept in."""

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

    async def test_a_result_that_could_not_be_kept_is_kept_when_it_is_told_again(self) -> None:
        store, tools, _ = await self.in_trouble(ToolStateManager, cache_results=True, cache_ttl=1.5)
        await tools.start_execution(ToolExecution("e", "search", parameters={"n": 1}))
        store.batches_left = 1
        with pytest.raises(StoreUnavailableError):
            await tools.complete_execution("e", 5)
        store.batches_left = None
        await self.pass_time(100)
        done = await tools.complete_execution("e", 5)
        kept = await tools.get_cached_result("search", {"n": 1})

        assert kept is not None and (kept.result, kept.created_at) == (5, done.completed_at)
        assert kept.ttl is not None and 0 < kept.ttl <= 1.4
        await self.pass_time(1420)
        await tools.complete_execution("e", 5)
        assert await tools.get_cached_result("search", {"n": 1}) is None

    async def test_a_result_that_is_told_again_replaces_no_later_one(self) -> None:
        tools = self.tools(cache_results=True)
        for id, result in (("first", 1), ("second", 2)):
            await tools.start_execution(ToolExecution(id, "search"))
            await tools.complete_execution(id, result)
        await tools.complete_execution("first", 1)

        kept = await tools.get_cached_result("search", {})
        assert kept is not None and kept.result == 2

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
        await tools.cache_result(ToolCacheEntry("search", hash, 1, ttl=0.8))
        early = await tools.get_cached_result("search", {})
        await self.pass_time(820)

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

    async def test_lookups_that_could_not_be_written_are_counted_later(self) -> None:
        store, tools, _ = await self.in_trouble(ToolStateManager)
        for number in range(3):
            await tools.get_cached_result("search", {"n": number})
        store.takes_nothing = True
        with pytest.raises(StoreUnavailableError):
            await tools.get_tool_stats("search")
        store.takes_nothing = False

        assert (await tools.get_tool_stats("search")).cache_misses == 3

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
                raise ConnectionError("cut")
            return len(calls)

        with pytest.raises(ConnectionError):
            await tools.run("search", {"n": 1}, search, execution_id="first")
        second = await tools.run("search", {"n": 1}, search)
        third = await tools.run("search", {"n": 1}, search)

        failed = await tools.get_execution("first")
        assert failed is not None and (failed.status, failed.error) == (FAILED, "ConnectionError: cut")
        assert (second.result, third.result, failed.parameters) == (2, 2, {"n": 1})
        stats = await tools.get_tool_stats("search")
        assert (stats.completed, stats.failed, stats.cache_hits) == (1, 1, 1)

    async def test_what_a_tool_raises_is_told_also_where_the_store_is_away_by_then(self) -> None:
        store, tools, _ = await self.in_trouble(ToolStateManager)

        def fail(parameters: dict[str, Any]) -> None:
            store.takes_nothing = True
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await tools.run("search", {}, fail)

        store.takes_nothing = False
        (begun,) = await tools.get_execution_history("search")
        assert begun.status is ToolExecutionStatus.RUNNING  # until it is stale: nobody could note its end

    async def test_a_result_that_cannot_be_kept_is_a_failure(self) -> None:
        tools = self.tools()

        with pytest.raises(InvalidError):
            await tools.run("search", {}, lambda parameters: object(), execution_id="e")

        failed = await tools.get_execution("e")
        assert failed is not None and failed.status is FAILED

    async def test_a_tool_changes_nothing_of_its_callers_parameters(self) -> None:
        tools = self.tools()
        parameters = {"to": ["a"], "options": {"retry": [1]}}

        def send(given: dict[str, Any]) -> None:
            given["to"].append("b")
            given["options"]["retry"].clear()

        await tools.run("send", parameters, send, execution_id="e")

        assert parameters == {"to": ["a"], "options": {"retry": [1]}}
        kept = await tools.get_execution("e")
        assert kept is not None and kept.parameters == parameters

    # ---- who is at it

    async def test_a_tool_that_runs_out_of_time_has_timed_out(self) -> None:
        tools = self.tools()

        def search(parameters: dict[str, Any]) -> None:
            raise TimeoutError("slow")

        with pytest.raises(TimeoutError):
            await tools.run("search", {}, search, execution_id="e")

        found = await tools.get_execution("e")
        assert found is not None and (found.status, found.error) == (TIMED_OUT, "TimeoutError: slow")

    @pytest.mark.parametrize("mode", ["blocking"], indirect=True)  # an event loop would end with it
    async def test_an_interrupted_tool_is_cancelled_and_not_running_for_ever(self) -> None:
        tools = self.tools()

        def search(parameters: dict[str, Any]) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await tools.run("search", {}, search, execution_id="e")

        found = await tools.get_execution("e")
        assert found is not None and found.status is CANCELLED
        assert (await tools.get_tool_stats("search")).running == 0

    @only_async
    async def test_a_caller_that_gives_up_leaves_its_execution_cancelled(self) -> None:
        tools = self.tools()
        at_it = asyncio.Event()

        async def search(parameters: dict[str, Any]) -> None:
            at_it.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(tools.run("search", {}, search, execution_id="cancelled"))
        await at_it.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        async def search_too_long(parameters: dict[str, Any]) -> None:
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                await tools.run("search", {}, search_too_long, execution_id="late")

        for id in ("cancelled", "late"):
            found = await tools.get_execution(id)
            assert found is not None and found.status is CANCELLED
        stats = await tools.get_tool_stats("search")
        assert (stats.running, stats.cancelled) == (0, 2)
        assert (await tools.run("search", {}, lambda _: 1)).result == 1  # nobody holds it any more

    async def test_a_tool_that_takes_longer_than_its_lease_is_not_stale(self) -> None:
        tools, other = self.tools(), self.tools()
        seen: list[list[ToolExecution]] = []

        def search(parameters: dict[str, Any]) -> int:
            time.sleep(2.0)
            return 1

        async def look() -> None:
            await self.pass_time(1_500)
            seen.append(await other.get_stale_executions())

        async def work() -> None:
            await tools.run("search", {}, search if self.mode_name == "blocking" else slowly, lease_s=0.8)

        async def slowly(parameters: dict[str, Any]) -> int:
            await self.pass_time(2_000)
            return 1

        await self.together(work(), look())

        assert seen == [[]]

    async def test_what_a_tool_came_to_is_told_also_where_heartbeats_failed(self) -> None:
        store, tools, _ = await self.in_trouble(ToolStateManager)

        async def work(parameters: dict[str, Any]) -> int:
            store.is_full = True
            await self.pass_time(250)  # in which a heartbeat is due
            store.is_full = False
            if parameters["fails"]:
                raise ZeroDivisionError
            return 7

        def blocking(parameters: dict[str, Any]) -> int:
            return finish(work(parameters))

        tool = work if self.mode_name == "async" else blocking
        with pytest.raises(ZeroDivisionError):
            await tools.run("search", {"fails": True}, tool, lease_s=0.6, execution_id="failed")
        came = await tools.run("search", {"fails": False}, tool, lease_s=0.6, execution_id="done")

        assert came.result == 7
        for id, status in (("failed", FAILED), ("done", COMPLETED)):
            found = await tools.get_execution(id)
            assert found is not None and found.status is status
