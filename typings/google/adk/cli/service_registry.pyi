from typing import Any, Protocol

from google.adk.artifacts.base_artifact_service import BaseArtifactService
from google.adk.memory.base_memory_service import BaseMemoryService
from google.adk.sessions.base_session_service import BaseSessionService

class ServiceFactory(Protocol):
    def __call__(
        self, uri: str, **kwargs: Any
    ) -> BaseSessionService | BaseArtifactService | BaseMemoryService: ...

class ServiceRegistry:
    def register_session_service(self, scheme: str, factory: ServiceFactory) -> None: ...
    def register_artifact_service(self, scheme: str, factory: ServiceFactory) -> None: ...
    def register_memory_service(self, scheme: str, factory: ServiceFactory) -> None: ...

def get_service_registry() -> ServiceRegistry: ...
