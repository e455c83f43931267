"""Sends spans to a collector of OpenTelemetry, over HTTP."""

import logging
import os
from collections.abc import Sequence
from typing import Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

from clozeline.errors import ParamsError


class CollectorExporter(OTLPSpanExporter):
    """To where the variables of OpenTelemetry say: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, and others.

    Its exporter logs every try of every batch. That a collector does not take them is told once, until it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_told = False
        logging.getLogger(OTLPSpanExporter.__module__).addFilter(self._is_first)

    @classmethod
    def from_environment(cls) -> Self:
        """Raises ParamsError: the variables name no address of HTTP."""
        named = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
        if named and not named.startswith(("http://", "https://")):
            raise ParamsError(
                "spans cannot be sent there",
                given=f"OTEL_EXPORTER_OTLP_ENDPOINT={named}",
                expected="http://HOST:4318, where a collector listens for OTLP over HTTP",
                do="correct the variable, or leave --traces out",
            )
        return cls()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = super().export(spans)
        self.has_told = result is SpanExportResult.FAILURE
        return result

    def shutdown(self) -> None:
        logging.getLogger(OTLPSpanExporter.__module__).removeFilter(self._is_first)
        super().shutdown()  # type: ignore[no-untyped-call]

    def _is_first(self, record: logging.LogRecord) -> bool:
        was_told, self.has_told = self.has_told, True
        return not was_told
