"""What users name comes back as it was, also if it is as long as it may be; what is too long is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from keepstate import (
    AgentCheckpoint,
    AgentStateStore,
    IndexingProgress,
    InvalidError,
    KnowledgeStateManager,
    OrchestrationStateManager,
    SpeechStateManager,
    StateConfig,
    StateManager,
    StreamingMode,
    TeamState,
    WorkflowState,
    WorkflowStateManager,
)
from tests.managers.stores import url_of

SPACE_BYTES, KEY_BYTES = 200, 512
ODD = ":/_ 🦜é%*[]?\\~#@'\"\n"


async def sessions(speech: SpeechStateManager) -> list[str]:
    return [session.session_id for session in await speech.list_sessions()]


Naming = tuple[type[Any], str, Callable[[Any, str], Awaitable[object]], Callable[[Any], Awaitable[list[str]]]]
NAMING: list[Naming] = [
    (
        AgentStateStore,
        "agent",
        lambda store, id: store.save_checkpoint(AgentCheckpoint(id, "c", 1)),
        lambda store: store.list_agents(),
    ),
    (
        WorkflowStateManager,
        "workflow",
        lambda store, id: store.create(WorkflowState(id)),
        lambda store: store.list_workflows(),
    ),
    (
        OrchestrationStateManager,
        "team",
        lambda store, id: store.create_team(TeamState(id)),
        lambda store: store.list_teams(),
    ),
    (
        KnowledgeStateManager,
        "kb",
        lambda store, id: store.update_indexing_progress(IndexingProgress(id)),
        lambda store: store.list_knowledge_bases(),
    ),
    (
        SpeechStateManager,
        "speech",
        lambda store, id: store.create_session("stt", StreamingMode.BIDIRECTIONAL, session_id=id),
        sessions,
    ),
]


def odd(size_bytes: int) -> str:
    """Return a text of so many bytes with every odd character in it."""
    text = ODD * (size_bytes // len(ODD.encode()))
    return text + "x" * (size_bytes - len(text.encode()))


@pytest.mark.parametrize("naming", NAMING, ids=lambda naming: naming[1])
async def test_an_id_may_be_as_long_as_its_space_s_name_lets_it_and_no_longer(naming: Naming) -> None:
    kind, word, make, listed = naming
    longest = odd(SPACE_BYTES - len(word) - 1)
    async with kind(persistence="memory://names-" + word) as manager:
        await make(manager, longest)
        with pytest.raises(InvalidError, match=f"{word} .* has an id of {len(longest.encode()) + 1} bytes"):
            await make(manager, longest + "x")

        assert await listed(manager) == [longest]


@pytest.mark.parametrize("record", [True, False], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("kind", ["memory", "file", "sqlite", "redis", "postgres"])
async def test_the_longest_key_of_odd_characters_comes_back(
    kind: str, record: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    keys = sorted([odd(KEY_BYTES), odd(KEY_BYTES)[:-1] + "y", "a" * 300], key=str.encode)
    config = StateConfig(backend=url_of(kind, request, tmp_path), record=record)
    async with StateManager(config) as state:
        for number, key in enumerate(keys):
            await state.save(key, number)
            await state.update(key, lambda old: -old)

        assert await state.list_keys() == keys
        assert [await state.get(key) for key in keys] == [0, -1, -2]
        with pytest.raises(InvalidError):
            await state.save(keys[-1] + "x" * KEY_BYTES, 1)
