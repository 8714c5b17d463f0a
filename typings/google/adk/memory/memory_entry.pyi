from typing import Any

from google.genai import types
from pydantic import BaseModel

class MemoryEntry(BaseModel):
    content: types.Content
    custom_metadata: dict[str, Any] = ...
    id: str | None = None
    author: str | None = None
    timestamp: str | None = None
