"""Which counting of revisions a state is in, so that a revision of another one is not taken for its own.

Each state has a lineage, a random name: one that was dropped and begun anew has another, and so has one that
was restored, whose revisions may go backwards. States that were begun before there were lineages have none.
"""

from __future__ import annotations

from typing import Final

from keepstate._clock import Clock

NONE: Final = ""
_BEGUN: Final = "begun:"


def begun(clock: Clock) -> str:
    """Return the lineage of a state that begins with its first batch."""
    return _BEGUN + restored(clock)


def restored(clock: Clock) -> str:
    """Return the lineage of a state that is put in place of another, or of nothing."""
    return clock.random_bytes(8).hex()


def continues(lineage: str, revision: int, before: str) -> bool:
    """Return whether a state of a lineage is one that has been at a revision of the lineage `before`.

    Where there was nothing yet, that is so of the state that began then; a restored one did not.
    """
    return lineage == before or ((revision, before) == (0, NONE) and lineage.startswith(_BEGUN))
