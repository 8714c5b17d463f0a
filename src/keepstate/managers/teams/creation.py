"""How a team comes about: whole, whoever else creates it at once, and however many tasks it begins with.

Tasks for which a batch has no room go ahead of the team, in their order, and a document says how far that has
come and for whom. Nobody can be given a task before the team is there, which comes with the last of them: so
one of several who create it at once wins, and nothing of another's is in it.
"""

from __future__ import annotations

from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from keepstate.engine.space.joint_work import content_name, read_ahead
from keepstate.errors import AlreadyExistsError, InvalidError
from keepstate.managers.binding import Folder
from keepstate.managers.parameters import sameness
from keepstate.managers.records import admit_record
from keepstate.managers.teams import tasks
from keepstate.managers.teams.agents import put_agent
from keepstate.managers.teams.records import AgentCoordinationState, TeamState

_WRITES_AT_ONCE: Final = 900
_WRITES_OF_TASK: Final = 3
_AT_ONCE: Final = _WRITES_AT_ONCE // _WRITES_OF_TASK
_FORMING: Final = "forming"


class Founding:
    """The batches that create a team, one after the other.

    Raises:
        InvalidError: Its queue has others than pending tasks, an agent stands under another's id, or there
            are more agents than come about at once.
    """

    def __init__(self, team: TeamState) -> None:
        admit_record("team_state", team, TeamState)
        for name in ("in_progress", "completed", "dead"):
            if len(getattr(team.task_queue, name)):
                raise InvalidError(
                    f"the queue of team {team.team_id!r} has tasks in `{name}`; it begins with pending ones"
                )
        if len(team.agents) > _WRITES_AT_ONCE:
            raise InvalidError(
                f"team {team.team_id!r} begins with {len(team.agents)} agents, and {_WRITES_AT_ONCE} at most "
                "come about at once; let add_agent add the others"
            )
        for agent_id, agent in team.agents.items():
            admit_record(f"agents[{agent_id!r}]", agent, AgentCoordinationState)
            if agent.agent_id != agent_id:
                raise InvalidError(
                    f"agents[{agent_id!r}] is agent {agent.agent_id!r}; give it under its own id"
                )
        self._team = team
        for task in team.task_queue.pending:
            tasks.named(task, "admitted")
        self._tasks: list[dict[str, Any]] = []
        self._room = max(0, (_WRITES_AT_ONCE - len(team.agents)) // _WRITES_OF_TASK)

    async def step(self, team: Folder) -> bool:
        """Do what comes next, and return whether that was the last of it.

        Raises:
            AlreadyExistsError: There is such a team, or another one of its name is being created.
        """
        if not self._tasks:
            self._tasks = [
                tasks.named(task, await _id_at(team, place, task))
                for place, task in enumerate(self._team.task_queue.pending)
            ]
        place, forming_place, documents = team.name("team"), team.name(_FORMING), team.space.documents
        await read_ahead(team.space, documents=(place, forming_place))
        if await documents.get(place) is not None:
            raise AlreadyExistsError(f"team {team.id!r} is there already; get_team shows it")
        forming = await documents.get(forming_place, {"tasks": self._name, "next": 0})
        if forming["tasks"] != self._name:
            raise AlreadyExistsError(
                f"team {team.id!r} is being created with other tasks; if who began that is gone, create it "
                "with those, or delete_team first"
            )
        left = self._tasks[forming["next"] :]
        if len(left) > self._room:
            for task in left[:_AT_ONCE]:
                await tasks.put(team, task)
            await documents.put(forming_place, {**forming, "next": forming["next"] + _AT_ONCE})
            return False
        await documents.put(place, TeamState(team.id, metadata=self._team.metadata))
        for agent in self._team.agents.values():
            await put_agent(team, agent)
        for task in left:
            await tasks.put(team, task)
        await documents.delete(forming_place)
        return True

    @cached_property
    def _name(self) -> str:
        """The same for all who create it with these tasks: one can go on where another has ended."""
        return sha256(sameness(self._tasks)).hexdigest() if len(self._tasks) > self._room else ""


async def _id_at(team: Folder, place: int, task: object) -> str:
    """Return the id of a task that has none: the same one when the same team is created once more."""
    return (await content_name(team.space, sameness((team.id, place, task)))).hex()[:32]
