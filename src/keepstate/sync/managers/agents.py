"""Blocking twins of `keepstate.managers.agents.store`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import Unpack

from keepstate._finish import finish
from keepstate.managers.agents import store as managers
from keepstate.managers.agents.store import AgentCheckpoint, AgentSnapshot
from keepstate.sync.managers.binding import ManagerStorage
from keepstate.sync.managers.manager import Manager
from keepstate.sync.twin import inner_options


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
