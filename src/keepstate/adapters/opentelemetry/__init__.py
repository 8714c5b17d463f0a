"""WHAT does a store do, and how long does it take? Spans and metrics of OpenTelemetry.

API boundary: `Telemetry` is an observer for `keepstate.open(observe=…)`, and its `meta` is for `meta=`.
`RequestSpans` is for a server. They use the API of OpenTelemetry; the SDK is the application's.

Invariant: no value, message or text of an error leaves the process, and no label of a metric names a space,
a tenant, a task or a person.
"""

from keepstate.adapters.opentelemetry.request_spans import RequestSpans as RequestSpans
from keepstate.adapters.opentelemetry.telemetry import Telemetry as Telemetry

__all__ = ["RequestSpans", "Telemetry"]
