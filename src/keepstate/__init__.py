"""State for AI agents: no update is lost, and every recorded state can be read again.

`open(url)` returns a handle for an event loop, `keepstate.sync.open(url)` one for blocking code. A handle has
spaces. A space has documents, events, a queue, leases, transactions and a history. Names are loaded on first
use, so importing keepstate imports no driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstate import sync as sync
    from keepstate.engine.documents.documents import MISSING, Document
    from keepstate.engine.documents.documents import DocumentEntry as DocumentEntry
    from keepstate.engine.documents.documents import Documents as Documents
    from keepstate.engine.documents.watch import DocumentChange as DocumentChange
    from keepstate.engine.documents.watch import Watch
    from keepstate.engine.events.events import Events as Events
    from keepstate.engine.events.events import EventStream
    from keepstate.engine.events.folds import FoldEntry as FoldEntry
    from keepstate.engine.events.record import ANY, EXISTS, NO_STREAM, Event
    from keepstate.engine.events.reducers import Fold
    from keepstate.engine.history.archive import confirm_archives as confirm_archives
    from keepstate.engine.history.checkout import Checkout
    from keepstate.engine.history.commits import Blame as Blame
    from keepstate.engine.history.commits import Branch as Branch
    from keepstate.engine.history.commits import Commit
    from keepstate.engine.history.commits import Difference as Difference
    from keepstate.engine.history.commits import HistoryStats as HistoryStats
    from keepstate.engine.history.commits import Pruned as Pruned
    from keepstate.engine.history.commits import Tag as Tag
    from keepstate.engine.history.commits import Verified as Verified
    from keepstate.engine.history.draft import Draft
    from keepstate.engine.history.history import History
    from keepstate.engine.history.merge import MergeConflict as MergeConflict
    from keepstate.engine.queue.lease import Lease
    from keepstate.engine.queue.lease import Leases as Leases
    from keepstate.engine.queue.queue import Claim as Claim
    from keepstate.engine.queue.queue import Queue, Task
    from keepstate.engine.queue.tasks import Put as Put
    from keepstate.engine.queue.tasks import TaskInfo as TaskInfo
    from keepstate.engine.space.keepstate import Keepstate
    from keepstate.engine.space.projection import Projection
    from keepstate.engine.space.space import Space, Transaction
    from keepstate.engine.space.space import SpaceSize as SpaceSize
    from keepstate.errors import (
        AlreadyExistsError,
        AttemptsExhaustedError,
        ConflictError,
        CorruptError,
        HistoryLostError,
        InvalidError,
        KeepstateError,
        LeaseLostError,
        MergeConflictError,
        NotFoundError,
        OutcomeUnknownError,
        StorageError,
        StoreFullError,
        StoreUnavailableError,
        TransitionError,
    )
    from keepstate.errors import ClockError as ClockError
    from keepstate.errors import ClosedError as ClosedError
    from keepstate.errors import CompactedError as CompactedError
    from keepstate.errors import KeepstateDeprecationWarning as KeepstateDeprecationWarning
    from keepstate.errors import MissingExtraError as MissingExtraError
    from keepstate.errors import NotAllowedError as NotAllowedError
    from keepstate.errors import NotLoadedError as NotLoadedError
    from keepstate.errors import NotOwnerError as NotOwnerError
    from keepstate.errors import PrunedError as PrunedError
    from keepstate.errors import StateConflictError as StateConflictError
    from keepstate.errors import StateError as StateError
    from keepstate.errors import TaskFailedError as TaskFailedError
    from keepstate.errors import UnsupportedError as UnsupportedError
    from keepstate.managers import *  # noqa: F403 - its `__all__`, as for the next two
    from keepstate.opening import open as open
    from keepstate.sessions import *  # noqa: F403
    from keepstate.stores.protocol import Store
    from keepstate.stores.wrappers.encrypted import EncryptedStore as EncryptedStore
    from keepstate.stores.wrappers.encrypted import KeyRing
    from keepstate.stores.wrappers.tiered import TieredStore as TieredStore
    from keepstate.typed import *  # noqa: F403
    from keepstate.values.pickles import SignedPickle as SignedPickle
    from keepstate.values.schema import downcast, register, upcast
    from keepstate.values.schema import register_write_version as register_write_version
    from keepstate.workspace import ActionEvent as ActionEvent
    from keepstate.workspace import Cache as Cache
    from keepstate.workspace import Disk as Disk
    from keepstate.workspace import Live as Live
    from keepstate.workspace import Versioned as Versioned
    from keepstate.workspace import events as events
    from keepstate.workspace import view as view

_HOMES = {
    "engine.documents.documents": ("Document", "DocumentEntry", "Documents", "MISSING"),
    "engine.documents.watch": ("DocumentChange", "Watch"),
    "engine.events.events": ("EventStream", "Events"),
    "engine.events.folds": ("FoldEntry",),
    "engine.events.record": ("ANY", "EXISTS", "Event", "NO_STREAM"),
    "engine.events.reducers": ("Fold",),
    "engine.history.archive": ("confirm_archives",),
    "engine.history.checkout": ("Checkout",),
    "engine.history.commits": (
        "Blame", "Branch", "Commit", "Difference", "HistoryStats", "Pruned", "Tag", "Verified",
    ),
    "engine.history.draft": ("Draft",),
    "engine.history.history": ("History",),
    "engine.history.merge": ("MergeConflict",),
    "engine.queue.lease": ("Lease", "Leases"),
    "engine.queue.queue": ("Claim", "Queue", "Task"),
    "engine.queue.tasks": ("Put", "TaskInfo"),
    "engine.space.keepstate": ("Keepstate",),
    "engine.space.projection": ("Projection",),
    "engine.space.space": ("Space", "SpaceSize", "Transaction"),
    "errors": (
        "AlreadyExistsError", "AttemptsExhaustedError", "ClockError", "ClosedError", "CompactedError",
        "ConflictError", "CorruptError", "HistoryLostError", "InvalidError", "KeepstateDeprecationWarning",
        "KeepstateError", "LeaseLostError", "MergeConflictError", "MissingExtraError", "NotAllowedError",
        "NotFoundError", "NotLoadedError", "NotOwnerError", "OutcomeUnknownError", "PrunedError",
        "StateConflictError", "StateError", "StorageError", "StoreFullError", "StoreUnavailableError",
        "TaskFailedError", "TransitionError", "UnsupportedError",
    ),
    "managers.agents": (
        "AgentCheckpoint", "AgentRecoveryManager", "AgentSnapshot", "AgentStateStore", "Recoverable",
        "Recovery",
    ),
    "managers.backends": (
        "FileBackend", "MemoryBackend", "PostgresBackend", "RedisBackend", "SQLiteBackend",
    ),
    "managers.state.key_history": ("StateMoment",),
    "managers.knowledge.manager": ("KnowledgeStateManager",),
    "managers.knowledge.records": (
        "FailedDocument", "IndexingProgress", "IndexingStatus", "KnowledgeBaseState", "SourceState",
        "SyncStatus",
    ),
    "managers.records": ("parameters_hash",),
    "managers.sizes": ("ManagerSize", "SizeAlert"),
    "managers.speech.manager": ("SpeechStateManager",),
    "managers.speech.records": (
        "AudioSession", "AudioSessionStatus", "STTState", "StreamingMode", "TTSState",
        "TranscriptionStatus", "VoiceConversationState",
    ),
    "managers.state.config": ("StateConfig",),
    "managers.state.manager": ("StateManager",),
    "managers.teams.manager": ("OrchestrationStateManager",),
    "managers.teams.records": ("AgentCoordinationState", "TaskQueueState", "TeamState", "TeamTask"),
    "managers.tools.manager": ("ToolStateManager",),
    "managers.tools.records": (
        "EffectStatus", "RetryState", "ToolCacheEntry", "ToolEffect", "ToolExecution",
        "ToolExecutionStatus", "ToolStats",
    ),
    "managers.workflows.manager": ("WorkflowStateManager",),
    "managers.workflows.records": ("StepState", "WorkflowCheckpoint", "WorkflowState", "WorkflowStatus"),
    "opening": ("open",),
    "sessions": (
        "ANY_USER", "AgentStateMachine", "BoundedState", "Conversation", "MessagePage", "Session",
        "SessionContext", "SessionMoment", "Sessions", "StepResult", "TaskState", "Thread", "ThreadMessage",
        "ThreadMessages", "Threads", "TokenCounter", "Transition", "UserState", "ValidatedState",
        "VersionedState", "estimate_tokens",
    ),
    "stores.protocol": ("Store",),
    "stores.wrappers.encrypted": ("EncryptedStore", "KeyRing"),
    "stores.wrappers.tiered": ("TieredStore",),
    "typed.batch": ("MutationBatch",),
    "typed.changes": ("CommitEvent", "CommitHook", "KeyDifference", "StateChange", "StateWatch"),
    "typed.key": ("KeyScope", "MergeStrategy", "ProfileKey", "StateKey"),
    "typed.persisted": ("PersistedState",),
    "typed.profiles": ("ProfileAccess", "ProfileEntry", "StateScope"),
    "typed.ready_keys": ("CounterKey", "ListKey", "MapKey", "MaximumKey", "RegisterKey", "SetKey"),
    "typed.records": ("RunRecord",),
    "typed.registry": ("Plugin", "PluginRegistrar", "StateKeyOptions"),
    "typed.run": ("AgentRun",),
    "typed.state": ("KeyedState",),
    "typed.state_map": ("Snapshot", "StateMap"),
    "typed.tools": ("RunStep", "ToolCallContext", "ToolOutput"),
    "values.pickles": ("SignedPickle",),
    "values.schema": ("downcast", "register", "register_write_version", "upcast"),
    "workspace": ("ActionEvent", "Cache", "Disk", "Live", "Versioned", "events", "view"),
}  # fmt: skip
_MODULES = {name: f"keepstate.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "ANY",
    "AlreadyExistsError",
    "AttemptsExhaustedError",
    "Checkout",
    "Commit",
    "ConflictError",
    "CorruptError",
    "Document",
    "Draft",
    "EXISTS",
    "Event",
    "EventStream",
    "Fold",
    "History",
    "HistoryLostError",
    "InvalidError",
    "Keepstate",
    "KeepstateError",
    "KeyRing",
    "Lease",
    "LeaseLostError",
    "MISSING",
    "MergeConflictError",
    "NO_STREAM",
    "NotFoundError",
    "OutcomeUnknownError",
    "Projection",
    "Queue",
    "Space",
    "StorageError",
    "Store",
    "StoreFullError",
    "StoreUnavailableError",
    "Task",
    "Transaction",
    "TransitionError",
    "Watch",
    "downcast",
    "register",
    "upcast",
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
    own = (name for name in globals() if name.startswith("__"))
    return sorted([*_MODULES, *own, "sync", "__version__"])
