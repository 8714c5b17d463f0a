"""What does an agent have at hand while it works?

Its variables, in this process (`Live`) or with every moment of them (`Versioned`); where those are kept; the
tasks that use them; and what happened. Invariant: a task never fails because of what is remembered about it;
what happened is never among the variables, and is written in one batch with the commit that it tells of.

To add one: a kind of event in `happenings`, told in `viewing`; a place to keep bytes in, a `KVStore`.
"""

from keepstate.workspace.cache import Cache as Cache
from keepstate.workspace.definitions import Definition as Definition
from keepstate.workspace.definitions import Import as Import
from keepstate.workspace.definitions import Instance as Instance
from keepstate.workspace.definitions import Reference as Reference
from keepstate.workspace.disk import Disk as Disk
from keepstate.workspace.kv import KVStore as KVStore
from keepstate.workspace.live import Live as Live
from keepstate.workspace.memory import Memory as Memory
from keepstate.workspace.past import PastState as PastState
from keepstate.workspace.task_events import ActionEvent as ActionEvent
from keepstate.workspace.task_events import ErrorEvent as ErrorEvent
from keepstate.workspace.task_events import FailEvent as FailEvent
from keepstate.workspace.task_events import OutputEvent as OutputEvent
from keepstate.workspace.task_events import SuccessEvent as SuccessEvent
from keepstate.workspace.task_events import TaskEvent as TaskEvent
from keepstate.workspace.task_events import TaskStartEvent as TaskStartEvent
from keepstate.workspace.task_events import events as events
from keepstate.workspace.tasks import Agent as Agent
from keepstate.workspace.tasks import AgentTask as AgentTask
from keepstate.workspace.versioned import Versioned as Versioned
from keepstate.workspace.views import view as view

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
