"""Requests for items that people reported other servers to answer wrongly, as one client sends them."""

import http.client
import json
from contextlib import closing
from typing import Any

import pytest

from tests.serve.running import URL, serving

JSON = {"Content-Type": "application/json"}


def items(client: Any, **body: Any) -> list[int]:
    answer = client.post(URL, json=body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert content["num_valid"] == len(content["item_ids"]) == len(content["scores"])
    return content["item_ids"]


@pytest.mark.parametrize("num_items", [1, 7, 40])
@pytest.mark.parametrize("rules", [[], ["cheap"], ["cheap", "in_stock"]])
def test_denied_items_neither_shorten_nor_lengthen_an_answer(
    client: Any, first_shop: Any, num_items: int, rules: list[str]
) -> None:
    """Public report: with items to leave out, more items than asked for come back, one more for each (implicit 736)."""
    deny = items(client, num_items=5)
    found = items(client, num_items=num_items, rules=rules, deny_item_ids=[*deny, 5, 6, 7])
    assert len(found) == min(num_items, len(first_shop.allowed(rules, deny)))
    assert not set(found) & set(deny)


@pytest.mark.parametrize("num_items", [34, 35, 99, 256])
def test_more_items_than_are_allowed_are_those_and_no_filling(client: Any, first_shop: Any, num_items: int) -> None:
    """Public report: beyond the number of candidates, the answer holds ids that no item has (implicit 507)."""
    allowed = first_shop.allowed(["cheap", "in_stock"], [])
    found = items(client, num_items=num_items, rules=["cheap", "in_stock"])
    assert len(found) == len(set(found)) == min(num_items, len(allowed))
    assert set(found) <= allowed


@pytest.mark.parametrize("num_items", [10, 100])
def test_what_a_user_has_is_not_recommended_and_nothing_twice(client: Any, num_items: int) -> None:
    """Public report: items come twice, or are those that the user has (recommendationRaccoon 16, transformers 17812)."""
    history = [1001, 1050, 1001, 1099]
    found = items(client, history=history, num_items=num_items)
    assert len(found) == len(set(found)) == min(num_items, 97)
    assert not set(found) & set(history)


def test_the_next_items_are_those_behind_the_first(client: Any) -> None:
    """Public report: pages of one search hold items of other pages (qdrant 9523, meilisearch 947)."""
    whole = items(client, history=[1003], num_items=60, num_beams=128)
    seen: list[int] = []
    for _ in range(6):
        page = items(client, history=[1003], num_items=10, num_beams=128, deny_item_ids=seen)
        assert not set(page) & set(seen)
        seen += page
    assert seen == whole
    assert items(client, history=[1003], num_items=10, num_beams=128) == whole[:10]


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/models", "/openapi.json"])
def test_a_head_is_a_get_without_its_body(client: Any, path: str) -> None:
    """Public report: a load balancer that probes with HEAD takes a healthy server for a dead one (parbaked 564)."""
    head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    assert head.status_code == 200
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("POST", URL, JSON, b"{", 400),
        ("POST", URL, {**JSON, "Content-Encoding": "gzip"}, b"x" * 20_000, 415),
        ("POST", URL, {}, b"{}" + b" " * 20_000, 422),
        ("POST", "/nothing", JSON, b"x" * 20_000, 404),
        ("PUT", URL, JSON, b"x" * 20_000, 405),
        ("PUT", "/v1/items", JSON, b"x" * 20_000, 409),
        ("GET", "/v1/items", JSON, b"{}", 200),
        ("POST", URL, {**JSON, "Expect": "100-continue"}, b"{}", 200),
    ],
)
def test_a_connection_stays_in_step_after_each_answer(
    first_shop: Any, method: str, path: str, headers: dict[str, str], body: bytes, status: int
) -> None:
    """Public report: after an error, the rest of a body is read as the next request of the connection."""
    with (
        serving(first_shop.engine()) as (server, _),
        closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection,
    ):
        for number in range(1, 4):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            assert (answer.status, bool(answer.read())) == (status, True)
            connection.request("POST", URL, json.dumps({"num_items": number}), JSON)
            assert len(json.load(connection.getresponse())["item_ids"]) == number
