"""Blocking twins of `keepstate.sessions.replies`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import Any

from keepstate._finish import finish
from keepstate.sessions import replies as sessions
from keepstate.sync.twin import Twin


class Reply(Twin[sessions.Reply]):
    """A reply that this process writes; see `Conversation.reply`.

    Attributes:
        id: The id of the reply, and of the message that it becomes.
        meta: Notes that are stored with the message; fill it before the block ends.
    """

    @property
    def id(self) -> str:
        """The id of the reply, and of the message that it becomes."""
        return self._inner.id

    @property
    def meta(self) -> dict[str, Any]:
        """Notes that are stored with the message; fill it before the block ends."""
        return self._inner.meta

    @property
    def text(self) -> str:
        """The text so far."""
        return self._inner.text

    @property
    def stopped(self) -> bool:
        """True once `stop` has ended the reply. What is written after that is not part of it."""
        return self._inner.stopped

    def write(self, delta: str) -> None:
        """Add a piece of text. Followers get it within `flush_s` seconds.

        Raises:
            InvalidError: The piece is not text.
            LeaseLostError: The reply was ended as failed, because this process could not renew its lease.
        """
        finish(self._inner.write(delta))
