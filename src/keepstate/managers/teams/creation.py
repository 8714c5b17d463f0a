"""Creation of a team: atomic under concurrent creation, with any number of tasks.

Tasks that do not fit into one batch are stored before the team, in order. A document records the progress and
the creator. No task can be claimed before the team exists, and the team is created with the last tasks.
Therefore one of several concurrent creators wins, and the team has no data of another.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from keepstate.engine.space.joint_work import content_name, read_ahead
from keepstate.errors import AlreadyExistsError, InvalidError
from keepstate.managers.binding import Namespace
from keepstate.managers.records import check_record, encode_canonical
from keepstate.managers.teams import tasks
from keepstate.managers.teams.records import AgentCoordinationState, TeamState

_WRITES_AT_ONCE: Final = 900
_WRITES_OF_TASK: Final = 3
_AT_ONCE: Final = _WRITES_AT_ONCE // _WRITES_OF_TASK
_FORMING: Final = "forming"


class TeamCreation:
    """The batches that create a team.

    Raises:
        InvalidError: The queue has tasks that are not pending, an agent is listed under another id, or there
            are more agents than fit in one batch.
    """

    def __init__(self, team: TeamState) -> None:
        check_record("team_state", team, TeamState)
        for name in ("in_progress", "completed", "dead"):
            if len(getattr(team.task_queue, name)):
                raise InvalidError(
                    f"the queue of team {team.team_id!r} has tasks in `{name}`. Start it with pending tasks."
                )
        if len(team.agents) > _WRITES_AT_ONCE:
            raise InvalidError(
                f"team {team.team_id!r} has {len(team.agents)} agents, and at most {_WRITES_AT_ONCE} can be "
                "created at once. Add the others with add_agent()."
            )
        for agent_id, agent in team.agents.items():
            check_record(f"agents[{agent_id!r}]", agent, AgentCoordinationState)
            if agent.agent_id != agent_id:
                raise InvalidError(
                    f"agents[{agent_id!r}] is agent {agent.agent_id!r}. Use the agent's own id as the key."
                )
        self._team = team
        for task in team.task_queue.pending:
            tasks.with_id(task, "admitted")
        self._tasks: list[dict[str, Any]] = []
        self._room = max(0, (_WRITES_AT_ONCE - len(team.agents)) // _WRITES_OF_TASK)

    async def step(self, team: Namespace) -> bool:
        """Apply the next batch, and return whether it was the last.

        Raises:
            AlreadyExistsError: The team exists, or another team with its id is being created.
        """
        if not self._tasks:
            self._tasks = [
                tasks.with_id(task, await _id_at(team, index, task))
                for index, task in enumerate(self._team.task_queue.pending)
            ]
        name, forming_name, documents = team.name("team"), team.name(_FORMING), team.space.documents
        await read_ahead(team.space, documents=(name, forming_name))
        if await documents.get(name) is not None:
            raise AlreadyExistsError(f"team {team.id!r} exists already. Read it with get_team().")
        forming = await documents.get(forming_name, {"tasks": self._name, "next": 0})
        if forming["tasks"] != self._name:
            raise AlreadyExistsError(
                f"team {team.id!r} is being created with other tasks. If its creator has stopped, create it "
                "with those tasks, or call delete_team() first."
            )
        left = self._tasks[forming["next"] :]
        if len(left) > self._room:
            for task in left[:_AT_ONCE]:
                await tasks.put(team, task)
            await documents.put(forming_name, {**forming, "next": forming["next"] + _AT_ONCE})
            return False
        await documents.put(name, TeamState(team.id, metadata=self._team.metadata))
        for agent in self._team.agents.values():
            await tasks.put_agent(team, agent)
        for task in left:
            await tasks.put(team, task)
        await documents.delete(forming_name)
        return True

    @cached_property
    def _name(self) -> str:
        """Digest of the tasks, by which a creator with equal tasks can continue for another."""
        return sha256(encode_canonical(self._tasks)).hexdigest() if len(self._tasks) > self._room else ""


async def _id_at(team: Namespace, index: int, task: object) -> str:
    """Return the id of a task that has none; the same id when the same team is created again."""
    return (await content_name(team.space, encode_canonical((team.id, index, task)))).hex()[:32]
