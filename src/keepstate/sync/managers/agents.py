"""Blocking twins of `keepstate.managers.agents`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import Any, Unpack

from keepstate._finish import finish
from keepstate.managers import agents as managers
from keepstate.managers.agents import AgentCheckpoint, AgentSnapshot, Recoverable, Recovery
from keepstate.managers.record_history import LATEST
from keepstate.sync.managers.binding import ManagerStorage
from keepstate.sync.managers.manager import Manager
from keepstate.sync.twin import Twin, inner_of, inner_options


class AgentStateStore(Manager[managers.AgentStateStore]):
    """Stores agents, each in its space `agent/<id>`.

    A snapshot or checkpoint costs only its changes since the last one, however large it is.

    Args:
        persistence: Storage of the agents; see `StateManager`.
        url: The URL, if `persistence` names a backend.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: A space or transaction that stores all agents, in place of a store.
    """

    def __init__(self, **storage: Unpack[ManagerStorage]) -> None:
        super().__init__(managers.AgentStateStore(**inner_options(storage)))

    def save_snapshot(self, snapshot: AgentSnapshot) -> str:
        """Save a snapshot in addition to earlier ones, and return the id of its commit."""
        return finish(self._inner.save_snapshot(snapshot))

    def list_snapshots(self, agent_id: str, *, limit: int | None = None) -> list[AgentSnapshot]:
        """Return an agent's snapshots, oldest first.

        Args:
            agent_id: The agent.
            limit: Return only the last `limit` snapshots.
        """
        return finish(self._inner.list_snapshots(agent_id, limit=limit))

    def latest_snapshot(self, agent_id: str) -> AgentSnapshot | None:
        """Return the newest snapshot, or None if there is none."""
        return finish(self._inner.latest_snapshot(agent_id))

    def save_checkpoint(self, checkpoint: AgentCheckpoint) -> str:
        """Save a checkpoint, and return the id of its commit. A replaced checkpoint stays in the history."""
        return finish(self._inner.save_checkpoint(checkpoint))

    def get_checkpoint(self, agent_id: str, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return a checkpoint, or None if there is none with this id."""
        return finish(self._inner.get_checkpoint(agent_id, checkpoint_id))

    def list_checkpoints(self, agent_id: str, *, limit: int | None = None) -> list[AgentCheckpoint]:
        """Return an agent's checkpoints, oldest first.

        Args:
            agent_id: The agent.
            limit: Return only the last `limit` checkpoints.
        """
        return finish(self._inner.list_checkpoints(agent_id, limit=limit))

    def latest_checkpoint(self, agent_id: str, *, recoverable_only: bool = False) -> AgentCheckpoint | None:
        """Return the newest checkpoint, or None if there is none.

        Args:
            agent_id: The agent.
            recoverable_only: Consider only checkpoints that recovery may start from.
        """
        return finish(self._inner.latest_checkpoint(agent_id, recoverable_only=recoverable_only))

    def delete_checkpoint(self, agent_id: str, checkpoint_id: str) -> bool:
        """Delete a checkpoint, and return whether it existed. It stays in the history."""
        return finish(self._inner.delete_checkpoint(agent_id, checkpoint_id))

    def list_agents(self) -> list[str]:
        """Return the ids of all agents with data."""
        return finish(self._inner.list_agents())

    def delete(self, agent_id: str) -> bool:
        """Remove all data of an agent, including its history, and return whether there was any."""
        return finish(self._inner.delete(agent_id))


class AgentRecoveryManager(Twin[managers.AgentRecoveryManager]):
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
    ) -> None:
        super().__init__(
            managers.AgentRecoveryManager(
                inner_of(agent_store),
                auto_recover=auto_recover,
                max_recovery_attempts=max_recovery_attempts,
                backoff_s=backoff_s,
                claim_s=claim_s,
                _mode="blocking",
            )
        )

    @property
    def auto_recover(self) -> bool:
        """True lets `run` recover an agent that fails."""
        return self._inner.auto_recover

    @property
    def max_recovery_attempts(self) -> int:
        """Maximum number of attempts."""
        return self._inner.max_recovery_attempts

    @property
    def backoff_s(self) -> float:
        """Pause before the second attempt, in seconds; each later pause is twice as long."""
        return self._inner.backoff_s

    @property
    def claim_s(self) -> float:
        """Seconds for which a process that dies during a recovery still blocks the agent."""
        return self._inner.claim_s

    def register(self, agent: Recoverable) -> None:
        """Register an agent for recovery by its id. The manager holds a weak reference.

        Raises:
            InvalidError: The agent has no `id` or `restore_from_checkpoint`, or cannot be weakly referenced.
        """
        self._inner.register(agent)

    def unregister(self, agent_id: str) -> bool:
        """Forget an agent, and return whether it was registered."""
        return self._inner.unregister(agent_id)

    def recover(self, agent_id: str, from_checkpoint: str = LATEST) -> Recovery:
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
        return finish(self._inner.recover(agent_id, from_checkpoint))

    def run(self, agent: Recoverable, task: Any = None) -> Any:
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
        return finish(self._inner.run(agent, task))

    def attempts(self, agent_id: str) -> int:
        """Return the number of recovery attempts since the agent last made progress."""
        return finish(self._inner.attempts(agent_id))

    def reset(self, agent_id: str) -> None:
        """Reset the recovery attempts of an agent, so that all are available again."""
        finish(self._inner.reset(agent_id))
