"""Which revision of each space a handle saw last."""

from __future__ import annotations

_SPACES_REMEMBERED = 65_536


class SeenRevisions(dict[str, int]):
    """The highest revision seen of each space, of the spaces met first forgotten when they become too many.

    An unanswered batch can only stand above it in the log.
    """

    def saw(self, space: str, revision: int) -> None:
        """Remember a revision if it is higher than the one known."""
        if revision <= self.get(space, -1):
            return
        self[space] = revision
        if len(self) > _SPACES_REMEMBERED:
            del self[next(iter(self))]
