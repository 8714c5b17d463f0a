"""WHICH state does an agent's code declare? Typed keys, their scopes, and how parallel updates merge.

Invariant: state changes only by batches of updates, applied to the latest values in one conditional batch of
the store, all or none. No value is computed outside and written back.

To add one: a ready-made key in `ready_keys`; a kind of value in `forms`; a record of a thread in `records`,
with its document name in `layout`.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstate.typed.batch import MutationBatch
    from keepstate.typed.changes import CommitEvent, CommitHook, KeyDifference, StateChange, StateWatch
    from keepstate.typed.key import KeyScope, MergeStrategy, ProfileKey, StateKey
    from keepstate.typed.persisted import PersistedState
    from keepstate.typed.profiles import ProfileAccess, ProfileEntry, StateScope
    from keepstate.typed.ready_keys import CounterKey, ListKey, MapKey, MaximumKey, RegisterKey, SetKey
    from keepstate.typed.records import RunRecord
    from keepstate.typed.registry import Plugin, PluginRegistrar, StateKeyOptions
    from keepstate.typed.run import AgentRun
    from keepstate.typed.state import KeyedState
    from keepstate.typed.state_map import Snapshot, StateMap
    from keepstate.typed.tools import RunStep, ToolCallContext, ToolOutput

__all__ = [
    "AgentRun",
    "CommitEvent",
    "CommitHook",
    "CounterKey",
    "KeyDifference",
    "KeyScope",
    "KeyedState",
    "ListKey",
    "MapKey",
    "MaximumKey",
    "MergeStrategy",
    "MutationBatch",
    "PersistedState",
    "Plugin",
    "PluginRegistrar",
    "ProfileAccess",
    "ProfileEntry",
    "ProfileKey",
    "RegisterKey",
    "RunRecord",
    "RunStep",
    "SetKey",
    "Snapshot",
    "StateChange",
    "StateKey",
    "StateKeyOptions",
    "StateMap",
    "StateScope",
    "StateWatch",
    "ToolCallContext",
    "ToolOutput",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        # The parent is loaded first, and has the table of names; an import of it would be a circle.
        return getattr(sys.modules["keepstate"], name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *globals()])
