"""What a server answers: items, its state, its metrics, and errors by name."""

import re
import time

import pytest
import torch
from starlette.testclient import TestClient

from leafbeam.engine import Limits, Request, Settings
from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.worker import ThreadUse
from leafbeam.serve import ServerConfig, create_app
from tests.serve.metric_of import metric
from tests.waiting import held, interrupted

URL = "/v1/recommend"


def test_an_answer_holds_allowed_items_and_its_provenance(client, first_shop):
    rules, deny = ["cheap", "in_stock"], [1003, 1007, 77]
    body = {"history": [1001, 5, 1002], "num_items": 7, "rules": rules, "deny_item_ids": deny, "num_beams": 50}
    response = client.post(URL, json=body)
    assert response.status_code == 200
    answer = response.json()
    engine = first_shop.engine()
    same = engine.recommend([Request(**body)])[0]
    assert answer["item_ids"] == list(same.item_ids)
    assert answer["codes"] == engine.trie.codes_of(answer["item_ids"]).tolist()
    assert answer["scores"] == pytest.approx(same.scores, abs=1e-5)
    assert set(answer["item_ids"]) <= first_shop.allowed(rules, deny)
    assert (answer["num_valid"], answer["num_beams"], answer["num_history_used"]) == (7, 50, 2)
    assert (answer["ignored_history"], answer["ignored_deny_item_ids"]) == ([5], [77])
    assert (answer["index_version"], answer["rules_generation"], answer["batch_size"]) == (engine.trie.version, 1, 1)
    stages = answer["timings_ms"]
    assert stages.pop("total") == pytest.approx(sum(stages.values()))
    assert set(stages) == {"prepare", "queue", "prefill", "rounds", "constrain", "postprocess"}


def test_an_answer_without_items_names_the_rules_that_left_none(client, first_shop):
    """A3: over HTTP."""
    empty = {"rules": ["in_stock"], "filter": "cheap - cheap"}
    assert client.post(URL, json=empty).json()["empty_rules"] == ["cheap - cheap"]
    assert client.post(URL, json=empty | {"filter": "cheap"}).json()["empty_rules"] == []
    every = list(first_shop.item_ids)
    answer = client.post(URL, json={"rules": ["in_stock"], "deny_item_ids": every}).json()
    assert (answer["num_valid"], answer["empty_rules"]) == (0, ["- deny_item_ids"])
    history = sorted(first_shop.allowed(["cheap"], ()))
    assert client.post(URL, json={"rules": ["cheap"], "history": history}).json()["empty_rules"] == ["cheap", "- history"]


def test_an_answer_reports_whether_the_model_read_the_user(client):
    named, plain = (client.post(URL, json={"history": [1001]} | user).json() for user in ({"user": "ann"}, {}))
    assert named["read_user"] is plain["read_user"] is False  # this model has no tokens for users
    assert named["item_ids"] == plain["item_ids"]
    assert client.post(URL, json={"user": 1.5}).status_code == 422
    assert client.post(URL, json={"user": True}).status_code == 422
    bad = client.post(URL, content=b'{"user": "\\ud800"}', headers={"content-type": "application/json"})
    assert bad.status_code == 400
    assert bad.json()["error"]["type"] == "RequestError"


def test_an_answer_explains_its_beams_only_if_asked_to(client):
    body = {"history": [1001], "num_items": 5, "num_beams": 8, "rules": ["cheap"]}
    plain, explained = client.post(URL, json=body), client.post(URL, json=body | {"explain": True})
    assert "levels" not in plain.json()
    answer = explained.json()
    assert answer["item_ids"] == plain.json()["item_ids"]
    first, last = answer["levels"]
    paths = [[first["codes"][parent], code] for parent, code in zip(last["parents"], last["codes"], strict=True)]
    assert paths[0] == answer["codes"][0]
    assert last["scores"][0] == pytest.approx(answer["scores"][0], abs=1e-5)
    assert last["num_sids"] == [1] * len(paths)
    assert client.post(URL, json={"rules": ["none"], "explain": True}).json()["levels"] == []
    assert client.post(URL, json={"explain": 1}).status_code == 422


def test_unknown_paths_and_methods_are_rejected_in_the_same_shape(client):
    paths = (client.get("/nothing"), client.get("/healthz/", headers={"Host": "elsewhere"}, follow_redirects=False))
    methods = (client.get("/v1/recommend"), client.post("/healthz"))
    for response, status in [(response, 404) for response in paths] + [(response, 405) for response in methods]:
        assert response.status_code == status
        assert set(response.json()["error"]) == {"type", "message"}


def test_an_unknown_path_is_named_as_it_was_sent(client):
    """A14: the first part of a path that begins with two slashes was left out of the message."""
    for path in ("//v1/recommend", "//v1//completions", "/V1/recommend"):
        answer = client.post(f"http://testserver{path}", json={})
        assert (answer.status_code, f"nothing at {path}:" in answer.json()["error"]["message"]) == (404, True), answer.text


