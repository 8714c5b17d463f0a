"""The agents of a team, and the tasks that each of them holds.

An agent's document lists the tasks it was given. The end of a lease does not update the document. Therefore
each read checks the list against the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import cast

from keepstate.engine.queue.tasks import TaskInfo
from keepstate.errors import NotFoundError
from keepstate.managers.binding import Namespace
from keepstate.managers.teams.records import IDLE, WORKING, AgentCoordinationState
from keepstate.values import limits


def agent_name(team: Namespace, agent_id: str) -> str:
    """Return the name of an agent's document."""
    return team.name("agent", agent_id)


async def require_team(team: Namespace) -> None:
    """Raise `NotFoundError` if the team does not exist."""
    if await team.space.documents.get(team.name("team")) is None:
        raise NotFoundError(f"team {team.id!r} does not exist. Call create_team() first.")


async def find_agent(team: Namespace, agent_id: str) -> AgentCoordinationState:
    """Return the stored document of an agent.

    Raises:
        NotFoundError: The team does not exist, or has no such agent.
    """
    agent: AgentCoordinationState | None = await team.space.documents.get(agent_name(team, agent_id))
    if agent is None:
        await require_team(team)
        raise NotFoundError(f"team {team.id!r} has no agent {agent_id!r}. Call add_agent() first.")
    return agent


async def put_agent(team: Namespace, agent: AgentCoordinationState) -> None:
    """Write an agent."""
    await team.space.documents.put(agent_name(team, agent.agent_id), agent)


async def read_agents(team: Namespace) -> list[AgentCoordinationState]:
    """Return the agents of a team, ordered by id. An agent that has lost all its tasks is idle."""
    agents = [agent async for _, agent in team.values("agent")]
    given = list(dict.fromkeys(task_id for agent in agents for task_id in agent.tasks))
    if not given:
        return agents
    now, infos = await team.space.now(), dict[str, TaskInfo]()
    for begin in range(0, len(given), limits.READ_KEYS):
        infos |= await _read_infos(team, given[begin : begin + limits.READ_KEYS])
    return [_with_held_tasks(agent, _filter_held(agent, infos, now)) for agent in agents]


def _with_held_tasks(agent: AgentCoordinationState, held: list[str]) -> AgentCoordinationState:
    """Return an agent with the tasks that it still holds. A status of the application stays."""
    if agent.status != WORKING or agent.current_task not in agent.tasks or agent.current_task in held:
        return agent if agent.tasks == held else replace(agent, tasks=held)
    return _continue_with(agent, held)


def _continue_with(agent: AgentCoordinationState, held: list[str]) -> AgentCoordinationState:
    if not held:
        return replace(agent, status=IDLE, current_task=None, tasks=[])
    return replace(agent, status=WORKING, current_task=held[-1], tasks=held)


async def assign_to_agent(team: Namespace, agent_id: str, task_id: str, *, instead_of: str | None) -> None:
    """Give a task to an agent, and take it from its last holder."""
    if instead_of is not None and instead_of != agent_id:
        await take_from_agent(team, instead_of, task_id)
    agent = await find_agent(team, agent_id)
    held = [*await _other_tasks(team, agent, task_id), task_id]
    await put_agent(team, replace(agent, status=WORKING, current_task=task_id, tasks=held))


async def take_from_agent(team: Namespace, agent_id: str | None, task_id: str) -> None:
    """Take a task from an agent. The agent continues with another task that it holds, or is idle."""
    if agent_id is None:
        return
    agent: AgentCoordinationState | None = await team.space.documents.get(agent_name(team, agent_id))
    if agent is None or (task_id not in agent.tasks and agent.current_task != task_id):
        return
    held = await _other_tasks(team, agent, task_id)
    is_over = agent.current_task == task_id
    await put_agent(team, _continue_with(agent, held) if is_over else _with_held_tasks(agent, held))


async def _other_tasks(team: Namespace, agent: AgentCoordinationState, task_id: str) -> list[str]:
    """Return the other tasks that an agent holds."""
    given = [each for each in agent.tasks if each != task_id]
    if not given:
        return []
    return _filter_held(replace(agent, tasks=given), await _read_infos(team, given), await team.space.now())


async def _read_infos(team: Namespace, task_ids: Sequence[str]) -> dict[str, TaskInfo]:
    # An agent's document that other code wrote may have values that are not ids, and so not tasks.
    given = cast("Sequence[object]", task_ids)
    ids = [task_id for task_id in given if isinstance(task_id, str)]
    found = await team.space.queue.get_each(*(team.task(task_id) for task_id in ids))
    return {task_id: info for task_id, info in zip(ids, found, strict=True) if info is not None}


def _filter_held(agent: AgentCoordinationState, infos: dict[str, TaskInfo], now: datetime) -> list[str]:
    return [
        task_id
        for task_id in agent.tasks
        if (info := infos.get(task_id)) is not None and is_held(info, now) and info.worker == agent.agent_id
    ]


def is_held(info: TaskInfo, now: datetime) -> bool:
    """Return whether a task is held at this time of the store."""
    return info.state == "claimed" and now < info.due_at
