"""Tools: their context, their output, and the merging of their updates."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from keepstate._runner import Runner
from keepstate.errors import InvalidError, StateConflictError, StateError
from keepstate.typed.batch import MutationBatch
from keepstate.typed.key import SINGLE
from keepstate.typed.profiles import ProfileAccess
from keepstate.typed.records import NO_LINEAGE, continues_lineage
from keepstate.typed.state_map import Snapshot

OnConflict = Literal["rerun", "raise"]

_log = logging.getLogger("keepstate.typed")


class ToolCallContext:
    """The argument of a tool.

    Attributes:
        snapshot: The state that all tools of the step see.
        run_id: The id of the run.
        thread_id: The id of the run's thread.
    """

    def __init__(self, snapshot: Snapshot, run_id: str, thread_id: str, profile: ProfileAccess) -> None:
        self.snapshot, self.run_id, self.thread_id = snapshot, run_id, thread_id
        self._profile = profile

    def __repr__(self) -> str:
        return f"<ToolCallContext of run {self.run_id!r} at revision {self.snapshot.revision}>"

    @property
    def profile(self) -> ProfileAccess:
        """Access to profiles and shared state, with a read set of its own."""
        return self._profile


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of a tool that returns more than a batch or a value.

    Attributes:
        value: The value for the caller.
        batch: Updates of the state.
        messages: Messages for the thread, appended with the updates.
    """

    value: Any = None
    batch: MutationBatch | None = None
    messages: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class RunStep:
    """The result of a step.

    Attributes:
        revision: The state revision after the step.
        values: The value of each tool, in the order of the tools.
        reruns: The names of the tools that were run again because of exclusive keys.
    """

    revision: int
    values: list[Any]
    reruns: list[str] = field(default_factory=list[str])


Tool: TypeAlias = Callable[[ToolCallContext], Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A completed tool call.

    Attributes:
        index: Index of the tool in the step.
        name: Name of the tool.
        output: Its output.
        batch: Its updates; empty if it returned none.
    """

    index: int
    name: str
    output: ToolOutput
    batch: MutationBatch

    def rebase(self, base: MutationBatch) -> ToolCall:
        """Return the call with its updates on the base of the step's snapshot, so that it can be merged.

        Raises:
            StateError: The updates were computed from an older snapshot, or from a state that was replaced
                since.
        """
        revision, lineage = self.batch.base_revision, self.batch.lineage
        if revision is not None and self.batch.exclusive_keys():
            of_now, of_step = base.base_revision or 0, base.lineage or NO_LINEAGE
            is_other = lineage is not None and not continues_lineage(lineage, of_now, of_step)
            if revision < of_now or is_other:
                raise StateError(
                    f"Tool {self.name!r} returned a batch on revision {revision}, but the step is on "
                    f"{of_now}. Nothing of it was applied. Begin the tool's batch with MutationBatch()."
                )
        return ToolCall(self.index, self.name, self.output, self.batch.rebased(base))


def check_messages(messages: Sequence[object]) -> None:
    """Raise `InvalidError` unless the argument is a sequence of messages; a text is not."""
    given: Any = messages
    if isinstance(given, SINGLE) or not isinstance(given, Sequence):
        raise InvalidError(f"`messages` is {messages!r}. Pass a list of messages.")


def check_tools(tools: Sequence[Any]) -> None:
    """Raise `InvalidError` unless all arguments are callable."""
    for tool in tools:
        if not callable(tool):
            raise InvalidError(f"{tool!r} is not a tool. Pass a function that takes a ToolCallContext.")


def name_of(tool: Any) -> str:
    """Return the name of a tool."""
    name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
    return name if isinstance(name, str) else type(tool).__name__


async def call(runner: Runner, index: int, tool: Tool, context: ToolCallContext) -> ToolCall:
    """Call a tool and return the call. In async mode a plain function runs in a thread."""
    try:
        if inspect.iscoroutinefunction(tool) or inspect.iscoroutinefunction(getattr(tool, "__call__", None)):  # noqa: B004
            answer = await tool(context)
        else:
            answer = await runner.call(tool, context)
            if inspect.isawaitable(answer):
                answer = await answer
    except Exception as error:
        error.add_note(f"Raised by tool {name_of(tool)!r} of run {context.run_id!r}")
        raise
    output = answer if isinstance(answer, ToolOutput) else ToolOutput(answer)
    if isinstance(answer, MutationBatch):
        output = ToolOutput(batch=answer)
    if output.batch is not None and not isinstance(output.batch, MutationBatch):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(
            f"Tool {name_of(tool)!r} returned the batch {output.batch!r}. Return a MutationBatch."
        )
    try:
        check_messages(output.messages)
    except InvalidError as error:
        error.add_note(f"Returned by tool {name_of(tool)!r} of run {context.run_id!r}")
        raise
    return ToolCall(index, name_of(tool), output, output.batch or MutationBatch())


def combine_errors(errors: Sequence[BaseException]) -> BaseException:
    """Return the first error, with notes about the others; the others are logged."""
    first = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    for other in errors:
        if other is not first:
            notes = "; ".join(getattr(other, "__notes__", []))
            first.add_note(f"In the same step: {other!r}, {notes}")
            _log.error("Another tool of the same step failed", exc_info=other)
    return first


def name_tools(conflict: StateConflictError, calls: Sequence[ToolCall]) -> StateConflictError:
    """Return a conflict with another run as an error that names the step's tools concerned."""
    key = conflict.state_key
    names = tuple(each.name for each in calls if key is None or key in each.batch.touched_keys)
    return StateConflictError(
        f"Another run was faster than tools {', '.join(map(repr, names))} of the step: {conflict}",
        state_key=key,
        tools=names,
        actual=conflict.actual,
    )


def split_calls(calls: Sequence[ToolCall], on_conflict: OnConflict) -> tuple[list[ToolCall], list[ToolCall]]:
    """Return the calls whose batches can be merged in order, and the calls to run again.

    Raises:
        StateConflictError: Two calls update the same exclusive key, and `on_conflict` is `raise`.
    """
    fitting: list[ToolCall] = []
    others: list[ToolCall] = []
    touched: dict[str, ToolCall] = {}
    exclusive: dict[str, ToolCall] = {}
    for each in calls:
        keys, own = each.batch.touched_keys, each.batch.exclusive_keys()
        key = min((keys & exclusive.keys()) | (own & touched.keys()), default=None)
        if key is None:
            fitting.append(each)
            touched |= dict.fromkeys(keys, each)
            exclusive |= dict.fromkeys(own, each)
        elif on_conflict == "rerun":
            others.append(each)
        else:
            other = touched[key]
            raise StateConflictError(
                f"Tools {other.name!r} and {each.name!r} both update key {key!r}, which is exclusive. "
                "Nothing of the step was applied. Call them in separate steps.",
                state_key=key,
                tools=(other.name, each.name),
            )
    return fitting, others