def test_the_page_about_the_interface_loads_nothing_from_elsewhere(client):
    response = client.get("/docs")
    assert response.status_code == 200
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in response.text
    assert not re.search(r"(src|href)=\"?(https?:)?//", response.text)
    for name in ("/v1/recommend", "deny_item_ids", "UnknownRuleError", "up to 2,048", "429"):
        assert name in response.text


def test_health_readiness_and_the_end(first_shop):
    engine = first_shop.engine()
    app = create_app(engine)
    assert not engine.is_running
    with TestClient(app) as client:
        assert client.get("/healthz").json() == {"alive": True}
        response = client.get("/readyz")
        assert response.status_code == 200
        assert response.json() == {
            "ready": True,
            "reason": None,
            "index_version": engine.trie.version,
            "model_version": engine.model_version,
            "num_items": 100,
            "rules": {"cheap": 60, "in_stock": 67, "none": 0},
            "rules_version": engine.catalog.rules.definitions_version,
            "threads": engine.threads,
            "precision": "float32",
            "tuning": engine.tuning.lines(),
            "search_widths": [],
            "feed": None,
            "text_model": None,
            "http_workers": 0,
        }
        for _ in range(8):
            client.post(URL, json={"num_items": 3, "rules": ["cheap"]})
        (learnt,) = client.get("/readyz").json()["search_widths"]
        assert (learnt["num_items"], learnt["share"], learnt["scoring"]) == (3, 0.5, "full")
        assert len(learnt["widths"]) == engine.trie.num_levels - 1
        engine.stop()
        response = client.get("/readyz")
        assert (response.status_code, response.json()["ready"], response.json()["reason"]) == (503, False, "it has stopped")
        response = client.post(URL, json={})
        assert (response.status_code, response.json()["error"]["type"]) == (503, "UnavailableError")
        assert metric(client, 'leafbeam_refused_total{reason="draining"}') == 1
    assert not engine.is_running


def test_readiness_says_what_products_in_bfloat16_do(first_shop):
    with TestClient(create_app(first_shop.engine(settings=Settings(precision="bfloat16")))) as client:
        ready = client.get("/readyz").json()
        said = ready["precision"]
        assert ready["tuning"]["precision"] == said
        answer = client.post(URL, json={"num_items": 5}).json()
    one, several = r"[\d.]+ times as fast as float32 with one request", r"[\d.]+ and [\d.]+ times .* and with several"
    found = re.fullmatch(rf"(?:float32|bfloat16); bfloat16 is (?:{one}|{several}), ([\d.]+)% of .*", said)
    assert found, said  # one alone where a batch takes seconds, as in float32 on a busy machine
    assert 0 < float(found[1]) <= 100
    assert answer["num_valid"] == 5


def test_metrics_count_what_happened(first_shop):
    engine = first_shop.engine()
    with TestClient(create_app(engine)) as client:
        client.post(URL, json={"num_items": 3})
        client.post(URL, json={"rules": ["none"]})
        client.post(URL, json={"num_items": 0})
        client.post(URL, content=b"x" * (2 << 20))
        assert metric(client, 'leafbeam_requests_total{outcome="ok"}') == 2
        assert metric(client, 'leafbeam_requests_total{outcome="refused"}') == 2
        assert metric(client, 'leafbeam_requests_total{outcome="overloaded"}') == 0
        assert metric(client, 'leafbeam_refused_total{reason="over_a_limit"}') == 1
        assert metric(client, 'leafbeam_refused_total{reason="body_too_long"}') == 1
        assert metric(client, 'leafbeam_answered_total{when="in_time"}') == 2
        assert metric(client, 'leafbeam_batches_total{closed="idle"}') == 2
        assert metric(client, "leafbeam_items_total") == 3
        assert metric(client, "leafbeam_short_answers_total") == 1
        for stage in ("prepare", "queue", "prefill", "rounds", "constrain", "postprocess", "total"):
            assert metric(client, f'leafbeam_stage_seconds_count{{stage="{stage}"}}') == 2
        assert metric(client, 'leafbeam_request_seconds_count{outcome="refused"}') == 2
        assert metric(client, "leafbeam_batch_size_count") == 2
        assert metric(client, "leafbeam_queue_length") == 0
        assert metric(client, "leafbeam_ready") == 1
        assert metric(client, "leafbeam_index_items") == 100
        assert metric(client, f'leafbeam_index_info{{version="{engine.trie.version}"}}') == 1
        assert metric(client, 'leafbeam_rule_items{rule="cheap"}') == 60
        assert metric(client, 'leafbeam_rule_failed{rule="cheap"}') == 0
        assert metric(client, "leafbeam_rules_generation") == 1


