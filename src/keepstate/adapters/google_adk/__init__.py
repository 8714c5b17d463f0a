"""HOW does an agent of Google's ADK keep its state here? Its three services, each one line to switch to.

API boundary: `KeepstateSessionService`, `KeepstateArtifactService` and `KeepstateMemoryService`, and
`register_services`, by which the commands of ADK take store URLs.

Invariant: each user is an owner. `erase(user_id)` of a service removes all that the service keeps of a user.
"""

from keepstate.adapters.google_adk.artifacts import KeepstateArtifactService
from keepstate.adapters.google_adk.memories import KeepstateMemoryService
from keepstate.adapters.google_adk.registration import register_services
from keepstate.adapters.google_adk.sessions import KeepstateSessionService

__all__ = [
    "KeepstateSessionService",
    "KeepstateArtifactService",
    "KeepstateMemoryService",
    "register_services",
]
