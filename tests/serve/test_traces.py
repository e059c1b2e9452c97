"""Spans of a real server's requests: stages, parents, and nothing of what was asked."""

import itertools
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from leafbeam.errors import ArgumentError
from leafbeam.serve import Observation, Traces
from leafbeam.serve.observation import traces_from_environment
from tests.serve.running import thread

RECOMMEND = "/v1/recommend"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = ("prepare", "queue", "search", "postprocess")


@contextmanager
def traced(shop: Any) -> Generator[tuple[httpx.Client, Any]]:
    """A client of a real server, and a function that returns its spans by their start, once the server has stopped."""
    exporter = InMemorySpanExporter()
    traces = Traces(exporter)

    def spans() -> list[Any]:
        return sorted(exporter.get_finished_spans(), key=lambda span: span.start_time)

    with thread(shop.engine(), observation=Observation(traces=traces)) as server, httpx.Client(base_url=server.url) as client:
        yield client, spans


def test_a_request_is_a_span_with_its_stages_as_children(first_shop: Any) -> None:
    with traced(first_shop) as (client, spans):
        body = {"history": [1001, 1002], "user": "u-77", "rules": ["in_stock"], "num_items": 5}
        answer = client.post(RECOMMEND, json=body, headers={"x-request-id": "r-1"}).json()
    found = {span.name: span for span in spans()}
    root = found.pop(f"POST {RECOMMEND}")
    assert set(found) == set(STAGES)
    assert root.parent is None
    assert {span.parent.span_id for span in found.values()} == {root.context.span_id}
    expected = {"http.response.status_code": 200, "http.route": RECOMMEND, "leafbeam.request_id": "r-1"}
    expected |= {"leafbeam.num_history": 2, "leafbeam.num_items": 5, "leafbeam.num_valid": 5, "leafbeam.num_rules": 1}
    assert expected.items() <= dict(root.attributes).items()
    assert root.resource.attributes["service.name"] == "leafbeam"

    timings = answer["timings_ms"]
    stages = [found[name] for name in STAGES]
    for before, after in itertools.pairwise(stages):
        assert before.end_time == after.start_time
    for name in ("prepare", "queue", "postprocess"):
        assert (found[name].end_time - found[name].start_time) / 1e6 == pytest.approx(timings[name], abs=0.01)
    for part in ("prefill", "rounds", "constrain"):
        assert 1e3 * found["search"].attributes[f"leafbeam.{part}_s"] == pytest.approx(timings[part], abs=0.01)
    assert root.start_time - 1e6 <= stages[0].start_time  # clocks of two kinds: a millisecond
    assert stages[-1].end_time <= root.end_time + 1e6


def test_no_span_holds_a_history_a_user_or_a_key(first_shop: Any) -> None:
    with traced(first_shop) as (client, spans):
        secret = {"authorization": "Bearer secret-key", "cookie": "secret-cookie", "baggage": "user=secret-baggage"}
        body = {"history": [1077], "user": "secret-user", "deny_item_ids": [1078]}
        assert client.post(RECOMMEND, json=body, headers=secret).status_code == 200
        assert client.post(RECOMMEND, json={"history": ["secret-history"]}, headers=secret).status_code in (200, 422)
        assert client.post(f"{RECOMMEND}?user=secret-query", content=b"secret-body", headers=secret).status_code == 422
        assert (
            client.post("/v1/completions", json={"model": "items", "prompt": [1077], "user": "secret-user"}).status_code == 200
        )
        assert client.get("/v1/items/1077").status_code == 200
        assert client.get("/secret-path").status_code == 404
    found = spans()
    told = "\n".join(span.to_json() for span in found)
    assert "secret" not in told
    values = [str(value) for span in found for value in span.attributes.values()]
    assert "1077" not in values
    assert "1078" not in values
    assert {"GET /v1/items/{item_id}", "GET unknown", f"POST {RECOMMEND}"} <= {span.name for span in found}


def test_a_traceparent_is_continued_and_its_choice_not_to_sample_respected(first_shop: Any) -> None:
    with traced(first_shop) as (client, spans):
        for flags in ("01", "00"):
            client.post(RECOMMEND, json={}, headers={"traceparent": f"00-{TRACE}-{PARENT}-{flags}"})
        for wrong in ("", "00-x-y-01", f"00-{'0' * 32}-{PARENT}-01", "\xe9" * 200, f"ff-{TRACE}-{PARENT}-01"):
            assert client.post(RECOMMEND, json={}, headers=[(b"traceparent", wrong.encode("latin-1"))]).status_code == 200
    roots = [span for span in spans() if span.name == f"POST {RECOMMEND}"]
    continued = [span for span in roots if span.parent is not None]
    assert [(f"{one.context.trace_id:032x}", f"{one.parent.span_id:016x}") for one in continued] == [(TRACE, PARENT)]
    assert len(roots) == 6


def test_probes_have_no_spans_and_failures_say_their_status(first_shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with traced(first_shop) as (client, spans):
        for path in ("/healthz", "/readyz", "/metrics"):
            assert client.get(path).status_code == 200
        assert client.post(RECOMMEND, json={"num_items": 0}).status_code == 422
        monkeypatch.setattr("leafbeam.serve.engine_routes.recommend_answer", lambda *words, **options: 1 / 0)
        assert client.post(RECOMMEND, json={"history": [1099]}).status_code == 500
    roots = [span for span in spans() if span.parent is None]
    assert [span.attributes["http.response.status_code"] for span in roots] == [422, 500]
    assert [span.status.is_ok for span in roots] == [True, False]
    assert all(not span.events for span in roots)  # an exception's message could quote a request


def test_spans_arrive_at_a_collector(first_shop: Any) -> None:
    received: list[tuple[str, ExportTraceServiceRequest]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        runner = threading.Thread(target=collector.serve_forever)
        runner.start()
        traces = Traces.to(f"http://127.0.0.1:{collector.server_port}")
        with thread(first_shop.engine(), observation=Observation(traces=traces)) as server:
            assert httpx.post(server.url + RECOMMEND, json={}).status_code == 200
        collector.shutdown()
        runner.join()
    assert {path for path, _ in received} == {"/v1/traces"}
    names = [
        span.name for _, request in received for rs in request.resource_spans for ss in rs.scope_spans for span in ss.spans
    ]
    assert sorted(names) == sorted([f"POST {RECOMMEND}", *STAGES])


@pytest.mark.slow
def test_a_collector_that_is_not_there_changes_no_answer(first_shop: Any) -> None:
    with thread(first_shop.engine(), observation=Observation(traces=Traces.to("http://127.0.0.1:9/v1/traces"))) as server:
        assert httpx.post(server.url + RECOMMEND, json={}).status_code == 200


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "ftp://a", "http://", "http://a:x", "http://a:99999"])
def test_what_is_no_collector_is_refused(endpoint: str) -> None:
    with pytest.raises(ArgumentError, match="is not an address of a collector"):
        Traces.to(endpoint)


def test_the_environment_turns_traces_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    assert not traces_from_environment()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert traces_from_environment()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not traces_from_environment()
