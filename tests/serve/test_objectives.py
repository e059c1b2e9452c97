"""Boosts, caps and quotas of requests over HTTP, with Python's client and under OpenAI's route."""

from collections import Counter
from typing import Any

import pytest
from starlette.testclient import TestClient

from leafbeam.client import calls
from leafbeam.serve.schema import RecommendBody
from tests.fixtures.servers import served

RECOMMEND = "/v1/recommend"
BOOSTED = {"boosts": {"margin": 2.0}, "num_items": 20}


@pytest.fixture
def boosted(shop: Any) -> Any:
    with (shop.directory / "rules.toml").open("a") as rules:
        rules.write("[boosts]\nmargin = 'price / 20'\n")
    with served(shop) as client:
        yield client


def answer_of(client: TestClient, **body: Any) -> dict[str, Any]:
    answer = client.post(RECOMMEND, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_boost_of_the_rules_file_joins_the_score_of_each_item(boosted: TestClient) -> None:
    plain = answer_of(boosted, num_items=100)
    model_scores = dict(zip(plain["item_ids"], plain["scores"], strict=True))
    assert (plain["boosts"], plain["model_scores"], plain["unmet"]) == ([], plain["scores"], {})
    answer = answer_of(boosted, **BOOSTED)
    assert answer["exact"]
    assert answer["boosts"] == pytest.approx([2.0 * (item % 40) / 20 for item in answer["item_ids"]])
    assert answer["model_scores"] == pytest.approx([model_scores[item] for item in answer["item_ids"]], abs=1e-4)
    best = sorted((score + (item % 40) / 10 for item, score in model_scores.items()), reverse=True)
    assert answer["scores"] == pytest.approx(best[:20], abs=1e-4)


def test_a_change_of_a_boost_and_of_an_item_is_seen_by_the_next_request(boosted: TestClient) -> None:
    assert boosted.put("/v1/boosts/margin", json={"expression": "CASE WHEN price = 7 THEN 50 END"}).status_code == 200
    assert {item % 40 for item in answer_of(boosted, boosts={"margin": 1.0}, num_items=2)["item_ids"]} == {7}
    assert boosted.patch("/v1/items", json=[{"item_id": 1000, "price": 7}]).status_code == 200
    assert 1000 in answer_of(boosted, boosts={"margin": 1.0}, num_items=4)["item_ids"]
    assert boosted.put("/v1/items", json=[{"item_id": 5, "codes": [0, 0], "price": 7}]).status_code == 200
    assert 5 in answer_of(boosted, boosts={"margin": 1.0}, num_items=5)["item_ids"]


def test_caps_and_quotas_hold_for_the_list(boosted: TestClient) -> None:
    answer = answer_of(boosted, at_most={"stock": 2}, num_items=6)
    assert Counter(item % 3 for item in answer["item_ids"]) == {0: 2, 1: 2, 2: 2}
    answer = answer_of(boosted, at_least={"cheap": 9}, num_items=10)
    assert sum(item % 40 < 20 for item in answer["item_ids"]) >= 9
    assert answer["unmet"] == {}
    answer = answer_of(boosted, at_least={"none": 2}, num_items=10)
    assert (answer["unmet"], answer["num_valid"]) == ({"none": 2}, 10)


def test_clients_of_openai_have_them_too(boosted: TestClient) -> None:
    answer = boosted.post("/v1/completions", json={"model": "items", "prompt": [], "n": 3, "boosts": {"margin": 400.0}})
    assert answer.status_code == 200
    assert {int(choice["text"]) % 40 for choice in answer.json()["choices"]} == {39, 38}


def test_the_client_sends_what_it_is_given() -> None:
    call = calls.recommend(boosts={"margin": 0.3}, at_most={"brand": 2}, at_least={"new": 3})
    assert call.body == b'{"boosts":{"margin":0.3},"at_most":{"brand":2},"at_least":{"new":3}}'
    assert calls.recommend().body == b"{}"
    assert RecommendBody().boosts == {}


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (
            {"boosts": {"none-such": 1.0}},
            "UnknownBoostError",
            "unknown boost 'none-such'; the boosts of this catalog are: margin",
        ),
        ({"boosts": {"cheap": 1.0}}, "UnknownBoostError", "there is a rule of this name"),
        ({"boosts": {"margin": "1"}}, "RequestError", "boosts"),
        ({"boosts": ["margin"]}, "RequestError", "boosts"),
        ({"at_most": {"brand": 2}}, "UnknownColumnError", "unknown column 'brand'; the columns of the items are: item_id"),
        ({"at_most": {"price": 0}}, "RequestError", "at_most"),
        ({"at_most": {"price": 1.5}}, "RequestError", "at_most"),
        ({"at_least": {"margin": 1}}, "UnknownRuleError", "there is a boost of this name"),
        ({"at_least": {"cheap": 11}}, "RequestError", "at_least asks for 11 items"),
    ],
)
def test_what_cannot_be_read_is_named(boosted: TestClient, body: dict[str, Any], kind: str, says: str) -> None:
    answer = boosted.post(RECOMMEND, json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["type"] == kind
    assert says in answer.json()["error"]["message"]
