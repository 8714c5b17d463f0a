"""Agents: snapshots of their state, checkpoints of their work, and recovery from the checkpoints.

A failed agent continues from its last checkpoint, a limited number of times. Attempts are counted in the
agent's own space, so a restart does not reset the count. The count starts again when the agent saves a
checkpoint with a higher step than the one it was restored from, or finishes a task. There is always a pause
between two attempts. Only one process recovers an agent at a time.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from keepstate._runner import Mode, process_name
from keepstate.engine.kernel.arguments import check_duration_ms, check_flag, check_text
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.queue.lease import Lease
from keepstate.errors import (
    AttemptsExhaustedError,
    ConflictError,
    InvalidError,
    KeepstateError,
    NotFoundError,
)
from keepstate.managers.arguments import check_interval
from keepstate.managers.binding import Namespace
from keepstate.managers.manager import Manager, mode_of, namespace_of, run_together
from keepstate.managers.record_history import LATEST, RecordHistory, check_record_id
from keepstate.managers.records import check_record, record
from keepstate.values import limits

RECOVERABLE: Final = "recoverable"
"""The label of checkpoints that recovery may start from."""


@record("AgentSnapshot")
class AgentSnapshot:
    """The whole state of an agent at one time.

    Attributes:
        agent_id: The agent.
        timestamp: Time of the snapshot, as the agent reports it. It does not define the order.
        memory_state: The agent's memory.
        tool_state: State of the agent's tools.
        conversation_history: The conversation.
        metadata: Any other data.
        saved_at: Time of saving, by the store's clock; None before.
    """

    agent_id: str
    timestamp: datetime
    memory_state: Any = None
    tool_state: Any = None
    conversation_history: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    saved_at: datetime | None = field(default=None, compare=False)


@record("AgentCheckpoint")
class AgentCheckpoint:
    """A point in a task from which an agent can continue.

    Attributes:
        agent_id: The agent.
        checkpoint_id: Id of the checkpoint; saving the same id again replaces it.
        step: Progress of the task.
        state: The data that the agent needs to continue.
        recoverable: Whether recovery may start from this checkpoint.
        saved_at: Time of saving, by the store's clock; None before.
    """

    agent_id: str
    checkpoint_id: str
    step: int
    state: Any = None
    recoverable: bool = True
    saved_at: datetime | None = field(default=None, compare=False)


class AgentStateStore(Manager):
    """Stores agents, each in its space `agent/<id>`.

    A snapshot or checkpoint costs only its changes since the last one, however large it is.

    Args:
        persistence: Storage of the agents; see `StateManager`.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores all agents, in place of a store.
    """

    _kind: ClassVar[str] = "agent"

    def _snapshots(self, agent_id: str) -> RecordHistory[AgentSnapshot]:
        return RecordHistory(self._namespace(agent_id), "snapshot", self._run_together)

    def _checkpoints(self, agent_id: str) -> RecordHistory[AgentCheckpoint]:
        return RecordHistory(self._namespace(agent_id), "checkpoint", self._run_together)

    # ---- snapshots

    async def save_snapshot(self, snapshot: AgentSnapshot) -> str:
        """Save a snapshot in addition to earlier ones, and return the id of its commit."""
        check_record("snapshot", snapshot, AgentSnapshot)
        return await self._snapshots(snapshot.agent_id).save(snapshot, message="snapshot")

    async def list_snapshots(self, agent_id: str, *, limit: int | None = None) -> list[AgentSnapshot]:
        """Return an agent's snapshots, oldest first.

        Args:
            agent_id: The agent.
            limit: Return only the last `limit` snapshots.
        """
        return await self._snapshots(agent_id).list(limit)

    async def latest_snapshot(self, agent_id: str) -> AgentSnapshot | None:
        """Return the newest snapshot, or None if there is none."""
        return await self._snapshots(agent_id).newest()

    # ---- checkpoints

    async def save_checkpoint(self, checkpoint: AgentCheckpoint) -> str:
        """Save a checkpoint, and return the id of its commit. A replaced checkpoint stays in the history."""
        check_record("checkpoint", checkpoint, AgentCheckpoint)
        id = check_record_id("checkpoint_id", checkpoint.checkpoint_id)
        facts = [RECOVERABLE] if checkpoint.recoverable else []
        checkpoints = self._checkpoints(checkpoint.agent_id)
        return await checkpoints.save(checkpoint, id=id, facts=facts, message=f"checkpoint {id}")

    async def get_checkpoint(self, agent_id: str, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return a checkpoint, or None if there is none with this id."""
        return await self._checkpoints(agent_id).get(checkpoint_id)

    async def list_checkpoints(self, agent_id: str, *, limit: int | None = None) -> list[AgentCheckpoint]:
        """Return an agent's checkpoints, oldest first.

        Args:
            agent_id: The agent.
            limit: Return only the last `limit` checkpoints.
        """
        return await self._checkpoints(agent_id).list(limit)

    async def latest_checkpoint(
        self, agent_id: str, *, recoverable_only: bool = False
    ) -> AgentCheckpoint | None:
        """Return the newest checkpoint, or None if there is none.

        Args:
            agent_id: The agent.
            recoverable_only: Consider only checkpoints that recovery may start from.
        """
        check_flag("recoverable_only", recoverable_only)
        return await self._checkpoints(agent_id).newest(RECOVERABLE if recoverable_only else "")

    async def delete_checkpoint(self, agent_id: str, checkpoint_id: str) -> bool:
        """Delete a checkpoint, and return whether it existed. It stays in the history."""
        check_text("checkpoint_id", checkpoint_id)
        message = f"forget checkpoint {checkpoint_id}"
        return await self._checkpoints(agent_id).remove(checkpoint_id, message=message)

    # ---- agents

    async def list_agents(self) -> list[str]:
        """Return the ids of all agents with data."""
        return await self._ids()

    async def delete(self, agent_id: str) -> bool:
        """Remove all data of an agent, including its history, and return whether there was any."""
        return await self._forget(self._namespace(agent_id), branches=("snapshot", "checkpoint"))

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove old snapshots and checkpoints, except the newest, and prune the history."""
        snapshots, needed = await self._snapshots(namespace.id).clean(before)
        checkpoints, also_needed = await self._checkpoints(namespace.id).clean(before)
        await self._prune(namespace, min(needed, also_needed))
        return snapshots + checkpoints


# ---- recovery

_LONGEST_PAUSE_S: Final = 300.0
_DOUBLINGS: Final = 60
"""More doublings than any pause needs, and few enough for a float."""
_log = logging.getLogger("keepstate.managers")


@runtime_checkable
class Recoverable(Protocol):
    """An agent that can be recovered. `run` also needs `run(task)` and `resume()`."""

    @property
    def id(self) -> str:
        """The id of the agent's checkpoints."""
        ...

    def restore_from_checkpoint(self, state: Any, /) -> Any:
        """Restore the state of a checkpoint. May be a coroutine function."""
        ...


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of restoring an agent.

    Attributes:
        agent_id: The agent.
        checkpoint: The checkpoint it was restored from.
        attempt: Number of attempts since the agent last made progress, from 1.
        attempts_left: Number of attempts left.
    """

    agent_id: str
    checkpoint: AgentCheckpoint
    attempt: int
    attempts_left: int


@record("RecoveryRecord")
class RecoveryRecord:
    """The stored count of attempts to recover an agent.

    Attributes:
        attempts: Number of attempts since the agent last made progress.
        step: Step of the checkpoint it was last restored from.
        last_at: Time of the last attempt, by the store's clock.
        last_error: The error that `run` received before the last attempt.
    """

    attempts: int = 0
    step: int = -1
    last_at: datetime | None = None
    last_error: str | None = None


class AgentRecoveryManager:
    """Restores agents from their checkpoints.

    Attributes:
        auto_recover: True lets `run` recover an agent that fails.
        max_recovery_attempts: Maximum number of attempts.
        backoff_s: Pause before the second attempt, in seconds; each later pause is twice as long.
        claim_s: Seconds for which a process that dies during a recovery still blocks the agent.
    """

    def __init__(
        self,
        agent_store: AgentStateStore,
        *,
        auto_recover: bool = True,
        max_recovery_attempts: int = 3,
        backoff_s: float = 1.0,
        claim_s: float = 30.0,
        _mode: Mode = "async",
    ) -> None:
        """Make a manager, without a read.

        Args:
            agent_store: The store of the agents' checkpoints. The caller closes it.
            auto_recover: True lets `run` recover an agent that fails.
            max_recovery_attempts: Maximum number of attempts.
            backoff_s: Pause before the second attempt, in seconds; this is also the shortest pause.
            claim_s: Seconds for which a process that dies during a recovery still blocks the agent.
        """
        given: Any = agent_store
        if not isinstance(given, AgentStateStore) or mode_of(given) != _mode:
            wanted = "a keepstate.sync.AgentStateStore" if _mode == "blocking" else "an AgentStateStore"
            raise InvalidError(f"`agent_store` is a {type(agent_store).__name__}. Pass {wanted}.")
        limits.admit_count("max_recovery_attempts", max_recovery_attempts)
        check_duration_ms("claim_s", claim_s)
        self._store = agent_store
        self.auto_recover: bool = check_flag("auto_recover", auto_recover)
        self.max_recovery_attempts: int = max_recovery_attempts
        self.backoff_s: float = check_interval("backoff_s", backoff_s)
        self.claim_s: float = float(claim_s)
        self._agents: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<AgentRecoveryManager over {self._store!r}, {len(self._agents)} agents>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that rebuilds the manager in another process; registered agents are not sent."""
        return {**self.__dict__, "_agents": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._agents = WeakValueDictionary()

    def register(self, agent: Recoverable) -> None:
        """Register an agent for recovery by its id. The manager holds a weak reference.

        Raises:
            InvalidError: The agent has no `id` or `restore_from_checkpoint`, or cannot be weakly referenced.
        """
        given: Any = agent
        if not isinstance(given, Recoverable) or type(given.id) is not str:
            raise InvalidError(f"{agent!r} cannot be recovered. Give it an id and restore_from_checkpoint().")
        if mode_of(self._store) == "blocking":
            for name in ("restore_from_checkpoint", "run", "resume"):
                if (method := getattr(agent, name, None)) is not None:
                    reject_coroutine_function(method)
        try:
            self._agents[agent.id] = agent
        except TypeError as error:
            raise InvalidError(
                f"{agent!r} cannot be weakly referenced. Give its class a __weakref__ slot."
            ) from error

    def unregister(self, agent_id: str) -> bool:
        """Forget an agent, and return whether it was registered."""
        return self._agents.pop(agent_id, None) is not None

    # ---- recovering

    async def recover(self, agent_id: str, from_checkpoint: str = LATEST) -> Recovery:
        """Restore an agent from a checkpoint, after the pause that is due. The caller resumes the agent.

        Until this call returns, no other process recovers the agent. After that, another process may. `run`
        blocks other processes until the agent has finished.

        Args:
            agent_id: A registered agent.
            from_checkpoint: The id of a recoverable checkpoint; `latest` selects the newest.

        Raises:
            NotFoundError: The agent is not registered, or has no such recoverable checkpoint.
            AttemptsExhaustedError: All attempts were used, and the agent made no progress.
            ConflictError: Another process is recovering this agent; the message names the process.
            Exception: An exception of the agent while it was restored. It counts as an attempt.
        """
        agent = self._agent(check_text("agent_id", agent_id))
        check_text("from_checkpoint", from_checkpoint)
        async with self._claim(agent_id) as lease:
            recovery = await self._begin_attempt(agent_id, from_checkpoint, lease, None)
            await call_function(agent.restore_from_checkpoint, recovery.checkpoint.state)
            await lease.check()
            return recovery

    async def run(self, agent: Recoverable, task: Any = None) -> Any:
        """Return the result of `agent.run(task)`. If the run fails, recover the agent and resume it.

        Args:
            agent: An agent with `run(task)` and `resume()`. It is registered.
            task: The task to run.

        Raises:
            AttemptsExhaustedError: All attempts failed; the last failure is the cause.
            Exception: An exception of the agent, if `auto_recover` is off, if there is no checkpoint, or if
                another process is recovering the agent. In the last two cases a note on the exception says
                so.
        """
        self.register(agent)
        for name in ("run", "resume") if self.auto_recover else ("run",):
            if not callable(getattr(agent, name, None)):
                raise InvalidError(
                    f"{agent!r} has no {name}(). Add it, or call recover() and continue yourself."
                )
        result, failure = await _call_agent(agent, getattr(agent, "run"), task)  # noqa: B009  optional in the protocol
        if failure is not None:
            if not self.auto_recover:
                raise failure
            result = await self._recover_and_resume(agent, failure)
        await self._reset_finished(agent.id)
        return result

    async def _recover_and_resume(self, agent: Any, error: Exception) -> Any:
        """Return the agent's final result. An error that prevents recovery becomes a note on its failure."""
        hindrance: KeepstateError
        try:
            async with self._claim(agent.id) as lease:
                while True:
                    recovery = await self._begin_attempt(agent.id, LATEST, lease, error)
                    state = recovery.checkpoint.state
                    result, failure = await _call_agent(agent, agent.restore_from_checkpoint, state)
                    if failure is None:
                        await lease.check()  # otherwise another process may be recovering it by now
                        result, failure = await _call_agent(agent, agent.resume)
                    if failure is None:
                        return result
                    error = failure
        except AttemptsExhaustedError as exhausted:
            raise exhausted from error
        except (ConflictError, NotFoundError) as found:
            hindrance = found
        error.add_note(f"Agent {agent.id!r} was not recovered: {hindrance}")
        raise error  # here, so that it keeps its cause

    async def _reset_finished(self, agent_id: str) -> None:
        """Reset the attempts. A failure is logged, because the agent's result matters more."""
        try:
            await self.reset(agent_id)
        except KeepstateError as failure:
            _log.warning("Agent %r has finished, but its attempts could not be reset: %s", agent_id, failure)

    async def _begin_attempt(
        self, agent_id: str, from_checkpoint: str, lease: Lease, error: Exception | None
    ) -> Recovery:
        """Count an attempt after the pause that is due, and return the checkpoint to restore."""
        checkpoints = self._store._checkpoints(agent_id)  # pyright: ignore[reportPrivateUsage]
        namespace = checkpoints.namespace
        checkpoint = await checkpoints.require(from_checkpoint, RECOVERABLE)
        known = await self._attempts(namespace, checkpoint)
        if known.attempts >= self.max_recovery_attempts:
            raise AttemptsExhaustedError(
                f"agent {agent_id!r} was recovered {known.attempts} times and made no progress. "
                "Fix the cause of its failures, then call reset().",
                attempts=known.attempts,
            )
        await self._pause(namespace, known)
        attempt = await self._count_attempt(namespace, known, lease, error)
        return Recovery(agent_id, checkpoint, attempt, self.max_recovery_attempts - attempt)

    # ---- attempts

    async def attempts(self, agent_id: str) -> int:
        """Return the number of recovery attempts since the agent last made progress."""
        checkpoints = self._store._checkpoints(agent_id)  # pyright: ignore[reportPrivateUsage]
        return (await self._attempts(checkpoints.namespace, await checkpoints.newest(RECOVERABLE))).attempts

    async def reset(self, agent_id: str) -> None:
        """Reset the recovery attempts of an agent, so that all are available again."""
        namespace = namespace_of(self._store, agent_id)
        if await namespace.get("recovery") is not None:
            await namespace.by("recovered").delete("recovery")

    async def _attempts(self, namespace: Namespace, checkpoint: AgentCheckpoint | None) -> RecoveryRecord:
        """Return the attempts since the agent reached a higher step.

        A newer checkpoint alone is not progress. Otherwise an agent that saves one and fails each time would
        never stop.
        """
        known: RecoveryRecord | None = await namespace.get("recovery")
        step = -1 if checkpoint is None else checkpoint.step
        if known is None:
            return RecoveryRecord(step=step)
        return replace(known, attempts=0, step=step) if step > known.step else known

    async def _pause(self, namespace: Namespace, known: RecoveryRecord) -> None:
        """Wait until the next attempt is due, even if the agent has made progress.

        Otherwise an agent that saves a higher step and fails each time would use all the time of its process.
        """
        if known.last_at is None:
            return
        doublings = min(max(known.attempts - 1, 0), _DOUBLINGS)
        wait_s = min(self.backoff_s * 2**doublings, _LONGEST_PAUSE_S)
        due = known.last_at + timedelta(seconds=wait_s)
        left_s = (due - await namespace.space.now()).total_seconds()
        if left_s > 0:
            await namespace.space.runner.sleep(left_s)

    async def _count_attempt(
        self, namespace: Namespace, known: RecoveryRecord, lease: Lease, error: Exception | None
    ) -> int:
        async def work(inside: Namespace) -> int:
            counted = replace(
                known,
                attempts=known.attempts + 1,
                last_at=await inside.space.now(),
                last_error=None if error is None else repr(error)[: limits.ERROR_BYTES],
            )
            await inside.put(counted, "recovery")
            return counted.attempts

        message = f"recover, attempt {known.attempts + 1}"
        return await run_together(self._store, namespace, work, message=message, lease=lease)

    # ---- claims

    def _agent(self, agent_id: str) -> Any:
        agent = self._agents.get(agent_id)
        if agent is None:
            raise NotFoundError(f"agent {agent_id!r} is not registered in this process. Call register().")
        return agent

    @asynccontextmanager
    async def _claim(self, agent_id: str) -> AsyncGenerator[Lease]:
        """Hold the recovery lease of an agent for the duration of the block."""
        namespace = namespace_of(self._store, agent_id)
        leases = namespace.space.by(process_name()).leases
        lease = await leases.acquire(namespace.label("recovery"), self.claim_s)
        async with lease.kept_alive():
            yield lease


async def _call_agent(agent: Any, work: Any, *given: Any) -> tuple[Any, Exception | None]:
    """Call an agent's function, and return its result, or its exception, which is logged.

    All exceptions count, because recovery exists for failed agents. The last failure is raised in the end.
    """
    try:
        return await call_function(work, *given), None
    except Exception as failure:  # noqa: BLE001 - the agent's own, returned to be counted or raised
        _log.warning("Agent %r failed: %r", agent.id, failure)
        return None, failure
