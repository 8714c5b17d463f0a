"""Do the retries and the effects of tools do the same on every backend?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from keepstate.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    LeaseLostError,
    NotFoundError,
    TransitionError,
)
from keepstate.managers.tools.manager import ToolStateManager
from keepstate.managers.tools.records import (
    EffectStatus,
    RetryState,
    ToolEffect,
    ToolExecution,
    ToolExecutionStatus,
)
from tests.contracts.managers.stage import ManagerStage

PENDING, RUNNING = ToolExecutionStatus.PENDING, ToolExecutionStatus.RUNNING
COMPLETED, FAILED = ToolExecutionStatus.COMPLETED, ToolExecutionStatus.FAILED
CANCELLED = ToolExecutionStatus.CANCELLED
NAIVE = datetime(2001, 1, 1, 12, 30)


class EffectContract(ManagerStage):
    """What a `ToolStateManager` does for what is tried again, and for what must not be."""

    def tools(self, **options: Any) -> ToolStateManager:
        return self.made(ToolStateManager, **options)

    async def ran(self, tools: ToolStateManager, id: str, result: Any = None, tool: str = "search") -> None:
        await tools.start_execution(ToolExecution(id, tool, parameters={"query": id}))
        await tools.complete_execution(id, result)

    # ---- retries

    async def test_retries_are_listed_in_the_order_in_which_they_are_due(self) -> None:
        tools = self.tools()
        now, naive_now = datetime.now(UTC), datetime.now()
        at = {
            "c": naive_now + timedelta(seconds=30),
            "a": naive_now - timedelta(hours=1),
            "d": now + timedelta(seconds=60),
            "b": now + timedelta(seconds=10),
        }
        for id, moment in at.items():
            await tools.update_retry_state(RetryState(id, 2, 5, "timeout", moment, 2.0))
        await tools.update_retry_state(RetryState("spent", 5, 5, "timeout", naive_now))
        await tools.update_retry_state(RetryState("at once", 1))
        found = await self.tools().get_pending_retries()

        assert [retry.execution_id for retry in found] == ["a", "at once", "b", "c", "d"]
        assert [retry.next_retry_at for retry in found] == [at["a"], None, at["b"], at["c"], at["d"]]
        assert [retry.execution_id for retry in await tools.get_pending_retries(limit=2)] == ["a", "at once"]
        assert (await tools.get_retry_state("spent")) == RetryState("spent", 5, 5, "timeout", naive_now)

    async def test_a_retry_is_replaced_and_goes_with_its_execution(self) -> None:
        tools = self.tools()
        await tools.start_execution(ToolExecution("e", "search"))
        for attempts in (1, 2):
            await tools.update_retry_state(RetryState("e", attempts))
        pending = await tools.get_pending_retries()
        await tools.complete_execution("e")
        await tools.update_retry_state(RetryState("f", 1))

        assert [retry.attempts for retry in pending] == [2]
        assert [retry.execution_id for retry in await tools.get_pending_retries()] == ["f"]
        assert await tools.get_retry_state("e") is None
        assert await tools.cancel_retry("f") and not await tools.cancel_retry("f")
        assert await tools.get_pending_retries() == []

    async def test_a_scheduled_retry_waits_longer_each_time(self) -> None:
        tools = self.tools()
        waits: list[float] = []
        for _ in range(5):
            began = datetime.now(UTC)
            retry = await tools.schedule_retry(
                "e", OSError("cut"), max_attempts=5, first_delay_s=10, longest_delay_s=50
            )
            assert retry.next_retry_at is not None
            assert retry.last_error == "OSError: cut"
            waits.append((retry.next_retry_at - began).total_seconds())

        assert [round(wait_s / 10) for wait_s in waits] == [1, 2, 4, 5, 5]
        assert await tools.get_pending_retries() == []
        for wrong in (RetryState("e", -1), RetryState("e", backoff_factor=0.5)):
            with pytest.raises(InvalidError):
                await tools.update_retry_state(wrong)

    async def test_what_is_over_is_not_tried_again(self) -> None:
        tools = self.tools()
        await self.ran(tools, "done")
        await tools.start_execution(ToolExecution("given up", "search"))
        await tools.cancel_execution("given up")

        for id in ("done", "given up"):
            with pytest.raises(TransitionError, match="cannot be retried"):
                await tools.update_retry_state(RetryState(id, 1))
            with pytest.raises(TransitionError, match="cannot be retried"):
                await tools.schedule_retry(id, "late report")
            assert await tools.get_retry_state(id) is None
        assert await tools.get_pending_retries() == []

    async def test_cleanup_removes_retries_of_unknown_executions_that_have_no_attempts_left(self) -> None:
        tools = self.tools()
        await tools.start_execution(ToolExecution("known", "search"))
        for id, most in (("spent", 1), ("known", 1), ("pending", 2)):
            await tools.schedule_retry(id, "no", max_attempts=most)
        early = await tools.cleanup(older_than=timedelta(hours=1))
        await self.pass_time(20)
        removed = await tools.cleanup(older_than=timedelta(0))

        assert (early, removed) == (0, 1)
        left = [id for id in ("spent", "known", "pending") if await tools.get_retry_state(id) is not None]
        assert left == ["known", "pending"]

    # ---- effects

    async def test_an_effect_whose_result_cannot_be_kept_was_done_all_the_same(self) -> None:
        tools = self.tools()
        paid: list[str] = []

        def pay() -> object:
            paid.append("paid")
            return object()

        for _ in range(2):
            with pytest.raises(InvalidError):
                await tools.perform_effect("order", pay)

        found = await tools.get_effect("order")
        assert paid == ["paid"] and found is not None
        assert (found.status, found.result) == (EffectStatus.DONE, None)
        assert found.error is not None and "object" in found.error
        assert await tools.get_unknown_effects() == []

    async def test_an_effect_is_done_once(self) -> None:
        tools, other = self.tools(), self.tools()
        paid: list[str] = []

        def pay() -> str:
            paid.append("paid")
            return f"receipt {len(paid)}"

        answers = [
            await tools.perform_effect("order 1", pay),
            await other.perform_effect("order 1", pay),
            await other.perform_effect("order 1", pay, name="refund"),
        ]
        effect = await other.get_effect("order 1")

        assert answers == ["receipt 1", "receipt 1", "receipt 2"]
        assert effect is not None and (effect.status, effect.result) == (EffectStatus.DONE, "receipt 1")
        assert await other.get_effect("order 2") is None

    async def test_what_was_begun_and_not_ended_is_unknown_and_not_done_again(self) -> None:
        tools, other = self.tools(), self.tools()
        await tools.begin_effect("during", lease_s=600)
        during = await other.get_effect("during")
        with pytest.raises(ConflictError):
            await other.perform_effect("during", lambda: "twice")
        begun = await tools.begin_effect("order", lease_s=0.03)  # and then its process dies
        await self.pass_time(40)
        unknown = await other.get_unknown_effects()
        with pytest.raises(TransitionError, match="settle_effect"):
            await other.perform_effect("order", lambda: "twice")

        assert during is not None and during.status is EffectStatus.STARTED
        assert [(effect.execution_id, effect.status) for effect in unknown] == [
            ("order", EffectStatus.UNKNOWN)
        ]
        await other.settle_effect("order", is_done=False)
        assert await other.get_unknown_effects() == []
        assert await other.perform_effect("order", lambda: "once") == "once"
        with pytest.raises(LeaseLostError):
            await tools.end_effect(begun, "late")
        with pytest.raises(TransitionError):
            await tools.settle_effect("order", is_done=True)

    async def test_an_exception_leaves_it_unknown_unless_it_is_harmless(self) -> None:
        tools = self.tools()

        def cut() -> str:
            raise OSError("connection cut")

        with pytest.raises(OSError, match="cut"):
            await tools.perform_effect("harmless", cut, harmless=(OSError,))
        with pytest.raises(OSError, match="cut"):
            await tools.perform_effect("unknown", cut)

        assert await tools.perform_effect("harmless", lambda: 1) == 1
        (unknown,) = await tools.get_unknown_effects()
        assert (unknown.execution_id, unknown.error) == ("unknown", "OSError: connection cut")
        await tools.settle_effect("unknown", is_done=True, result="receipt")
        assert await tools.perform_effect("unknown", cut) == "receipt"

    async def test_what_an_effect_raises_is_told_also_where_the_store_is_away_by_then(self) -> None:
        store, tools, _ = await self.in_trouble(ToolStateManager)

        def decline() -> None:
            store.takes_nothing = True
            raise ZeroDivisionError

        for id, harmless in (("unknown", ()), ("harmless", (ZeroDivisionError,))):
            with pytest.raises(ZeroDivisionError):
                await tools.perform_effect(id, decline, lease_s=0.03, harmless=harmless)
            store.takes_nothing = False
        await self.pass_time(40)

        unknown = await tools.get_unknown_effects()  # until somebody looks: nobody could note its end
        assert [effect.execution_id for effect in unknown] == ["harmless", "unknown"]

    async def test_cleanup_leaves_an_effect_that_is_begun_again_while_it_is_at_work(self) -> None:
        store, tools, others = await self.in_trouble(ToolStateManager)
        await tools.refute_effect(await tools.begin_effect("order"), "no connection")
        await self.pass_time(20)
        begun: list[ToolEffect] = []

        async def begin() -> None:
            begun.append(await others.begin_effect("order"))

        store.meanwhile = begin
        assert await tools.cleanup(older_than=timedelta(0)) == 0
        with pytest.raises(AlreadyExistsError):
            await tools.begin_effect("order")
        await others.end_effect(begun[0], "receipt")

    async def test_what_was_never_begun_cannot_end(self) -> None:
        tools = self.tools()
        effect = ToolEffect("order", "effect", EffectStatus.STARTED)
        for change in (
            tools.end_effect(effect),
            tools.refute_effect(effect, "no"),
            tools.settle_effect("order", is_done=True),
        ):
            with pytest.raises(NotFoundError, match="'order' was never begun"):
                await change

    async def test_a_late_end_counts(self) -> None:
        tools = self.tools()
        effect = await tools.begin_effect("order", lease_s=0.01)
        await self.pass_time(20)
        await tools.end_effect(effect, "late")
        await tools.end_effect(effect, "late")

        found = await tools.get_effect("order")
        assert found is not None and (found.status, found.result) == (EffectStatus.DONE, "late")
        with pytest.raises(TransitionError):
            await tools.refute_effect(effect, "no")
