"""Agents: snapshots of what they are, and checkpoints of what they are doing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, ClassVar, Final

from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.managers.binding import Folder
from keepstate.managers.manager import Manager
from keepstate.managers.record_history import Moment, Moments, admit_id, forget_old
from keepstate.managers.records import admit_record, record

RECOVERABLE: Final = "recoverable"
"""What holds of a checkpoint that recovery may go on from."""


@record("AgentSnapshot")
class AgentSnapshot:
    """All that an agent is at one moment.

    Attributes:
        agent_id: The agent.
        timestamp: When, as the agent says; no order follows from it.
        memory_state: What it remembers.
        tool_state: How its tools stand.
        conversation_history: What was said.
        metadata: Anything else.
        saved_at: When it was saved, by the store's clock; None before.
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
    """A point in a task from which an agent can go on.

    Attributes:
        agent_id: The agent.
        checkpoint_id: Names it; the same name again replaces it.
        step: How far the task is.
        state: What the agent needs to go on.
        recoverable: Whether recovery may go on from here.
        saved_at: When it was saved, by the store's clock; None before.
    """

    agent_id: str
    checkpoint_id: str
    step: int
    state: Any = None
    recoverable: bool = True
    saved_at: datetime | None = field(default=None, compare=False)


class AgentStateStore(Manager):
    """Keeps agents, each in its space `agent/<id>`.

    A snapshot or checkpoint costs what changed since the one before, however large it is.

    Args:
        persistence: Where to keep agents; see `StateManager`.
        url: The URL, if `persistence` names a kind of store.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: Instead: the space or transaction to keep all agents in.
    """

    _kind: ClassVar[str] = "agent"

    def _snapshots(self, agent_id: str) -> Moments:
        return Moments(self._folder(agent_id), "snapshot")

    def _checkpoints(self, agent_id: str) -> Moments:
        return Moments(self._folder(agent_id), "checkpoint")

    # ---- snapshots

    async def save_snapshot(self, snapshot: AgentSnapshot) -> str:
        """Keep a snapshot beside those before it, and return the id of its commit."""
        admit_record("snapshot", snapshot, AgentSnapshot)
        moments = self._snapshots(snapshot.agent_id)

        async def work(inside: Folder) -> Moment:
            return await moments.inside(inside).add(snapshot, message="snapshot")

        return (await self._together(moments.folder, work, message="snapshot")).commit

    async def list_snapshots(self, agent_id: str, *, limit: int | None = None) -> list[AgentSnapshot]:
        """Return an agent's snapshots in the order in which they were saved.

        Args:
            agent_id: The agent.
            limit: Only the last so many.
        """
        return await self._snapshots(agent_id).list(limit)

    async def latest_snapshot(self, agent_id: str) -> AgentSnapshot | None:
        """Return the snapshot that was saved last, or None if there is none."""
        moments = self._snapshots(agent_id)
        moment = await moments.newest()
        return None if moment is None else await moments.read(moment)

    # ---- checkpoints

    async def save_checkpoint(self, checkpoint: AgentCheckpoint) -> str:
        """Keep a checkpoint, and return the id of its commit; the history keeps one that it replaces."""
        admit_record("checkpoint", checkpoint, AgentCheckpoint)
        admit_id("checkpoint_id", checkpoint.checkpoint_id)
        moments = self._checkpoints(checkpoint.agent_id)
        message = f"checkpoint {checkpoint.checkpoint_id}"

        async def work(inside: Folder) -> Moment:
            facts = [RECOVERABLE] if checkpoint.recoverable else []
            return await moments.inside(inside).add(
                checkpoint, id=checkpoint.checkpoint_id, facts=facts, message=message
            )

        return (await self._together(moments.folder, work, message=message)).commit

    async def get_checkpoint(self, agent_id: str, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return a checkpoint, or None if there is none of this id."""
        found: AgentCheckpoint | None = await self._checkpoints(agent_id).get(checkpoint_id)
        return found

    async def list_checkpoints(self, agent_id: str, *, limit: int | None = None) -> list[AgentCheckpoint]:
        """Return an agent's checkpoints in the order in which they were saved.

        Args:
            agent_id: The agent.
            limit: Only the last so many.
        """
        return await self._checkpoints(agent_id).list(limit)

    async def latest_checkpoint(
        self, agent_id: str, *, recoverable_only: bool = False
    ) -> AgentCheckpoint | None:
        """Return the checkpoint that was saved last, or None if there is none.

        Args:
            agent_id: The agent.
            recoverable_only: Only among those that recovery may go on from.
        """
        check_flag("recoverable_only", recoverable_only)
        moments = self._checkpoints(agent_id)
        moment = await moments.newest(RECOVERABLE if recoverable_only else "")
        return None if moment is None else await moments.read(moment)

    async def delete_checkpoint(self, agent_id: str, checkpoint_id: str) -> bool:
        """Forget a checkpoint, and return whether there was one; the history keeps it."""
        check_text("checkpoint_id", checkpoint_id)
        moments = self._checkpoints(agent_id)

        async def work(inside: Folder) -> bool:
            return await moments.inside(inside).remove(checkpoint_id)

        return await self._together(moments.folder, work, message=f"forget checkpoint {checkpoint_id}")

    # ---- agents

    async def list_agents(self) -> list[str]:
        """Return the agents of which something is kept."""
        return await self._ids()

    async def delete(self, agent_id: str) -> bool:
        """Remove all that is kept of an agent, its history too, and return whether there was something."""
        return await self._forget(self._folder(agent_id), branches=("snapshot", "checkpoint"))

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Remove snapshots and checkpoints that were saved before then, but for the newest, and the past."""
        removed, since = await forget_old(folder, ("snapshot", "checkpoint"), before, self._together)
        await self._prune(folder, since)
        return removed
