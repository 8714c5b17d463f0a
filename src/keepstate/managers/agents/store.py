"""Agents: snapshots of their state, and checkpoints of their work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, ClassVar, Final

from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.managers.binding import Namespace
from keepstate.managers.manager import Manager
from keepstate.managers.record_history import RecordHistory, SavedRecord, check_record_id, delete_old_records
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

    def _snapshots(self, agent_id: str) -> RecordHistory:
        return RecordHistory(self._namespace(agent_id), "snapshot")

    def _checkpoints(self, agent_id: str) -> RecordHistory:
        return RecordHistory(self._namespace(agent_id), "checkpoint")

    # ---- snapshots

    async def save_snapshot(self, snapshot: AgentSnapshot) -> str:
        """Save a snapshot in addition to earlier ones, and return the id of its commit."""
        check_record("snapshot", snapshot, AgentSnapshot)
        history = self._snapshots(snapshot.agent_id)

        async def work(inside: Namespace) -> SavedRecord:
            return await history.inside(inside).add(snapshot, message="snapshot")

        return (await self._run_together(history.namespace, work, message="snapshot")).commit

    async def list_snapshots(self, agent_id: str, *, limit: int | None = None) -> list[AgentSnapshot]:
        """Return an agent's snapshots, oldest first.

        Args:
            agent_id: The agent.
            limit: Return only the last `limit` snapshots.
        """
        return await self._snapshots(agent_id).list(limit)

    async def latest_snapshot(self, agent_id: str) -> AgentSnapshot | None:
        """Return the newest snapshot, or None if there is none."""
        history = self._snapshots(agent_id)
        saved = await history.find_newest()
        return None if saved is None else await history.read(saved)

    # ---- checkpoints

    async def save_checkpoint(self, checkpoint: AgentCheckpoint) -> str:
        """Save a checkpoint, and return the id of its commit. A replaced checkpoint stays in the history."""
        check_record("checkpoint", checkpoint, AgentCheckpoint)
        check_record_id("checkpoint_id", checkpoint.checkpoint_id)
        history = self._checkpoints(checkpoint.agent_id)
        message = f"checkpoint {checkpoint.checkpoint_id}"

        async def work(inside: Namespace) -> SavedRecord:
            facts = [RECOVERABLE] if checkpoint.recoverable else []
            return await history.inside(inside).add(
                checkpoint, id=checkpoint.checkpoint_id, facts=facts, message=message
            )

        return (await self._run_together(history.namespace, work, message=message)).commit

    async def get_checkpoint(self, agent_id: str, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return a checkpoint, or None if there is none with this id."""
        found: AgentCheckpoint | None = await self._checkpoints(agent_id).get(checkpoint_id)
        return found

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
        history = self._checkpoints(agent_id)
        saved = await history.find_newest(RECOVERABLE if recoverable_only else "")
        return None if saved is None else await history.read(saved)

    async def delete_checkpoint(self, agent_id: str, checkpoint_id: str) -> bool:
        """Delete a checkpoint, and return whether it existed. It stays in the history."""
        check_text("checkpoint_id", checkpoint_id)
        history = self._checkpoints(agent_id)

        async def work(inside: Namespace) -> bool:
            return await history.inside(inside).remove(checkpoint_id)

        return await self._run_together(history.namespace, work, message=f"forget checkpoint {checkpoint_id}")

    # ---- agents

    async def list_agents(self) -> list[str]:
        """Return the ids of all agents with data."""
        return await self._ids()

    async def delete(self, agent_id: str) -> bool:
        """Remove all data of an agent, including its history, and return whether there was any."""
        return await self._forget(self._namespace(agent_id), branches=("snapshot", "checkpoint"))

    async def _clean(self, namespace: Namespace, before: datetime) -> int:
        """Remove old snapshots and checkpoints, except the newest, and prune the history."""
        removed, since = await delete_old_records(
            namespace, ("snapshot", "checkpoint"), before, self._run_together
        )
        await self._prune(namespace, since)
        return removed
