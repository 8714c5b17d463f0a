"""The latest revision of each space that a handle has seen."""

from __future__ import annotations

_SPACES_REMEMBERED = 65_536


class SeenRevisions(dict[str, int]):
    """The highest revision seen of each space. The oldest spaces are forgotten beyond 65,536.

    An unanswered batch can only be above this revision in the log.
    """

    def record(self, space: str, revision: int) -> None:
        """Remember a revision if it is higher than the known one."""
        if revision <= self.get(space, -1):
            return
        self[space] = revision
        if len(self) > _SPACES_REMEMBERED:
            del self[next(iter(self))]
