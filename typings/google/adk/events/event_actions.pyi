from typing import Any

from pydantic import BaseModel

class EventActions(BaseModel):
    state_delta: dict[str, Any]
