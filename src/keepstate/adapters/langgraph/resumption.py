"""Resumes threads: the handler of the tasks that answered approvals wake, and of those that people put.

The payload of a task names its thread and checkpoint, and one of three reasons to run: an `approval` that was
answered, an `answer` that was given without one, or neither for a fork that continues. A run holds the lease
`langgraph` of its thread's space and resumes by the ids of interrupts, so of any number of workers one runs,
and an answer never goes to another question. Its checkpoints are stored as with `on_conflict="raise"`: a
thread that another program continues meanwhile does not fork.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeGuard, cast

from langchain_core.runnables import RunnableConfig
from langgraph.types import Command, StateSnapshot

from keepstate.adapters.langgraph.interrupts import LEASE, RESUME, approval_id, latest_approval
from keepstate.adapters.langgraph.saver import KeepstateSaver
from keepstate.engine.approvals.approvals import Approvals
from keepstate.engine.approvals.records import Approval
from keepstate.engine.kernel.arguments import check_choice, check_duration_ms
from keepstate.engine.queue.lease import Leases
from keepstate.engine.queue.queue import Task
from keepstate.engine.queue.step_control import list_steps
from keepstate.errors import ConflictError, InvalidError, NotFoundError

_LOG: Final = logging.getLogger("keepstate.adapters.langgraph")

Durability: TypeAlias = Literal["sync", "async", "exit"]
Outcome: TypeAlias = Literal["resumed", "answered elsewhere", "gone on", "expired", "withdrawn", "deleted"]

_BEGUN: Final = "langgraph.begun"
"""The step that is recorded before the graph runs."""
_MARK: Final = "langgraph_resume"
"""The field in the metadata of checkpoints with the id of the task that has run them."""
_STRICT: Final = "__pregel_strict_resume"
"""LangGraph's option to refuse an answer to an interrupt that is not pending."""
_PENDING_S: Final = 3_600.0
"""Seconds after which a task looks again whether its approval was answered; the answer wakes it before."""
_BUSY_S: Final = 1.0
"""Seconds after which a task looks again whether its thread is free."""


class Graph(Protocol):
    """A compiled graph, as `compile` of a `StateGraph` returns it."""

    checkpointer: Any

    def copy(self, update: dict[str, Any] | None = None) -> Any:
        """Return the same graph with other attributes."""
        ...

    def ainvoke(self, input: Any, config: Any = None) -> Awaitable[Any]:
        """Run the graph."""
        ...


_present: ContextVar[Task | None] = ContextVar("keepstate_langgraph_task", default=None)


def current_task() -> Task | None:
    """Return the task of the run that this node is part of; None if no worker resumed it.

    Use it for effects outside the process: `await task.step("pay/7", pay, order, once=True)` does not pay
    again if the node runs again.
    """
    return _present.get()


def resume(
    graph: Graph | Callable[[str], Graph],
    *,
    config: RunnableConfig | None = None,
    context: Any = None,
    durability: Durability = "sync",
    lease_s: float = 60,
) -> Callable[[Task], Awaitable[dict[str, Any]]]:
    """Return the handler of `langgraph.resume`, which resumes threads whose interrupts were answered.

    Pass it to a worker: `ks.queues("thread/").run({"langgraph.resume": resume(graph)})`. It also continues
    threads that people forked in the inspector. The result of a task is a dict with its `outcome`: `resumed`,
    `answered elsewhere`, `gone on`, `expired`, `withdrawn` or `deleted`.

    Args:
        graph: The compiled graph, with a `KeepstateSaver` as its checkpointer, or a function that returns it
            for the id of a thread. To resume threads after approvals, the saver needs `approvals=True`.
        config: The config of each run, besides its thread.
        context: The context of each run, for a graph with a `context_schema`.
        durability: The time at which LangGraph stores checkpoints. With `sync`, a kill loses no step that has
            ended.
        lease_s: Seconds until the lease of the thread expires unless it is renewed.

    Raises:
        InvalidError: An argument is wrong, or the graph has another checkpointer.
    """
    check_choice("durability", durability, "sync", "async", "exit")
    check_duration_ms("lease_s", lease_s)
    if config is not None and not isinstance(cast("object", config), Mapping):
        raise InvalidError(f"`config` is {config!r}; give a dict")
    if _is_graph(graph):
        _saver_of(graph)
    elif not callable(graph):
        raise InvalidError(f"`graph` is {graph!r}; give a compiled graph, or a function of a thread's id")

    async def handle(task: Task) -> dict[str, Any]:
        given = task.payload
        if task.kind != RESUME or not isinstance(given, dict) or "checkpoint" not in given:
            raise InvalidError(f"task {task.id!r} of kind {task.kind!r} does not resume a thread")
        payload = cast("dict[str, Any]", given)
        own = graph if _is_graph(graph) else cast("Any", graph)(payload["thread"])
        return await _Run(own, task, payload, config or {}, context, durability).work(lease_s)

    return handle


