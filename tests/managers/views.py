"""What each manager of the samples shows, as text: asked here, and of another process.

Run as a program it prints the views of the store at a URL.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable

from keepstate import AgentStateStore, StateConfig, StateManager, WorkflowStateManager
from tests.managers.domain_views import DOMAIN_VIEWS

Views = dict[str, list[str]]


async def state_views(url: str) -> Views:
    async with StateManager(config=StateConfig(backend=url, key_prefix="agenticai:")) as state:
        return {"state": [f"{key} = {await state.get(key)!r}" for key in await state.list_keys()]}


async def agent_views(url: str) -> Views:
    async with AgentStateStore(persistence=url) as agents:
        return {
            f"agent {id}": [
                *map(repr, await agents.list_snapshots(id)),
                *map(repr, await agents.list_checkpoints(id)),
                repr(await agents.latest_checkpoint(id)),
            ]
            for id in await agents.list_agents()
        }


async def workflow_views(url: str) -> Views:
    async with WorkflowStateManager(persistence=url) as workflows:
        return {
            f"workflow {id}": [
                repr(await workflows.get(id)),
                *map(repr, await workflows.list_steps(id)),
                *map(repr, await workflows.list_checkpoints(id)),
            ]
            for id in await workflows.list_workflows()
        }


VIEWS: list[Callable[[str], Awaitable[Views]]] = [state_views, agent_views, workflow_views, *DOMAIN_VIEWS]


async def views_of(url: str) -> Views:
    """Return what all managers show."""
    found: Views = {}
    for view in VIEWS:
        found |= await view(url)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(views_of(sys.argv[1]))))
