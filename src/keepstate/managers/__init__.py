"""WHAT do agents keep?

`StateManager`, and the managers of agents, their recovery, workflows, teams, knowledge, tools and speech.
Invariant: a manager stores everything through the parts of spaces, without storage of its own. Two managers
are atomic together only on one space, in one transaction.

To add a manager: subclass `manager.Manager`, declare its records with `records.record`, store them through
`binding.Namespace`, add a row to tools/twins.py, and run `tests/contracts/managers` on every backend.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstate.managers.agents import AgentCheckpoint as AgentCheckpoint
    from keepstate.managers.agents import AgentRecoveryManager as AgentRecoveryManager
    from keepstate.managers.agents import AgentSnapshot as AgentSnapshot
    from keepstate.managers.agents import AgentStateStore as AgentStateStore
    from keepstate.managers.agents import Recoverable as Recoverable
    from keepstate.managers.agents import Recovery as Recovery
    from keepstate.managers.backends import FileBackend as FileBackend
    from keepstate.managers.backends import MemoryBackend as MemoryBackend
    from keepstate.managers.backends import PostgresBackend as PostgresBackend
    from keepstate.managers.backends import RedisBackend as RedisBackend
    from keepstate.managers.backends import SQLiteBackend as SQLiteBackend
    from keepstate.managers.knowledge.manager import KnowledgeStateManager as KnowledgeStateManager
    from keepstate.managers.knowledge.records import FailedDocument as FailedDocument
    from keepstate.managers.knowledge.records import IndexingProgress as IndexingProgress
    from keepstate.managers.knowledge.records import IndexingStatus as IndexingStatus
    from keepstate.managers.knowledge.records import KnowledgeBaseState as KnowledgeBaseState
    from keepstate.managers.knowledge.records import SourceState as SourceState
    from keepstate.managers.knowledge.records import SyncStatus as SyncStatus
    from keepstate.managers.records import parameters_hash as parameters_hash
    from keepstate.managers.sizes import ManagerSize as ManagerSize
    from keepstate.managers.sizes import SizeAlert as SizeAlert
    from keepstate.managers.speech.manager import SpeechStateManager as SpeechStateManager
    from keepstate.managers.speech.records import AudioSession as AudioSession
    from keepstate.managers.speech.records import AudioSessionStatus as AudioSessionStatus
    from keepstate.managers.speech.records import StreamingMode as StreamingMode
    from keepstate.managers.speech.records import STTState as STTState
    from keepstate.managers.speech.records import TranscriptionStatus as TranscriptionStatus
    from keepstate.managers.speech.records import TTSState as TTSState
    from keepstate.managers.speech.records import VoiceConversationState as VoiceConversationState
    from keepstate.managers.state.config import StateConfig as StateConfig
    from keepstate.managers.state.key_history import StateMoment as StateMoment
    from keepstate.managers.state.manager import StateManager as StateManager
    from keepstate.managers.teams.manager import OrchestrationStateManager as OrchestrationStateManager
    from keepstate.managers.teams.records import AgentCoordinationState as AgentCoordinationState
    from keepstate.managers.teams.records import TaskQueueState as TaskQueueState
    from keepstate.managers.teams.records import TeamState as TeamState
    from keepstate.managers.teams.records import TeamTask as TeamTask
    from keepstate.managers.tools.manager import ToolStateManager as ToolStateManager
    from keepstate.managers.tools.records import EffectStatus as EffectStatus
    from keepstate.managers.tools.records import RetryState as RetryState
    from keepstate.managers.tools.records import ToolCacheEntry as ToolCacheEntry
    from keepstate.managers.tools.records import ToolEffect as ToolEffect
    from keepstate.managers.tools.records import ToolExecution as ToolExecution
    from keepstate.managers.tools.records import ToolExecutionStatus as ToolExecutionStatus
    from keepstate.managers.tools.records import ToolStats as ToolStats
    from keepstate.managers.workflows.manager import WorkflowStateManager as WorkflowStateManager
    from keepstate.managers.workflows.records import StepState as StepState
    from keepstate.managers.workflows.records import WorkflowCheckpoint as WorkflowCheckpoint
    from keepstate.managers.workflows.records import WorkflowState as WorkflowState
    from keepstate.managers.workflows.records import WorkflowStatus as WorkflowStatus

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
        # The parent is loaded first, and has the table of names; an import of it would be a circle.
        return getattr(sys.modules["keepstate"], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *globals()])
