"""Counts of a server process, and their text for Prometheus. No label names a space, a key or a tenant."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

_BOUNDS_S: Final = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
OTHER: Final = "other"
"""The operation of a request that belongs to no row of the table."""


class Metrics:
    """Counts of requests by operation and status, of their times, and of streams.

    Attributes:
        streams: The number of open streams.
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, int]] = Counter()
        self._within: Counter[tuple[str, float]] = Counter()
        self._seconds: dict[str, float] = {}
        self._ended: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self.streams = 0

    def count_request(self, operation: str, status: int, seconds: float) -> None:
        """Count a request that was answered; a stream when it ends."""
        self._requests[operation, status] += 1
        self._seconds[operation] = self._seconds.get(operation, 0.0) + seconds
        place = bisect_left(_BOUNDS_S, seconds)
        if place < len(_BOUNDS_S):
            self._within[operation, _BOUNDS_S[place]] += 1

    def count_stream_end(self, reason: str) -> None:
        """Count the end of a stream, by its reason."""
        self._ended[reason] += 1

    def count_refusal(self, code: str) -> None:
        """Count a request that was refused before its operation was known."""
        self._refused[code] += 1

    def text(self) -> str:
        """Return the counts in the text format of Prometheus."""
        lines = ["# TYPE keepstate_requests_total counter"]
        for (operation, status), count in sorted(self._requests.items()):
            lines.append(f'keepstate_requests_total{{operation="{operation}",status="{status}"}} {count}')
        lines.append("# TYPE keepstate_request_seconds histogram")
        totals: Counter[str] = Counter()
        for (operation, _), count in self._requests.items():
            totals[operation] += count
        for operation, total in sorted(totals.items()):
            of = f'operation="{operation}"'
            within = 0
            for bound in _BOUNDS_S:
                within += self._within[operation, bound]
                lines.append(f'keepstate_request_seconds_bucket{{{of},le="{bound}"}} {within}')
            lines.append(f'keepstate_request_seconds_bucket{{{of},le="+Inf"}} {total}')
            lines.append(f"keepstate_request_seconds_sum{{{of}}} {self._seconds.get(operation, 0.0):.6f}")
            lines.append(f"keepstate_request_seconds_count{{{of}}} {total}")
        lines += ["# TYPE keepstate_streams_open gauge", f"keepstate_streams_open {self.streams}"]
        lines.append("# TYPE keepstate_streams_ended_total counter")
        for reason, count in sorted(self._ended.items()):
            lines.append(f'keepstate_streams_ended_total{{reason="{reason}"}} {count}')
        lines.append("# TYPE keepstate_refused_total counter")
        for code, count in sorted(self._refused.items()):
            lines.append(f'keepstate_refused_total{{code="{code}"}} {count}')
        return "\n".join(lines) + "\n"
