"""Blocking twins of `keepstate.engine.transaction`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from keepstate.engine import transaction as engine
from keepstate.sync.parts import Parts


class Transaction(Parts[engine.Transaction]):
    """What is done through it applies together when its block ends.

    It reads what it has itself written, and all else as of one revision. What it appends gets its place then.
    Tasks and threads may share it: their calls follow one another, and those still waiting at the end are
    refused. A function that it calls may use it in turn, in the same thread.

    Attributes:
        space: The name of the space.
        message: What it is for.
        revision: The revision that it made, after the end; 0 before, and if it wrote nothing.
    """

    @property
    def space(self) -> str:
        """The name of the space."""
        return self._inner.space

    @property
    def message(self) -> str:
        """What it is for."""
        return self._inner.message

    @property
    def revision(self) -> int:
        """The revision that it made, after the end; 0 before, and if it wrote nothing."""
        return self._inner.revision
