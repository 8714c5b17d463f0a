"""WHAT do agents keep?

`StateManager`, and the managers of agents, their recovery, workflows, teams, knowledge, tools and speech.
Invariant: a manager stores everything through the parts of spaces, without storage of its own. Two managers
are atomic together only on one space, in one transaction.

To add a manager: subclass `manager.Manager`, declare its records with `records.record`, store them through
`binding.Namespace`, add a row to tools/twins.py, and run `tests/contracts/managers` on every backend.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstate.managers.agents import (
        AgentCheckpoint,
        AgentRecoveryManager,
        AgentSnapshot,
        AgentStateStore,
        Recoverable,
        Recovery,
    )
    from keepstate.managers.backends import (
        FileBackend,
        MemoryBackend,
        PostgresBackend,
        RedisBackend,
        SQLiteBackend,
    )
    from keepstate.managers.knowledge.manager import KnowledgeStateManager
    from keepstate.managers.knowledge.records import (
        FailedDocument,
        IndexingProgress,
        IndexingStatus,
        KnowledgeBaseState,
        SourceState,
        SyncStatus,
    )
    from keepstate.managers.records import parameters_hash
    from keepstate.managers.sizes import ManagerSize, SizeAlert
    from keepstate.managers.speech.manager import SpeechStateManager
    from keepstate.managers.speech.records import (
        AudioSession,
        AudioSessionStatus,
        StreamingMode,
        STTState,
        TranscriptionStatus,
        TTSState,
        VoiceConversationState,
    )
    from keepstate.managers.state.config import StateConfig
    from keepstate.managers.state.key_history import StateMoment
    from keepstate.managers.state.manager import StateManager
    from keepstate.managers.teams.manager import OrchestrationStateManager
    from keepstate.managers.teams.records import AgentCoordinationState, TaskQueueState, TeamState, TeamTask
    from keepstate.managers.tools.manager import ToolStateManager
    from keepstate.managers.tools.records import (
        EffectStatus,
        RetryState,
        ToolCacheEntry,
        ToolEffect,
        ToolExecution,
        ToolExecutionStatus,
        ToolStats,
    )
    from keepstate.managers.workflows.manager import WorkflowStateManager
    from keepstate.managers.workflows.records import (
        StepState,
        WorkflowCheckpoint,
        WorkflowState,
        WorkflowStatus,
    )

__all__ = [
    "AgentCheckpoint",
    "AgentCoordinationState",
    "AgentRecoveryManager",
    "AgentSnapshot",
    "AgentStateStore",
    "AudioSession",
    "AudioSessionStatus",
    "EffectStatus",
    "FailedDocument",
    "FileBackend",
    "IndexingProgress",
    "IndexingStatus",
    "KnowledgeBaseState",
    "KnowledgeStateManager",
    "ManagerSize",
    "MemoryBackend",
    "OrchestrationStateManager",
    "PostgresBackend",
    "Recoverable",
    "Recovery",
    "RedisBackend",
    "RetryState",
    "SQLiteBackend",
    "STTState",
    "SizeAlert",
    "SourceState",
    "SpeechStateManager",
    "StateConfig",
    "StateManager",
    "StateMoment",
    "StepState",
    "StreamingMode",
    "SyncStatus",
    "TTSState",
    "TaskQueueState",
    "TeamState",
    "TeamTask",
    "ToolCacheEntry",
    "ToolEffect",
    "ToolExecution",
    "ToolExecutionStatus",
    "ToolStateManager",
    "ToolStats",
    "TranscriptionStatus",
    "VoiceConversationState",
    "WorkflowCheckpoint",
    "WorkflowState",
    "WorkflowStateManager",
    "WorkflowStatus",
    "parameters_hash",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("keepstate"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *globals()])
