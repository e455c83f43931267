"""Claim: a trace has a span for each phase and no text of a request; without `--traces` there are no spans."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import HTTPServer
from unittest.mock import Mock

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from clozeline.inference.language import OpenEncoder
from clozeline.serving import trace_spans
from clozeline.serving.trace_spans import CollectorExporter, Spans
from clozeline.system.errors import ParamsError
from tests.make.servers import Handler, answering
from tests.serving.conftest import Hosted

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


@pytest.fixture
def memory() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(hosted: Hosted, memory: InMemorySpanExporter) -> Iterator[httpx.Client]:
    with hosted(tracing=Spans(SimpleSpanProcessor(memory))) as (client, _):
        yield client


def by_name(memory: InMemorySpanExporter, *awaited: str) -> dict[str, ReadableSpan]:
    """Return the finished spans by name. Waits for `awaited`, as a request's span ends after its answer is sent."""
    end = time.monotonic() + 120
    while True:
        spans = {span.name: span for span in memory.get_finished_spans()}
        if spans.keys() >= set(awaited) or time.monotonic() > end:
            return spans
        time.sleep(0.01)


def test_a_request_is_a_span_in_the_trace_of_its_client_with_its_phases_as_children(
    traced: httpx.Client, memory: InMemorySpanExporter
) -> None:
    traced.post("/embed", json={"inputs": ["the list", "a"]}, headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
    spans = by_name(memory, "POST /embed")
    assert set(spans) == {"POST /embed", "tokenize", "queue", "inference"}
    whole = spans.pop("POST /embed")
    assert whole.context
    assert whole.parent
    assert (f"{whole.context.trace_id:032x}", f"{whole.parent.span_id:016x}") == (TRACE, PARENT)
    assert dict(whole.attributes or {}) == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/embed",
    }
    phases = [spans[name] for name in ("tokenize", "queue", "inference")]
    for phase in phases:
        assert phase.parent == whole.context
        assert dict(phase.attributes or {}).items() >= {
            ("clozeline.encoder", "encoder"),
            ("clozeline.tokens", 7),
            ("clozeline.texts", 2),
        }


def test_only_server_errors_mark_a_span_as_failed_and_no_span_has_text_from_clients(
    traced: httpx.Client, memory: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced.post("/secret", json={"inputs": "secret"})
    assert by_name(memory, "POST (no route)")["POST (no route)"].status.status_code is StatusCode.UNSET
    monkeypatch.setattr(OpenEncoder, "rows", Mock(side_effect=RuntimeError("of the graph")))
    asked = traced.post("/embed?text=secret", json={"inputs": "secret"}, headers={"x-secret": "secret"})
    assert asked.status_code == 500
    assert by_name(memory, "POST /embed")["POST /embed"].status.status_code is StatusCode.ERROR
    assert "secret" not in "".join(span.to_json() for span in memory.get_finished_spans())


class Collector(HTTPServer):
    """Server that keeps the bodies posted to it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), CollectorHandler)
        self.received: list[tuple[str, str | None, ExportTraceServiceRequest]] = []


class CollectorHandler(Handler):
    server: Collector

    def do_POST(self) -> None:
        body = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        self.server.received.append((self.path, self.headers["x-team"], body))
        self.close_connection = True
        self.reply(200)


def test_spans_are_exported_before_the_server_exits(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(Collector()) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}/")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=search%20and%20find")
        with hosted(tracing=Spans.to_collector()) as (client, _):
            client.post("/embed", json={"inputs": "a"})
    ((path, team, body),) = collector.received
    assert (path, team) == ("/v1/traces", "search and find")
    (of_resource,) = body.resource_spans
    assert {one.key: one.value.string_value for one in of_resource.resource.attributes}["service.name"] == "clozeline"
    sent = {span.name: span for span in of_resource.scope_spans[0].spans}
    whole, queue = sent["POST /embed"], sent["queue"]
    assert (queue.parent_span_id, queue.trace_id) == (whole.span_id, whole.trace_id)


def test_an_unresponsive_collector_delays_neither_requests_nor_shutdown(
    hosted: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_spans, "_CLOSING_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "30")
        with hosted(tracing=Spans.to_collector()) as (client, _):
            assert client.post("/embed", json={"inputs": "a"}).status_code == 200
            began = time.monotonic()
        assert time.monotonic() - began < 25


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_a_collector_address_with_an_unsupported_protocol_is_refused_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv(variable, "localhost:4317")
    with pytest.raises(ParamsError) as refused:
        CollectorExporter.from_environment()
    assert f"{variable}=localhost:4317 is not an HTTP address" in refused.value.problem


def test_the_opentelemetry_sdk_is_not_imported_without_traces() -> None:
    code = "import sys; import clozeline.serving.server; from clozeline.serving.tracing import tracing; "
    code += "tracing(False); print([name for name in sys.modules if name.startswith('opentelemetry.sdk')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"
