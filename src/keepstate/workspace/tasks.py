"""Tasks of an agent: functions with a body, or empty ones that a policy carries out.

A policy usually calls a language model. It receives the task, its inputs and a view of the state, and returns
Python source for the next step, until a step calls `task_success(value)` or `task_fail(message)`.
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
from keepstate.workspace.steps import Namespace, TaskGaveUp, TaskSucceeded, execute, format_error
from keepstate.workspace.task_events import (
    ActionEvent,
    ErrorEvent,
    FailEvent,
    OutputEvent,
    SuccessEvent,
    TaskEvent,
    TaskStartEvent,
    view,
)
from keepstate.workspace.versioned import Versioned

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

TaskState: TypeAlias = Live | Versioned
"""The states that a task can use."""

Step: TypeAlias = str | tuple[str, str]
"""The source of a step; or a pair of the source and the policy's thinking."""

Policy = Callable[["AgentTask", dict[str, Any], str], Step | Awaitable[Step]]
"""Returns the next step, given the task, its inputs, and the text of `view`."""

_EMPTY_CODE: Final = frozenset({
    "RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "RETURN_GENERATOR", "POP_TOP", "RERAISE",
    "CALL_INTRINSIC_1", "NOT_TAKEN", "JUMP_FORWARD",
})  # fmt: skip


class AgentTask:
    """The description of a task for its policy.

    Attributes:
        name: Name of the function.
        message: Its docstring, the instruction.
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
            raise InvalidError(f"task {self.name!r} is a generator, which would end before its body runs")
        self._is_empty = _is_empty(function)
        if self._is_empty and agent.policy is None:
            raise InvalidError(
                f"task {self.name!r} has no body, and agent {agent.name!r} has no policy to carry it out. "
                "Write the body, or pass Agent(policy=…)."
            )

    def __repr__(self) -> str:
        return f"<task {self.name}{self.signature} of agent {self.agent_name!r}>"

    @functools.cached_property
    def result_type(self) -> Any:
        """The type that the result must have; Any if it is not given or cannot be resolved."""
        try:
            return typing.get_type_hints(self._function).get("return", Any)
        except (NameError, TypeError):
            return Any

    async def call(
        self, state: TaskState | None, args: tuple[Any, ...], kwargs: dict[str, Any], runner: Runner
    ) -> Any:
        """Run the task's body, or the agent's policy, and return the result."""
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
            await run.store_failure(error)
            raise
        await run.store(run.event(SuccessEvent, result=result))
        return result


class _Run:
    """One call of a task."""

    def __init__(self, task: AgentTask, state: TaskState | None, runner: Runner) -> None:
        self._task, self._runner = task, runner
        # A task without a state uses a temporary one, so that its policy sees its earlier steps.
        self._state: TaskState = Live() if state is None else state

    def event(self, kind: type[TaskEvent], **facts: Any) -> TaskEvent:
        """Return an event with the current time."""
        now = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC)
        return kind(timestamp=now, agent_name=self._task.agent_name, task_name=self._task.name, **facts)

    async def store(self, *task_events: TaskEvent, step: int | None = None) -> None:
        """Store events with the changes; a step makes a commit of its own, even without changes."""
        message = self._task.name if step is None else f"{self._task.name}, step {step}"
        await self._call(lambda: self._state.remember(task_events, message=message, always=step is not None))

    async def _call(self, call: Callable[[], T]) -> T:
        """Run a call that may wait for a store, without blocking an event loop."""
        return await self._runner.call(call)

    async def begin(self, inputs: dict[str, Any]) -> None:
        """Prepare the state, and store the start of the task."""
        await self._call(lambda: self._state.get_ready(self._task.agent_name))
        await self.store(self.event(TaskStartEvent, inputs=inputs, message=self._task.message))

    async def store_failure(self, error: BaseException) -> None:
        """Store the error that ends the task, with its changes, so that they can be examined."""
        events = [
            *self._restore_refused(),
            self.event(ErrorEvent, error=format_error(error), recoverable=False),
        ]
        # If storing fails too, the first error is the one to raise.
        with suppress(KeepstateError):
            await self.store(*events)

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
            action = await self._ask_policy(agent, inputs)
            task_events, end = self._run_step(agent, namespace, action)
            await self._store_step(task_events, end, number, namespace.refused)
            for event in end:
                if isinstance(event, SuccessEvent):
                    return event.result
                if isinstance(event, FailEvent):
                    raise self._failure(event.message)
            await self._take(namespace)
        message = f"no end after {agent.max_steps} steps"
        await self.store(self.event(FailEvent, message=message))
        raise self._failure(message)

    async def _take(self, namespace: Namespace) -> None:
        """Bind the variables to their names, and store an event for those that cannot be bound."""
        now = await self._call(lambda: dict(self._state))
        missing = [
            self.event(
                ErrorEvent,
                error=f"{name} cannot be restored from its stored form: {reason}. Define or import it again.",
                recoverable=True,
            )
            for name, reason in namespace.take(now).items()
        ]
        if missing:
            await self.store(*missing)

    async def _ask_policy(self, agent: Agent, inputs: dict[str, Any]) -> tuple[str, str]:
        """Return the source of the next step, and the policy's thinking."""
        assert agent.policy is not None
        shown = await self._call(lambda: view(self._state))
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
                    f"the policy of agent {agent.name!r} returned {step!r}. Return the source, or a pair of "
                    "the source and the thinking."
                )

    def _run_step(
        self, agent: Agent, namespace: Namespace, action: tuple[str, str]
    ) -> tuple[list[TaskEvent], list[TaskEvent]]:
        """Run one step, and return its events, and the event that ended it, if any."""
        source, thinking = action
        task_events = [self.event(ActionEvent, code=source, thinking=thinking)]
        end: list[TaskEvent] = []
        try:
            namespace.run(source)
        except TaskSucceeded as success:
            end = [self._make_end(success.result)]
        except TaskGaveUp as failure:
            end = [self.event(FailEvent, message=failure.message)]
        except (Exception, SystemExit) as error:  # noqa: BLE001  the policy handles errors of its steps
            end = [self.event(ErrorEvent, error=format_error(error), recoverable=True)]
        if namespace.printed:
            task_events.append(self.event(OutputEvent, parts=list(namespace.printed)))
        return task_events, end

    async def _store_step(
        self,
        task_events: list[TaskEvent],
        end: list[TaskEvent],
        number: int,
        reasons: Mapping[str, InvalidError],
    ) -> None:
        """Store a step; variables that cannot be stored get their values from before it."""
        try:
            await self.store(*task_events, *end, step=number)
        except InvalidError:
            if not (refused := self._restore_refused(reasons)):
                raise
            await self.store(*task_events, *refused, *end, step=number)

    def _make_end(self, result: object) -> TaskEvent:
        try:
            return self.event(SuccessEvent, result=fit(result, self._task.result_type))
        except InvalidError as error:
            return self.event(ErrorEvent, error=f"the result has the wrong type: {error}", recoverable=True)

    def _restore_refused(self, reasons: Mapping[str, InvalidError] = MappingProxyType({})) -> list[TaskEvent]:
        """Restore variables that cannot be stored, and return an event for each."""
        refused = {name: reasons.get(name, error) for name, error in self._state.refused().items()}
        self._state.restore([*refused])
        return [
            self.event(ErrorEvent, error=f"{name} was not stored after this step: {error}", recoverable=True)
            for name, error in refused.items()
        ]

    def _failure(self, message: str) -> TaskFailedError:
        return TaskFailedError(f"task {self._task.name!r} failed: {message}", task=self._task.name)


