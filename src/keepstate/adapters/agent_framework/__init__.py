"""HOW does an agent or a workflow of Microsoft's Agent Framework keep its state here? In four stores.

API boundary: `KeepstateCheckpointStorage` for workflows, `KeepstateHistoryProvider` for messages,
`KeepstateSessionStore` for sessions, and `KeepstateApprovalStore` for calls that people approve. For an agent
without a framework, take `keepstate.sessions`.

Invariant: a stored checkpoint is decoded only with the framework's list of allowed types.
"""

from keepstate.adapters.agent_framework.approvals import KeepstateApprovalStore
from keepstate.adapters.agent_framework.checkpoints import KeepstateCheckpointStorage
from keepstate.adapters.agent_framework.history import KeepstateHistoryProvider
from keepstate.adapters.agent_framework.sessions import KeepstateSessionStore

__all__ = [
    "KeepstateCheckpointStorage",
    "KeepstateHistoryProvider",
    "KeepstateSessionStore",
    "KeepstateApprovalStore",
]
