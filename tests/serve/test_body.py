"""Bodies of requests: what is wrong with one is said by name, and no body costs much."""

import asyncio
import json
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from leafbeam.engine import Engine, Limits, Request
from leafbeam.errors import LeafbeamError
from leafbeam.index import Trie
from leafbeam.serve import ServerConfig, create_app
from leafbeam.serve.engine_routes import parse_body
from leafbeam.serve.errors import BodyError

URL = "/v1/recommend"


@pytest.fixture(scope="module")
def engine(first_shop):
    return first_shop.engine()


@pytest.mark.parametrize(
    "body",
    [
        {"num_items": 0},
        {"num_items": -3},
        {"num_items": 1_000_000},
        {"num_beams": 0},
        {"num_beams": 100_000},
        {"scoring": "fulll"},
        {"rules": ["fresh"]},
        {"rules": ["cheap", "cheap'; DROP TABLE items; --"]},
        {"rules": [""]},
        {"filter": "fresh"},
        {"filter": ""},
        {"filter": "cheap - (in_stock"},
        {"filter": "cheap'; DROP TABLE items; --"},
        {"filter": "a" * 1001},
        {"filter": "(" * 400 + "cheap" + ")" * 400},
        {"rules": ["cheap"] * 17},
        {"history": ["text"]},
        {"history": [1, "text"]},
        {"deny_item_ids": ["text"]},
        {"history": [1] * 2049},
        {"deny_item_ids": list(range(10_001))},
    ],
)
def test_http_rejects_what_python_rejects_with_the_same_message(client, engine, body):
    with pytest.raises(LeafbeamError) as caught:
        engine.recommend([Request(**body)])
    response = client.post(URL, json=body)
    assert response.status_code == 422
    assert response.json() == {"error": {"type": type(caught.value).__name__, "message": str(caught.value)}}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('{"num_items": "10"}', "num_items: expected int, got str"),
        ('{"num_items": 1.5}', "num_items: expected int, got float"),
        ('{"num_items": 10.0}', "num_items: expected int, got float"),
        ('{"num_items": true}', "num_items: expected int, got bool"),
        ('{"num_items": null}', "num_items: expected int, got null"),
        ('{"num_items": 1' + "0" * 30 + "}", "num_items: expected int <= 9223372036854775807"),
        ('{"history": [1, 1' + "0" * 30 + "]}", "history[1]: expected int <= 9223372036854775807"),
        ('{"history": [null]}', "history[0]: expected int | str, got null"),
        ('{"history": [[1]]}', "history[0]: expected int | str, got array"),
        ('{"history": {"a": 1}}', "history: expected array, got object"),
        ('{"history": "1001"}', "history: expected array, got str"),
        ('{"history": [7, true, null, 1.5, []]}', "history[1]: expected int | str, got bool"),
        ('{"rules": "cheap"}', "rules: expected array, got str"),
        ('{"rules": [1]}', "rules[0]: expected str, got int"),
        ('{"filter": ["cheap"]}', "filter: expected str | null, got array"),
        ('{"filter": "cheap; DROP TABLE items"}', "unexpected text at character 5: '; DROP TABLE items'"),
        ('{"filter": "cheap &"}', "ends where a rule's name"),
        ('{"scoring": 1}', "scoring: expected str, got int"),
        ('{"rule": ["cheap"]}', "rule: there is no such field: expected user, rules, filter, deny_item_ids, "),
        (r'{"\n\u001b[31m": 1}', r"\n\x1b[31m: there is no such field"),
        ('{"a' + "b" * 5000 + '": 1}', "there is no such field"),
        ("[]", "the body: expected a JSON object"),
        ("7", "the body: expected a JSON object"),
        ("null", "the body: expected a JSON object"),
    ],
)
def test_json_of_the_wrong_types_is_rejected_by_field(client, body, says):
    response = client.post(URL, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["error"]["type"] == "RequestError"
    assert says in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"num_items": NaN}',
        b'{"num_beams": Infinity}',
        b'{"history": [1, 2, -Infinity]}',
        b'{"history": ["\\ud800"]}',
        b'{"\\ud800": 1}',
        b'{"history": ["\xff"]}',
        b"{} {}",
        b"{",
        b"\xff\xfe{}",
        b"{'a': 1}",
        b"[" * 50_000,
        b"1" * 5000,
        b'{"num_items": 1' + b"0" * 5000 + b"}",
    ],
)
def test_a_body_that_is_not_json_is_rejected(client, body):
    response = client.post(URL, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.json()["error"]["type"] == "RequestError"
    assert response.json()["error"]["message"]


def test_another_content_type_is_rejected_with_a_hint(client):
    response = client.post(URL, content=b"{}", headers={"Content-Type": "text/plain"})
    assert response.status_code == 422
    assert "Content-Type: application/json" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"history": [' + b"[]," * 340_000 + b"[]]}",
        b'{"history": [' + b"1.5," * 170_000 + b"1]}",
        b'{"rules": [' + b"1," * 500_000 + b"1]}",
        b'{"deny_item_ids": [' + b"1," * 500_000 + b"1]}",
        b'{"history": [' + b"9" * 4000 + (b"," + b"9" * 4000) * 240 + b"]}",
        b"{" + b",".join(b'"num_items": ' + b"9" * 4000 for _ in range(240)) + b"}",
        b'{"history": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b"{" + b",".join(b'"k%d":1' % number for number in range(90_000)) + b"}",
    ],
    ids=["lists", "floats", "rules", "ids", "digits", "repeated", "deep", "fields"],
)
def test_a_hostile_body_costs_milliseconds_and_little_memory(body):
    limits = Limits()
    tracemalloc.start()
    try:
        with pytest.raises(BodyError):
            parse_body(body, "application/json", limits)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        with pytest.raises(BodyError):
            parse_body(body, "application/json", limits)
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.2  # 5 ms on a quiet core; Python's parser and a list of all mistakes took seconds


