"""`PausedRuns`: runs that wait for the approval of tool calls, as tasks whose questions people answer.

A run is a task, and each snapshot of it a recorded step. So one worker at a time continues a run, and what a
worker has recorded is not run again after it was killed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, cast

from keepstate.engine.queue.queue import Task
from keepstate.engine.queue.tasks import Put
from keepstate.engine.space.space import Space
from keepstate.errors import ApprovalClosedError, InvalidError, MissingExtraError

try:
    from agents import Agent, Runner, RunResult, RunState
    from agents.items import ToolApprovalItem
    from pydantic_core import to_jsonable_python
except ImportError as error:
    raise MissingExtraError.of("openai-agents", "openai-agents") from error

KIND: Final = "openai.run"
"""The kind of the tasks."""
_LATE: Final = "The question expired before it was answered."
_WITHDRAWN: Final = "The question was withdrawn."

AnyAgent: TypeAlias = Agent[Any]
State: TypeAlias = RunState[Any, AnyAgent]

_present: ContextVar[Task | None] = ContextVar("keepstate_openai_task", default=None)


def current_task() -> Task | None:
    """Return the task of the run that this tool is part of; None if no worker has resumed it.

    Use it for effects outside the process: `await task.step("pay/7", pay, order, once=True)` does not pay
    again if the run is continued after its worker was killed.
    """
    return _present.get()


class PausedRuns:
    """Paused runs of an agent in a space. People answer for their tool calls, and workers continue them.

    Each tool call that needs approval becomes an approval of the space: yes approves it, no rejects it with
    the note of the answer as the message for the model. Its subject has `agent`, `tool`, `arguments` and
    `call_id`. Once all calls of a snapshot are answered, one worker resumes it. If the run pauses again, its
    next snapshot is recorded and asks again.

    Args:
        agent: The agent that the runs began with, or a function that returns it for the id of a run.
        space: The space of the tasks and approvals.
        run: The function that continues a run, given its agent, its state with all decisions, and its id. By
            default `Runner.run(agent, state)`. Give one to pass a session or a run config.
        question: The function that returns the question about a tool call. By default its name and arguments.
        to: The people and groups who may answer. By default everyone but the author of the worker's handle.
        need: The number of different people who have to say yes.
        expires_s: Seconds for which people may answer. A call whose question has expired is rejected.
        context_serializer: Turns a context that is not a mapping into plain data; see `RunState.to_json`.
        context_deserializer: Turns that data into the context; see `RunState.from_json`.
    """

    def __init__(
        self,
        agent: AnyAgent | Callable[[str], AnyAgent],
        space: Space,
        *,
        run: Callable[[AnyAgent, State, str], Awaitable[RunResult]] | None = None,
        question: Callable[[ToolApprovalItem], str] | None = None,
        to: Sequence[str] = (),
        need: int = 1,
        expires_s: float | None = None,
        context_serializer: Callable[[Any], Any] | None = None,
        context_deserializer: Callable[[Any], Any] | None = None,
    ) -> None:
        if not isinstance(agent, Agent) and not callable(agent):
            raise InvalidError(f"`agent` is {agent!r}; give an Agent, or a function of a run's id")
        if not isinstance(cast("object", space), Space):
            raise InvalidError(f"`space` is {space!r}; give an asynchronous Space, such as ks.space('runs')")
        self._agent: AnyAgent | Callable[[str], AnyAgent] = agent
        self._space, self._run = space, run or _run
        self._question = question or _question
        self._asked: dict[str, Any] = {"to": to, "need": need, "expires_s": expires_s}
        self._serializer, self._deserializer = context_serializer, context_deserializer

    def __repr__(self) -> str:
        return f"<PausedRuns in {self._space!r}>"

    async def put(self, run_id: str, state: State, **put: Any) -> Put:
        """Store a paused run. A run whose id is stored already stays as it is.

        Args:
            run_id: The id of the run: the id of its task.
            state: The state of the run: `result.to_state()`.
            put: Options of the task; see `Queue.put`.

        Raises:
            InvalidError: The state is not one of a run that waits for approvals.
            UserError: The SDK cannot serialize the state.
        """
        if not isinstance(cast("object", state), RunState) or not state.get_interruptions():
            raise InvalidError(
                f"run {run_id!r} does not wait for approvals; give `result.to_state()` of a result with "
                "interruptions"
            )
        return await self._space.queue.put({"state": self._plain(state)}, id=run_id, kind=KIND, **put)

    async def resume(self, task: Task) -> Any:
        """Continue a run: the handler of `openai.run`, to pass to a worker.

        `space.queue.run({"openai.run": runs.resume})`. The result of the task is the final output of the run
        as plain data: `space.queue.result(run_id)`.

        Raises:
            InvalidError: The task is not a paused run.
            Suspended: A question is not answered. The task waits without a worker.
        """
        payload: object = task.payload
        if task.kind != KIND or not isinstance(payload, dict) or "state" not in payload:
            raise InvalidError(f"task {task.id!r} of kind {task.kind!r} is not a paused run")
        agent = self._agent(task.id) if callable(self._agent) else self._agent
        recorded = {step.name for step in await task.steps()}
        snapshot, number = cast("dict[str, Any]", payload), 0
        while "state" in snapshot:
            name, found = f"run/{number}", snapshot
            if name not in recorded:
                found = await self._continue(task, agent, snapshot["state"], number)
            snapshot, number = await task.step(name, _same, found), number + 1
        return snapshot["output"]

    async def _continue(
        self, task: Task, agent: AnyAgent, stored: dict[str, Any], number: int
    ) -> dict[str, Any]:
        """Run from a snapshot to the next one, or to the end."""
        state: State = await RunState.from_json(agent, stored, context_deserializer=self._deserializer)
        calls = state.get_interruptions()
        asking = (self._decide(task, state, call, f"call/{number}/{n}") for n, call in enumerate(calls))
        await asyncio.gather(*asking)
        marked = _present.set(task)
        try:
            result = await self._run(agent, state, task.id)
        finally:
            _present.reset(marked)
        if result.interruptions:
            return {"state": self._plain(result.to_state())}
        return {"output": to_jsonable_python(result.final_output)}

    async def _decide(self, task: Task, state: State, call: ToolApprovalItem, name: str) -> None:
        """Ask about a tool call, and write the decision into the state."""
        subject = {
            "agent": call.agent.name,
            "tool": call.qualified_name,
            "arguments": _arguments(call),
            "call_id": call.call_id,
        }
        note = _WITHDRAWN
        try:
            answer = await task.ask(name, self._question(call), default=False, subject=subject, **self._asked)
        except ApprovalClosedError:
            is_approved = False
        else:
            is_approved, note = answer.approved, answer.note if answer.by else _LATE
        if is_approved:
            state.approve(call)
        else:
            state.reject(call, rejection_message=note or None)

    def _plain(self, state: State) -> dict[str, Any]:
        return state.to_json(context_serializer=self._serializer)


async def _run(agent: AnyAgent, state: State, run_id: str) -> RunResult:
    return await Runner.run(agent, state)


def _same(found: dict[str, Any]) -> dict[str, Any]:
    return found


def _arguments(call: ToolApprovalItem) -> Any:
    """Return the arguments as plain data; as text if they are not JSON."""
    text = call.arguments
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _question(call: ToolApprovalItem) -> str:
    return f"May {call.agent.name} call {call.qualified_name}({call.arguments or ''})?"
