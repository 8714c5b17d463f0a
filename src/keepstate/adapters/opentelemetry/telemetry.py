"""`Telemetry`: a span and a measurement of each operation, and links between traces and commits."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from typing import Final

from keepstate.adapters.opentelemetry import attributes
from keepstate.engine.kernel.executor import TRACEPARENT
from keepstate.engine.kernel.observation import Operation
from keepstate.errors import ConflictError, LeaseLostError, MissingExtraError, Suspended
from keepstate.names import DEFAULT_URL
from keepstate.stores.urls import StoreUrl

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    install = "pip install 'keepstate[otel]'"
    raise MissingExtraError(f"telemetry needs opentelemetry-api: {install}", install=install) from error

_SCOPE: Final = "keepstate"
_ENDLESS: Final = frozenset({"run", "follow", "watch"})
"""The last words of operations that may go on as long as their process. Only their parts have spans."""
_NO_ERRORS: Final = (CancelledError, GeneratorExit, Suspended)
_BOUNDS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_propagator: Final = TraceContextTextMapPropagator()


class Telemetry:
    """An observer that makes spans and metrics, for `keepstate.open(url, observe=telemetry)`.

    An operation within another one is its child; one of a worker's handler is the child of the attempt, which
    links to the span that put the task. With `meta=telemetry.meta`, commits and tasks have the `traceparent`
    of the span that made them; the span has the id of the commit in any case.

    Args:
        url: The URL of the store, for the attribute `db.system.name`.
        tracer_provider: Makes spans. Default: the provider of the process.
        meter_provider: Takes measurements. Default: the provider of the process.

    Raises:
        InvalidError: The URL names no store.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._url = StoreUrl.parse(url)
        self._system = {attributes.DB_SYSTEM: attributes.system_of(self._url)}
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._duration = meter.create_histogram(
            attributes.DURATION, "s", "Time of operations", explicit_bucket_boundaries_advisory=_BOUNDS_S
        )
        self._conflicts = meter.create_counter(attributes.CONFLICTS, "1", "Operations that met a conflict")
        self._retries = meter.create_counter(attributes.RETRIES, "1", "Attempts after the first one")
        self._lost = meter.create_counter(attributes.LOST, "1", "Claims and leases that were lost")
        self._dead = meter.create_counter(attributes.DEAD, "1", "Tasks whose attempts were used up")
        self._processed = meter.create_counter(attributes.PROCESSED, "1", "Attempts of workers, by their end")
        self._spans: dict[Operation, trace.Span] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return Telemetry, (str(self._url),)  # without a password, and with the providers of the process

    def meta(self) -> dict[str, str]:
        """Return the present span as a note on commits and tasks; nothing outside of a trace."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier)
        return {TRACEPARENT: carrier[TRACEPARENT]} if TRACEPARENT in carrier else {}

    def begin(self, operation: Operation) -> None:
        """Begin the span of an operation."""
        if operation.name.rpartition(".")[2] in _ENDLESS:
            return
        is_attempt = operation.task is not None
        outer = None if operation.parent is None else self._spans.get(operation.parent)
        context = contexts.Context() if is_attempt else None
        if outer is not None and not is_attempt:
            context = trace.set_span_in_context(outer)
        self._spans[operation] = self._tracer.start_span(
            f"{operation.name} {operation.task.kind}".rstrip() if operation.task else operation.name,
            context,
            trace.SpanKind.CONSUMER if is_attempt else trace.SpanKind.INTERNAL,
            {**self._system, **attributes.beginning_of(operation)},
            _links_of(operation),
        )

    def enter(self, operation: Operation) -> Callable[[], None]:
        """Make the span of an operation the present one, and return what ends that."""
        span = self._spans.get(operation)
        if span is None:
            return _nothing
        token = contexts.attach(trace.set_span_in_context(span))
        return lambda: contexts.detach(token)

    def end(self, operation: Operation) -> None:
        """End the span of an operation, and measure it."""
        error = operation.error
        labels = self._system | {attributes.DB_OPERATION: operation.name}
        span = self._spans.pop(operation, None)
        if error is not None and not isinstance(error, _NO_ERRORS):
            labels[attributes.ERROR_TYPE] = attributes.error_type_of(error)
        if span is not None:
            span.set_attributes(attributes.end_of(operation))
            if attributes.ERROR_TYPE in labels:
                span.set_attribute(attributes.ERROR_TYPE, labels[attributes.ERROR_TYPE])
                span.set_status(trace.StatusCode.ERROR)
            span.end()
            self._duration.record(operation.duration_s, labels)
        self._count(operation)

    def _count(self, operation: Operation) -> None:
        labels = self._system | {attributes.DB_OPERATION: operation.name}
        if operation.attempts > 1:
            self._retries.add(operation.attempts - 1, labels)
        if isinstance(operation.error, LeaseLostError) or operation.ended_as == "lost":
            self._lost.add(1, labels)
        elif isinstance(operation.error, ConflictError):
            self._conflicts.add(1, labels)
        if operation.ended_as is not None:
            self._processed.add(1, self._system | {attributes.TASK_END: operation.ended_as})
            if operation.ended_as == "dead":
                self._dead.add(1, self._system)


def _links_of(operation: Operation) -> list[trace.Link]:
    """Return a link to the span that put the task of an attempt."""
    if operation.task is None or operation.task.traceparent is None:
        return []
    context = _propagator.extract({TRACEPARENT: operation.task.traceparent}, contexts.Context())
    put = trace.get_current_span(context).get_span_context()
    return [trace.Link(put)] if put.is_valid else []


def _nothing() -> None:
    return None