@pytest.mark.parametrize("streamed", [True, False])
def test_a_body_over_the_limit_is_refused(client, streamed):
    body = json.dumps({"history": [1001] * 400_000}).encode()
    assert len(body) > 1 << 20
    sent = (body[i : i + 65536] for i in range(0, len(body), 65536)) if streamed else body
    response = client.post(URL, content=sent, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert "up to 1,048,576 bytes" in response.json()["error"]["message"]


def test_a_body_that_does_not_arrive_is_refused_in_time(first_shop):
    sent = []

    async def never():
        await asyncio.sleep(30)

    async def send(message):
        sent.append(message)

    engine = first_shop.engine()
    scope = {"type": "http", "method": "POST", "path": URL, "headers": [], "query_string": b"", "http_version": "1.1"}
    asyncio.run(create_app(engine, config=ServerConfig(max_body_s=0.05))(scope, never, send))
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"]["message"] == "the body did not arrive within 0.05 s"
    assert engine.counts.of("refused")["body_too_slow"] == 1


def test_a_request_whose_client_has_disconnected_already_is_not_queued(first_shop):
    messages = iter([{"type": "http.request", "body": b"{}", "more_body": False}])

    async def receive():
        return next(messages, {"type": "http.disconnect"})

    async def send(message):
        assert message.get("status", 499) == 499

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": URL, "headers": headers, "query_string": b"", "http_version": "1.1"}
    with first_shop.engine() as engine:
        asyncio.run(create_app(engine)(scope, receive, send))
        assert sum(engine.counts.of("cancelled").values()) == sum(engine.counts.of("batches").values()) == 0


def test_ids_that_no_index_can_hold_are_ignored_and_reported(first_shop):
    engine = first_shop.engine()
    rng = np.random.default_rng(0)
    texts = Trie.build(rng.integers(0, 8, (50, 2)), engine.trie.codebook_sizes, item_ids=[f"é{i}" for i in range(50)])
    strange = ["", "\0", "é3\0", "é" * 20_000, "\U0001f600", "é99"]
    with TestClient(create_app(Engine(engine.model, texts))) as client:
        answer = client.post(URL, json={"history": ["é3", *strange], "deny_item_ids": [*strange, "é4"], "num_items": 50}).json()
        assert (answer["ignored_history"], answer["ignored_deny_item_ids"]) == (strange, strange)
        assert set(answer["item_ids"]) == {f"é{i}" for i in range(50)} - {"é3", "é4"}
        response = client.post(URL, content=b'{"history": ["\\ud800"]}', headers={"Content-Type": "application/json"})
        assert response.status_code == 400


text = st.text(st.characters(exclude_categories=()), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(text, children, max_size=4),
    max_leaves=8,
)
ids = st.lists(st.integers(995, 1105) | st.integers() | text, max_size=20)
fields = {
    "history": ids | json_values,
    "num_items": st.integers(1, 120) | json_values,
    "rules": st.lists(st.sampled_from(["cheap", "in_stock", "none"]), max_size=3) | json_values,
    "deny_item_ids": ids | json_values,
    "num_beams": st.none() | st.integers(1, 300) | json_values,
    "scoring": st.sampled_from(["full", "allowed"]) | json_values,
}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({}, optional=fields) | json_values)
def test_any_json_gets_allowed_items_or_a_named_error(client, first_shop, body):
    sent = json.dumps(body).encode()
    response = client.post(URL, content=sent, headers={"Content-Type": "application/json"})
    answer = response.json()
    if response.status_code == 200:
        allowed = first_shop.allowed(body.get("rules", []), body.get("deny_item_ids", []))
        assert set(answer["item_ids"]) <= allowed
        assert len(answer["item_ids"]) == answer["num_valid"] == min(body.get("num_items", 10), len(allowed))
    else:
        assert response.status_code in (400, 422)  # json.dumps writes NaN and half surrogate pairs, which no JSON has
        assert answer["error"]["type"].endswith("Error")
        assert answer["error"]["message"]
