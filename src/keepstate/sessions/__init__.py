"""HOW does an agent keep state across steps and conversations? Sessions, threads, state machines, contexts.

Each part is small, usable alone, and behaves the same on every backend. Invariant: nothing here has a storage
of its own. All state is documents, events and leases of a space, so it can join any transaction.

To add a part: subclass `keepstate.binding.Resource`, resolve `persistence=` or `space=` with its
`StoreBinding`, store the documents under a `namespace.Namespace`, and add a row in `tools/twins.py` and a
module in `tests/sessions/patterns`.
"""

from keepstate.sessions.conversation import BoundedState, Conversation
from keepstate.sessions.entries import Entry
from keepstate.sessions.following import ChatChange
from keepstate.sessions.forms.conversion import ModelContext
from keepstate.sessions.machine import AgentStateMachine
from keepstate.sessions.machine_data import Transition
from keepstate.sessions.messages import estimate_tokens
from keepstate.sessions.namespace import ANY_USER
from keepstate.sessions.questions import Question
from keepstate.sessions.replies import Reply
from keepstate.sessions.reply_calls import ReplyClaim, ReplyProgress
from keepstate.sessions.session import Session
from keepstate.sessions.session_records import SessionContext, SessionMoment, TaskState
from keepstate.sessions.session_watch import SessionChange
from keepstate.sessions.sweep import Sessions
from keepstate.sessions.table import StepResult
from keepstate.sessions.thread_records import MessagePage, Thread, ThreadMessage
from keepstate.sessions.threads import ThreadMessages, Threads
from keepstate.sessions.token_counter import TokenCounter
from keepstate.sessions.user import UserState
from keepstate.sessions.validated import ValidatedState
from keepstate.sessions.versioned import VersionedState

__all__ = [
    "ANY_USER",
    "AgentStateMachine",
    "BoundedState",
    "ChatChange",
    "Conversation",
    "Entry",
    "MessagePage",
    "Question",
    "ModelContext",
    "Reply",
    "ReplyClaim",
    "ReplyProgress",
    "Session",
    "SessionChange",
    "SessionContext",
    "SessionMoment",
    "Sessions",
    "StepResult",
    "TaskState",
    "Thread",
    "ThreadMessage",
    "ThreadMessages",
    "Threads",
    "TokenCounter",
    "Transition",
    "UserState",
    "ValidatedState",
    "VersionedState",
    "estimate_tokens",
]
