"""The marks that one handle of a server store has seen: the highest revision of each space, with its nonce.

A server may forget what it acknowledged: a replica that missed it takes over, a backup is put back. Its
revisions then count up again and soon pass the old ones, so that a number alone proves nothing. The nonce
does: each revision has a random one, in its log record and beside the space's counter. A backend hands the
mark seen last to the server with its call, and the server compares; what it no longer has, or has
differently, was lost.

A mark below the log's floor cannot be compared any more and passes: the log was cut, or the space dropped, in
order.
"""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from keepstate.errors import HistoryLostError

NONCE_BYTES: Final = 8


class Mark(NamedTuple):
    """A revision and its nonce."""

    revision: int
    nonce: bytes


class Marks:
    """The highest mark seen of each space; for any number of threads.

    Take a space's mark before its call is sent, not when the answer has come: answers overtake one another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._highest: dict[str, Mark] = {}

    def of(self, space: str) -> Mark | None:
        """Returns the highest mark seen there, or None if nothing was."""
        return self._highest.get(space)

    def saw(self, space: str, revision: int, nonce: bytes) -> None:
        """Remembers a mark that the server told, if it is higher than the one known."""
        known = self._highest.get(space)
        if revision == 0 or (known is not None and revision <= known.revision):
            return
        with self._lock:
            known = self._highest.get(space)
            if known is None or revision > known.revision:
                self._highest[space] = Mark(revision, nonce)

    def lost(self, space: str, mark: Mark, *, url: str) -> HistoryLostError:
        """Forgets a mark that the server no longer has, and returns the error to raise.

        The next call works on what the server has now.
        """
        with self._lock:
            if self._highest.get(space) == mark:
                del self._highest[space]
        return HistoryLostError(
            f"space {space!r} at {url} no longer has revision {mark.revision} as this handle saw it: it lost "
            "acknowledged writes (a failover, or a restored backup); read again what was read there",
            url=url,
            space=space,
            revision=mark.revision,
        )
