"""Tasks of an agent: ordinary functions that may remember, or empty ones that a policy carries out.

A policy is where a language model goes: a callable that is given the task, its inputs and a view of the
state, and returns Python source for the next step, until a step calls `task_success(value)` or
`task_fail(message)`.
"""

from __future__ import annotations

import dis
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from keepstate._clock import SYSTEM_CLOCK
from keepstate._finish import finish
from keepstate._runner import Runner, runner_of
from keepstate.errors import InvalidError, KeepstateError, TaskFailedError
from keepstate.values import limits
from keepstate.values.fit import fit
from keepstate.workspace.bindings import Executor, Modules
from keepstate.workspace.live import Live
from keepstate.workspace.steps import Namespace, TaskGaveUp, TaskSucceeded, execute, told
from keepstate.workspace.task_events import (
    ActionEvent,
    ErrorEvent,
    FailEvent,
    OutputEvent,
    SuccessEvent,
    TaskEvent,
    TaskStartEvent,
)
from keepstate.workspace.versioned import Versioned
from keepstate.workspace.views import view

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

TaskState: TypeAlias = Live | Versioned
"""What a task may remember on."""

Step: TypeAlias = str | tuple[str, str]
"""The source of a step; or that, and what the policy thought."""

Policy = Callable[["AgentTask", dict[str, Any], str], Step | Awaitable[Step]]
"""Returns the next step, given the task, its inputs, and what `view` tells of the state."""

_EMPTY_CODE: Final = frozenset({
    "RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "RETURN_GENERATOR", "POP_TOP", "RERAISE",
    "CALL_INTRINSIC_1", "NOT_TAKEN", "JUMP_FORWARD",
})  # fmt: skip


