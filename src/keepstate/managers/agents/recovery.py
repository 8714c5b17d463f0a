"""Recovery: an agent that failed goes on from its last checkpoint, a counted number of times.

Attempts are counted in the agent's own space, so that a restart forgets none, and begin anew once the agent
has saved a checkpoint of a higher step than those that it was restored from, or has finished a task. Between
two of them is always a pause. While one process recovers an agent, no other does.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, runtime_checkable
from weakref import WeakValueDictionary

from keepstate._runner import Mode, Signal, process_name
from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.engine.kernel.times import check_duration_ms
from keepstate.engine.queue.lease import Lease
from keepstate.errors import (
    AttemptsExhaustedError,
    ConflictError,
    InvalidError,
    KeepstateError,
    LeaseLostError,
    NotFoundError,
)
from keepstate.managers.agents.store import RECOVERABLE, AgentCheckpoint, AgentStateStore
from keepstate.managers.binding import Folder
from keepstate.managers.manager import done_together, folder_of, mode_of
from keepstate.managers.record_history import LATEST, Moments
from keepstate.managers.records import record
from keepstate.managers.sizes import admit_interval
from keepstate.values import limits

_LONGEST_PAUSE_S: Final = 300.0
_DOUBLINGS: Final = 60
"""More of them than any pause has, and few enough for a float."""
_log = logging.getLogger("keepstate.managers")


@runtime_checkable
class Recoverable(Protocol):
    """What an agent has so that it can be recovered; `run` also asks for `run(task)` and `resume()`."""

    @property
    def id(self) -> str:
        """The name that its checkpoints are kept under."""
        ...

    def restore_from_checkpoint(self, state: Any, /) -> Any:
        """Take back what a checkpoint kept; may be a coroutine function."""
        ...


@dataclass(frozen=True, slots=True)
class Recovery:
    """An agent was restored.

    Attributes:
        agent_id: The agent.
        checkpoint: What it was restored from.
        attempt: The how-manieth attempt since it last got further.
        attempts_left: How many more there may be.
    """

    agent_id: str
    checkpoint: AgentCheckpoint
    attempt: int
    attempts_left: int


@record("RecoveryRecord")
class RecoveryRecord:
    """The attempts to recover an agent, as they are stored.

    Attributes:
        attempts: How many there were since it last got further.
        step: That of the checkpoint that it was restored from last.
        last_at: When the last one was, by the store's clock.
        last_error: What `run` saw before it.
    """

    attempts: int = 0
    step: int = -1
    last_at: datetime | None = None
    last_error: str | None = None


class AgentRecoveryManager:
    """Restores agents from their checkpoints.

    Attributes:
        auto_recover: Whether `run` recovers an agent that fails.
        max_recovery_attempts: How often, before it is given up.
        backoff_s: How long the pause before the second attempt is; each later one is twice as long.
        claim_s: For how long a process that dies while it recovers an agent keeps others from it.
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
        """Make a manager; asks the store nothing.

        Args:
            agent_store: Where the agents' checkpoints are; it is closed by who made it.
            auto_recover: Whether `run` recovers an agent that fails.
            max_recovery_attempts: How often, before it is given up.
            backoff_s: How long the pause before the second attempt is, and the shortest there is.
            claim_s: For how long a process that dies in a recovery keeps others from the agent.
        """
        given: Any = agent_store
        if not isinstance(given, AgentStateStore) or mode_of(given) != _mode:
            wanted = "a keepstate.sync.AgentStateStore" if _mode == "blocking" else "an AgentStateStore"
            raise InvalidError(f"`agent_store` is a {type(agent_store).__name__}; give {wanted}")
        limits.admit_count("max_recovery_attempts", max_recovery_attempts)
        check_duration_ms("claim_s", claim_s)
        self._store = agent_store
        self.auto_recover: bool = check_flag("auto_recover", auto_recover)
        self.max_recovery_attempts: int = max_recovery_attempts
        self.backoff_s: float = admit_interval("backoff_s", backoff_s)
        self.claim_s: float = float(claim_s)
        self._agents: WeakValueDictionary[str, Any] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<AgentRecoveryManager over {self._store!r}, {len(self._agents)} agents>"

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process makes the same manager of; agents that were registered stay here."""
        return {**self.__dict__, "_agents": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._agents = WeakValueDictionary()

    def register(self, agent: Recoverable) -> None:
        """Let an agent be recovered by its id; it is held weakly.

        Raises:
            InvalidError: It has no `id` or `restore_from_checkpoint`, or cannot be held weakly.
        """
        given: Any = agent
        if not isinstance(given, Recoverable) or type(given.id) is not str:
            raise InvalidError(f"{agent!r} cannot be recovered; give it an id and restore_from_checkpoint")
        if mode_of(self._store) == "blocking":
            for name in ("restore_from_checkpoint", "run", "resume"):
                if (method := getattr(agent, name, None)) is not None:
                    reject_coroutine_function(method)
        try:
            self._agents[agent.id] = agent
        except TypeError as error:
            raise InvalidError(
                f"{agent!r} cannot be held weakly; give its class a __weakref__ slot"
            ) from error

    def unregister(self, agent_id: str) -> bool:
        """Forget an agent, and return whether it was registered."""
        return self._agents.pop(agent_id, None) is not None

    # ---- recovering

    async def recover(self, agent_id: str, from_checkpoint: str = LATEST) -> Recovery:
        """Restore an agent from a checkpoint, after the pause that is due; it does not resume it.

        Until it returns, no other process recovers the agent; while the caller resumes it, others may. `run`
        keeps them away until the agent has finished.

        Args:
            agent_id: A registered agent.
            from_checkpoint: The id of a recoverable checkpoint; `latest` is the one that was saved last.

        Raises:
            NotFoundError: No such agent is registered, or it has no such recoverable checkpoint.
            AttemptsExhaustedError: It was tried as often as allowed, and the agent got no further.
            ConflictError: Another process recovers this agent just now; the message says which.
            Exception: What the agent raised while it was restored; that was an attempt.
        """
        agent = self._agent(check_text("agent_id", agent_id))
        check_text("from_checkpoint", from_checkpoint)
        async with self._claimed(agent_id) as lease:
            recovery = await self._begun(agent_id, from_checkpoint, lease, None)
            await call_function(agent.restore_from_checkpoint, recovery.checkpoint.state)
            await lease.check()
            return recovery

    async def run(self, agent: Recoverable, task: Any = None) -> Any:
        """Return what `agent.run(task)` returns; where it fails, recovers the agent and resumes it.

        Args:
            agent: An agent with `run(task)` and `resume()`; it is registered.
            task: What to run.

        Raises:
            AttemptsExhaustedError: It failed as often as allowed; the last failure is its cause.
            Exception: What the agent raised, without `auto_recover`; and where there is no checkpoint, or
                another process recovers the agent just now: a note says so then.
        """
        self.register(agent)
        for name in ("run", "resume") if self.auto_recover else ("run",):
            if not callable(getattr(agent, name, None)):
                raise InvalidError(f"{agent!r} has no {name}(); recover it, and go on by yourself")
        result, failure = await _tried(agent, getattr(agent, "run"), task)  # noqa: B009  optional in the protocol
        if failure is not None:
            if not self.auto_recover:
                raise failure
            result = await self._resumed(agent, failure)
        await self._finished(agent.id)
        return result

    async def _resumed(self, agent: Any, error: Exception) -> Any:
        """Return what the agent came to at last; what hinders recovery is noted in its failure."""
        hindrance: KeepstateError
        try:
            async with self._claimed(agent.id) as lease:
                while True:
                    recovery = await self._begun(agent.id, LATEST, lease, error)
                    state = recovery.checkpoint.state
                    result, failure = await _tried(agent, agent.restore_from_checkpoint, state)
                    if failure is None:
                        await lease.check()  # else another process may be at it by now
                        result, failure = await _tried(agent, agent.resume)
                    if failure is None:
                        return result
                    error = failure
        except AttemptsExhaustedError as exhausted:
            raise exhausted from error
        except (ConflictError, NotFoundError) as found:
            hindrance = found
        error.add_note(f"agent {agent.id!r} was not recovered: {hindrance}")
        raise error  # here, where it keeps what it was raised from

    async def _finished(self, agent_id: str) -> None:
        """Forget the attempts; where that fails, what the agent came to is worth more."""
        try:
            await self.reset(agent_id)
        except KeepstateError as failure:
            _log.warning("agent %r has finished, and its attempts are still counted: %s", agent_id, failure)

    async def _begun(
        self, agent_id: str, from_checkpoint: str, lease: Lease, error: Exception | None
    ) -> Recovery:
        """Count an attempt after the pause that is due, and return what to restore the agent from."""
        folder = folder_of(self._store, agent_id)
        checkpoint = await Moments(folder, "checkpoint").demanded(from_checkpoint, RECOVERABLE)
        known = await self._attempts(folder, checkpoint)
        if known.attempts >= self.max_recovery_attempts:
            raise AttemptsExhaustedError(
                f"agent {agent_id!r} was recovered {known.attempts} times and got no further; mend what "
                "fails, then reset it",
                attempts=known.attempts,
            )
        await self._pause(folder, known)
        attempt = await self._counted(folder, known, lease, error)
        return Recovery(agent_id, checkpoint, attempt, self.max_recovery_attempts - attempt)

    # ---- attempts

    async def attempts(self, agent_id: str) -> int:
        """Return how often recovery of an agent was tried since it last got further."""
        folder = folder_of(self._store, agent_id)
        latest = await Moments(folder, "checkpoint").newest(RECOVERABLE)
        checkpoint = None if latest is None else await Moments(folder, "checkpoint").read(latest)
        return (await self._attempts(folder, checkpoint)).attempts

    async def reset(self, agent_id: str) -> None:
        """Forget the attempts to recover an agent: it may have all of them again."""
        folder = folder_of(self._store, agent_id)
        if await folder.space.documents.entry(folder.name("recovery")) is not None:
            await folder.by("recovered").space.documents.delete(folder.name("recovery"))

    async def _attempts(self, folder: Folder, checkpoint: AgentCheckpoint | None) -> RecoveryRecord:
        """Return the attempts since the agent came to a higher step.

        A newer checkpoint alone is no progress: what saves one and fails each time would go on for ever.
        """
        known: RecoveryRecord | None = await folder.space.documents.get(folder.name("recovery"))
        step = -1 if checkpoint is None else checkpoint.step
        if known is None:
            return RecoveryRecord(step=step)
        return replace(known, attempts=0, step=step) if step > known.step else known

    async def _pause(self, folder: Folder, known: RecoveryRecord) -> None:
        """Wait until the next attempt is due, also where the agent has got further since the last one.

        What saves a higher step and fails each time would else take all the time of its process.
        """
        if known.last_at is None:
            return
        doublings = min(max(known.attempts - 1, 0), _DOUBLINGS)
        wait_s = min(self.backoff_s * 2**doublings, _LONGEST_PAUSE_S)
        due = known.last_at + timedelta(seconds=wait_s)
        left_s = (due - await folder.space.now()).total_seconds()
        if left_s > 0:
            await folder.space.runner.sleep(left_s)

    async def _counted(
        self, folder: Folder, known: RecoveryRecord, lease: Lease, error: Exception | None
    ) -> int:
        async def work(inside: Folder) -> int:
            counted = replace(
                known,
                attempts=known.attempts + 1,
                last_at=await inside.space.now(),
                last_error=None if error is None else repr(error)[: limits.ERROR_BYTES],
            )
            await inside.space.documents.put(inside.name("recovery"), counted)
            return counted.attempts

        message = f"recover, attempt {known.attempts + 1}"
        return await done_together(self._store, folder, work, message=message, lease=lease)

    # ---- claims

    def _agent(self, agent_id: str) -> Any:
        agent = self._agents.get(agent_id)
        if agent is None:
            raise NotFoundError(f"no agent {agent_id!r} is registered here, or it is gone; register it")
        return agent

    @asynccontextmanager
    async def _claimed(self, agent_id: str) -> AsyncGenerator[Lease]:
        """Hold an agent for as long as the block runs."""
        folder = folder_of(self._store, agent_id)
        leases = folder.space.by(process_name()).leases
        lease = await leases.acquire(folder.label("recovery"), self.claim_s)

        async def renew(signal: Signal) -> None:
            while not await signal.wait(self.claim_s / 3):
                try:
                    await lease.renew()
                except LeaseLostError:
                    return  # who is at work finds out when it is asked
                except KeepstateError as error:
                    _log.warning("%r could not be renewed, and is tried again: %s", lease, error)

        heartbeat = folder.space.runner.start(renew, f"recovery of {agent_id!r}")
        try:
            yield lease
        finally:
            await heartbeat.stop()
            with suppress(KeepstateError):  # it ends by itself, and must not hide how the work has ended
                await lease.release()


async def _tried(agent: Any, work: Any, *given: Any) -> tuple[Any, Exception | None]:
    """Return what an agent's own function returned, or what it failed of, which is logged.

    Whatever that is: a failed agent is what recovery is for. Its last failure is raised in the end.
    """
    try:
        return await call_function(work, *given), None
    except Exception as failure:  # noqa: BLE001 - the agent's own, handed to who counts it or raises it
        _log.warning("agent %r failed: %r", agent.id, failure)
        return None, failure
