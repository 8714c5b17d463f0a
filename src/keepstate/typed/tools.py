"""Tools: what they receive, what they give back, and which of them go together."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from keepstate._runner import Runner
from keepstate.errors import InvalidError, StateConflictError, StateError
from keepstate.typed import epoch as lineages
from keepstate.typed.admission import admit_messages
from keepstate.typed.batch import MutationBatch
from keepstate.typed.profiles import ProfileAccess
from keepstate.typed.state_map import Snapshot

OnConflict = Literal["rerun", "raise"]

_log = logging.getLogger("keepstate.typed")


class ToolCallContext:
    """What a tool receives.

    Attributes:
        snapshot: The state that all tools of the step see.
        run_id: The run that it is called in.
        thread_id: The thread of the run.
    """

    def __init__(self, snapshot: Snapshot, run_id: str, thread_id: str, profile: ProfileAccess) -> None:
        self.snapshot, self.run_id, self.thread_id = snapshot, run_id, thread_id
        self._profile = profile

    def __repr__(self) -> str:
        return f"<ToolCallContext of run {self.run_id!r} at revision {self.snapshot.revision}>"

    @property
    def profile(self) -> ProfileAccess:
        """Access to profiles and shared state, with a memory of its own for what was read."""
        return self._profile


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """What a tool gives back, where that is more than a batch or a value.

    Attributes:
        value: For the caller.
        batch: Updates of the state.
        messages: Messages of the thread, appended with the updates.
    """

    value: Any = None
    batch: MutationBatch | None = None
    messages: Sequence[object] = ()


@dataclass(frozen=True, slots=True)
class RunStep:
    """What became of a step.

    Attributes:
        revision: The revision of the state after it.
        values: What each tool gave back beside its updates, in the order of the tools.
        reruns: The names of the tools that were run again, because of exclusive keys.
    """

    revision: int
    values: list[Any]
    reruns: list[str] = field(default_factory=list[str])


Tool: TypeAlias = Callable[[ToolCallContext], Any]


@dataclass(frozen=True, slots=True)
class Called:
    """A tool that has been run.

    Attributes:
        index: Its place among the tools of the step.
        name: What it is called.
        output: What it gave.
        batch: Its updates; empty if it gave none.
    """

    index: int
    name: str
    output: ToolOutput
    batch: MutationBatch

    def on(self, base: MutationBatch) -> Called:
        """Return the same with the updates on the base of the step's snapshot, to be merged with others.

        Raises:
            StateError: They were computed from an older one, or from a state that has been replaced since.
        """
        revision, lineage = self.batch.base_revision, self.batch.lineage
        if revision is not None and self.batch.exclusive_keys():
            of_now, of_step = base.base_revision or 0, base.lineage or lineages.NONE
            is_other = lineage is not None and not lineages.continues(lineage, of_now, of_step)
            if revision < of_now or is_other:
                raise StateError(
                    f"tool {self.name!r} gave a batch on revision {revision}, and the step is on {of_now}, "
                    "so nothing of it was applied; let the tool begin with MutationBatch()"
                )
        return Called(self.index, self.name, self.output, self.batch.on_base_of(base))


def admit_tools(tools: Sequence[Any]) -> None:
    """Raise `InvalidError` for what is no tool."""
    for tool in tools:
        if not callable(tool):
            raise InvalidError(f"{tool!r} is no tool; give a function that takes a ToolCallContext")


def name_of(tool: Any) -> str:
    """Return what a tool is called."""
    name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
    return name if isinstance(name, str) else type(tool).__name__


async def call(runner: Runner, index: int, tool: Tool, context: ToolCallContext) -> Called:
    """Return what a tool gives; a plain function of an asynchronous run works beside the event loop."""
    try:
        if inspect.iscoroutinefunction(tool) or inspect.iscoroutinefunction(getattr(tool, "__call__", None)):  # noqa: B004
            answer = await tool(context)
        else:
            answer = await runner.call(tool, context)
            if inspect.isawaitable(answer):
                answer = await answer
    except Exception as error:
        error.add_note(f"raised by tool {name_of(tool)!r} of run {context.run_id!r}")
        raise
    output = answer if isinstance(answer, ToolOutput) else ToolOutput(answer)
    if isinstance(answer, MutationBatch):
        output = ToolOutput(batch=answer)
    if output.batch is not None and not isinstance(output.batch, MutationBatch):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"tool {name_of(tool)!r} gave {output.batch!r} as its batch; give a MutationBatch")
    try:
        admit_messages(output.messages)
    except InvalidError as error:
        error.add_note(f"given by tool {name_of(tool)!r} of run {context.run_id!r}")
        raise
    return Called(index, name_of(tool), output, output.batch or MutationBatch())


def raised_by(errors: Sequence[BaseException]) -> BaseException:
    """Return what to raise where tools have failed: the first, which tells of others; they are logged."""
    first = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    for other in errors:
        if other is not first:
            told = "; ".join(getattr(other, "__notes__", []))
            first.add_note(f"in the same step: {other!r}, {told}")
            _log.error("a tool failed beside another", exc_info=other)
    return first


def told_of(conflict: StateConflictError, calls: Sequence[Called]) -> StateConflictError:
    """Return a conflict with another run as one that names the tools of the step that are concerned."""
    key = conflict.state_key
    names = tuple(each.name for each in calls if key is None or key in each.batch.touched_keys)
    return StateConflictError(
        f"tools {', '.join(map(repr, names))} of the step were too late: {conflict}",
        state_key=key,
        tools=names,
        actual=conflict.actual,
    )


def together_and_apart(calls: Sequence[Called], on_conflict: OnConflict) -> tuple[list[Called], list[Called]]:
    """Return the calls whose batches can be merged, taken in order, and those that have to run again.

    Raises:
        StateConflictError: Two update one exclusive key and `on_conflict` is `raise`.
    """
    fitting: list[Called] = []
    others: list[Called] = []
    touched: dict[str, Called] = {}
    exclusive: dict[str, Called] = {}
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
                f"tools {other.name!r} and {each.name!r} both update {key!r}, which is exclusive; nothing of "
                "the step was applied: call one after the other",
                state_key=key,
                tools=(other.name, each.name),
            )
    return fitting, others
