"""OpenTelemetry spans: a server span for each request, with child spans for tokenization, queue and inference.

Spans continue the trace that a client names (`traceparent`). They hold method, route, status, model and counts, and
nothing that a client wrote. Attribute names follow the semantic conventions for HTTP where these define one.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import SpanKind, StatusCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clozeline.serving import loading, tracing
from clozeline.system.errors import ParamsError

# Variables with the address of the collector; the first one that is set counts.
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
# Time for a collector to take the last spans. A slow collector must not delay the end of the server.
_CLOSING_SECONDS = 5.0


class Spans(tracing.Tracing):
    """Creates spans and hands them to `processor`."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "clozeline")})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("clozeline.serving")

    @classmethod
    def to_collector(cls) -> Self:
        """Return spans that a background thread sends in batches to OTEL_EXPORTER_OTLP_ENDPOINT."""
        return cls(BatchSpanProcessor(CollectorExporter.from_environment()))

    def around(self, app: ASGIApp) -> ASGIApp:
        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            await (self._traced(app, scope, receive, send) if scope["type"] == "http" else app(scope, receive, send))

        return traced

    def answered(self, identity: loading.Identity, moments: tracing.Moments, num_texts: int, tokens: int) -> None:
        attributes: dict[str, str | int] = {
            "clozeline.encoder": identity.name,
            "clozeline.encoder.version": identity.version,
            "clozeline.texts": num_texts,
            "clozeline.tokens": tokens,
        }
        now_nanoseconds = time.time_ns()

        def at(seconds: float) -> int:
            return now_nanoseconds - int(1e9 * (moments.answered - seconds))

        times = (moments.arrived, moments.submitted, moments.started, moments.answered)
        for name, began, ended in zip(("tokenize", "queue", "inference"), times[:-1], times[1:], strict=True):
            self._tracer.start_span(name, attributes=attributes, start_time=at(began)).end(at(ended))

    def close(self) -> None:
        """Send the remaining spans, for at most `_CLOSING_SECONDS`."""
        ending = threading.Thread(target=self._provider.shutdown, name="clozeline-last-spans", daemon=True)
        ending.start()
        ending.join(_CLOSING_SECONDS)

    async def _traced(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        method = tracing.shown_method(scope)
        with self._tracer.start_as_current_span(
            method, extract(Headers(scope=scope)), SpanKind.SERVER, {"http.request.method": method}
        ) as span:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = tracing.shown_status(scope, message)
                    span.set_attribute("http.response.status_code", status)
                    if status >= 500:
                        span.set_status(StatusCode.ERROR)
                await send(message)

            try:
                await app(scope, receive, noting)
            finally:
                route = tracing.shown_route(scope)
                span.update_name(f"{method} {route}")
                span.set_attribute("http.route", route)


class CollectorExporter(OTLPSpanExporter):
    """Exporter configured by the variables of OpenTelemetry: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, …

    The base class logs every attempt for every batch. This one logs a failing collector once, until it recovers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_reported = False
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(self._is_first)

    @classmethod
    def from_environment(cls) -> Self:
        """Return the exporter. Raises ParamsError: the endpoint is not an HTTP address."""
        variable = next((name for name in _ENDPOINTS if os.environ.get(name)), None)
        if variable and not os.environ[variable].startswith(("http://", "https://")):
            raise ParamsError(
                f"{variable}={os.environ[variable]} is not an HTTP address, such as http://HOST:4318",
                do=f"correct {variable}: a collector listens there for OTLP over HTTP; or serve without --traces",
            )
        return cls()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self.is_reported = result is SpanExportResult.FAILURE
        return result

    def shutdown(self) -> None:
        logging.getLogger(OTLPSpanExporter.__module__).removeFilter(self._is_first)
        super().shutdown()  # type: ignore[no-untyped-call]  # untyped in OpenTelemetry

    def _is_first(self, record: logging.LogRecord) -> bool:
        was_reported, self.is_reported = self.is_reported, True
        return not was_reported
