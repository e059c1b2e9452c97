"""A server of a language model: its queue, clients that go away, faults of the model; servers of texts or items alone."""

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from leafbeam.errors import AutomatonError
from leafbeam.serve import Server
from leafbeam.text import TextService
from leafbeam.text.stepwise_run import StepwiseRun
from tests.serve.conftest import TEXT_MODEL
from tests.serve.running import thread, until
from tests.text.gate import Gate

BODY: dict[str, Any] = {"model": TEXT_MODEL, "prompt": "A"}


def test_a_full_queue_gets_429_and_the_recommender_answers_meanwhile(
    text_server: Server, text_http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    assert text_server.text is not None
    worker = text_server.text.worker
    gate = Gate(monkeypatch)
    body = {**BODY, "max_tokens": 5, "n": 8}
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(httpx.post(f"{text_server.url}/v1/completions", json=body, timeout=60))

    clients = [threading.Thread(target=ask) for _ in range(5)]
    clients[0].start()
    assert gate.waiting.wait(20)
    for one in clients[1:]:
        one.start()
    until(lambda: worker.num_waiting + worker.num_running >= 5)
    until(
        lambda: (
            text_http.post("/v1/completions", json=body, timeout=0.5).status_code == 429 if worker.num_waiting >= 4 else True
        )
    )
    assert text_http.post("/v1/recommend", json={"num_items": 3}).json()["num_valid"] == 3
    assert "leafbeam_text_queue_length" in text_http.get("/metrics").text
    gate.open.set()
    for one in clients:
        one.join(30)
    assert [answer.status_code for answer in answers] == [200] * 5


def test_constraints_that_wait_to_be_compiled_hold_no_other_request_up(
    text_server: Server, text_http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    assert text_server.text is not None
    text, go_on, answers = text_server.text, threading.Event(), list[httpx.Response]()
    known = {**BODY, "guided_choice": ["tea"], "max_tokens": 5}
    assert text_http.post("/v1/completions", json=known).status_code == 200

    def compile_slowly(_: str) -> None:
        assert go_on.wait(30)
        raise AutomatonError("too slow")

    def ask(number: int) -> None:
        body = {**BODY, "guided_regex": f"x{number}"}
        answers.append(httpx.post(f"{text_server.url}/v1/completions", json=body, timeout=60))

    monkeypatch.setattr(text.compiler, "compile", compile_slowly)
    clients = [threading.Thread(target=ask, args=(number % 8,)) for number in range(9)]  # two of them the same one
    for one in clients[:8]:
        one.start()
    until(lambda: len(text._compilations) == 8)
    clients[8].start()
    refused = text_http.post("/v1/completions", json={**BODY, "guided_regex": "x9"})
    assert (refused.status_code, "wait to be compiled" in refused.json()["error"]["message"]) == (429, True)
    assert int(refused.headers["retry-after"]) >= 1
    for body in ({**BODY, "max_tokens": 5}, known):
        assert text_http.post("/v1/completions", json=body).status_code == 200
    go_on.set()
    for one in clients:
        one.join(30)
    assert [answer.status_code for answer in answers] == [400] * 9
    until(lambda: not text._compilations)


def test_a_client_that_goes_away_ends_its_text(text_server: Server, text_http: httpx.Client, monkeypatch: pytest.MonkeyPatch):
    assert text_server.text is not None
    worker, gate = text_server.text.worker, Gate(monkeypatch)
    body = {**BODY, "max_tokens": 400, "temperature": 0}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{text_server.url}/v1/completions", json=body, timeout=httpx.Timeout(10, read=0.3))
    assert gate.waiting.is_set()
    gate.open.set()
    until(lambda: worker.num_running == 0)
    with httpx.stream("POST", f"{text_server.url}/v1/completions", json={**body, "stream": True}, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert next(answer.iter_lines()).startswith("data: {")
        gate.open.clear()
    gate.open.set()
    until(lambda: worker.num_running == 0)
    metrics = text_http.get("/metrics").text
    assert 'leafbeam_completions_total{outcome="cancelled"}' in metrics


def test_a_fault_of_the_model_is_500_for_a_whole_text_and_an_error_in_a_stream(
    text_server: Server, text_http: httpx.Client, monkeypatch: pytest.MonkeyPatch
):
    advance, calls = StepwiseRun.advance, []

    def failing(run: StepwiseRun) -> bool:
        calls.append(1)
        if len(calls) % 4 == 0:
            raise RuntimeError("a secret of the server")
        return advance(run)

    monkeypatch.setattr(StepwiseRun, "advance", failing)
    body = {**BODY, "guided_regex": "[a-z]{20}", "max_tokens": 40}
    answer = text_http.post("/v1/completions", json=body)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text
    calls.clear()
    with text_http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert answer.status_code == 200
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["type"] == "server_error"
    assert "secret" not in "".join(lines)


def test_the_schema_lists_the_routes_and_readiness_names_the_model(text_http: httpx.Client):
    document = text_http.get("/openapi.json").json()
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/recommend"} <= document["paths"].keys()
    assert "guided_regex" in text_http.get("/docs").text
    assert text_http.get("/readyz").json()["text_model"] == TEXT_MODEL


def test_a_server_of_texts_alone_has_no_items(text_dir: Path):
    service = TextService.load(text_dir)
    with thread(None, text=service) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        assert client.post("/v1/recommend", json={}).status_code == 404
        assert client.get("/readyz").json() == {
            "ready": True,
            "reason": None,
            "index_version": None,
            "model_version": None,
            "num_items": 0,
            "rules": {},
            "rules_version": None,
            "threads": None,
            "precision": None,
            "tuning": {},
            "text_model": TEXT_MODEL,
            "search_widths": [],
            "feed": None,
            "http_workers": 0,
        }
        body = {**BODY, "guided_choice": ["red lamp"], "seed": 1}
        assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == "red lamp"
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [TEXT_MODEL]
        assert "/v1/recommend" not in client.get("/openapi.json").json()["paths"]
        assert client.get("/metrics").status_code == client.get("/docs").status_code == 200


def test_a_language_model_with_the_recommender_s_name_is_refused(first_shop, text_dir: Path):
    from leafbeam.errors import ArgumentError
    from leafbeam.serve import create_app
    from leafbeam.text import TextGenerator

    service = TextService("items", TextGenerator.load(text_dir))
    with pytest.raises(ArgumentError, match="rename its directory"):
        create_app(first_shop.engine(), text=service)
    service.stop()
    with pytest.raises(ArgumentError, match="nothing to serve"):
        create_app(None)


def test_a_server_without_a_language_model_names_the_recommender(first_shop):
    from starlette.testclient import TestClient

    from leafbeam.serve import create_app

    with TestClient(create_app(first_shop.engine())) as client:
        answer = client.post("/v1/completions", json={"model": "gpt-4", "prompt": "A"})
        assert answer.status_code == 404
        assert "'items'" in answer.json()["error"]["message"]
        assert client.post("/v1/completions", json={"model": "items", "prompt": [], "n": 2}).json()["choices"]
