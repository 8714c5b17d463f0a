"""What teams, knowledge bases, tools and speech sessions show, as text."""

from __future__ import annotations

from keepstate import (
    KnowledgeStateManager,
    OrchestrationStateManager,
    SpeechStateManager,
    ToolStateManager,
)

Views = dict[str, list[str]]


async def team_views(url: str) -> Views:
    found: Views = {}
    async with OrchestrationStateManager(persistence=url) as teams:
        for id in await teams.list_teams():
            team, queue = await teams.get_team(id), await teams.get_queue_status(id)
            lists = (queue.pending, queue.in_progress, queue.completed, queue.dead)
            found[f"team {id}"] = [
                repr(team.agents if team else None),
                *(repr([*tasks]) for tasks in lists),
            ]
    return found


async def knowledge_views(url: str) -> Views:
    async with KnowledgeStateManager(persistence=url) as bases:
        return {
            f"base {id}": [
                repr(await bases.get_indexing_progress(id)),
                repr(await bases.get_knowledge_base_state(id)),
                *map(repr, await bases.get_sources(id)),
            ]
            for id in await bases.list_knowledge_bases()
        }


async def tool_views(url: str) -> Views:
    async with ToolStateManager(persistence=url) as tools:
        return {
            "tools": [
                *map(repr, await tools.get_execution_history("search_web")),
                *map(repr, await tools.get_pending_retries()),
                repr((await tools.get_tool_stats("search_web")).completed),
            ]
        }


async def speech_views(url: str) -> Views:
    async with SpeechStateManager(persistence=url) as speech:
        return {
            f"speech {session.session_id}": [
                repr(session),
                repr(await speech.get_conversation_state(session.session_id)),
            ]
            for session in await speech.list_sessions()
        }


DOMAIN_VIEWS = [team_views, knowledge_views, tool_views, speech_views]
