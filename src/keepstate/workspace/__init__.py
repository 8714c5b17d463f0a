"""WHAT does an agent have at hand while it works?

Its variables, in this process (`Live`) or with their whole history (`Versioned`); their storage; the tasks
that use them; and the events of tasks. Invariants: a task never fails because its events cannot be stored.
Events are never among the variables, and are written in one batch with their commit.

To add a kind of event, edit `task_events`. To add a storage for bytes, subclass `KVStore`.
"""

from keepstate.workspace.definitions import Definition as Definition
from keepstate.workspace.definitions import Import as Import
from keepstate.workspace.definitions import Instance as Instance
from keepstate.workspace.definitions import Reference as Reference
from keepstate.workspace.kv import Cache as Cache
from keepstate.workspace.kv import Disk as Disk
from keepstate.workspace.kv import KVStore as KVStore
from keepstate.workspace.kv import Memory as Memory
from keepstate.workspace.live import Live as Live
from keepstate.workspace.task_events import ActionEvent as ActionEvent
from keepstate.workspace.task_events import ErrorEvent as ErrorEvent
from keepstate.workspace.task_events import FailEvent as FailEvent
from keepstate.workspace.task_events import OutputEvent as OutputEvent
from keepstate.workspace.task_events import SuccessEvent as SuccessEvent
from keepstate.workspace.task_events import TaskEvent as TaskEvent
from keepstate.workspace.task_events import TaskStartEvent as TaskStartEvent
from keepstate.workspace.task_events import events as events
from keepstate.workspace.task_events import view as view
from keepstate.workspace.tasks import Agent as Agent
from keepstate.workspace.tasks import AgentTask as AgentTask
from keepstate.workspace.versioned import PastState as PastState
from keepstate.workspace.versioned import Versioned as Versioned

__all__ = [
    "ActionEvent",
    "Agent",
    "AgentTask",
    "Cache",
    "Definition",
    "Disk",
    "ErrorEvent",
    "FailEvent",
    "Import",
    "Instance",
    "KVStore",
    "Live",
    "Memory",
    "OutputEvent",
    "PastState",
    "Reference",
    "SuccessEvent",
    "TaskEvent",
    "TaskStartEvent",
    "Versioned",
    "events",
    "view",
]
