"""The result of a run of the demo, and the numbers in it that must be equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from examples.demo.history_tour import Killing
from examples.demo.survey import NOTHING, Totals


@dataclass(slots=True)
class Outcome:
    """A run of the demo."""

    names: Sequence[str]
    """The names of the modules."""
    agents: Sequence[str]
    seconds: float = 0.0
    transactions: int = 0
    """Applied batches, including claims, and those of killed processes."""
    conflicts: int = 0
    wanted_kills: int = 0
    kills: int = 0
    killing: Killing | None = None
    conductors_killed: int = 0
    paused_at: int | None = None
    """Number of indexed modules when the workflow was paused; None if it ended before the pause."""
    has_stood_still: bool = True
    taken_over: int = 0
    recovered: int = 0
    documents: int = 0
    events: int = 0
    commits: int = 0
    """Number of commits that indexed a module: one for each module."""
    last_commit: int = 0
    """The number of the last commit."""
    completed: int = 0
    embeddings: int = 0
    counted: Totals = field(default_factory=lambda: NOTHING)
    by_agents: Totals = field(default_factory=lambda: NOTHING)
    """The sum of the totals in the agents' last checkpoints."""
    recounted: Totals = field(default_factory=lambda: NOTHING)

    @property
    def modules(self) -> int:
        """The number of modules."""
        return len(self.names)

    @property
    def has_killed(self) -> bool:
        """True if as many agents were killed as requested."""
        return self.kills == self.wanted_kills

    def pairs(self) -> Iterator[tuple[str, int, int]]:
        """Yield each name with its number as the team counted it, and as counted again from the sources."""
        found = cast("dict[str, int]", self.counted)
        for name, again in cast("dict[str, int]", self.recounted).items():
            yield name, found[name], again
        yield "documents", self.documents, self.modules
        yield "events", self.events, self.modules
        yield "commits", self.commits, self.modules
        yield "tasks", self.completed, self.modules
        yield "embeddings", self.embeddings, self.recounted["functions"] + self.recounted["classes"]

    @property
    def is_whole(self) -> bool:
        """True if nothing is missing or was done twice, and the agents were really killed."""
        return (
            all(counted == again for _, counted, again in self.pairs())
            and self.by_agents == self.recounted
            and self.has_stood_still
            and self.has_killed
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return {
            "modules": self.modules,
            "agents": list(self.agents),
            "seconds": round(self.seconds, 3),
            "transactions": self.transactions,
            "transactions_per_second": round(self.transactions / self.seconds, 1),
            "conflicts_resolved": self.conflicts,
            "commits": self.commits,
            "workers_killed": self.kills,
            "workers_recovered": self.recovered,
            "modules_taken_over": self.taken_over,
            "conductors_killed": self.conductors_killed,
            "paused_at": self.paused_at,
            "stood_still": self.has_stood_still,
            "counted": {name: counted for name, counted, _ in self.pairs()},
            "recounted": {name: again for name, _, again in self.pairs()},
            "counted_by_agents": dict(self.by_agents),
            "equal": self.is_whole,
        }
