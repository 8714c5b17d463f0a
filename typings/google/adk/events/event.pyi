from google.adk.events.event_actions import EventActions
from google.genai.types import Content
from pydantic import BaseModel

class Event(BaseModel):
    id: str
    author: str
    timestamp: float
    partial: bool | None
    content: Content | None
    actions: EventActions
