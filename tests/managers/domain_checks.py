"""What the blocks about teams, knowledge bases, tools and speech must have done, by their headings."""

from __future__ import annotations

from datetime import datetime, timedelta

from keepstate import (
    AudioSessionStatus,
    IndexingStatus,
    OrchestrationStateManager,
    SpeechStateManager,
    StreamingMode,
    SyncStatus,
    ToolExecutionStatus,
    ToolStateManager,
    parameters_hash,
)
from tests.managers.samples import Namespace


async def team_formed(names: Namespace) -> None:
    teams: OrchestrationStateManager = names["orch_state"]
    team = await teams.get_team("research_team")

    assert team is not None and team.agents == names["team_state"].agents
    assert team.agents["writer"].capabilities == ["writing", "editing"]
    assert len(team.task_queue.pending) == 0


async def coordinated(names: Namespace) -> None:
    agents = names["team"].agents

    assert (agents["researcher"].status, agents["researcher"].current_task) == ("working", "task_001")
    assert (agents["writer"].status, agents["writer"].current_task) == ("idle", None)
    assert names["available"] == []  # who can do research is working


async def handed_out(names: Namespace) -> None:
    queue = names["queue"]
    (done,) = queue.completed
    team = await names["orch_state"].get_team("research_team")

    assert (len(queue.pending), len(queue.in_progress), len(queue.completed)) == (0, 0, 1)
    assert (done.id, done.agent_id, done.result) == ("task_002", "researcher", {"analysis": "..."})
    assert done.task["data"] == {"topic": "AI trends"}
    assert (team.agents["researcher"].status, team.agents["researcher"].current_task) == ("idle", None)


async def indexed(names: Namespace) -> None:
    current = names["current"]

    assert current == names["progress"] and current.status is IndexingStatus.IN_PROGRESS
    assert (current.processed_documents, current.total_documents, current.failed_documents) == (450, 1000, 5)
    assert current.started_at.tzinfo is None


async def synchronized(names: Namespace) -> None:
    (source,) = names["sources"]

    assert source == names["source_state"] and source.sync_status is SyncStatus.SYNCING
    assert datetime.now() - source.last_sync >= timedelta(hours=1)


async def seen_at_a_glance(names: Namespace) -> None:
    overview = names["kb_overview"]

    assert (overview.total_documents, overview.total_embeddings, overview.storage_size_mb) == (1000, 0, 0.0)
    assert overview.last_updated.tzinfo is not None
    assert (overview.processed_documents, overview.pending_documents, overview.sources) == (450, 50, 1)


async def executed(names: Namespace) -> None:
    (execution,) = names["history"]

    assert (execution.execution_id, execution.status) == ("exec_001", ToolExecutionStatus.COMPLETED)
    assert (execution.result, execution.duration_ms) == ({"results": [...]}, 1500)
    assert execution.started_at == names["execution"].started_at


async def cached(names: Namespace) -> None:
    tools: ToolStateManager = names["tool_state"]
    entry = names["cached"]

    # What the block caches stands under its own hash; what is found was left by the execution before it.
    assert entry.parameters_hash == parameters_hash("search_web", {"query": "AI news"}) != "abc123"
    assert (names["result"], entry.ttl) == ({"results": [...]}, 3600)
    assert (await tools.get_tool_stats("search_web")).cache_hits == 1


async def retried(names: Namespace) -> None:
    (retry,) = names["pending_retries"]

    assert retry == names["retry_state"] and retry.next_retry_at.tzinfo is None
    assert retry.attempts == 2 and retry.next_retry_at > datetime.now()


async def counted(names: Namespace) -> None:
    stats = names["stats"]

    assert (stats.total_executions, stats.success_rate, stats.error_rate) == (1, 1.0, 0.0)
    assert (stats.avg_duration_ms, stats.cache_hit_rate) == (1500, 1.0)


async def session_created(names: Namespace) -> None:
    speech: SpeechStateManager = names["speech_state"]
    session = await speech.get_session(names["session_id"])

    assert session is not None and session.status is AudioSessionStatus.ACTIVE
    assert session.streaming_mode is StreamingMode.BIDIRECTIONAL
    assert session.config["tts_provider"] == "elevenlabs"


async def heard(names: Namespace) -> None:
    assert names["current_stt"] == names["stt_state"]
    assert f"{names['current_stt'].transcription_progress:.0%}" == "60%"


async def said(names: Namespace) -> None:
    assert names["current_tts"] == names["tts_state"] and names["current_tts"].is_speaking


async def conversed(names: Namespace) -> None:
    speech: SpeechStateManager = names["speech_state"]
    session = await speech.get_session(names["session_id"])
    state = await speech.get_conversation_state(names["session_id"])

    assert state is not None and state.transcript == names["conversation_state"].transcript
    assert (state.turn_count, state.current_speaker, state.stt_state) == (5, "user", names["stt_state"])
    assert state.tts_state is not None and not state.tts_state.is_speaking  # for the session has ended
    assert session is not None and session.status is AudioSessionStatus.ENDED
    assert session.reason == "user_ended"


DOMAIN_CHECKS = {
    "Team State Management": team_formed,
    "Agent Coordination": coordinated,
    "Task Queue Management": handed_out,
    "Indexing Progress": indexed,
    "Source Synchronization": synchronized,
    "Knowledge Base State": seen_at_a_glance,
    "Tool Execution Tracking": executed,
    "Result Caching": cached,
    "Retry Management": retried,
    "Tool Statistics": counted,
    "Session Management": session_created,
    "STT State Tracking": heard,
    "TTS State Tracking": said,
    "Voice Conversation State": conversed,
}
