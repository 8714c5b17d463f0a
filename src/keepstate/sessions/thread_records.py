"""Public results of threads, and their stored records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from keepstate.values.schema import register


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread.

    Attributes:
        id: Id of the thread.
        created_at: Creation time, by the store's clock.
        metadata: Metadata that the application stored with it.
    """

    id: str
    created_at: datetime
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ThreadMessage:
    """A message of a thread.

    Attributes:
        id: Id of the message.
        thread_id: Id of the thread.
        role: Role of the speaker, such as "user".
        content: Text, or parts as model APIs take them.
        metadata: Metadata that the application stored with it.
        created_at: Creation time, by the store's clock.
    """

    id: str
    thread_id: str
    role: str
    content: Any
    metadata: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A page of a thread's messages, in the requested order.

    Attributes:
        data: The messages.
        has_more: Whether more messages follow in the requested direction.
    """

    data: list[ThreadMessage]
    has_more: bool

    @property
    def first_id(self) -> str | None:
        """The cursor for the previous page: pass it as `before=`."""
        return self.data[0].id if self.data else None

    @property
    def last_id(self) -> str | None:
        """The cursor for the next page: pass it as `after=`."""
        return self.data[-1].id if self.data else None


@register("keepstate.Thread")
@dataclass
class ThreadRecord:
    """The stored record of a thread."""

    created_ms: int
    count: int = 0
    """Number of messages ever added; the number of the next message."""
    metadata: dict[Any, Any] = field(default_factory=dict[str, Any])  # other keys can be read, and mended
    is_going: bool = False
    """Whether the thread is being deleted; readers then treat it as absent."""

    def to_public(self, id: str) -> Thread:
        """Return the public form of the record."""
        return Thread(id, to_datetime(self.created_ms), self.metadata)


@register("keepstate.ThreadMessage")
@dataclass
class MessageRecord:
    """The stored record of a message."""

    id: str
    role: str
    content: Any
    created_ms: int
    metadata: dict[Any, Any] = field(default_factory=dict[str, Any])  # other keys can be read, and mended

    def to_public(self, thread_id: str) -> ThreadMessage:
        """Return the public form of the record."""
        return ThreadMessage(
            self.id, thread_id, self.role, self.content, self.metadata, to_datetime(self.created_ms)
        )


def to_datetime(ms: int) -> datetime:
    """Return Unix milliseconds as an aware time in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