class Agent:
    """A named owner of tasks, with an optional policy that carries out tasks without a body.

    Args:
        name: Name in the events.
        policy: Carries out tasks whose body is empty.
        executor: Runs the policy's source, and definitions that a state stores from earlier steps. By default
            they run in this process, with all its rights.
        imports: Modules, each with its submodules, that variables may be imported from again. By default the
            standard library, installed packages, and the modules that the process had imported before any
            step did.
        max_steps: Maximum number of steps of a policy per task.
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
        """Make a function a task: its calls accept `state=`, and their events are stored there.

        A body runs as it is; it receives the state if it has a parameter `state`. A task with an empty body
        (`pass`, `...`, a docstring) is carried out by the policy. Calls of an `async def` must be awaited.

        Raises:
            InvalidError: The body is empty and the agent has no policy, or has an async one for a plain
                function; or the function is a generator.
        """
        task = AgentTask(self, function)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def call_async(*args: Any, state: TaskState | None = None, **kwargs: Any) -> Any:
                return await task.call(_check_state(state), args, kwargs, runner_of("async"))

            return call_async  # type: ignore[return-value]  # R is the coroutine

        if inspect.iscoroutinefunction(self.policy):
            raise InvalidError(f"task {task.name!r} is a plain function, but its policy is async")

        @functools.wraps(function)
        def call_blocking(*args: Any, state: TaskState | None = None, **kwargs: Any) -> Any:
            return finish(task.call(_check_state(state), args, kwargs, runner_of("blocking")))

        return call_blocking


def _check_state(state: object) -> TaskState | None:
    if state is not None and not isinstance(state, Live | Versioned):
        raise InvalidError(f"`state` is {state!r}. Pass a Live, a Versioned, or nothing.")
    return state


def _is_empty(function: Callable[..., Any]) -> bool:
    """Return whether a function does nothing but return None."""
    code = inspect.unwrap(function).__code__
    instructions = list(dis.get_instructions(code))
    names = {instruction.opname for instruction in instructions}
    constants = {
        instruction.argval
        for instruction in instructions
        if instruction.opname in ("LOAD_CONST", "RETURN_CONST")
    }
    return names <= _EMPTY_CODE and constants <= {None}
