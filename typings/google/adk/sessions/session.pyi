from typing import Any

from google.adk.events.event import Event
from pydantic import BaseModel

class Session(BaseModel):
    id: str
    app_name: str
    user_id: str
    state: dict[str, Any]
    events: list[Event]
    last_update_time: float
    _storage_update_marker: str | None = None
