"""Runs that wait for people: each snapshot is resumed by one worker, and its tools act once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from agents import Agent, RunContextWrapper, Runner, RunState, function_tool
from agents.exceptions import UserError
from agents.items import ToolApprovalItem
from agents.testing import ScriptedModel, assistant_message, function_call
from agents.tool_context import ToolContext
from pydantic import BaseModel

import keepstate
from keepstate import Claim, Retry
from keepstate.adapters.openai_agents import KeepstateSession, PausedRuns, current_task
from keepstate.engine.queue.queue import Task
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError, LeaseLostError, TaskFailedError

DONE: tuple[Any, ...] = (assistant_message("done"),)


class Till:
    """An agent that pays only what people approve, and the payments that it made."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.fails_after_paying = 0

        @function_tool(needs_approval=True, failure_error_function=None)
        async def pay(ctx: ToolContext[Any], amount: int) -> str:
            """Pay an amount."""
            task = current_task()
            if task is None:
                return await self.pay(amount)
            done: str = await task.step(f"tool/{ctx.tool_call_id}", self.pay, amount, once=True)
            if self.fails_after_paying:
                self.fails_after_paying -= 1
                raise RuntimeError("the worker fails here")
            return done

        self.tool = pay

    async def pay(self, amount: int) -> str:
        self.paid.append(amount)
        return f"paid {amount}"

    def agent(self, *turns: Any, **options: Any) -> Agent[Any]:
        return Agent(name="till", model=ScriptedModel(turns), tools=[self.tool], **options)

    async def paused(self, *amounts: int, context: Any = None) -> RunState[Any, Any]:
        """Return the state of a run that waits for these payments."""
        result = await Runner.run(self.agent(calls(*amounts)), "pay the bills", context=context)
        assert self.paid == []
        return result.to_state()


def calls(*amounts: int) -> list[Any]:
    return [function_call("pay", {"amount": amount}, call_id=f"call_{amount}") for amount in amounts]


async def work(space: Space, runs: PausedRuns, worker: str = "w") -> None:
    await space.by("agent").queue.run(
        {"openai.run": runs.resume}, worker=worker, idle_s=0.3, retry=Retry(first_s=0.01), lease_s=10
    )


async def answer_all(space: Space, value: bool = True, note: str = "") -> list[str]:
    found = await space.approvals.pending()
    for each in found:
        await space.approvals.answer(each.id, value, by="bob", saw=each.digest, note=note)
    return [each.question for each in found]


@pytest.fixture
def till() -> Till:
    return Till()


async def test_an_approved_run_is_continued_once_by_any_number_of_workers(space: Space, till: Till) -> None:
    runs = PausedRuns(lambda _: till.agent(DONE), space)
    state = await till.paused(7)
    assert (await runs.put("run-1", state)).added
    assert not (await runs.put("run-1", state)).added
    await work(space, runs)
    assert till.paid == []

    [asked] = await space.approvals.pending()
    assert asked.question == 'May till call pay({"amount":7})?'
    assert asked.subject == {"agent": "till", "tool": "pay", "arguments": {"amount": 7}, "call_id": "call_7"}
    await space.approvals.answer(asked.id, True, by="bob", saw=asked.digest)
    await asyncio.gather(*(work(space, runs, f"w{n}") for n in range(3)))

    assert await space.queue.result("run-1") == "done"
    assert till.paid == [7]


async def test_a_refused_call_is_not_made_and_the_model_hears_why(space: Space, till: Till) -> None:
    model = ScriptedModel([DONE])
    agent = Agent(name="till", model=model, tools=[till.tool])
    runs = PausedRuns(agent, space)
    await runs.put("run-1", await till.paused(7))
    await work(space, runs)
    await answer_all(space, False, "too much")
    await work(space, runs)

    assert await space.queue.result("run-1") == "done"
    assert till.paid == []
    assert model.last_call is not None
    assert "too much" in str(model.last_call.input)


async def test_all_calls_of_a_snapshot_are_asked_at_once(space: Space, till: Till) -> None:
    runs = PausedRuns(
        lambda _: till.agent(DONE), space, to=["ann", "bob"], question=lambda call: f"{call.name}?"
    )
    await runs.put("run-1", await till.paused(1, 2, 3))
    await work(space, runs)

    asked = {each.id: each for each in await space.approvals.pending(to="ann")}
    first, second, third = (asked[f"run-1/call/0/{n}"] for n in range(3))
    await space.approvals.answer(first.id, True, by="ann")
    await space.approvals.answer(third.id, False, by="bob")
    await work(space, runs)
    assert (first.question, till.paid) == ("pay?", [])
    await space.approvals.answer(second.id, True, by="ann")
    await work(space, runs)

    assert await space.queue.result("run-1") == "done"
    assert sorted(till.paid) == [1, 2]


async def test_a_run_that_pauses_again_asks_again_from_its_next_snapshot(space: Space, till: Till) -> None:
    seen = list[str]()

    async def run(agent: Agent[Any], state: RunState[Any, Any], run_id: str) -> Any:
        seen.append(run_id)
        return await Runner.run(agent, state)

    runs = PausedRuns(till.agent(calls(2), DONE), space, run=run)
    await runs.put("run-1", await till.paused(1))
    for paid in ([1], [1, 2]):
        await work(space, runs)
        assert len(await answer_all(space)) == 1
        await work(space, runs)
        assert till.paid == paid

    assert await space.queue.result("run-1") == "done"
    assert seen == ["run-1", "run-1"]


