"""Telemetry of a command that runs as a service: it is switched on, and sends where the environment says."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from keepstate._deferral import defer_imports
from keepstate.errors import InvalidError, MissingExtraError

if TYPE_CHECKING:
    from keepstate.adapters import opentelemetry as _telemetry
else:
    defer_imports(globals(), _telemetry="keepstate.adapters.opentelemetry")

_TRACES, _METRICS = "OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"
_SWITCHES: Final = (
    _TRACES,
    _METRICS,
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
"""The variables of which one switches telemetry on."""
_PACKAGES: Final = "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
_OTLP: Final = ("otlp", "otlp_proto_http", "otlp_proto_grpc")


def begin_telemetry(url: str, *, is_asked_for: bool) -> _telemetry.Telemetry | None:
    """Return the observer of a service; None unless the option or the environment asks for one.

    It sends where the variables of OpenTelemetry say. If the process has a provider already, such as that of
    `opentelemetry-instrument`, that is used.

    Args:
        url: The URL of the store.
        is_asked_for: Whether the option was given.

    Raises:
        MissingExtraError: A package is not installed.
        InvalidError: A variable names an exporter that is not installed.
    """
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not is_asked_for and not any(os.environ.get(name) for name in _SWITCHES):
        return None
    if find_spec("opentelemetry") is None:
        install = "pip install 'keepstate[otel]'"
        raise MissingExtraError(f"telemetry needs opentelemetry-api: {install}", install=install)
    _set_up_providers()
    return _telemetry.Telemetry(url)


def _set_up_providers() -> None:
    from opentelemetry import metrics, trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    if find_spec("opentelemetry.sdk") is None:
        raise MissingExtraError(
            f"telemetry is sent by the SDK of OpenTelemetry: {_PACKAGES}", install=_PACKAGES
        )
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "keepstate"})
    tracers = TracerProvider(resource=resource)
    if (exporter := _exporter(_TRACES, "opentelemetry_traces_exporter")) is not None:
        tracers.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(tracers)
    exporter = _exporter(_METRICS, "opentelemetry_metrics_exporter")
    readers = [] if exporter is None else [PeriodicExportingMetricReader(exporter())]
    metrics.set_meter_provider(MeterProvider(readers, resource=resource))


def _exporter(variable: str, group: str) -> Callable[[], Any] | None:
    """Return the exporter that a variable names; `otlp` without one, and None for `none`."""
    name = os.environ.get(variable) or _OTLP[0]
    if name == "none":
        return None
    for each in _OTLP if name == _OTLP[0] else (name,):
        for found in entry_points(group=group, name=each):
            exporter: Callable[[], Any] = found.load()
            return exporter
    if name in _OTLP:
        raise MissingExtraError(f"the exporter {name!r} is not installed: {_PACKAGES}", install=_PACKAGES)
    raise InvalidError(f"{variable} is {name!r}, which is not installed; give otlp, console or none")
