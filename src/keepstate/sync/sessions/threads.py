"""Blocking twins of `keepstate.sessions.threads`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

from keepstate._finish import finish
from keepstate.sessions import threads as sessions
from keepstate.sessions.thread_records import MessagePage, Thread, ThreadMessage
from keepstate.stores.protocol import Store
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.sessions.resource import Kept
from keepstate.sync.space import Space
from keepstate.sync.transaction import Transaction
from keepstate.sync.twin import Twin, inner_of


class Threads(Kept[sessions.Threads]):
    """Threads of messages, kept in a store.

    A call that is given an id may be repeated: a thread or message that is there already stays as it is and
    is returned.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` it is in memory that this process shares.
        space: Instead: a space, or a transaction whose batch all joins.
    """

    def __init__(
        self,
        *,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        space: Space | Transaction | None = None,
    ) -> None:
        super().__init__(
            sessions.Threads(
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                space=inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                _mode="blocking",
            )
        )

    @property
    def messages(self) -> ThreadMessages:
        """The messages of the threads."""
        return ThreadMessages(self._inner.messages)

    def create(
        self,
        id: str | None = None,
        *,
        messages: Sequence[Mapping[str, Any]] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> Thread:
        """Make a thread, or return the one that has this id.

        Args:
            id: What it is called; without it, something that nobody else has.
            messages: What it begins with: dicts of role, content, and metadata and id if they have some.
            metadata: What to note of it.
        """
        return finish(self._inner.create(id, messages=messages, metadata=metadata))

    def retrieve(self, thread_id: str) -> Thread:
        """Return a thread.

        Raises:
            NotFoundError: There is none of this id.
        """
        return finish(self._inner.retrieve(thread_id))

    def update(self, thread_id: str, *, metadata: Mapping[str, Any]) -> Thread:
        """Note something else of a thread, in place of what was noted.

        Raises:
            NotFoundError: There is none of this id.
        """
        return finish(self._inner.update(thread_id, metadata=metadata))

    def delete(self, thread_id: str) -> bool:
        """Remove a thread with its messages, and return whether it was there.

        What else is kept in the space of the thread stays.
        """
        return finish(self._inner.delete(thread_id))


class ThreadMessages(Twin[sessions.ThreadMessages]):
    """The messages of threads; made by `Threads.messages`."""

    def create(
        self,
        thread_id: str,
        *,
        role: str,
        content: Any,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> ThreadMessage:
        """Add a message to a thread, or return the one of the thread that has this id.

        Args:
            thread_id: Which thread.
            role: Who says it.
            content: What: a text, or parts as model APIs take them.
            metadata: What to note of it.
            id: What it is called; without it, something that nobody else has.

        Raises:
            NotFoundError: There is no such thread.
        """
        return finish(self._inner.create(thread_id, role=role, content=content, metadata=metadata, id=id))

    def retrieve(self, thread_id: str, message_id: str) -> ThreadMessage:
        """Return a message.

        Raises:
            NotFoundError: The thread, or the message, is not there.
        """
        return finish(self._inner.retrieve(thread_id, message_id))

    def update(self, thread_id: str, message_id: str, *, metadata: Mapping[str, Any]) -> ThreadMessage:
        """Note something else of a message, in place of what was noted.

        Raises:
            NotFoundError: The thread, or the message, is not there.
        """
        return finish(self._inner.update(thread_id, message_id, metadata=metadata))

    def delete(self, thread_id: str, message_id: str) -> bool:
        """Remove a message, and return whether it was there.

        Raises:
            NotFoundError: There is no such thread.
        """
        return finish(self._inner.delete(thread_id, message_id))

    def list(
        self,
        thread_id: str,
        *,
        limit: int = 20,
        order: Literal["asc", "desc"] = "desc",
        after: str | None = None,
        before: str | None = None,
    ) -> MessagePage:
        """Return a page of messages.

        Args:
            thread_id: Which thread.
            limit: How many at the most, from 1 to 100.
            order: `desc` with the newest first, or `asc` with the oldest first.
            after: The id of a message: the page goes on behind it, in this order.
            before: The id of a message: the page ends in front of it, in this order.

        Raises:
            NotFoundError: The thread, or a message that was named, is not there.
        """
        return finish(self._inner.list(thread_id, limit=limit, order=order, after=after, before=before))
