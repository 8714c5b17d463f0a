"""Records of tools: executions, cached results, retries, effects, and statistics."""

from __future__ import annotations

from dataclasses import field
from datetime import datetime
from enum import Enum
from typing import Any, Final

from keepstate.engine.kernel.transitions import Transitions
from keepstate.managers.records import record, stored_enum


@stored_enum("ToolExecutionStatus")
class ToolExecutionStatus(Enum):
    """The status of an execution."""

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
    },
)
"""Allowed transitions: only a failure can be tried again, and a completed execution stays completed."""


@stored_enum("EffectStatus")
class EffectStatus(Enum):
    """The status of an effect that must not happen twice."""

    STARTED = "started"
    DONE = "done"
    NOT_DONE = "not_done"
    UNKNOWN = "unknown"


@record("ToolExecution")
class ToolExecution:
    """One use of a tool.

    Attributes:
        execution_id: Unique id of the execution.
        tool_name: The tool.
        status: Status of the execution.
        started_at: Start, as the caller reports it. It does not define the order.
        parameters: Parameters of the tool.
        result: The tool's return value.
        error: The error of a failure.
        duration_ms: Duration in milliseconds, by the store's clock unless the caller reported it.
        completed_at: Time of its end, by the store's clock.
        attempt: Attempt number, from 1.
        metadata: Data of the application.
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
    """The cached result of a tool. The entry is true even if the result is None.

    Attributes:
        tool_name: The tool.
        parameters_hash: Hash of the parameters, from `keepstate.parameters_hash`.
        result: The tool's return value.
        created_at: Time of the result, as the caller reports it.
        ttl: Seconds for which it is cached, from the time of caching; None for ever.
    """

    tool_name: str
    parameters_hash: str
    result: Any
    created_at: datetime | None = None
    ttl: float | None = None


@record("RetryState")
class RetryState:
    """The schedule of the retries of an execution.

    Attributes:
        execution_id: The execution.
        attempts: Number of attempts so far.
        max_attempts: Maximum number of attempts.
        last_error: The error of the last attempt.
        next_retry_at: Time of the next attempt, by the caller's clock. It stays naive or aware, as given.
        backoff_factor: Factor between two delays.
    """

    execution_id: str
    attempts: int = 0
    max_attempts: int = 5
    last_error: str | None = None
    next_retry_at: datetime | None = None
    backoff_factor: float = 2.0


@record("ToolEffect")
class ToolEffect:
    """An effect of a tool on the outside world that must not happen twice.

    Attributes:
        execution_id: The execution that causes it.
        name: Name of the effect.
        status: `UNKNOWN` if it was begun and its lease ran out without an end: it may have happened.
        result: Result of the effect.
        error: Reason why it did not happen; if it happened, reason why its result could not be stored.
        started_at: Start, by the store's clock.
        ended_at: Time when its end was recorded.
        attempt: Attempt number, from 1.
        token: Fencing token of this attempt.
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
    """Statistics of a tool's executions, updated with each change.

    Attributes:
        tool_name: The tool.
        total_executions: Number of started executions; retries do not count.
        completed: Number of executions with a result.
        failed: Number of executions that failed or timed out, and were not retried.
        cancelled: Number of cancelled executions.
        cache_hits: Number of cache lookups with a result.
        cache_misses: Number of cache lookups without a result.
        timed: Number of durations in the sum.
        duration_ms: Sum of the durations, in milliseconds.
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
        """Number of executions that have not ended."""
        return self.total_executions - self.completed - self.failed - self.cancelled

    @property
    def success_rate(self) -> float:
        """Share of completed executions among completed and failed ones; 0.0 if there are none."""
        return _share(self.completed, self.completed + self.failed)

    @property
    def error_rate(self) -> float:
        """Share of failed executions among completed and failed ones; 0.0 if there are none."""
        return _share(self.failed, self.completed + self.failed)

    @property
    def avg_duration_ms(self) -> float:
        """Mean duration of completed executions, in milliseconds; 0.0 if there are none."""
        return _share(self.duration_ms, self.timed)

    @property
    def cache_hit_rate(self) -> float:
        """Share of cache lookups with a result; 0.0 if there are none."""
        return _share(self.cache_hits, self.cache_hits + self.cache_misses)


_SUMS: Final = (
    "total_executions", "completed", "failed", "cancelled", "cache_hits", "cache_misses", "timed",
    "duration_ms",
)  # fmt: skip


def add_stats(tool_name: str, *sums: ToolStats) -> ToolStats:
    """Add several sums."""
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


def count_transition(
    tool_name: str,
    before: ToolExecutionStatus | None,
    after: ToolExecutionStatus,
    duration_ms: float | None = None,
) -> ToolStats:
    """Return the change of the sums by one transition of an execution; counts may be negative."""
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