def test_servers_with_different_rules_have_different_versions_of_them(first_shop):
    first, second = first_shop.engine(), first_shop.engine()
    with TestClient(create_app(first)) as client, TestClient(create_app(second)) as other:

        def versions() -> tuple[str, str]:
            found = [one.get("/readyz").json()["rules_version"] for one in (client, other)]
            for one, version in zip((client, other), found, strict=True):
                assert metric(one, f'leafbeam_rules_info{{version="{version}"}}') == 1
            return found[0], found[1]

        before = versions()[0]
        assert versions() == (before, before)
        first.catalog.add_rule("new", "stock > 1")
        first.catalog.add_rule("cheap", "price <= 19")  # the same items, by another rule
        assert versions()[0] != before == versions()[1]
        second.catalog.add_rule("cheap", "price <= 19")
        second.catalog.add_rule("new", "stock > 1")
        assert versions()[0] == versions()[1] != before
        second.catalog.add_boost("margin", "price / 10")
        second.catalog.rules.groups("stock")  # what a request loads is no difference
        assert versions()[0] != versions()[1]
        first.catalog.add_boost("margin", "price / 10")
        assert versions()[0] == versions()[1]


def test_a_request_without_an_answer_in_time_is_503(first_shop):
    engine = first_shop.engine()
    with TestClient(create_app(engine, config=ServerConfig(answer_s=0.1))) as client, held(engine.model):
        response = client.post(URL, json={})
        assert (response.status_code, response.json()["error"]["message"]) == (503, "no answer within 0.1 s")


def test_nan_logits_are_500_by_name(first_shop):
    engine = first_shop.engine()
    with TestClient(create_app(engine)) as client:
        with torch.no_grad():
            engine.model.model.norm.weight.fill_(float("nan"))
        response = client.post(URL, json={})
        assert (response.status_code, response.json()["error"]["type"]) == (500, "LogitsError")


def test_an_unexpected_error_is_500_without_its_message(first_shop):
    engine = first_shop.engine()

    def fail(requests: int) -> None:
        raise RuntimeError("password=hunter2")

    with TestClient(create_app(engine), raise_server_exceptions=False) as client, interrupted(engine.model, fail):
        response = client.post(URL, json={})
        assert response.status_code == 500
        assert response.json() == {"error": {"type": "RuntimeError", "message": "the server failed; its log says why"}}
        assert metric(client, 'leafbeam_requests_total{outcome="failed"}') == 1


def test_openapi_has_fields_limits_example_and_errors(first_shop):
    engine = first_shop.engine(limits=Limits(max_items=50, max_beams=64))
    document = TestClient(create_app(engine)).get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    fields = schemas["RecommendBody"]["properties"]
    assert set(fields) == {
        "history",
        "keep_history",
        "explain",
        "user",
        "num_items",
        "rules",
        "filter",
        "deny_item_ids",
        "num_beams",
        "scoring",
        "channel",
        "boosts",
        "at_most",
        "at_least",
        "deadline_ms",
    }
    assert fields["deadline_ms"]["maximum"] == 60_000
    assert fields["filter"]["maxLength"] == 1000
    assert all(field["description"] for field in fields.values())
    assert (fields["num_items"]["minimum"], fields["num_items"]["maximum"]) == (1, 50)
    assert (fields["num_beams"]["maximum"], fields["scoring"]["enum"]) == (64, ["full", "allowed", "vocabulary"])
    assert schemas["RecommendBody"]["example"]["rules"]
    assert schemas["RecommendBody"]["additionalProperties"] is False
    responses = document["paths"][URL]["post"]["responses"]
    for status in ("400", "408", "413", "422", "429", "500", "503"):
        assert responses[status]["content"]["application/json"]["schema"]["$ref"].endswith("ErrorAnswer")
    assert {URL, "/v1/items", "/healthz", "/readyz", "/metrics"} <= set(document["paths"])


def test_slow_batches_are_listed_with_what_explains_them(first_shop):
    engine = first_shop.engine()
    with TestClient(create_app(engine)) as client:
        assert client.get("/v1/slow-batches").json() == {"batches": []}
        size = BatchSize.of(2, 8, 20)
        for _ in range(64):
            engine.slow_batches.observe(0, size, 0.01, None, ThreadUse(cpu_s=0.01))
        engine.slow_batches.observe(1, size, 0.7, None, ThreadUse(cpu_s=0.002, waits=1, preempted=40, faults=5))
        (slow,) = client.get("/v1/slow-batches").json()["batches"]
        assert metric(client, 'leafbeam_batch_faults_total{kind="slow"}') == 1
    assert slow.pop("ended_at") == pytest.approx(time.time(), abs=60)
    expected = {"worker": 1, "seconds": 0.7, "median_s": 0.01, "requests": 2, "tokens": 16, "beam_rows": 40}
    expected |= {"prefill_s": 0, "rounds_s": 0, "constrain_s": 0, "cpu_s": 0.002, "waits": 1, "preempted": 40, "faults": 5}
    assert slow == expected
