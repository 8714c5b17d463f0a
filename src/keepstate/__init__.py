"""State for AI agents: no update is lost, and every recorded state can be read again.

`open(url)` returns a handle for an event loop, `keepstate.sync.open(url)` one for blocking code. A handle has
spaces. A space has documents, events, a queue, leases, transactions and a history. Names are loaded on first
use, so importing keepstate imports no driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstate import sync as sync
    from keepstate.engine.approvals.approvals import Approvals as Approvals
    from keepstate.engine.approvals.records import Approval as Approval
    from keepstate.engine.approvals.records import ApprovalEvent as ApprovalEvent
    from keepstate.engine.approvals.records import TaskSpec as TaskSpec
    from keepstate.engine.approvals.records import Vote as Vote
    from keepstate.engine.approvals.signers import Signer as Signer
    from keepstate.engine.documents.collection import Collection as Collection
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
    from keepstate.engine.history.json_patch import Differences as Differences
    from keepstate.engine.history.json_patch import to_json_patch as to_json_patch
    from keepstate.engine.history.merge import MergeConflict as MergeConflict
    from keepstate.engine.history.outline import Outline as Outline
    from keepstate.engine.history.outline import ValueSummary as ValueSummary
    from keepstate.engine.index.rows import Found as Found
    from keepstate.engine.index.rows import FoundChange as FoundChange
    from keepstate.engine.kernel.observation import Observer as Observer
    from keepstate.engine.kernel.observation import Operation as Operation
    from keepstate.engine.kernel.positions import Page as Page
    from keepstate.engine.kernel.quotas import Quota as Quota
    from keepstate.engine.kernel.unreadable import Unreadable as Unreadable
    from keepstate.engine.queue.attempts import Attempt as Attempt
    from keepstate.engine.queue.lease import Lease
    from keepstate.engine.queue.lease import LeaseInfo as LeaseInfo
    from keepstate.engine.queue.lease import Leases as Leases
    from keepstate.engine.queue.queue import Claim as Claim
    from keepstate.engine.queue.queue import Queue, Task
    from keepstate.engine.queue.retry import Retry as Retry
    from keepstate.engine.queue.rules import Limit as Limit
    from keepstate.engine.queue.schedules import Schedule as Schedule
    from keepstate.engine.queue.schedules import Schedules as Schedules
    from keepstate.engine.queue.step_control import NOT_DONE as NOT_DONE
    from keepstate.engine.queue.step_records import Answer as Answer
    from keepstate.engine.queue.step_records import Step as Step
    from keepstate.engine.queue.tasks import Put as Put
    from keepstate.engine.queue.tasks import TaskInfo as TaskInfo
    from keepstate.engine.queue.worker import RunReport as RunReport
    from keepstate.engine.space.erasure import Erased as Erased
    from keepstate.engine.space.export import Exported as Exported
    from keepstate.engine.space.export import Imported as Imported
    from keepstate.engine.space.keepstate import Keepstate
    from keepstate.engine.space.keepstate import SpaceInfo as SpaceInfo
    from keepstate.engine.space.keepstate import TenantInfo as TenantInfo
    from keepstate.engine.space.projection import Projection
    from keepstate.engine.space.queues import Queues as Queues
    from keepstate.engine.space.queues import SpaceTask as SpaceTask
    from keepstate.engine.space.space import AppliedTransaction as AppliedTransaction
    from keepstate.engine.space.space import Space, Transaction
    from keepstate.engine.space.space import SpaceSize as SpaceSize
    from keepstate.engine.usage.amounts import Budget as Budget
    from keepstate.engine.usage.amounts import Usage as Usage
    from keepstate.engine.usage.ceilings import BudgetState as BudgetState
    from keepstate.engine.usage.ledger import UsageLedger as UsageLedger
    from keepstate.engine.usage.ledger import UsageTotals as UsageTotals
    from keepstate.engine.usage.spends import Spend as Spend
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
    from keepstate.errors import ApprovalClosedError as ApprovalClosedError
    from keepstate.errors import BudgetExceededError as BudgetExceededError
    from keepstate.errors import ClockError as ClockError
    from keepstate.errors import ClosedError as ClosedError
    from keepstate.errors import CompactedError as CompactedError
    from keepstate.errors import KeepstateDeprecationWarning as KeepstateDeprecationWarning
    from keepstate.errors import MissingExtraError as MissingExtraError
    from keepstate.errors import NotAllowedError as NotAllowedError
    from keepstate.errors import NotLoadedError as NotLoadedError
    from keepstate.errors import NotOwnerError as NotOwnerError
    from keepstate.errors import PrunedError as PrunedError
    from keepstate.errors import QuotaExceededError as QuotaExceededError
    from keepstate.errors import StateConflictError as StateConflictError
    from keepstate.errors import StateError as StateError
    from keepstate.errors import StepUnknownError as StepUnknownError
    from keepstate.errors import Suspended as Suspended
    from keepstate.errors import TaskCancelledError as TaskCancelledError
    from keepstate.errors import TaskFailedError as TaskFailedError
    from keepstate.errors import UnsupportedError as UnsupportedError
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
    from keepstate.memories import Hit as Hit
    from keepstate.memories import Memories as Memories
    from keepstate.memories import Memory as Memory
    from keepstate.memories import VectorIndex as VectorIndex
    from keepstate.names import ALL as ALL
    from keepstate.names import OWN as OWN
    from keepstate.opening import open as open
    from keepstate.sessions import ANY_USER as ANY_USER
    from keepstate.sessions import AgentStateMachine as AgentStateMachine
    from keepstate.sessions import BoundedState as BoundedState
    from keepstate.sessions import ChatChange as ChatChange
    from keepstate.sessions import Conversation as Conversation
    from keepstate.sessions import Entry as Entry
    from keepstate.sessions import MessagePage as MessagePage
    from keepstate.sessions import ModelContext as ModelContext
    from keepstate.sessions import Question as Question
    from keepstate.sessions import Session as Session
    from keepstate.sessions import SessionChange as SessionChange
    from keepstate.sessions import SessionContext as SessionContext
    from keepstate.sessions import SessionMoment as SessionMoment
    from keepstate.sessions import Sessions as Sessions
    from keepstate.sessions import StepResult as StepResult
    from keepstate.sessions import TaskState as TaskState
    from keepstate.sessions import Thread as Thread
    from keepstate.sessions import ThreadMessage as ThreadMessage
    from keepstate.sessions import ThreadMessages as ThreadMessages
    from keepstate.sessions import Threads as Threads
    from keepstate.sessions import TokenCounter as TokenCounter
    from keepstate.sessions import Transition as Transition
    from keepstate.sessions import UserState as UserState
    from keepstate.sessions import ValidatedState as ValidatedState
    from keepstate.sessions import VersionedState as VersionedState
    from keepstate.sessions import estimate_tokens as estimate_tokens
    from keepstate.stores.protocol import Store
    from keepstate.stores.wrappers.encrypted import EncryptedStore as EncryptedStore
    from keepstate.stores.wrappers.encrypted import KeyRing
    from keepstate.stores.wrappers.tiered import TieredStore as TieredStore
    from keepstate.typed.batch import MutationBatch as MutationBatch
    from keepstate.typed.changes import CommitEvent as CommitEvent
    from keepstate.typed.changes import CommitHook as CommitHook
    from keepstate.typed.changes import KeyDifference as KeyDifference
    from keepstate.typed.changes import StateChange as StateChange
    from keepstate.typed.changes import StateWatch as StateWatch
    from keepstate.typed.key import KeyScope as KeyScope
    from keepstate.typed.key import MergeStrategy as MergeStrategy
    from keepstate.typed.key import ProfileKey as ProfileKey
    from keepstate.typed.key import StateKey as StateKey
    from keepstate.typed.persisted import PersistedState as PersistedState
    from keepstate.typed.profiles import ProfileAccess as ProfileAccess
    from keepstate.typed.profiles import ProfileEntry as ProfileEntry
    from keepstate.typed.profiles import StateScope as StateScope
    from keepstate.typed.ready_keys import CounterKey as CounterKey
    from keepstate.typed.ready_keys import ListKey as ListKey
    from keepstate.typed.ready_keys import MapKey as MapKey
    from keepstate.typed.ready_keys import MaximumKey as MaximumKey
    from keepstate.typed.ready_keys import RegisterKey as RegisterKey
    from keepstate.typed.ready_keys import SetKey as SetKey
    from keepstate.typed.records import RunRecord as RunRecord
    from keepstate.typed.registry import Plugin as Plugin
    from keepstate.typed.registry import PluginRegistrar as PluginRegistrar
    from keepstate.typed.registry import StateKeyOptions as StateKeyOptions
    from keepstate.typed.run import AgentRun as AgentRun
    from keepstate.typed.state import KeyedState as KeyedState
    from keepstate.typed.state_map import Snapshot as Snapshot
    from keepstate.typed.state_map import StateMap as StateMap
    from keepstate.typed.tools import RunStep as RunStep
    from keepstate.typed.tools import ToolCallContext as ToolCallContext
    from keepstate.typed.tools import ToolOutput as ToolOutput
    from keepstate.values.notebooks import Table as Table
    from keepstate.values.notebooks import table as table
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
    "engine.approvals.approvals": ("Approvals",),
    "engine.approvals.records": ("Approval", "ApprovalEvent", "TaskSpec", "Vote"),
    "engine.approvals.signers": ("Signer",),
    "engine.documents.collection": ("Collection",),
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
    "engine.history.json_patch": ("Differences", "to_json_patch"),
    "engine.history.merge": ("MergeConflict",),
    "engine.history.outline": ("Outline", "ValueSummary"),
    "engine.index.rows": ("Found", "FoundChange"),
    "engine.kernel.observation": ("Observer", "Operation"),
    "engine.kernel.positions": ("Page",),
    "engine.kernel.quotas": ("Quota",),
    "engine.kernel.unreadable": ("Unreadable",),
    "engine.queue.lease": ("Lease", "LeaseInfo", "Leases"),
    "engine.queue.attempts": ("Attempt",),
    "engine.queue.queue": ("Claim", "Queue", "Task"),
    "engine.queue.rules": ("ActiveRules", "Limit"),
    "engine.queue.schedules": ("Schedule", "Schedules"),
    "engine.queue.retry": ("Retry",),
    "engine.queue.step_calls": ("RecordedStep",),
    "engine.queue.step_records": ("Answer", "Step"),
    "engine.queue.step_control": ("NOT_DONE",),
    "engine.queue.tasks": ("Put", "TaskInfo"),
    "engine.queue.worker": ("RunReport",),
    "engine.space.erasure": ("Erased",),
    "engine.space.export": ("Exported", "Imported"),
    "engine.space.keepstate": ("Keepstate", "SpaceInfo", "TenantInfo"),
    "engine.space.projection": ("Projection",),
    "engine.space.queues": ("Queues", "SpaceTask"),
    "engine.space.space": ("AppliedTransaction", "Space", "SpaceSize", "Transaction"),
    "engine.usage.amounts": ("Budget", "Usage"),
    "engine.usage.ceilings": ("BudgetState",),
    "engine.usage.ledger": ("UsageLedger", "UsageTotals"),
    "engine.usage.spends": ("Spend",),
    "errors": (
        "AlreadyExistsError", "ApprovalClosedError",
        "AttemptsExhaustedError", "BudgetExceededError", "ClockError", "ClosedError", "CompactedError",
        "ConflictError", "CorruptError", "HistoryLostError", "InvalidError", "KeepstateDeprecationWarning",
        "KeepstateError", "LeaseLostError", "MergeConflictError", "MissingExtraError", "NotAllowedError",
        "NotFoundError", "NotLoadedError", "NotOwnerError", "OutcomeUnknownError", "PrunedError",
        "QuotaExceededError", "StateConflictError", "StateError", "StepUnknownError", "StorageError",
        "StoreFullError",
        "StoreUnavailableError", "Suspended", "TaskCancelledError", "TaskFailedError", "TransitionError",
        "UnsupportedError",
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
    "memories": ("Hit", "Memories", "Memory", "VectorIndex"),
    "names": ("ALL", "OWN"),
    "opening": ("open",),
    "sessions": (
        "ANY_USER", "AgentStateMachine", "BoundedState", "ChatChange", "Conversation", "Entry",
        "MessagePage", "ModelContext", "Question", "Reply", "ReplyClaim", "ReplyProgress", "Session",
        "SessionChange", "SessionContext", "SessionMoment", "Sessions", "StepResult", "TaskState", "Thread",
        "ThreadMessage", "ThreadMessages", "Threads", "TokenCounter", "Transition", "UserState",
        "ValidatedState", "VersionedState", "estimate_tokens",
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
    "values.notebooks": ("Table", "table"),
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
