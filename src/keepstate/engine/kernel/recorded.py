"""Notes on changes of documents, and the commit that the changes of a unit become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Note(NamedTuple):
    """The author, the message and the notes of a change of documents, and the commit that it merges."""

    author: str | None
    message: str
    meta: Mapping[str, str]
    merged: bytes | None = None


class RecordedCommit(Protocol):
    """The history commit of a unit in a recorded space."""

    @property
    def id(self) -> bytes:
        """The name of the commit."""
        ...

    @property
    def record(self) -> Any:
        """The decoded record of the commit."""
        ...

    @property
    def number(self) -> int:
        """The number of commits before it along first parents."""
        ...
