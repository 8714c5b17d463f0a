"""`RequestSpans`: a span of each request of a server, named by its operation and never by its path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.propagate import extract

from keepstate.adapters.opentelemetry import attributes

_UNTRACED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_Scope = MutableMapping[str, Any]
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]


class RequestSpans:
    """An ASGI application around another one.

    Args:
        app: The application.
        describe: Returns the operation and the key of a request that was answered, from its scope; either may
            be None.
        tracer_provider: Makes spans. Default: the provider of the process.
    """

    def __init__(
        self,
        app: Callable[[_Scope, _Receive, _Send], Awaitable[None]],
        describe: Callable[[_Scope], tuple[str | None, str | None]],
        *,
        tracer_provider: trace.TracerProvider | None = None,
    ) -> None:
        self._app, self._describe = app, describe
        self._tracer = trace.get_tracer("keepstate.server", tracer_provider=tracer_provider)

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer a request. The span of a stream ends when the stream begins."""
        if scope["type"] != "http" or scope["path"] in _UNTRACED:
            await self._app(scope, receive, send)
            return
        method: str = scope["method"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(
            method, extract(headers), trace.SpanKind.SERVER, {attributes.HTTP_METHOD: method}
        )

        is_answered = False

        async def sending(message: _Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start" and not is_answered:
                is_answered = True
                self._end(span, scope, message["status"])
            await send(message)

        token = contexts.attach(trace.set_span_in_context(span))
        try:
            await self._app(scope, receive, sending)
        finally:
            contexts.detach(token)
            if not is_answered:
                span.end()

    def _end(self, span: trace.Span, scope: _Scope, status: int) -> None:
        operation, key = self._describe(scope)
        span.set_attribute(attributes.HTTP_STATUS, status)
        if operation is not None:
            span.update_name(f"{scope['method']} {operation}")
            span.set_attribute(attributes.OPERATION, operation)
        if key is not None:
            span.set_attribute(attributes.KEY, key)
        if status >= 500:
            span.set_attribute(attributes.ERROR_TYPE, str(status))
            span.set_status(trace.StatusCode.ERROR)
        span.end()
