"""Blocking twins of `keepstate.sessions.threads`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from keepstate._finish import finish
from keepstate.sessions import threads as sessions
from keepstate.sessions.thread_records import MessagePage, Thread, ThreadMessage
from keepstate.sync.binding import Resource, StorageOptions
from keepstate.sync.twin import Twin, inner_options


class Threads(Resource[sessions.Threads]):
    """Threads of messages in a store.

    Creating a thread or message with an id is idempotent: an existing one is returned unchanged.

    Args:
        persistence: A URL, the path of an SQLite file, an open store, or a handle on one. Without it and
            `space` the threads are in memory that this process shares.
        space: Instead: a space, or a transaction whose batch all changes join.
    """

    def __init__(self, **storage: Unpack[StorageOptions]) -> None:
        super().__init__(sessions.Threads(**inner_options(storage)))

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
        """Create a thread, or return the existing one with this id.

        Args:
            id: Id of the thread; a new unique id by default.
            messages: The first messages: dicts of role and content, with optional metadata and id.
            metadata: Metadata to store with the thread.
        """
        return finish(self._inner.create(id, messages=messages, metadata=metadata))

    def retrieve(self, thread_id: str) -> Thread:
        """Return a thread.

        Raises:
            NotFoundError: The thread does not exist.
        """
        return finish(self._inner.retrieve(thread_id))

    def update(self, thread_id: str, *, metadata: Mapping[str, Any]) -> Thread:
        """Replace the metadata of a thread.

        Raises:
            NotFoundError: The thread does not exist.
        """
        return finish(self._inner.update(thread_id, metadata=metadata))

    def delete(self, thread_id: str) -> bool:
        """Delete a thread with its messages, and return whether it existed.

        Other documents in the thread's space are not deleted.
        """
        return finish(self._inner.delete(thread_id))


class ThreadMessages(Twin[sessions.ThreadMessages]):
    """The messages of threads; returned by `Threads.messages`."""

    def create(
        self,
        thread_id: str,
        *,
        role: str,
        content: Any,
        metadata: Mapping[str, Any] | None = None,
        id: str | None = None,
    ) -> ThreadMessage:
        """Add a message to a thread, or return the thread's existing message with this id.

        Args:
            thread_id: Id of the thread.
            role: Role of the speaker.
            content: Text, or parts as model APIs take them.
            metadata: Metadata to store with the message.
            id: Id of the message; a new unique id by default.

        Raises:
            NotFoundError: The thread does not exist.
        """
        return finish(self._inner.create(thread_id, role=role, content=content, metadata=metadata, id=id))

    def retrieve(self, thread_id: str, message_id: str) -> ThreadMessage:
        """Return a message.

        Raises:
            NotFoundError: The thread or the message does not exist.
        """
        return finish(self._inner.retrieve(thread_id, message_id))

    def update(self, thread_id: str, message_id: str, *, metadata: Mapping[str, Any]) -> ThreadMessage:
        """Replace the metadata of a message.

        Raises:
            NotFoundError: The thread or the message does not exist.
        """
        return finish(self._inner.update(thread_id, message_id, metadata=metadata))

    def delete(self, thread_id: str, message_id: str) -> bool:
        """Delete a message, and return whether it existed.

        Raises:
            NotFoundError: The thread does not exist.
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
            thread_id: Id of the thread.
            limit: Maximum number of messages, from 1 to 100.
            order: `desc` for the newest first, or `asc` for the oldest first.
            after: Id of a message: the page begins after it, in this order.
            before: Id of a message: the page ends before it, in this order.

        Raises:
            NotFoundError: The thread, or a message given as cursor, does not exist.
        """
        return finish(self._inner.list(thread_id, limit=limit, order=order, after=after, before=before))
