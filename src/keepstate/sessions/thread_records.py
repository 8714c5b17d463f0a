"""What threads return, and what is stored of them."""

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
        id: Which one.
        created_at: When, by the store's clock.
        metadata: What its owner has noted of it.
    """

    id: str
    created_at: datetime
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ThreadMessage:
    """A message of a thread.

    Attributes:
        id: Which one.
        thread_id: In which thread.
        role: Who said it, such as "user".
        content: What: a text, or parts of it as model APIs take them.
        metadata: What its owner has noted of it.
        created_at: When, by the store's clock.
    """

    id: str
    thread_id: str
    role: str
    content: Any
    metadata: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Some messages of a thread, in the order that was asked for.

    Attributes:
        data: The messages.
        has_more: Whether there are more beyond them, in the direction that was asked for.
    """

    data: list[ThreadMessage]
    has_more: bool

    @property
    def first_id(self) -> str | None:
        """The cursor for what stands before: `before=`."""
        return self.data[0].id if self.data else None

    @property
    def last_id(self) -> str | None:
        """The cursor for what follows: `after=`."""
        return self.data[-1].id if self.data else None


@register("keepstate.Thread")
@dataclass
class ThreadRecord:
    """A thread as it is stored."""

    created_ms: int
    count: int = 0
    """How many messages were ever added; the next one has this number."""
    metadata: dict[Any, Any] = field(default_factory=dict[str, Any])  # other keys can be read, and mended
    is_going: bool = False
    """Whether it is being deleted; then it is absent for all but who does that."""

    def shown(self, id: str) -> Thread:
        """Return what callers see."""
        return Thread(id, moment(self.created_ms), self.metadata)


@register("keepstate.ThreadMessage")
@dataclass
class MessageRecord:
    """A message as it is stored."""

    id: str
    role: str
    content: Any
    created_ms: int
    metadata: dict[Any, Any] = field(default_factory=dict[str, Any])  # other keys can be read, and mended

    def shown(self, thread_id: str) -> ThreadMessage:
        """Return what callers see."""
        return ThreadMessage(
            self.id, thread_id, self.role, self.content, self.metadata, moment(self.created_ms)
        )


def moment(ms: int) -> datetime:
    """Return a time, UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)