class AgentTask:
    """What a policy is told of its task.

    Attributes:
        name: Of the function.
        message: Its docstring: what is to be done.
        signature: Its parameters and its result, with their types.
    """

    def __init__(self, agent: Agent, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self.message = inspect.getdoc(function) or ""
        self.signature = inspect.signature(function)
        self.agent_name = agent.name
        self._agent, self._function = agent, function
        self._takes_state = "state" in self.signature.parameters
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidError(f"task {self.name!r} is a generator, and would end before its body has run")
        self._is_empty = _is_empty(function)
        if self._is_empty and agent.policy is None:
            raise InvalidError(
                f"task {self.name!r} has no body, and agent {agent.name!r} has no policy to carry it out; "
                "write the body, or give Agent(policy=…)"
            )

    def __repr__(self) -> str:
        return f"<task {self.name}{self.signature} of agent {self.agent_name!r}>"

    @functools.cached_property
    def result_type(self) -> Any:
        """The type that the result must fit; Any where none was said, or none can be found."""
        try:
            return typing.get_type_hints(self._function).get("return", Any)
        except (NameError, TypeError):
            return Any

    async def call(
        self, state: TaskState | None, args: tuple[Any, ...], kwargs: dict[str, Any], runner: Runner
    ) -> Any:
        """Carry the task out, in its body or by the agent's policy, and return its result."""
        if self._takes_state:
            kwargs = {**kwargs, "state": state}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidError(f"task {self.name}{self.signature} was called wrongly: {error}") from error
        bound.apply_defaults()
        inputs = {name: value for name, value in bound.arguments.items() if name != "state"}
        run = _Run(self, state, runner)
        await run.begin(inputs)
        try:
            if self._is_empty:
                return await run.carry_out(self._agent, inputs)
            result = self._function(*bound.args, **bound.kwargs)
            if inspect.isawaitable(result):
                result = await result
        except TaskFailedError:
            raise
        except (Exception, SystemExit) as error:
            await run.broke_off(error)
            raise
        await run.keep(run.event(SuccessEvent, result=result))
        return result


class _Run:
    """One call of a task."""

    def __init__(self, task: AgentTask, state: TaskState | None, runner: Runner) -> None:
        self._task, self._runner = task, runner
        # A task without state has a memory of its own while it runs: its policy sees what it did so far.
        self._state: TaskState = Live() if state is None else state

    def event(self, kind: type[TaskEvent], **facts: Any) -> TaskEvent:
        """Return what happens just now."""
        now = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC)
        return kind(timestamp=now, agent_name=self._task.agent_name, task_name=self._task.name, **facts)

    async def keep(self, *happened: TaskEvent, step: int | None = None) -> None:
        """Keep what happened with what it changed; a step is a commit of its own, whatever it changed."""
        message = self._task.name if step is None else f"{self._task.name}, step {step}"
        await self._beside(lambda: self._state.remember(happened, message=message, always=step is not None))

    async def _beside(self, call: Callable[[], T]) -> T:
        """Return what a call returns that may wait for a store; an event loop goes on meanwhile."""
        return await self._runner.call(call)

    async def begin(self, inputs: dict[str, Any]) -> None:
        """Make the state ready, and tell that the task begins."""
        await self._beside(lambda: self._state.get_ready(self._task.agent_name))
        await self.keep(self.event(TaskStartEvent, inputs=inputs, message=self._task.message))

    async def broke_off(self, error: BaseException) -> None:
        """Tell of an error that ends the task; what it has changed is kept, so that it can be looked at."""
        events = [*self._without_refused(), self.event(ErrorEvent, error=told(error), recoverable=False)]
        # The error may be that nothing can be kept; then it is the one to be raised.
        with suppress(KeepstateError):
            await self.keep(*events)

    async def carry_out(self, agent: Agent, inputs: dict[str, Any]) -> Any:
        """Ask the policy for step after step."""
        state = self._state
        if isinstance(state, Live):
            with state.names() as names:
                namespace = Namespace(inputs, state, names, agent.executor, None, agent.modules)
                return await self._carry_out(agent, inputs, namespace)
        namespace = Namespace(inputs, state, {}, agent.executor, state.codec, agent.modules)
        return await self._carry_out(agent, inputs, namespace)

    async def _carry_out(self, agent: Agent, inputs: dict[str, Any], namespace: Namespace) -> Any:
        await self._take(namespace)
        for number in range(1, agent.max_steps + 1):
            action = await self._asked(agent, inputs)
            happened, end = self._step(agent, namespace, action)
            await self._keep_storable(happened, end, number, namespace.refused)
            for event in end:
                if isinstance(event, SuccessEvent):
                    return event.result
                if isinstance(event, FailEvent):
                    raise self._failure(event.message)
            await self._take(namespace)
        message = f"no end after {agent.max_steps} steps"
        await self.keep(self.event(FailEvent, message=message))
        raise self._failure(message)

    async def _take(self, namespace: Namespace) -> None:
        """Bind the variables to their names, and tell of those that could not be."""
        now = await self._beside(lambda: dict(self._state))
        missing = [
            self.event(
                ErrorEvent,
                error=f"{name} cannot be made again from what is stored: {reason}; define or import it again",
                recoverable=True,
            )
            for name, reason in namespace.take(now).items()
        ]
        if missing:
            await self.keep(*missing)

    async def _asked(self, agent: Agent, inputs: dict[str, Any]) -> tuple[str, str]:
        """Return the source of the next step, and what the policy thought."""
        assert agent.policy is not None
        shown = await self._beside(lambda: view(self._state))
        step: Any = agent.policy(self._task, dict(inputs), shown)
        if inspect.isawaitable(step):
            step = await step
        match step:
            case str(source):
                return source, ""
            case (str(source), str(thinking)):
                return source, thinking
            case _:
                raise InvalidError(
                    f"the policy of agent {agent.name!r} returned {step!r}; it returns source, or source and "
                    "what it thought"
                )

    def _step(
        self, agent: Agent, namespace: Namespace, action: tuple[str, str]
    ) -> tuple[list[TaskEvent], list[TaskEvent]]:
        """Run one step, and return what happened, and how it ended, if it did not just go on."""
        source, thinking = action
        happened = [self.event(ActionEvent, code=source, thinking=thinking)]
        end: list[TaskEvent] = []
        try:
            namespace.run(source)
        except TaskSucceeded as success:
            end = [self._result(success.result)]
        except TaskGaveUp as failure:
            end = [self.event(FailEvent, message=failure.message)]
        except (Exception, SystemExit) as error:  # noqa: BLE001  a step's own errors are for the policy
            end = [self.event(ErrorEvent, error=told(error), recoverable=True)]
        if namespace.printed:
            happened.append(self.event(OutputEvent, parts=list(namespace.printed)))
        return happened, end

    async def _keep_storable(
        self,
        happened: list[TaskEvent],
        end: list[TaskEvent],
        number: int,
        reasons: Mapping[str, InvalidError],
    ) -> None:
        """Keep a step; of variables that cannot be stored, what they had before it."""
        try:
            await self.keep(*happened, *end, step=number)
        except InvalidError:
            if not (refused := self._without_refused(reasons)):
                raise
            await self.keep(*happened, *refused, *end, step=number)

    def _result(self, result: object) -> TaskEvent:
        try:
            return self.event(SuccessEvent, result=fit(result, self._task.result_type))
        except InvalidError as error:
            return self.event(ErrorEvent, error=f"the result does not fit: {error}", recoverable=True)

    def _without_refused(self, reasons: Mapping[str, InvalidError] = MappingProxyType({})) -> list[TaskEvent]:
        """Take back variables that cannot be stored, and tell of each."""
        refused = {name: reasons.get(name, error) for name, error in self._state.refused().items()}
        self._state.restore([*refused])
        return [
            self.event(ErrorEvent, error=f"{name} is not kept after this step: {error}", recoverable=True)
            for name, error in refused.items()
        ]

    def _failure(self, message: str) -> TaskFailedError:
        return TaskFailedError(f"task {self._task.name!r} failed: {message}", task=self._task.name)


