"""`register_services`: store URLs for `adk web`, `adk run` and `adk api_server`, as `keepstate+sqlite:///agents.db`.

The part after `keepstate+` is any URL of a store; see `docs/reference/urls.md`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from keepstate.adapters.google_adk.artifacts import KeepstateArtifactService
from keepstate.adapters.google_adk.memories import KeepstateMemoryService
from keepstate.adapters.google_adk.sessions import KeepstateSessionService
from keepstate.stores.urls import BACKENDS, TIERED

if TYPE_CHECKING:
    from google.adk.cli.service_registry import ServiceRegistry

T = TypeVar("T")

_BEGINNING: Final = "keepstate+"
_OWN_OPTIONS: Final = ("agents_dir", "per_agent")
"""Options that the commands give to the factories of all services; a store has no use for them."""


def register_services(registry: ServiceRegistry | None = None) -> None:
    """Register the three services under `keepstate+` and each scheme of a store. Repeating it is allowed.

    Call it in the `services.py` of the folder of agents, which the commands of ADK import. Then these URLs
    work for `--session_service_uri`, `--artifact_service_uri` and `--memory_service_uri`.

    Args:
        registry: A registry of ADK; by default that of its commands.
    """
    if registry is None:
        from google.adk.cli.service_registry import get_service_registry

        registry = get_service_registry()
    for scheme in (*BACKENDS, *(TIERED + scheme for scheme in BACKENDS)):
        own = _BEGINNING + scheme
        registry.register_session_service(own, _factory(KeepstateSessionService))
        registry.register_artifact_service(own, _factory(KeepstateArtifactService))
        registry.register_memory_service(own, _factory(KeepstateMemoryService))


def _factory(service: Callable[..., T]) -> Callable[..., T]:
    def make(uri: str, **options: Any) -> T:
        own = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
        return service(uri[len(_BEGINNING) :], **own)

    return make
