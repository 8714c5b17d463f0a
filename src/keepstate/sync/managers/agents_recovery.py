"""Blocking twins of `keepstate.managers.agents.recovery`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import Any

from keepstate._finish import finish
from keepstate.managers.agents import recovery as managers
from keepstate.managers.agents.recovery import Recoverable, Recovery
from keepstate.managers.record_history import LATEST
from keepstate.sync.managers.agents import AgentStateStore
from keepstate.sync.twin import Twin, inner_of


class AgentRecoveryManager(Twin[managers.AgentRecoveryManager]):
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
        """Whether `run` recovers an agent that fails."""
        return self._inner.auto_recover

    @property
    def max_recovery_attempts(self) -> int:
        """How often, before it is given up."""
        return self._inner.max_recovery_attempts

    @property
    def backoff_s(self) -> float:
        """How long the pause before the second attempt is; each later one is twice as long."""
        return self._inner.backoff_s

    @property
    def claim_s(self) -> float:
        """For how long a process that dies while it recovers an agent keeps others from it."""
        return self._inner.claim_s

    def register(self, agent: Recoverable) -> None:
        """Let an agent be recovered by its id; it is held weakly.

        Raises:
            InvalidError: It has no `id` or `restore_from_checkpoint`, or cannot be held weakly.
        """
        self._inner.register(agent)

    def unregister(self, agent_id: str) -> bool:
        """Forget an agent, and return whether it was registered."""
        return self._inner.unregister(agent_id)

    def recover(self, agent_id: str, from_checkpoint: str = LATEST) -> Recovery:
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
        return finish(self._inner.recover(agent_id, from_checkpoint))

    def run(self, agent: Recoverable, task: Any = None) -> Any:
        """Return what `agent.run(task)` returns; where it fails, recovers the agent and resumes it.

        Args:
            agent: An agent with `run(task)` and `resume()`; it is registered.
            task: What to run.

        Raises:
            AttemptsExhaustedError: It failed as often as allowed; the last failure is its cause.
            Exception: What the agent raised, without `auto_recover`; and where there is no checkpoint, or
                another process recovers the agent just now: a note says so then.
        """
        return finish(self._inner.run(agent, task))

    def attempts(self, agent_id: str) -> int:
        """Return how often recovery of an agent was tried since it last got further."""
        return finish(self._inner.attempts(agent_id))

    def reset(self, agent_id: str) -> None:
        """Forget the attempts to recover an agent: it may have all of them again."""
        finish(self._inner.reset(agent_id))
