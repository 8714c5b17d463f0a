"""HOW is it used without `await`? The blocking twin of each asynchronous class, by the same name.

`open(url)` opens a store. `of(ks)` returns the blocking twin of a handle that was opened for an event loop.
Invariant: a twin holds the asynchronous object over drivers that block, runs each call to its end in the
calling thread, and has no state of its own. Threads may share it.

To add one: name the class in `tools/twins.py`, run `tools/generate_sync.py`, and name the twin here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstate.sync.approvals import Approvals
    from keepstate.sync.checkout import Checkout
    from keepstate.sync.collection import Collection
    from keepstate.sync.documents import Document, Documents
    from keepstate.sync.draft import Draft
    from keepstate.sync.events import Events, EventStream
    from keepstate.sync.history import History
    from keepstate.sync.keepstate import Keepstate
    from keepstate.sync.lease import Lease, Leases
    from keepstate.sync.ledger import UsageLedger
    from keepstate.sync.managers.agents import AgentRecoveryManager, AgentStateStore
    from keepstate.sync.managers.knowledge import KnowledgeStateManager
    from keepstate.sync.managers.speech import SpeechStateManager
    from keepstate.sync.managers.state import StateManager
    from keepstate.sync.managers.teams import OrchestrationStateManager
    from keepstate.sync.managers.tools import ToolStateManager
    from keepstate.sync.managers.workflows import WorkflowStateManager
    from keepstate.sync.memories.memories import Memories
    from keepstate.sync.opening import of, open
    from keepstate.sync.projection import Projection
    from keepstate.sync.queue import Queue, Task
    from keepstate.sync.queues import Queues
    from keepstate.sync.schedules import Schedules
    from keepstate.sync.sessions.conversation import BoundedState, Conversation
    from keepstate.sync.sessions.machine import AgentStateMachine
    from keepstate.sync.sessions.replies import Reply
    from keepstate.sync.sessions.session import Session
    from keepstate.sync.sessions.sweep import Sessions
    from keepstate.sync.sessions.threads import ThreadMessages, Threads
    from keepstate.sync.sessions.user import UserState
    from keepstate.sync.sessions.validated import ValidatedState
    from keepstate.sync.sessions.versioned import VersionedState
    from keepstate.sync.space import Space, Transaction
    from keepstate.sync.spends import Spend
    from keepstate.sync.typed.changes import StateWatch
    from keepstate.sync.typed.profiles import ProfileAccess
    from keepstate.sync.typed.run import AgentRun
    from keepstate.sync.typed.state import KeyedState
    from keepstate.sync.typed.tools import ToolCallContext
    from keepstate.sync.watch import Watch

_HOMES = {
    "approvals": ("Approvals",),
    "checkout": ("Checkout",),
    "collection": ("Collection",),
    "documents": (
        "Document",
        "Documents",
    ),
    "draft": ("Draft",),
    "events": (
        "Events",
        "EventStream",
    ),
    "history": ("History",),
    "keepstate": ("Keepstate",),
    "lease": (
        "Lease",
        "Leases",
    ),
    "ledger": ("UsageLedger",),
    "managers.agents": (
        "AgentRecoveryManager",
        "AgentStateStore",
    ),
    "managers.knowledge": ("KnowledgeStateManager",),
    "managers.speech": ("SpeechStateManager",),
    "managers.state": ("StateManager",),
    "managers.teams": ("OrchestrationStateManager",),
    "managers.tools": ("ToolStateManager",),
    "managers.workflows": ("WorkflowStateManager",),
    "memories.memories": ("Memories",),
    "opening": (
        "of",
        "open",
    ),
    "projection": ("Projection",),
    "queue": (
        "Queue",
        "Task",
    ),
    "queues": ("Queues",),
    "schedules": ("Schedules",),
    "sessions.conversation": (
        "BoundedState",
        "Conversation",
    ),
    "sessions.machine": ("AgentStateMachine",),
    "sessions.replies": ("Reply",),
    "sessions.session": ("Session",),
    "sessions.sweep": ("Sessions",),
    "sessions.threads": (
        "ThreadMessages",
        "Threads",
    ),
    "sessions.user": ("UserState",),
    "sessions.validated": ("ValidatedState",),
    "sessions.versioned": ("VersionedState",),
    "space": (
        "Space",
        "Transaction",
    ),
    "spends": ("Spend",),
    "typed.changes": ("StateWatch",),
    "typed.profiles": ("ProfileAccess",),
    "typed.run": ("AgentRun",),
    "typed.state": ("KeyedState",),
    "typed.tools": ("ToolCallContext",),
    "watch": ("Watch",),
}
_MODULES = {name: f"keepstate.sync.{home}" for home, names in _HOMES.items() for name in names}

__all__ = [
    "AgentRecoveryManager",
    "AgentRun",
    "AgentStateMachine",
    "Approvals",
    "AgentStateStore",
    "BoundedState",
    "Checkout",
    "Collection",
    "Conversation",
    "Document",
    "Documents",
    "Draft",
    "EventStream",
    "Events",
    "History",
    "Keepstate",
    "KeyedState",
    "KnowledgeStateManager",
    "Lease",
    "Leases",
    "Projection",
    "Memories",
    "OrchestrationStateManager",
    "ProfileAccess",
    "Queue",
    "Queues",
    "Reply",
    "Schedules",
    "Session",
    "Sessions",
    "Space",
    "SpeechStateManager",
    "Spend",
    "StateManager",
    "StateWatch",
    "Task",
    "ThreadMessages",
    "Threads",
    "ToolCallContext",
    "ToolStateManager",
    "Transaction",
    "UsageLedger",
    "UserState",
    "ValidatedState",
    "VersionedState",
    "Watch",
    "WorkflowStateManager",
    "of",
    "open",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'keepstate.sync' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_MODULES, *(name for name in globals() if name.startswith("__"))])
