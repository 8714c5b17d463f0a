from abc import ABC, abstractmethod
from typing import Any

from google.adk.events.event import Event
from google.adk.sessions.session import Session
from pydantic import BaseModel

class GetSessionConfig(BaseModel):
    num_recent_events: int | None = None
    after_timestamp: float | None = None

class ListSessionsResponse(BaseModel):
    sessions: list[Session]

class BaseSessionService(ABC):
    @abstractmethod
    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session: ...
    @abstractmethod
    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None: ...
    @abstractmethod
    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse: ...
    @abstractmethod
    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None: ...
    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]: ...
    async def append_event(self, session: Session, event: Event) -> Event: ...
    async def flush(self) -> None: ...
    def _apply_temp_state(self, session: Session, event: Event) -> None: ...
    def _trim_temp_delta_state(self, event: Event) -> Event: ...
    def _commit_event_to_session(self, session: Session, event: Event) -> Event: ...
