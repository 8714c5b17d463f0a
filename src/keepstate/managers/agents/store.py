"""Agents: snapshots of their state, and checkpoints of their work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, ClassVar, Final

from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.managers.binding import ApplyWork, Namespace
from keepstate.managers.manager import Manager
from keepstate.managers.record_history import RecordHistory, check_record_id
from keepstate.managers.records import check_record, record

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
        return checkpoints_in(self._namespace(agent_id), self._run_together)

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


def checkpoints_in(namespace: Namespace, apply: ApplyWork) -> RecordHistory[AgentCheckpoint]:
    """Return the checkpoints of an agent."""
    return RecordHistory(namespace, "checkpoint", apply)