def _is_graph(graph: object) -> TypeGuard[Graph]:
    return hasattr(graph, "ainvoke") and hasattr(graph, "checkpointer")


def _saver_of(graph: Graph) -> KeepstateSaver:
    saver: object = graph.checkpointer
    if not isinstance(saver, KeepstateSaver):
        raise InvalidError(
            f"the checkpointer of the graph is {saver!r}; compile it with KeepstateSaver(…, approvals=True)"
        )
    return saver


class _Run:
    """One attempt of a task that resumes a thread."""

    def __init__(
        self,
        graph: Graph,
        task: Task,
        payload: Mapping[str, Any],
        config: RunnableConfig,
        context: Any,
        durability: Durability,
    ) -> None:
        self._saver = _saver_of(graph)
        strict = self._saver._strict()  # pyright: ignore[reportPrivateUsage]
        self._graph: Any = graph.copy({"checkpointer": strict})
        self._task, self._payload = task, payload
        self._approvals = Approvals(task.executor)
        self._context, self._durability = context, durability
        self._config: RunnableConfig = {
            **config,
            "configurable": {
                **config.get("configurable", {}),
                "thread_id": payload["thread"],
                "checkpoint_ns": "",
                _STRICT: True,
            },
            "metadata": {**config.get("metadata", {}), _MARK: task.id},
        }

    async def work(self, lease_s: float) -> dict[str, Any]:
        """Resume the thread if its interrupt is still pending, and return what was done."""
        await self._check_store()
        if "approval" in self._payload:
            refused = await self._judge_approval(self._payload["approval"])
            if refused is not None:
                return refused
        try:
            lease = await Leases(self._task.executor).acquire(LEASE, lease_s)
        except ConflictError:  # another interrupt of the thread was answered too
            await self._task.later(_BUSY_S)
            return {}
        marked = _present.set(self._task)
        try:
            async with lease.kept_alive():
                return {"outcome": await (self._resume() if "interrupt" in self._payload else self._go_on())}
        finally:
            _present.reset(marked)

    async def _judge_approval(self, id: str) -> dict[str, Any] | None:
        """Return the result of a task whose approval does not let it run, and None if it does."""
        if not self._saver.asks:
            raise InvalidError(
                f"task {self._task.id!r} has an approval, and the checkpointer of the graph does not ask: "
                f"{self._saver!r}; compile the graph with KeepstateSaver(…, approvals=True), so that later "
                "interrupts ask too"
            )
        approval = await self._approvals.get(id)
        if approval is None:
            return {"outcome": "deleted"}
        if approval.state == "pending":  # the task was run by hand; the answer wakes it
            await self._task.later(_PENDING_S)
            return {}
        if approval.state == "expired":
            await self._approvals.expire(approval.id)
        if approval.state == "withdrawn" or (approval.state == "expired" and not self._has_default):
            return {"outcome": approval.state}
        return None

    @property
    def _has_default(self) -> bool:
        return "default" in self._payload

    async def _check_store(self) -> None:
        """Raise `InvalidError` if the graph's saver does not see the task."""
        name = self._task.executor.name
        seen = await self._saver._task(name, self._task.id)  # pyright: ignore[reportPrivateUsage]
        if seen is None or seen.token != self._task.token:
            raise InvalidError(
                f"the saver of the graph, {self._saver!r}, does not see task {self._task.id!r} of {name!r}; "
                "give the worker and the saver the same store and tenant"
            )

    # ---- running

    async def _resume(self) -> Outcome:
        was_begun = any(step.name == _BEGUN for step in await self._task.steps())
        state = await self._state()
        if (was_begun and self._is_unfinished(state)) or self._has_failed(state):
            # The run that ended early may have stored the answer already. Given again by id, it would also
            # answer the next question of the node.
            await self._invoke(None)
            state = await self._state()
        if not self._is_pending(state):
            return "resumed" if was_begun and self._is_own(state) else "answered elsewhere"
        if not was_begun:
            await self._task.step(_BEGUN, _nothing)
        await self._invoke(Command(resume=await self._answers(state)))
        return "resumed"

    async def _go_on(self) -> Outcome:
        """Run the graph from the checkpoint of a fork, unless the thread has gone on without this task."""
        was_begun = any(step.name == _BEGUN for step in await self._task.steps())
        state = await self._state()
        if was_begun and self._is_at_checkpoint(state) and state.interrupts:
            return "resumed"  # the run that ended early had come to its first interrupt
        if self._is_at_checkpoint(state) or (was_begun and self._is_unfinished(state)):
            if not was_begun:
                await self._task.step(_BEGUN, _nothing)
            await self._invoke(None)
            return "resumed"
        return "resumed" if was_begun and self._is_own(state) else "gone on"

    async def _invoke(self, given: Any) -> None:
        # Without output: the result of the graph is in the thread.
        await self._graph.ainvoke(
            given, self._config, context=self._context, durability=self._durability, output_keys=[]
        )

    async def _state(self) -> StateSnapshot:
        state: StateSnapshot = await self._graph.aget_state(self._config)
        return state

    def _is_at_checkpoint(self, state: StateSnapshot) -> bool:
        named: dict[str, Any] = state.config.get("configurable", {})
        return bool(named.get("checkpoint_id") == self._payload["checkpoint"])

    def _is_pending(self, state: StateSnapshot) -> bool:
        ids = {interrupt.id for interrupt in state.interrupts}
        return self._is_at_checkpoint(state) and self._payload["interrupt"] in ids

    def _is_own(self, state: StateSnapshot) -> bool:
        """Return whether this task has stored the latest checkpoint, or the writes on it."""
        return self._is_at_checkpoint(state) or (state.metadata or {}).get(_MARK) == self._task.id

    def _is_unfinished(self, state: StateSnapshot) -> bool:
        """Return whether a run of this task was killed before its end."""
        if self._is_at_checkpoint(state):
            return bool(state.next)
        return self._is_own(state) and bool(state.next) and not self._may_have_stopped(state)

    def _may_have_stopped(self, state: StateSnapshot) -> bool:
        """Return whether a breakpoint may have ended the run, which must not be passed."""
        before, after = self._graph.interrupt_before_nodes, self._graph.interrupt_after_nodes
        return bool(after) or before == "*" or not set(before).isdisjoint(state.next)

    def _has_failed(self, state: StateSnapshot) -> bool:
        """Return whether an interrupted node was resumed and has failed; its answer is stored then."""
        return any(task.error and task.interrupts for task in state.tasks)

    async def _answers(self, state: StateSnapshot) -> dict[str, Any]:
        """Return the answers to all pending interrupts that were answered by now, by their ids."""
        own = self._payload["interrupt"]
        found: dict[str, Any] = {}
        if "answer" in self._payload:
            found[own] = self._payload["answer"]
        for interrupt in state.interrupts:
            first = approval_id(self._payload["checkpoint"], interrupt.id)
            approval = await latest_approval(self._approvals, first)
            if interrupt.id in found or approval is None or approval.answer is None:
                continue
            if interrupt.id == own or not await self._has_begun(approval):
                found[interrupt.id] = approval.answer.value
        if own not in found:  # it has expired
            found[own] = self._payload["default"]
        return found

    async def _has_begun(self, approval: Approval) -> bool:
        """Return whether a run with another answer has begun, which the task of that answer continues."""
        try:
            steps = await list_steps(self._task.executor, approval.task or "")
        except NotFoundError:  # it was removed
            return False
        return any(step.name == _BEGUN for step in steps)


def _nothing() -> None:
    """Do nothing; the step only records that the graph is about to run."""
