"""HOW do replicas of an A2A server share their tasks here? In three stores on one keepstate store.

API boundary: `KeepstateTaskStore`, `KeepstateEventStream` and `KeepstatePushConfigs`, for the arguments of a
request handler.

Invariant: of two writers that save a task at one version, one gets a conflict. A save writes what changed.
"""

from keepstate.adapters.a2a.event_stream import KeepstateEventStream
from keepstate.adapters.a2a.push_configs import KeepstatePushConfigs
from keepstate.adapters.a2a.tasks import KeepstateTaskStore

__all__ = ["KeepstateTaskStore", "KeepstateEventStream", "KeepstatePushConfigs"]
