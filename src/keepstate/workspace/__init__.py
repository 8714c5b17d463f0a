"""WHAT does an agent have at hand while it works?

Its variables, in this process (`Live`) or with their whole history (`Versioned`); their storage; the tasks
that use them; and the events of tasks. Invariants: a task never fails because its events cannot be stored.
Events are never among the variables, and are written in one batch with their commit.

To add a kind of event, edit `task_events`. To add a storage for bytes, subclass `KVStore`.
"""

from keepstate.kv import KVStore
from keepstate.workspace.definitions import Definition, Import, Instance, Reference
from keepstate.workspace.kv import Cache, Disk, Memory
from keepstate.workspace.live import Live
from keepstate.workspace.task_events import (
    ActionEvent,
    ErrorEvent,
    FailEvent,
    OutputEvent,
    SuccessEvent,
    TaskEvent,
    TaskStartEvent,
    events,
    view,
)
from keepstate.workspace.tasks import Agent, AgentTask
from keepstate.workspace.versioned import PastState, Versioned

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
