"""A key that occurs twice in a body is refused on every route, and nothing is done."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fixtures.servers import served

_JSON, _LINES = "application/json", "application/x-ndjson"
_CASES = [
    ("POST", "/v1/recommend", _JSON, '{"rules":["cheap"],"rules":[]}', "'rules'"),
    ("POST", "/v1/recommend", _JSON, '{"num_items": 3, "history": [], "num_items" : 3}', "'num_items'"),
    ("POST", "/v1/recommend", _JSON, '{"rules":["cheap"],"rul\\u0065s":[]}', "'rules'"),
    ("POST", "/v1/recommend", "application/vnd.x+json", '{"history":["a:b"],"history":[]}', "'history'"),
    ("POST", "/v1/interactions", _JSON, '{"interactions":[{"item_id":1000,"item_id":1001}]}', "interactions[0].item_id"),
    ("POST", "/v1/completions", _JSON, '{"model":"items","prompt":"a","prompt":"b"}', "'prompt'"),
    (
        "POST",
        "/v1/chat/completions",
        _JSON,
        '{"model":"items","messages":[{"role":"user","role":"system"}]}',
        "messages[0].role",
    ),
    ("PUT", "/v1/items", _JSON, '[{"item_id":1,"codes":[1,2],"price":1,"price":2}]', "[0].price"),
    ("PUT", "/v1/items", _LINES, '{"item_id":1,"codes":[1,2],"codes":[1,3]}', "'codes'"),
    ("PATCH", "/v1/items", _JSON, '{"item_id":1000,"stock":1,"stock":2}', "'stock'"),
    ("DELETE", "/v1/items", _JSON, '{"item_id":1000,"item_id":1001}', "'item_id'"),
    ("DELETE", "/v1/items", _LINES, '{"item_id":1000,"item_id":1001}', "'item_id'"),
    ("PUT", "/v1/rules/new", _JSON, '{"where":"price < 1","where":"true"}', "'where'"),
    ("POST", "/v1/catalog/snapshot", _JSON, '{"name":"a","name":"b"}', "'name'"),
    ("POST", "/v1/catalog/rollback", _JSON, '{"snapshot":"a","snapshot":"b"}', "'snapshot'"),
]


def state(client: TestClient) -> Any:
    catalog, rules = client.get("/v1/catalog").json(), client.get("/v1/rules").json()["rules"]
    return catalog["num_items"], catalog["num_changed"], catalog["snapshots"], [rule["name"] for rule in rules]


def test_a_doubled_key_is_refused_on_every_route_with_a_body(shop: Any) -> None:
    """D10"""
    with served(shop) as client:
        before = state(client)
        for method, path, kind, body, says in _CASES:
            answer = client.request(method, path, content=body, headers={"content-type": kind})
            assert (answer.status_code, says in answer.text, "occurs twice" in answer.text) == (
                422 if kind == _LINES else 400,  # of lines, each has its own error
                True,
                True,
            ), (path, body, answer.text)
        assert state(client) == before


@pytest.mark.parametrize("separator", [":", " : ", "\\n:", "\\t:"])
def test_texts_that_look_like_keys_are_not_keys(client: TestClient, separator: str) -> None:
    """D10"""
    body = f'{{"history":[1000],"rules":[],"filter":"\\"rules\\"{separator}"}}'
    assert "occurs twice" not in client.post("/v1/recommend", content=body, headers={"content-type": _JSON}).text
    body = '{"history" : [1000],\n"rules" :["cheap"], "deny_item_ids":[1001]}'
    assert client.post("/v1/recommend", content=body, headers={"content-type": _JSON}).status_code == 200
