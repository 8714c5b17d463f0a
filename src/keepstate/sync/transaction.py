"""Blocking twins of `keepstate.engine.space.transaction`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from keepstate.engine.space import transaction as engine
from keepstate.sync.parts import Parts


class Transaction(Parts[engine.Transaction]):
    """What is done through it applies together when its block ends.

    It reads what it has itself written, and all else as of one revision. What it appends gets its place then.
    Tasks and threads may share it: their calls follow one another, and those still waiting at the end are
    refused. A function that it calls may use it in turn, in the same thread.

    Attributes:
        space: The name of the space.
        author: Who writes, or None.
        message: What it is for.
    """

    @property
    def space(self) -> str:
        """The name of the space."""
        return self._inner.space

    @property
    def author(self) -> str | None:
        """Who writes, or None."""
        return self._inner.author

    @property
    def message(self) -> str:
        """What it is for."""
        return self._inner.message

    @property
    def revision(self) -> int:
        """The revision that it made, after the end; 0 before, and if it wrote nothing."""
        return self._inner.revision

    def by(self, author: str | None = None, *, message: str | None = None) -> Transaction:
        """Return the same transaction for one who works in it; asks the store nothing.

        What is recorded of the transaction names all who changed documents in it, and what they did that for.

        Args:
            author: Who writes; without it, who writes here.
            message: What for.
        """
        return Transaction(self._inner.by(author, message=message))
