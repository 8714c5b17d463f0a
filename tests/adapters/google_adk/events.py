"""Events for the tests of ADK's services."""

from __future__ import annotations

from typing import Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types


def said(*texts: str, state: dict[str, Any] | None = None, **fields: Any) -> Event:
    """Return an event of a user with a part for each text."""
    parts = [types.Part(text=text) for text in texts]
    content = types.Content(role="user", parts=parts) if parts else None
    return Event(author="user", content=content, actions=EventActions(state_delta=state or {}), **fields)


def texts(events: list[Event]) -> list[str]:
    """Return the texts of events, in order."""
    return [
        part.text
        for event in events
        if event.content is not None
        for part in event.content.parts or []
        if part.text is not None
    ]