async def test_a_run_that_fails_after_its_tool_acts_does_not_act_again(space: Space, till: Till) -> None:
    runs = PausedRuns(lambda _: till.agent(DONE), space)
    await runs.put("run-1", await till.paused(7))
    await work(space, runs)
    till.fails_after_paying = 2
    await answer_all(space)
    await work(space, runs)

    assert await space.queue.result("run-1") == "done"
    assert till.paid == [7]
    assert len(await space.queue.attempts("run-1")) == 3


async def test_a_worker_that_lost_its_lease_records_nothing(space: Space, till: Till) -> None:
    runs = PausedRuns(lambda _: till.agent(DONE), space)
    await runs.put("run-1", await till.paused(7))
    await work(space, runs)
    await answer_all(space)
    entered, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(agent: Agent[Any], state: RunState[Any, Any], run_id: str) -> Any:
        entered.set()
        await goes_on.wait()
        return await Runner.run(agent, state)

    [task] = await space.queue.claim("slow", lease_s=600)
    lost = asyncio.create_task(PausedRuns(till.agent(DONE), space, run=slow).resume(task))
    await entered.wait()
    await space.queue.release(Claim(task.id, task.token))  # as if its lease had lapsed
    await work(space, runs)
    goes_on.set()

    with pytest.raises((LeaseLostError, UserError), match="no longer held by this claim"):
        await lost
    assert await space.queue.result("run-1") == "done"
    assert till.paid == [7]


@pytest.mark.parametrize("ends", ["expires", "withdrawn"])
async def test_a_question_without_an_answer_rejects_its_call(space: Space, till: Till, ends: str) -> None:
    model = ScriptedModel([DONE])
    agent = Agent(name="till", model=model, tools=[till.tool])
    runs = PausedRuns(agent, space, expires_s=0.4 if ends == "expires" else None)
    await runs.put("run-1", await till.paused(7))
    await work(space, runs)
    if ends == "withdrawn":
        [asked] = await space.approvals.pending()
        await space.approvals.withdraw(asked.id, by="bob")
    await asyncio.sleep(0.5)
    await work(space, runs)

    assert await space.queue.result("run-1") == "done"
    assert till.paid == []
    assert model.last_call is not None
    assert ends[:6] in str(model.last_call.input)


@dataclass
class Shop:
    name: str


class Receipt(BaseModel):
    total: int


async def test_contexts_and_outputs_of_classes_are_plain_data_in_the_store(space: Space, till: Till) -> None:
    seen = list[Any]()
    model = ScriptedModel([(assistant_message('{"total": 7}'),)])

    def instructions(wrapper: RunContextWrapper[Any], _: Agent[Any]) -> str:
        seen.append(wrapper.context)
        return "be brief"

    agent = Agent[Any](
        name="till", model=model, tools=[till.tool], output_type=Receipt, instructions=instructions
    )
    runs = PausedRuns(
        agent,
        space,
        context_serializer=lambda shop: {"name": shop.name},
        context_deserializer=lambda plain: Shop(**plain),
    )
    await runs.put("run-1", await till.paused(7, context=Shop("corner")))
    await work(space, runs)
    await answer_all(space)
    await work(space, runs)

    assert await space.queue.result("run-1") == {"total": 7}
    assert seen == [Shop("corner")]


async def test_a_resumed_run_goes_on_in_its_session(any_url: str, till: Till) -> None:
    async with keepstate.open(any_url) as ks, KeepstateSession("1", ks) as session:
        space = ks.space("runs")
        first = await Runner.run(till.agent(calls(7)), "pay the bill", session=session)
        runs = PausedRuns(
            till.agent(DONE), space, run=lambda agent, state, _: Runner.run(agent, state, session=session)
        )
        await runs.put("run-1", first.to_state())
        await work(space, runs)
        await answer_all(space)
        await work(space, runs)

        kinds = [each.get("type") or each.get("role") for each in await session.get_items()]
        assert kinds == ["user", "function_call", "function_call_output", "message"]


async def test_wrong_arguments_are_told(space: Space, till: Till) -> None:
    runs = PausedRuns(till.agent(), space)
    ended = await Runner.run(till.agent(DONE), "hello")
    make: Callable[..., Any] = PausedRuns

    with pytest.raises(InvalidError, match="does not wait for approvals"):
        await runs.put("run-1", ended.to_state())
    with pytest.raises(InvalidError, match="does not wait for approvals"):
        await runs.put("run-1", "a snapshot")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="`agent`"):
        make("till", space)
    with pytest.raises(InvalidError, match="`space`"):
        make(till.agent(), "runs")

    await space.queue.put({"other": 1}, id="task-1")

    async def handle(task: Task) -> Any:
        return await runs.resume(task)

    await space.queue.run(handle, idle_s=0.1, retry=Retry(never=(InvalidError,)))
    with pytest.raises(TaskFailedError, match="not a paused run"):
        await space.queue.result("task-1")
    assert isinstance((await till.paused(1)).get_interruptions()[0], ToolApprovalItem)
