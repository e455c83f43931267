"""Sends spans to a collector of OpenTelemetry: OTLP over HTTP, as JSON (opentelemetry.io/docs/specs/otlp).

The exporters of OpenTelemetry itself are packages of their own; this needs none.
"""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from typing import Any, Self
from urllib.parse import unquote
from urllib.request import Request, urlopen

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id

from clozeline.errors import ParamsError

_LOG = logging.getLogger(__name__)
_DEFAULT_ENDPOINT = "http://localhost:4318"
_TIMEOUT_SECONDS = 10.0
_NAMES: tuple[tuple[type, str], ...] = ((bool, "boolValue"), (int, "intValue"), (float, "doubleValue"))
"""Of a value's kind in JSON; whole numbers are written as text, as protobuf's JSON has them."""


class CollectorExporter(SpanExporter):
    """Posts to one URL."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.url = url
        self._headers = {**headers, "content-type": "application/json"}
        self._is_told = False

    @classmethod
    def from_environment(cls) -> Self:
        """To OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or /v1/traces behind OTEL_EXPORTER_OTLP_ENDPOINT, with the headers in
        OTEL_EXPORTER_OTLP_HEADERS, whose values are percent-encoded.

        Raises:
            ParamsError: that is no address of HTTP.
        """
        whole = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        before = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or _DEFAULT_ENDPOINT
        url = whole or f"{before.rstrip('/')}/v1/traces"
        if not url.startswith(("http://", "https://")):
            raise ParamsError(
                "spans cannot be sent there",
                given=f"OTEL_EXPORTER_OTLP_ENDPOINT={whole or before}",
                expected="http://HOST:4318, where a collector listens for OTLP over HTTP",
                do="correct the variable, or leave --traces out",
            )
        pairs = (pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(","))
        return cls(url, {name.strip(): unquote(value.strip()) for name, _, value in pairs if value})

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        request = Request(self.url, json.dumps(told(spans)).encode(), self._headers)
        try:
            with urlopen(request, timeout=_TIMEOUT_SECONDS):
                self._is_told = False
                return SpanExportResult.SUCCESS
        except (OSError, HTTPException) as error:
            if not self._is_told:
                _LOG.warning("spans are lost until %s takes them: %s", self.url, error)
            self._is_told = True
            return SpanExportResult.FAILURE


def told(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """`spans`, all of one server, as an ExportTraceServiceRequest."""
    resource = spans[0].resource.attributes if spans else {}
    scope_spans = {"scope": {"name": "clozeline.serving"}, "spans": [_span(span) for span in spans]}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope_spans]}]}


def _span(span: ReadableSpan) -> dict[str, Any]:
    assert span.context is not None
    made: dict[str, Any] = {
        "traceId": format_trace_id(span.context.trace_id),
        "spanId": format_span_id(span.context.span_id),
        "name": span.name,
        "kind": span.kind.value + 1,  # protobuf's enumeration begins with "unspecified"
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _attributes(span.attributes or {}),
        "status": {"code": span.status.status_code.value},
    }
    return made | ({"parentSpanId": format_span_id(span.parent.span_id)} if span.parent else {})


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: object) -> dict[str, Any]:
    name = next((name for kind, name in _NAMES if isinstance(value, kind)), "stringValue")
    return {name: str(value) if name in ("intValue", "stringValue") else value}
