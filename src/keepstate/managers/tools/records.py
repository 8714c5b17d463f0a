"""What is kept of tools: their executions, cached results, retries, effects, and the sums of it all."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from keepstate.managers.records import member, record
from keepstate.managers.transitions import Transitions


@member("ToolExecutionStatus")
class ToolExecutionStatus(Enum):
    """Where an execution stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


_S = ToolExecutionStatus
EXECUTION_STEPS: Final = Transitions(
    "execution",
    {
        _S.PENDING: {_S.RUNNING, _S.CANCELLED},
        _S.RUNNING: {_S.COMPLETED, _S.FAILED, _S.TIMED_OUT, _S.CANCELLED},
        _S.FAILED: {_S.RUNNING, _S.CANCELLED},
        _S.TIMED_OUT: {_S.RUNNING, _S.CANCELLED},
        _S.COMPLETED: set[ToolExecutionStatus](),
        _S.CANCELLED: set[ToolExecutionStatus](),
    },
)
"""What may follow what: only a failure can be tried again, and what is completed stays so."""


@member("EffectStatus")
class EffectStatus(Enum):
    """What is known of something that must not be done twice."""

    STARTED = "started"
    DONE = "done"
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


@record("ToolExecution")
class ToolExecution:
    """One use of a tool.

    Attributes:
        execution_id: Its name among all executions.
        tool_name: Which tool.
        status: Where it stands.
        started_at: When it began, as the caller says. No order follows from it.
        parameters: What the tool was given.
        result: What it returned.
        error: Why it failed.
        duration_ms: How long it took, in milliseconds; by the store's clock if nobody said.
        completed_at: When it ended, by the store's clock.
        attempt: The how-manieth try it is.
        metadata: Whatever the application wants to keep with it.
    """

    execution_id: str
    tool_name: str
    status: ToolExecutionStatus = ToolExecutionStatus.RUNNING
    started_at: datetime | None = None
    parameters: dict[str, Any] = field(default_factory=dict[str, Any])
    result: Any = None
    error: str | None = None
    duration_ms: float | None = None
    completed_at: datetime | None = None
    attempt: int = 1
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])


@record("ToolCacheEntry")
class ToolCacheEntry:
    """The kept result of a tool. It is true even if the result is None.

    Attributes:
        tool_name: Which tool.
        parameters_hash: Which parameters; `keepstate.parameters_hash` gives it.
        result: What the tool returned.
        created_at: When it did so, as the caller says.
        ttl: For how many seconds it is kept from when it is cached; None for ever.
    """

    tool_name: str
    parameters_hash: str
    result: Any
    created_at: datetime | None = None
    ttl: float | None = None


@record("RetryState")
class RetryState:
    """When an execution is to be tried again.

    Attributes:
        execution_id: Which execution.
        attempts: How often it was tried.
        max_attempts: How often it may be.
        last_error: What the last attempt said.
        next_retry_at: When to try again, by the caller's clock; naive or aware, and it stays so.
        backoff_factor: By how much each wait is longer than the one before.
    """

    execution_id: str
    attempts: int = 0
    max_attempts: int = 5
    last_error: str | None = None
    next_retry_at: datetime | None = None
    backoff_factor: float = 2.0


@record("ToolEffect")
class ToolEffect:
    """Something that a tool does to the world, and that must not be done twice.

    Attributes:
        execution_id: Which execution does it.
        name: Which of its effects.
        status: `UNKNOWN` if it was begun and its time ran out without an end: it may have happened.
        result: What came of it.
        error: Why it did not happen, or, of one that was done, why what came of it could not be kept.
        started_at: When it was begun, by the store's clock.
        ended_at: When its end was told.
        attempt: The how-manieth try it is.
        token: Fences who has begun it from those who do so later.
    """

    execution_id: str
    name: str
    status: EffectStatus
    result: Any = None
    error: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempt: int = 1
    token: str = ""


@record("ToolStats")
class ToolStats:
    """What became of a tool's executions, as sums that are kept while they happen.

    Attributes:
        tool_name: Which tool.
        total_executions: How many were started; one that is tried again counts once.
        completed: How many have a result.
        failed: How many failed or ran out of time, and were not tried again since.
        cancelled: How many were given up.
        cache_hits: How often a kept result was found.
        cache_misses: How often one was asked for and there was none.
        timed: How many durations stand in the sum.
        duration_ms: Their sum, in milliseconds.
    """

    tool_name: str
    total_executions: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    timed: int = 0
    duration_ms: float = 0

    @property
    def running(self) -> int:
        """How many have not ended."""
        return self.total_executions - self.completed - self.failed - self.cancelled

    @property
    def success_rate(self) -> float:
        """The share of completed ones among those that were completed or failed; 0.0 with none."""
        return _share(self.completed, self.completed + self.failed)

    @property
    def error_rate(self) -> float:
        """The share of failed ones among those that were completed or failed; 0.0 with none."""
        return _share(self.failed, self.completed + self.failed)

    @property
    def avg_duration_ms(self) -> float:
        """The mean duration of completed ones, in milliseconds; 0.0 with none."""
        return _share(self.duration_ms, self.timed)

    @property
    def cache_hit_rate(self) -> float:
        """The share of questions to the cache that found a result; 0.0 with none."""
        return _share(self.cache_hits, self.cache_hits + self.cache_misses)


_SUMS: Final = (
    "total_executions", "completed", "failed", "cancelled", "cache_hits", "cache_misses", "timed",
    "duration_ms",
)  # fmt: skip


def added(tool_name: str, *sums: ToolStats) -> ToolStats:
    """Return several sums as one."""
    return ToolStats(tool_name, **{name: sum(getattr(each, name) for each in sums) for name in _SUMS})


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


ENDED: Final = frozenset({_S.COMPLETED, _S.FAILED, _S.TIMED_OUT, _S.CANCELLED})
_COUNTED: Final = {
    _S.COMPLETED: "completed",
    _S.FAILED: "failed",
    _S.TIMED_OUT: "failed",
    _S.CANCELLED: "cancelled",
}


def step_counted(
    tool_name: str,
    before: ToolExecutionStatus | None,
    after: ToolExecutionStatus,
    duration_ms: float | None = None,
) -> ToolStats:
    """Return what a step of one execution adds to the sums; what it takes away is negative."""
    change: dict[str, float] = dict.fromkeys(_SUMS, 0)
    if before is None:
        change["total_executions"] = 1
    elif before in _COUNTED:
        change[_COUNTED[before]] -= 1
    if after in _COUNTED:
        change[_COUNTED[after]] += 1
    if after is _S.COMPLETED and duration_ms is not None:
        change["timed"], change["duration_ms"] = 1, duration_ms
    return ToolStats(tool_name, **change)  # type: ignore[arg-type]  # the counts are its fields
