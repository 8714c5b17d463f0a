"""Each fault that agenticaiframework 3.0.12 shows with teams, knowledge, tools and speech, and not here.

The numbers are those of the list that was made by running it.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from keepstate import (
    AgentCoordinationState,
    FileBackend,
    IndexingProgress,
    IndexingStatus,
    InvalidError,
    KnowledgeStateManager,
    OrchestrationStateManager,
    RetryState,
    SpeechStateManager,
    StoreUnavailableError,
    TaskQueueState,
    TeamState,
    ToolCacheEntry,
    ToolExecution,
    ToolStateManager,
    TransitionError,
    parameters_hash,
    sync,
)
from keepstate.engine.kernel.transitions import Transitions
from keepstate.managers.knowledge.records import INDEXING_STEPS
from keepstate.managers.speech.records import SESSION_STEPS, TRANSCRIPTION_STEPS
from keepstate.managers.tools.records import EXECUTION_STEPS

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"


def team(*tasks: str) -> TeamState:
    agents = {name: AgentCoordinationState(name) for name in ("a", "b")}
    return TeamState("t", agents, TaskQueueState(pending=[{"id": task} for task in tasks]))


def test_2_what_is_kept_in_files_is_listed_by_every_manager(tmp_path: Path) -> None:
    place = FileBackend(tmp_path / "state")
    with (
        sync.ToolStateManager(persistence=place) as tools,
        sync.SpeechStateManager(persistence=place) as speech,
    ):
        tools.start_execution(ToolExecution("exec_1", "search_web"))
        tools.update_retry_state(RetryState("exec_2", 1))
        speech.create_session("voice", session_id="speech_1")

    with (
        sync.ToolStateManager(persistence=place) as tools,
        sync.SpeechStateManager(persistence=place) as speech,
    ):
        assert [each.execution_id for each in tools.get_execution_history("search_web")] == ["exec_1"]
        assert [each.execution_id for each in tools.get_pending_retries()] == ["exec_2"]
        assert tools.get_tool_stats("search_web").running == 1
        assert [each.session_id for each in speech.list_sessions()] == ["speech_1"]


def test_7_two_who_pull_a_hundred_tasks_get_each_once(tmp_path: Path) -> None:
    got: Counter[str] = Counter()
    with sync.OrchestrationStateManager(
        persistence=f"sqlite:///{tmp_path}/team.db?durability=normal"
    ) as teams:
        teams.create_team(team(*map(str, range(100))))

        def pull(agent: str) -> None:
            while (task := teams.claim_task("t", agent)) is not None:
                got[task.id] += 1

        threads = [threading.Thread(target=pull, args=(agent,)) for agent in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert got == Counter({str(number): 1 for number in range(100)})


async def test_11_a_server_that_is_away_is_told_by_every_call() -> None:
    url = "redis://127.0.0.1:9/0?retry_for_s=0.1&timeout_s=0.1"
    teams, bases = OrchestrationStateManager(persistence=url), KnowledgeStateManager(persistence=url)
    tools, speech = ToolStateManager(persistence=url), SpeechStateManager(persistence=url)
    calls: list[Any] = [
        teams.create_team(team()),
        teams.get_team("t"),
        bases.add_indexing_progress("kb", processed=1),
        bases.get_sources("kb"),
        tools.start_execution(ToolExecution("e", "search")),
        tools.get_tool_stats("search"),
        tools.get_pending_retries(),
        speech.create_session("voice"),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailableError):
            await call
    for manager in (teams, bases, tools, speech):
        await manager.close()


async def test_13_an_execution_ends_once_and_a_completed_base_cannot_be_paused() -> None:
    tools, bases = ToolStateManager(), KnowledgeStateManager()
    await tools.start_execution(ToolExecution("once", "counted once"))
    await tools.fail_execution("once", "no")
    for _ in range(2):
        with pytest.raises(TransitionError):
            await tools.complete_execution("once", 1)
    await bases.update_indexing_progress(IndexingProgress("ended", IndexingStatus.COMPLETED))

    with pytest.raises(TransitionError):
        await bases.update_indexing_progress(IndexingProgress("ended", IndexingStatus.PAUSED))
    stats = await tools.get_tool_stats("counted once")
    assert (stats.total_executions, stats.failed, stats.completed) == (1, 1, 0)
    await tools.close()
    await bases.close()


async def test_14_no_count_completes_an_indexing() -> None:
    bases = KnowledgeStateManager()
    early = await bases.add_indexing_progress("early", processed=0)
    failed = await bases.add_indexing_progress("failed", total=2, failed=2)

    assert early.status is IndexingStatus.PENDING and failed.status is IndexingStatus.IN_PROGRESS
    await bases.close()


async def test_17_a_cached_none_is_no_miss_a_tuple_no_list_and_no_time_no_eternity() -> None:
    tools = ToolStateManager()
    hash = parameters_hash("origin 17", {"n": (1, 2)})
    await tools.cache_result(ToolCacheEntry("origin 17", hash, None, datetime.now(), ttl=60))
    hit = await tools.get_cached_result("origin 17", {"n": (1, 2)})

    assert hit is not None and hit.result is None
    assert await tools.get_cached_result("origin 17", {"n": [1, 2]}) is None
    with pytest.raises(InvalidError, match="ttl"):
        await tools.cache_result(ToolCacheEntry("origin 17", hash, None, datetime.now(), ttl=0))
    await tools.close()


async def test_the_sums_cost_the_same_however_many_executions_there_were() -> None:
    tools = ToolStateManager(persistence="memory://sums")
    sizes: list[int] = []
    for number in range(300):
        await tools.start_execution(ToolExecution(str(number), "search"))
        await tools.complete_execution(str(number), None, 1)
        if number % 100 == 99:
            await tools.cleanup(older_than=timedelta(0))
            sizes.append((await tools.size()).entries)

    assert (await tools.get_tool_stats("search")).completed == 300
    assert max(sizes) <= min(sizes) + 6  # those of the last millisecond may be left
    await tools.close()


@pytest.mark.parametrize(
    ("page", "heading", "steps"),
    [
        ("tools", "an execution that is", EXECUTION_STEPS),
        ("knowledge-and-speech", "an indexing that is", INDEXING_STEPS),
        ("knowledge-and-speech", "a session that is", SESSION_STEPS),
        ("knowledge-and-speech", "an utterance that is", TRANSCRIPTION_STEPS),
    ],
)
def test_the_pages_draw_the_tables_that_the_code_goes_by(
    page: str, heading: str, steps: Transitions[Any]
) -> None:
    text = (
        (PAGES / f"{page}.md").read_text(encoding="utf-8").partition(f"| {heading} |")[2].partition("\n\n")[0]
    )
    drawn = {
        start: set(ends.split(", "))
        for start, ends in re.findall(r"^\| ([A-Z_]+) \| ([A-Z_, ]+) \|$", text, re.MULTILINE)
    }

    assert drawn == {start.name: {end.name for end in ends} for start, ends in steps.table.items() if ends}
