"""The state layer under AI agents: no update is lost, every moment can be read again.

`open(url)` gives a handle for use in an event loop, `keepstate.sync.open(url)` the same for blocking code. A
handle has spaces; a space has documents, events, a queue, leases, transactions and a history. Names are
loaded when they are first used, so that importing keepstate imports no driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstate import sync
    from keepstate.engine.documents.documents import MISSING, Document, DocumentEntry, Documents
    from keepstate.engine.documents.watch import DocumentChange, Watch
    from keepstate.engine.events.events import Events, EventStream
    from keepstate.engine.events.folds import FoldEntry
    from keepstate.engine.events.record import ANY, EXISTS, NO_STREAM, Event
    from keepstate.engine.events.reducers import Fold
    from keepstate.engine.history.archive_file import confirm_archives
    from keepstate.engine.history.checkout import Checkout
    from keepstate.engine.history.commits import (
        Blame,
        Branch,
        Commit,
        Difference,
        HistoryStats,
        Pruned,
        Tag,
        Verified,
    )
    from keepstate.engine.history.draft import Draft
    from keepstate.engine.history.history import History
    from keepstate.engine.history.merge import MergeConflict
    from keepstate.engine.queue.lease import Lease, Leases
    from keepstate.engine.queue.queue import Claim, Queue, Task
    from keepstate.engine.queue.tasks import Put, TaskInfo
    from keepstate.engine.space.keepstate import Keepstate
    from keepstate.engine.space.projection import Projection
    from keepstate.engine.space.size import SpaceSize
    from keepstate.engine.space.space import Space
    from keepstate.engine.space.transaction import Transaction
    from keepstate.errors import (
        AlreadyExistsError,
        AttemptsExhaustedError,
        ClockError,
        ClosedError,
        CompactedError,
        ConflictError,
        CorruptError,
        HistoryLostError,
        InvalidError,
        KeepstateDeprecationWarning,
        KeepstateError,
        LeaseLostError,
        MergeConflictError,
        MissingExtraError,
        NotAllowedError,
        NotFoundError,
        NotLoadedError,
        NotOwnerError,
        OutcomeUnknownError,
        PrunedError,
        StateConflictError,
        StateError,
        StorageError,
        StoreFullError,
        StoreUnavailableError,
        TaskFailedError,
        TransitionError,
        UnsupportedError,
    )
    from keepstate.managers.agents.recovery import AgentRecoveryManager, Recoverable, Recovery
    from keepstate.managers.agents.store import AgentCheckpoint, AgentSnapshot, AgentStateStore
    from keepstate.managers.backends import (
        FileBackend,
        MemoryBackend,
        PostgresBackend,
        RedisBackend,
        SQLiteBackend,
    )
    from keepstate.managers.key_history import StateMoment
    from keepstate.managers.knowledge.manager import KnowledgeStateManager
    from keepstate.managers.knowledge.records import (
        FailedDocument,
        IndexingProgress,
        IndexingStatus,
        KnowledgeBaseState,
        SourceState,
        SyncStatus,
    )
    from keepstate.managers.parameters import parameters_hash
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
    from keepstate.opening import open
    from keepstate.sessions.bounded import BoundedState
    from keepstate.sessions.conversation import Conversation
    from keepstate.sessions.generations import ANY_USER
    from keepstate.sessions.machine import AgentStateMachine, Transition
    from keepstate.sessions.messages import estimate_tokens
    from keepstate.sessions.records import SessionContext, TaskState
    from keepstate.sessions.session import Session
    from keepstate.sessions.session_state import SessionMoment
    from keepstate.sessions.sweep import Sessions
    from keepstate.sessions.table import StepResult
    from keepstate.sessions.thread_records import MessagePage, Thread, ThreadMessage
    from keepstate.sessions.threads import ThreadMessages, Threads
    from keepstate.sessions.token_counter import TokenCounter
    from keepstate.sessions.user import UserState
    from keepstate.sessions.validated import ValidatedState
    from keepstate.sessions.versioned import VersionedState
    from keepstate.stores.protocol import Store
    from keepstate.stores.wrappers.encrypted import EncryptedStore, KeyRing
    from keepstate.stores.wrappers.tiered import TieredStore
    from keepstate.typed.batch import MutationBatch
    from keepstate.typed.changes import KeyDifference, StateChange, StateWatch
    from keepstate.typed.hooks import CommitEvent, CommitHook
    from keepstate.typed.key import KeyScope, MergeStrategy, ProfileKey, StateKey
    from keepstate.typed.options import StateKeyOptions
    from keepstate.typed.persisted import PersistedState
    from keepstate.typed.profiles import ProfileAccess, ProfileEntry
    from keepstate.typed.ready_keys import CounterKey, ListKey, MapKey, MaximumKey, RegisterKey, SetKey
    from keepstate.typed.records import RunRecord
    from keepstate.typed.registry import Plugin, PluginRegistrar
    from keepstate.typed.run import AgentRun
    from keepstate.typed.scopes import StateScope
    from keepstate.typed.state import KeyedState
    from keepstate.typed.state_map import Snapshot, StateMap
    from keepstate.typed.tools import RunStep, ToolCallContext, ToolOutput
    from keepstate.values.pickles import SignedPickle
    from keepstate.values.schema import downcast, register, register_write_version, upcast
    from keepstate.workspace import ActionEvent, Cache, Disk, Live, Versioned, events, view

_HOMES = {
    "engine.documents.documents": ("MISSING", "Document", "DocumentEntry", "Documents"),
    "engine.events.record": ("ANY", "EXISTS", "NO_STREAM", "Event"),
    "engine.events.events": ("EventStream", "Events"),
    "engine.events.folds": ("FoldEntry",),
    "engine.history.archive_file": ("confirm_archives",),
    "engine.history.checkout": ("Checkout",),
    "engine.history.commits": (
        "Blame",
        "Branch",
        "Commit",
        "Difference",
        "HistoryStats",
        "Pruned",
        "Tag",
        "Verified",
    ),
    "engine.history.draft": ("Draft",),
    "engine.history.history": ("History",),
    "engine.history.merge": ("MergeConflict",),
    "engine.space.keepstate": ("Keepstate",),
    "engine.queue.lease": ("Lease", "Leases"),
    "engine.space.projection": ("Projection",),
    "engine.queue.queue": ("Claim", "Queue", "Task"),
    "engine.events.reducers": ("Fold",),
    "engine.space.space": ("Space",),
    "engine.queue.tasks": ("Put", "TaskInfo"),
    "engine.space.transaction": ("Transaction",),
    "engine.documents.watch": ("DocumentChange", "Watch"),
    "errors": (
        "AlreadyExistsError", "AttemptsExhaustedError", "ClockError", "ClosedError", "CompactedError",
        "ConflictError", "CorruptError", "HistoryLostError", "InvalidError", "KeepstateDeprecationWarning",
        "KeepstateError", "LeaseLostError", "MergeConflictError", "MissingExtraError", "NotAllowedError",
        "NotFoundError", "NotLoadedError", "NotOwnerError", "OutcomeUnknownError", "PrunedError",
        "StateConflictError", "StateError", "StorageError", "StoreFullError", "StoreUnavailableError",
        "TaskFailedError", "TransitionError", "UnsupportedError",
    ),
    "managers.agents.store": ("AgentCheckpoint", "AgentSnapshot", "AgentStateStore"),
    "managers.backends": ("FileBackend", "MemoryBackend", "PostgresBackend", "RedisBackend", "SQLiteBackend"),
    "managers.state.config": ("StateConfig",),
    "managers.knowledge.manager": ("KnowledgeStateManager",),
    "managers.knowledge.records": (
        "FailedDocument",
        "IndexingProgress",
        "IndexingStatus",
        "KnowledgeBaseState",
        "SourceState",
        "SyncStatus",
    ),
    "managers.parameters": ("parameters_hash",),
    "managers.speech.manager": ("SpeechStateManager",),
    "managers.speech.records": (
        "AudioSession",
        "AudioSessionStatus",
        "STTState",
        "StreamingMode",
        "TTSState",
        "TranscriptionStatus",
        "VoiceConversationState",
    ),
    "managers.teams.records": ("AgentCoordinationState", "TaskQueueState", "TeamState", "TeamTask"),
    "managers.teams.manager": ("OrchestrationStateManager",),
    "managers.tools.records": (
        "EffectStatus",
        "RetryState",
        "ToolCacheEntry",
        "ToolEffect",
        "ToolExecution",
        "ToolExecutionStatus",
        "ToolStats",
    ),
    "managers.tools.manager": ("ToolStateManager",),
    "managers.key_history": ("StateMoment",),
    "managers.agents.recovery": ("AgentRecoveryManager", "Recoverable", "Recovery"),
    "managers.sizes": ("ManagerSize", "SizeAlert"),
    "managers.state.manager": ("StateManager",),
    "managers.workflows.records": ("StepState", "WorkflowCheckpoint", "WorkflowState", "WorkflowStatus"),
    "managers.workflows.manager": ("WorkflowStateManager",),
    "engine.space.size": ("SpaceSize",),
    "opening": ("open",),
    "sessions.bounded": ("BoundedState",),
    "sessions.conversation": ("Conversation",),
    "sessions.generations": ("ANY_USER",),
    "sessions.machine": ("AgentStateMachine", "Transition"),
    "sessions.session_state": ("SessionMoment",),
    "sessions.records": ("SessionContext", "TaskState"),
    "sessions.table": ("StepResult",),
    "sessions.session": ("Session",),
    "sessions.sweep": ("Sessions",),
    "sessions.thread_records": ("MessagePage", "Thread", "ThreadMessage"),
    "sessions.threads": ("ThreadMessages", "Threads"),
    "sessions.user": ("UserState",),
    "sessions.validated": ("ValidatedState",),
    "sessions.versioned": ("VersionedState",),
    "sessions.token_counter": ("TokenCounter",),
    "sessions.messages": ("estimate_tokens",),
    "stores.protocol": ("Store",),
    "stores.wrappers.encrypted": ("EncryptedStore", "KeyRing"),
    "stores.wrappers.tiered": ("TieredStore",),
    "values.pickles": ("SignedPickle",),
    "values.schema": ("downcast", "register", "register_write_version", "upcast"),
    "workspace": ("ActionEvent", "Cache", "Disk", "Live", "Versioned", "events", "view"),
    "typed.batch": ("MutationBatch",),
    "typed.changes": ("KeyDifference", "StateChange", "StateWatch"),
    "typed.hooks": ("CommitEvent", "CommitHook"),
    "typed.key": ("KeyScope", "MergeStrategy", "ProfileKey", "StateKey"),
    "typed.options": ("StateKeyOptions",),
    "typed.persisted": ("PersistedState",),
    "typed.profiles": ("ProfileAccess", "ProfileEntry"),
    "typed.ready_keys": ("CounterKey", "ListKey", "MapKey", "MaximumKey", "RegisterKey", "SetKey"),
    "typed.records": ("RunRecord",),
    "typed.registry": ("Plugin", "PluginRegistrar"),
    "typed.run": ("AgentRun",),
    "typed.scopes": ("StateScope",),
    "typed.state": ("KeyedState",),
    "typed.state_map": ("Snapshot", "StateMap"),
    "typed.tools": ("RunStep", "ToolCallContext", "ToolOutput"),
}  # fmt: skip
_MODULES = {name: f"keepstate.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "ANY",
    "ANY_USER",
    "ActionEvent",
    "AgentCheckpoint",
    "AgentCoordinationState",
    "AgentRecoveryManager",
    "AgentRun",
    "AgentSnapshot",
    "AgentStateMachine",
    "AgentStateStore",
    "AlreadyExistsError",
    "AttemptsExhaustedError",
    "AudioSession",
    "AudioSessionStatus",
    "Blame",
    "BoundedState",
    "Branch",
    "Cache",
    "Checkout",
    "Claim",
    "ClockError",
    "ClosedError",
    "Commit",
    "CommitEvent",
    "CommitHook",
    "CompactedError",
    "ConflictError",
    "Conversation",
    "CorruptError",
    "CounterKey",
    "Difference",
    "Disk",
    "Document",
    "DocumentChange",
    "DocumentEntry",
    "Documents",
    "Draft",
    "EXISTS",
    "EffectStatus",
    "EncryptedStore",
    "Event",
    "EventStream",
    "Events",
    "FailedDocument",
    "FileBackend",
    "Fold",
    "FoldEntry",
    "History",
    "HistoryLostError",
    "HistoryStats",
    "IndexingProgress",
    "IndexingStatus",
    "InvalidError",
    "Keepstate",
    "KeepstateDeprecationWarning",
    "KeepstateError",
    "KeyDifference",
    "KeyRing",
    "KeyScope",
    "KeyedState",
    "KnowledgeBaseState",
    "KnowledgeStateManager",
    "Lease",
    "LeaseLostError",
    "Leases",
    "ListKey",
    "Live",
    "MISSING",
    "ManagerSize",
    "MapKey",
    "MaximumKey",
    "MemoryBackend",
    "MergeConflict",
    "MergeConflictError",
    "MergeStrategy",
    "MessagePage",
    "MissingExtraError",
    "MutationBatch",
    "NO_STREAM",
    "NotAllowedError",
    "NotFoundError",
    "NotLoadedError",
    "NotOwnerError",
    "OrchestrationStateManager",
    "OutcomeUnknownError",
    "PersistedState",
    "Plugin",
    "PluginRegistrar",
    "PostgresBackend",
    "ProfileAccess",
    "ProfileEntry",
    "ProfileKey",
    "Pruned",
    "Projection",
    "PrunedError",
    "Put",
    "Queue",
    "Recoverable",
    "Recovery",
    "RedisBackend",
    "RegisterKey",
    "RetryState",
    "RunRecord",
    "RunStep",
    "SQLiteBackend",
    "STTState",
    "Session",
    "SessionContext",
    "SessionMoment",
    "Sessions",
    "SetKey",
    "SignedPickle",
    "SizeAlert",
    "Snapshot",
    "SourceState",
    "Space",
    "SpaceSize",
    "SpeechStateManager",
    "StateChange",
    "StateConfig",
    "StateConflictError",
    "StateError",
    "StateKey",
    "StateKeyOptions",
    "StateManager",
    "StateMap",
    "StateMoment",
    "StateScope",
    "StateWatch",
    "StepResult",
    "StepState",
    "StorageError",
    "Store",
    "StoreFullError",
    "StoreUnavailableError",
    "StreamingMode",
    "SyncStatus",
    "TTSState",
    "Tag",
    "Task",
    "TaskFailedError",
    "TaskInfo",
    "TaskQueueState",
    "TaskState",
    "TeamState",
    "TeamTask",
    "Thread",
    "ThreadMessage",
    "ThreadMessages",
    "Threads",
    "TieredStore",
    "TokenCounter",
    "ToolCacheEntry",
    "ToolCallContext",
    "ToolEffect",
    "ToolExecution",
    "ToolExecutionStatus",
    "ToolOutput",
    "ToolStateManager",
    "ToolStats",
    "Transaction",
    "TranscriptionStatus",
    "Transition",
    "TransitionError",
    "UnsupportedError",
    "UserState",
    "ValidatedState",
    "Verified",
    "Versioned",
    "VersionedState",
    "VoiceConversationState",
    "Watch",
    "WorkflowCheckpoint",
    "WorkflowState",
    "WorkflowStateManager",
    "WorkflowStatus",
    "confirm_archives",
    "downcast",
    "estimate_tokens",
    "events",
    "open",
    "parameters_hash",
    "register",
    "register_write_version",
    "sync",
    "upcast",
    "view",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name == "sync":
        return import_module("keepstate.sync")
    if name == "__version__":
        return import_module("importlib.metadata").version("keepstate")
    raise AttributeError(f"module 'keepstate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__")), "__version__"])
