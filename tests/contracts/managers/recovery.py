"""`AgentRecoveryManager`: an agent goes on from where it was, once at a time and so many times."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from keepstate.errors import (
    AttemptsExhaustedError,
    ConflictError,
    InvalidError,
    LeaseLostError,
    NotFoundError,
)
from keepstate.managers.agents import AgentRecoveryManager, AgentStateStore
from keepstate.testing.store_contract.stage import only_async
from tests.contracts.managers.agents import checkpoint
from tests.contracts.managers.stage import ManagerStage


class Agent:
    """An agent of blocking use, or of any."""

    def __init__(self, id: str = "a", *, failures: int = 0) -> None:
        self.id, self.failures = id, failures
        self.restored: list[Any] = []

    def restore_from_checkpoint(self, state: Any) -> Any:
        self.restored.append(state)

    def run(self, task: Any) -> str:
        return self._work(f"ran {task}")

    def resume(self) -> str:
        return self._work("resumed")

    def _work(self, done: str) -> str:
        if self.failures:
            self.failures -= 1
            raise ConnectionError(f"{self.failures} more")
        return done


class RecoveryContract(ManagerStage):
    """What an `AgentRecoveryManager` does, whatever it is kept in."""

    def recovery(self, **options: Any) -> tuple[AgentStateStore, AgentRecoveryManager]:
        agents = self.made(AgentStateStore)
        options = {"backoff_s": 0, **options}
        return agents, AgentRecoveryManager(agents, **options, _mode=self.mode_name)

    async def test_an_agent_is_restored_from_the_latest_or_a_named_checkpoint(self) -> None:
        agents, recovery = self.recovery()
        agent = Agent()
        recovery.register(agent)
        for step in range(1, 12):
            await agents.save_checkpoint(checkpoint(f"step_{step}", step, recoverable=step != 11))
        latest = await recovery.recover(agent_id="a", from_checkpoint="latest")
        named = await recovery.recover("a", "step_9")

        assert bool(latest)
        assert (latest.checkpoint.step, latest.attempt, latest.attempts_left) == (10, 1, 2)
        assert named.checkpoint.step == 9 and agent.restored == [{"step": 10}, {"step": 9}]

    async def test_what_cannot_be_recovered_is_told(self) -> None:
        agents, recovery = self.recovery()
        agent = Agent()
        with pytest.raises(NotFoundError, match="register"):
            await recovery.recover("a")
        recovery.register(agent)
        with pytest.raises(NotFoundError):
            await recovery.recover("a")
        await agents.save_checkpoint(checkpoint("c", 1, recoverable=False))
        with pytest.raises(NotFoundError):
            await recovery.recover("a", "c")

        assert agent.restored == [] and await recovery.attempts("a") == 0

    async def test_agents_are_held_weakly(self) -> None:
        agents, recovery = self.recovery()
        await agents.save_checkpoint(checkpoint("c", 1))
        recovery.register(Agent())

        with pytest.raises(NotFoundError, match="register"):
            await recovery.recover("a")

    async def test_attempts_are_counted_in_the_store_until_the_agent_gets_further(self) -> None:
        agents, recovery = self.recovery(max_recovery_attempts=2)
        agent = Agent()
        recovery.register(agent)
        await agents.save_checkpoint(checkpoint("c", 1))
        await recovery.recover("a")
        _, restarted = self.recovery(max_recovery_attempts=2)
        restarted.register(agent)
        await restarted.recover("a")

        with pytest.raises(AttemptsExhaustedError) as exhausted:
            await recovery.recover("a")
        assert exhausted.value.attempts == 2 and len(agent.restored) == 2
        await agents.save_checkpoint(checkpoint("d", 2))
        assert (await recovery.recover("a")).attempt == 1
        await recovery.reset("a")
        assert await recovery.attempts("a") == 0

    async def test_run_restores_and_resumes_until_it_is_done(self) -> None:
        agents, recovery = self.recovery()
        agent = Agent(failures=2)
        await agents.save_checkpoint(checkpoint("c", 1))

        assert await recovery.run(agent, "task") == "resumed"
        assert len(agent.restored) == 2 and await recovery.attempts("a") == 0
        assert await recovery.run(agent, "more") == "ran more"

    async def test_an_agent_that_always_fails_is_given_up_with_its_last_failure(self) -> None:
        agents, recovery = self.recovery(max_recovery_attempts=2)
        agent = Agent(failures=10)
        await agents.save_checkpoint(checkpoint("c", 1))

        with pytest.raises(AttemptsExhaustedError) as exhausted:
            await recovery.run(agent, "task")
        assert isinstance(exhausted.value.__cause__, ConnectionError) and len(agent.restored) == 2

    async def test_an_agent_that_saves_a_checkpoint_and_fails_each_time_is_given_up(self) -> None:
        agents, recovery = self.recovery(max_recovery_attempts=2)
        agent = Agent(failures=10)
        await agents.save_checkpoint(checkpoint("c", 1))

        with pytest.raises(AttemptsExhaustedError):
            await recovery.run(agent, "task")
        await agents.save_checkpoint(checkpoint("once more", 1))
        with pytest.raises(AttemptsExhaustedError):
            await recovery.run(agent, "task")
        assert len(agent.restored) == 2

    async def test_a_failure_while_it_is_restored_counts_as_any_other(self) -> None:
        agents, recovery = self.recovery(max_recovery_attempts=2)
        await agents.save_checkpoint(checkpoint("c", 1))

        class Fragile(Agent):
            def restore_from_checkpoint(self, state: Any) -> None:
                super().restore_from_checkpoint(state)
                if len(self.restored) == 1:
                    raise OSError("no memory yet")

        agent = Fragile(failures=1)
        assert await recovery.run(agent, "task") == "resumed" and len(agent.restored) == 2
        agent = Fragile()
        recovery.register(agent)
        with pytest.raises(OSError, match="no memory"):
            await recovery.recover("a")
        assert await recovery.attempts("a") == 1

    async def test_without_checkpoint_or_wish_the_agent_s_own_failure_is_raised(self) -> None:
        agents, recovery = self.recovery()
        _, unwilling = self.recovery(auto_recover=False)

        with pytest.raises(ConnectionError):
            await recovery.run(Agent(failures=1), "task")
        await agents.save_checkpoint(checkpoint("c", 1))
        with pytest.raises(ConnectionError):
            await unwilling.run(Agent(failures=1), "task")

    async def test_one_recovers_an_agent_at_a_time(self) -> None:
        agents, recovery = self.recovery()
        _, other = self.recovery()
        await agents.save_checkpoint(checkpoint("c", 1))
        told: list[type[Exception]] = []

        class Nested(Agent):
            def restore_from_checkpoint(self, state: Any) -> Any:
                super().restore_from_checkpoint(state)
                return refused()

        async def refused() -> None:
            try:
                await other.recover("a")
            except ConflictError as error:
                told.append(type(error))

        agent = Nested()
        recovery.register(agent)
        other.register(agent)
        await recovery.recover("a")

        assert told == [ConflictError] and len(agent.restored) == 1
        assert (await recovery.recover("a")).attempt == 2

    async def test_who_fails_while_another_recovers_the_agent_is_told_of_its_own_failure(self) -> None:
        agents, recovery = self.recovery()
        _, other = self.recovery()
        await agents.save_checkpoint(checkpoint("c", 1))
        failures: list[Exception] = []

        class Nested(Agent):
            def restore_from_checkpoint(self, state: Any) -> Any:
                return run()

        async def run() -> None:
            try:
                await other.run(Failing(failures=1))
            except ConnectionError as error:
                failures.append(error)

        class Failing(Agent):
            def _work(self, done: str) -> str:
                try:
                    return super()._work(done)
                except ConnectionError as error:
                    raise error from KeyError("why")

        await recovery.run(Nested(failures=1))

        (failure,) = failures
        assert isinstance(failure.__cause__, KeyError)
        assert f"held by process {os.getpid()} on " in "".join(failure.__notes__)

    @only_async
    @pytest.mark.parametrize("by", ["recover", "run"])
    async def test_who_lost_the_agent_while_restoring_it_does_not_resume_it(self, by: str) -> None:
        agents, recovery = self.recovery(claim_s=1.0)
        await agents.save_checkpoint(checkpoint("c", 1))
        space = self.run_space() if self.in_passed_space else self.handle().space("agent/a")
        name = "agent/a/recovery" if self.in_passed_space else "recovery"

        class Asleep(Agent):
            async def restore_from_checkpoint(self, state: Any) -> None:
                super().restore_from_checkpoint(state)
                time.sleep(1.4)  # holds up the loop, and with it who renews the claim
                await (await space.leases.acquire(name, 60, wait_s=60)).check()

        agent = Asleep(failures=1)
        recovery.register(agent)
        if by == "recover":
            with pytest.raises(LeaseLostError):
                await recovery.recover("a")
        else:
            with pytest.raises(ConnectionError) as failed:
                await recovery.run(agent, "task")
            assert "no longer held" in "".join(failed.value.__notes__)
        assert len(agent.restored) == 1

    async def test_a_claim_of_who_died_ends_after_the_time_that_was_said(self) -> None:
        (agents, recovery), (_, died) = self.recovery(), self.recovery(claim_s=0.2)
        await agents.save_checkpoint(checkpoint("c", 1))
        agent = Agent()
        recovery.register(agent)
        space = self.run_space() if self.in_passed_space else self.handle().space("agent/a")
        name = "agent/a/recovery" if self.in_passed_space else "recovery"
        held = await space.leases.acquire(name, 600)
        with pytest.raises(ConflictError):
            await recovery.recover("a")
        await held.release()
        await space.leases.acquire(name, died.claim_s)
        await self.pass_time(250)

        assert (await recovery.recover("a")).attempt == 1
        for wrong in (0, -1, "1"):
            with pytest.raises(InvalidError, match="`claim_s`"):
                self.recovery(claim_s=wrong)

    @pytest.mark.parametrize("step", [1, 2], ids=["no further", "further"])
    async def test_the_second_attempt_waits_also_where_the_agent_has_got_further(self, step: int) -> None:
        agents, recovery = self.recovery(backoff_s=0.1)
        agent = Agent()
        recovery.register(agent)
        await agents.save_checkpoint(checkpoint("c", 1))
        folder = self.run_space() if self.in_passed_space else self.handle().space("agent/a")
        await recovery.recover("a")
        between = await folder.now()
        await agents.save_checkpoint(checkpoint("d", step))
        again = await recovery.recover("a")

        assert (await folder.now() - between).total_seconds() > 0.05
        assert again.attempt == (2 if step == 1 else 1)
