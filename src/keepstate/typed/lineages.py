"""Lineages: random names of revision sequences, so that a revision of another sequence is never accepted.

Each state has a lineage. A state that was dropped and recreated gets a new one, and so does a restored state,
whose revisions may go backwards. Empty states, and states created before lineages existed, have none.
"""

from __future__ import annotations

from typing import Final

from keepstate._clock import Clock

NONE: Final = ""
_BEGUN: Final = "begun:"


def first_lineage(clock: Clock) -> str:
    """Return a lineage for a state that begins with its first batch."""
    return _BEGUN + new_lineage(clock)


def new_lineage(clock: Clock) -> str:
    """Return a lineage for a restored state."""
    return clock.random_bytes(8).hex()


def continues(lineage: str, revision: int, before: str) -> bool:
    """Return whether a state of a lineage has been at a revision of the lineage `before`.

    An empty state before its first batch is continued by the state that begins with it, but not by a restored
    one.
    """
    return lineage == before or ((revision, before) == (0, NONE) and lineage.startswith(_BEGUN))