class Agent:
    """Somebody who has tasks.

    Args:
        name: Stands in the events.
        policy: Carries out tasks whose body is empty.
        executor: Runs the policy's source, and the definitions that a state keeps of earlier steps. By
            default in this process, with all that this process may do.
        imports: Modules, with all below them, that variables may be imported from again. By default the
            standard library, installed packages, and what the process had imported before any step did.
        max_steps: How many steps a policy may take for one task.
    """

    def __init__(
        self,
        name: str = "agent",
        *,
        policy: Policy | None = None,
        executor: Executor | None = None,
        imports: Collection[str] | None = None,
        max_steps: int = 100,
    ) -> None:
        limits.admit_count("max_steps", max_steps)
        self.name, self.policy, self.max_steps = name, policy, max_steps
        self.executor: Executor = executor or execute
        self.modules = Modules(imports)

    def __repr__(self) -> str:
        return f"<Agent {self.name!r}>"

    def task(self, function: Callable[P, R]) -> Callable[..., R]:
        """Make a function a task: its calls take `state=` and are remembered there.

        A body is run as it is; it gets the state if it has a parameter of that name. An empty one (`pass`,
        `...`, a docstring) is carried out by the policy. Of an `async def` the call is awaited.

        Raises:
            InvalidError: The body is empty and the agent has no policy, or one that must be awaited; or it
                is a generator.
        """
        task = AgentTask(self, function)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, state: TaskState | None = None, **kwargs: Any) -> Any:
                return await task.call(_admitted(state), args, kwargs, runner_of("async"))

            return awaited  # type: ignore[return-value]  # R is the coroutine

        if inspect.iscoroutinefunction(self.policy):
            raise InvalidError(f"task {task.name!r} is a plain function, but its policy must be awaited")

        @functools.wraps(function)
        def called(*args: Any, state: TaskState | None = None, **kwargs: Any) -> Any:
            return finish(task.call(_admitted(state), args, kwargs, runner_of("blocking")))

        return called


def _admitted(state: object) -> TaskState | None:
    if state is not None and not isinstance(state, Live | Versioned):
        raise InvalidError(f"`state` is {state!r}; give a Live, a Versioned, or nothing")
    return state


def _is_empty(function: Callable[..., Any]) -> bool:
    """Whether a function does nothing but return None."""
    code = inspect.unwrap(function).__code__
    instructions = list(dis.get_instructions(code))
    names = {instruction.opname for instruction in instructions}
    constants = {
        instruction.argval
        for instruction in instructions
        if instruction.opname in ("LOAD_CONST", "RETURN_CONST")
    }
    return names <= _EMPTY_CODE and constants <= {None}
