"""WHICH state does an agent's code declare? Typed keys, their scopes, and how parallel updates merge.

Invariant: state changes only by batches of updates, applied to the latest values in one conditional batch of
the store, all or none. No value is computed outside and written back.

To add one: a ready-made key in `ready_keys`; a kind of value in `forms`; a record of a thread in `records`,
with its document name in `layout`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstate.typed.batch import MutationBatch as MutationBatch
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
    from keepstate.typed.state import CommitEvent as CommitEvent
    from keepstate.typed.state import CommitHook as CommitHook
    from keepstate.typed.state import KeyedState as KeyedState
    from keepstate.typed.state_map import Snapshot as Snapshot
    from keepstate.typed.state_map import StateMap as StateMap
    from keepstate.typed.tools import RunStep as RunStep
    from keepstate.typed.tools import ToolCallContext as ToolCallContext
    from keepstate.typed.tools import ToolOutput as ToolOutput

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
        return getattr(import_module("keepstate"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *globals()])
