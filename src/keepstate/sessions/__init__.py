"""HOW does an agent keep state across steps and conversations? Sessions, state machines, bounded contexts.

Each part is small, usable alone, and the same on every backend. Invariant: nothing here has a storage of its
own; all of it is documents, events and leases of a space, so that it joins a transaction like anything else.

To add one: a class that takes `persistence=` or `space=` by `home.Home`, a row in `tools/twins.py`.
"""

from keepstate.sessions.bounded import BoundedState
from keepstate.sessions.machine import AgentStateMachine, Transition
from keepstate.sessions.rules import StepResult
from keepstate.sessions.validated import ValidatedState
from keepstate.sessions.versioned import VersionedState

__all__ = [
    "AgentStateMachine",
    "BoundedState",
    "StepResult",
    "Transition",
    "ValidatedState",
    "VersionedState",
]
