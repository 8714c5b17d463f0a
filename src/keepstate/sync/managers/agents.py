"""Blocking twins of `keepstate.managers.agents.store`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from os import PathLike

from keepstate._finish import finish
from keepstate.managers.agents import store as managers
from keepstate.managers.agents.store import AgentCheckpoint, AgentSnapshot
from keepstate.managers.backends import Backend
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.managers.manager import Manager
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import inner_of


class AgentStateStore(Manager[managers.AgentStateStore]):
    """Keeps agents, each in its space `agent/<id>`.

    A snapshot or checkpoint costs what changed since the one before, however large it is.

    Args:
        persistence: Where to keep agents; see `StateManager`.
        url: The URL, if `persistence` names a kind of store.
        redis_url: The URL of a Redis server.
        file_path: The file of a journal or SQLite database.
        space: Instead: the space or transaction to keep all agents in.
    """

    def __init__(
        self,
        *,
        persistence: str | Backend | Store | Keepstate | None = None,
        url: str | None = None,
        redis_url: str | None = None,
        file_path: str | PathLike[str] | None = None,
        space: Space | Transaction | None = None,
    ) -> None:
        super().__init__(
            managers.AgentStateStore(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                url=url,
                redis_url=redis_url,
                file_path=file_path,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                _mode="blocking",
            )
        )

    def save_snapshot(self, snapshot: AgentSnapshot) -> str:
        """Keep a snapshot beside those before it, and return the id of its commit."""
        return finish(self._inner.save_snapshot(snapshot))

    def list_snapshots(self, agent_id: str, *, limit: int | None = None) -> list[AgentSnapshot]:
        """Return an agent's snapshots in the order in which they were saved.

        Args:
            agent_id: The agent.
            limit: Only the last so many.
        """
        return finish(self._inner.list_snapshots(agent_id, limit=limit))

    def latest_snapshot(self, agent_id: str) -> AgentSnapshot | None:
        """Return the snapshot that was saved last, or None if there is none."""
        return finish(self._inner.latest_snapshot(agent_id))

    def save_checkpoint(self, checkpoint: AgentCheckpoint) -> str:
        """Keep a checkpoint, and return the id of its commit; the history keeps one that it replaces."""
        return finish(self._inner.save_checkpoint(checkpoint))

    def get_checkpoint(self, agent_id: str, checkpoint_id: str) -> AgentCheckpoint | None:
        """Return a checkpoint, or None if there is none of this id."""
        return finish(self._inner.get_checkpoint(agent_id, checkpoint_id))

    def list_checkpoints(self, agent_id: str, *, limit: int | None = None) -> list[AgentCheckpoint]:
        """Return an agent's checkpoints in the order in which they were saved.

        Args:
            agent_id: The agent.
            limit: Only the last so many.
        """
        return finish(self._inner.list_checkpoints(agent_id, limit=limit))

    def latest_checkpoint(self, agent_id: str, *, recoverable_only: bool = False) -> AgentCheckpoint | None:
        """Return the checkpoint that was saved last, or None if there is none.

        Args:
            agent_id: The agent.
            recoverable_only: Only among those that recovery may go on from.
        """
        return finish(self._inner.latest_checkpoint(agent_id, recoverable_only=recoverable_only))

    def delete_checkpoint(self, agent_id: str, checkpoint_id: str) -> bool:
        """Forget a checkpoint, and return whether there was one; the history keeps it."""
        return finish(self._inner.delete_checkpoint(agent_id, checkpoint_id))

    def list_agents(self) -> list[str]:
        """Return the agents of which something is kept."""
        return finish(self._inner.list_agents())

    def delete(self, agent_id: str) -> bool:
        """Remove all that is kept of an agent, its history too, and return whether there was something."""
        return finish(self._inner.delete(agent_id))
