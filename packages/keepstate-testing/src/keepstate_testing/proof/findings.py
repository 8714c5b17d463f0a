"""The report of a checker: how many promises were broken, which, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

_EXAMPLES: Final = 5


class Kind(StrEnum):
    """The kind of a broken promise, named as in the counts of a record."""

    LOST = "lost"
    """What was acknowledged is gone."""
    GHOST = "ghosts"
    """A write that no client made, or whose client was told that it did not apply."""
    PARTIAL = "partial"
    """A part of a batch applied."""
    DISORDERED = "disordered"
    """No order of the operations explains what clients were told."""
    APPLIED_TWICE = "applied_twice"
    """One batch took two revisions."""


class Finding(msgspec.Struct, frozen=True):
    """One broken promise."""

    kind: Kind
    space: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.space}: {self.text}"


class Findings:
    """Broken promises of any number of spaces, and how much was looked at."""

    def __init__(self, found: Iterable[Finding] = (), *, operations: int = 0) -> None:
        self.found, self.operations = list(found), operations

    def __bool__(self) -> bool:
        raise TypeError("say what you ask: findings.found are the broken promises")

    def __str__(self) -> str:
        """Return the counts, and the first examples of each kind."""
        lines = [f"{self.operations} operations: " + ", ".join(f"{n} {k}" for k, n in self.counts().items())]
        for kind in Kind:
            examples = [finding for finding in self.found if finding.kind is kind]
            lines += [f"  {finding}" for finding in examples[:_EXAMPLES]]
        return "\n".join(lines)

    def add(self, kind: Kind, space: str, text: str) -> None:
        """Add a broken promise."""
        self.found.append(Finding(kind, space, text))

    def extend(self, others: Findings) -> None:
        """Add all of other findings."""
        self.found += others.found
        self.operations += others.operations

    def counts(self) -> dict[str, int]:
        """Return how often each promise was broken, those that were kept with 0."""
        counted = Counter(finding.kind for finding in self.found)
        return {kind.value: counted[kind] for kind in Kind}
