"""The agents of a team, and which of its tasks each of them holds.

An agent's document says what it was given. A lease that runs out writes nothing there: who holds what is
judged by the queue whenever it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import cast

from keepstate.engine.queue.tasks import TaskInfo
from keepstate.errors import NotFoundError
from keepstate.managers.binding import Folder
from keepstate.managers.teams.records import IDLE, WORKING, AgentCoordinationState
from keepstate.values import limits


def place_of_agent(team: Folder, agent_id: str) -> str:
    """Return the name of an agent's document."""
    return team.name("agent", agent_id)


async def need_team(team: Folder) -> None:
    """Raise `NotFoundError` unless there is this team."""
    if await team.space.documents.get(team.name("team")) is None:
        raise NotFoundError(f"there is no team {team.id!r}; create_team makes it")


async def find_agent(team: Folder, agent_id: str) -> AgentCoordinationState:
    """Return an agent of a team as it was written.

    Raises:
        NotFoundError: There is no such team, or it has no such agent.
    """
    agent: AgentCoordinationState | None = await team.space.documents.get(place_of_agent(team, agent_id))
    if agent is None:
        await need_team(team)
        raise NotFoundError(f"team {team.id!r} has no agent {agent_id!r}; add_agent adds it")
    return agent


async def put_agent(team: Folder, agent: AgentCoordinationState) -> None:
    """Write an agent."""
    await team.space.documents.put(place_of_agent(team, agent.agent_id), agent)


async def agents_of(team: Folder) -> list[AgentCoordinationState]:
    """Return the agents of a team, by id, as they stand: who has lost all that it was given is idle."""
    agents = [agent async for _, agent in team.values("agent")]
    given = list(dict.fromkeys(task_id for agent in agents for task_id in agent.tasks))
    if not given:
        return agents
    now, infos = await team.space.now(), dict[str, TaskInfo]()
    for begin in range(0, len(given), limits.READ_KEYS):
        infos |= await _infos(team, given[begin : begin + limits.READ_KEYS])
    return [_standing(agent, _held(agent, infos, now)) for agent in agents]


def _standing(agent: AgentCoordinationState, held: list[str]) -> AgentCoordinationState:
    """Return an agent as it stands if it holds just these tasks; what the application said of it stays."""
    if agent.status != WORKING or agent.current_task not in agent.tasks or agent.current_task in held:
        return agent if agent.tasks == held else replace(agent, tasks=held)
    return _gone_on(agent, held)


def _gone_on(agent: AgentCoordinationState, held: list[str]) -> AgentCoordinationState:
    if not held:
        return replace(agent, status=IDLE, current_task=None, tasks=[])
    return replace(agent, status=WORKING, current_task=held[-1], tasks=held)


async def let_work(team: Folder, agent_id: str, task_id: str, *, instead_of: str | None) -> None:
    """Say that an agent works on a task, and no longer who held it before."""
    if instead_of is not None and instead_of != agent_id:
        await let_go(team, instead_of, task_id)
    agent = await find_agent(team, agent_id)
    held = [*await _others(team, agent, task_id), task_id]
    await put_agent(team, replace(agent, status=WORKING, current_task=task_id, tasks=held))


async def let_go(team: Folder, agent_id: str | None, task_id: str) -> None:
    """Say that an agent no longer has a task: it goes on with another that it holds, or is idle."""
    if agent_id is None:
        return
    agent: AgentCoordinationState | None = await team.space.documents.get(place_of_agent(team, agent_id))
    if agent is None or (task_id not in agent.tasks and agent.current_task != task_id):
        return
    held = await _others(team, agent, task_id)
    is_over = agent.current_task == task_id
    await put_agent(team, _gone_on(agent, held) if is_over else _standing(agent, held))


async def _others(team: Folder, agent: AgentCoordinationState, task_id: str) -> list[str]:
    """Return what else an agent holds."""
    given = [each for each in agent.tasks if each != task_id]
    if not given:
        return []
    return _held(replace(agent, tasks=given), await _infos(team, given), await team.space.now())


async def _infos(team: Folder, task_ids: Sequence[str]) -> dict[str, TaskInfo]:
    # What was stored as an agent by some other way may hold what is no id, and so no task.
    given = cast("Sequence[object]", task_ids)
    ids = [task_id for task_id in given if isinstance(task_id, str)]
    found = await team.space.queue.get_each(*(team.task(task_id) for task_id in ids))
    return {task_id: info for task_id, info in zip(ids, found, strict=True) if info is not None}


def _held(agent: AgentCoordinationState, infos: dict[str, TaskInfo], now: datetime) -> list[str]:
    return [
        task_id
        for task_id in agent.tasks
        if (info := infos.get(task_id)) is not None and is_held(info, now) and info.worker == agent.agent_id
    ]


def is_held(info: TaskInfo, now: datetime) -> bool:
    """Return whether somebody holds a task at this time of the store."""
    return info.state == "claimed" and now < info.due_at
