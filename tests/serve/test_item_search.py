"""`GET /v1/items`: found by title and id, with the rules that allow each."""

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from leafbeam.catalog import Catalog
from leafbeam.engine import Engine
from leafbeam.index import Trie
from leafbeam.model import Transformer
from leafbeam.serve import create_app
from tests.serve.conftest import MEANING

URL = "/v1/items"


def ids(client, **parameters):
    response = client.get(URL, params=parameters)
    assert response.status_code == 200, response.text
    return [item["item_id"] for item in response.json()["items"]]


def test_every_word_has_to_be_in_the_title_in_any_case(client):
    assert ids(client, query="THING 1042") == [1042]
    assert ids(client, query="thing nothing") == []
    assert len(ids(client, query="thing", limit=256)) == 100
    assert len(ids(client, query="thing")) == 20


def test_an_id_is_found_before_titles_that_hold_it(client):
    assert ids(client, query="1007")[0] == 1007


def test_no_query_gives_the_first_items(client):
    assert ids(client, limit=3) == [1000, 1001, 1002]
    assert ids(client, limit=0) == []


def test_text_of_sql_is_a_title_that_no_item_has(client):
    for text in ("'; DROP TABLE items; --", "%", "_", '"', "\\", "thing' OR '1'='1"):
        assert ids(client, query=text) == []
    assert len(ids(client, query="thing", limit=256)) == 100


def test_each_item_names_the_rules_that_allow_it(client, first_shop):
    answer = client.get(URL, params={"id": [1003, 1004, 1041], "rule": ["cheap"], "filter": "cheap - in_stock"}).json()
    assert [item["item_id"] for item in answer["items"]] == [1003, 1004, 1041]
    for item in answer["items"]:
        assert set(item["rules"]) == {rule for rule, allows in MEANING.items() if allows(item["item_id"])}
        assert item["allowed"] == (item["item_id"] in first_shop.allowed(["cheap"], []) - first_shop.allowed(["in_stock"], []))
        assert item["attributes"]["title"] == f"thing {item['item_id']}"
    expected = first_shop.allowed(["cheap"], []) - first_shop.allowed(["in_stock"], [])
    assert (answer["num_allowed"], answer["num_items"], answer["title_column"]) == (len(expected), 100, "title")


def test_an_unknown_id_is_not_in_the_index(client):
    (item,) = client.get(URL, params={"id": 7}).json()["items"]
    assert (item["in_index"], item["allowed"], item["rules"]) == (False, False, [])


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("limit=257", "from 0 to 256"),
        ("limit=-1", "from 0 to 256"),
        ("limit=%D9%A3", "from 0 to 256"),
        ("query=" + "a" * 201, "200 characters"),
        ("query=%00", "NUL"),
        ("id=a", "whole number"),
        ("id=99999999999999999999", "whole number"),
        ("&".join(f"id={number}" for number in range(257)), "up to 256 times"),
        ("&".join(["rule=cheap"] * 17), "up to 16 times"),
        ("rule=nothing", "unknown rule"),
        ("filter=cheap+%26", "ends where"),
        ("titel=a", "no parameter"),
    ],
)
def test_a_wrong_parameter_is_named(client, query, says):
    response = client.get(f"{URL}?{query}")
    assert response.status_code == 422
    assert says in response.json()["error"]["message"]


@pytest.mark.parametrize(("columns", "title"), [(("kind", "Name"), "Name"), (("brand",), "brand")])
def test_items_without_a_column_title_are_found_by_their_name_or_first_text(shop, columns, title):
    model, index, _, _ = shop.files
    rows = [{"item_id": one, "price": 1.0, **{name: f"{name} {one}" for name in columns}} for one in shop.item_ids]
    catalog = Catalog.in_memory(pa.Table.from_pylist(rows), Trie.load(index))
    with TestClient(create_app(Engine(Transformer.from_pretrained(model), catalog))) as client:
        answer = client.get(URL, params={"query": f"{title} 1005"}).json()
        assert ([item["item_id"] for item in answer["items"]], answer["title_column"]) == ([1005], title)
    catalog.close()


def test_items_without_texts_are_found_by_id_alone(shop):
    model, index, _, _ = shop.files
    rows = [{"item_id": one, "price": float("nan")} for one in shop.item_ids]
    catalog = Catalog.in_memory(pa.Table.from_pylist(rows), Trie.load(index))
    with TestClient(create_app(Engine(Transformer.from_pretrained(model), catalog))) as client:
        assert ids(client, query="1005") == [1005]
        assert ids(client, query="thing") == []
        assert client.get(URL, params={"id": 1005}).json()["items"][0]["attributes"] == {"price": None}
    catalog.close()


def test_an_index_without_a_catalog_has_ids_alone(first_shop):
    model, index, _, _ = first_shop.files
    with TestClient(create_app(Engine.load(model, index))) as client:
        assert ids(client, limit=2) == list(Trie.load(index).item_ids[:2])
        assert ids(client, query=" 1042 ") == [1042]
        for text in ("thing", "7", "9" * 19, "-"):
            assert ids(client, query=text) == []
        assert ids(client, query="1042", limit=0) == []
        answer = client.get(URL, params={"id": [1042, 7]}).json()
        assert [(item["item_id"], item["in_index"], item["allowed"]) for item in answer["items"]] == [
            (1042, True, True),
            (7, False, False),
        ]
        assert (answer["num_items"], answer["num_allowed"], answer["title_column"]) == (100, 100, None)
        assert "no rules" in client.get(f"{URL}?rule=cheap").json()["error"]["message"]
        assert "no rules" in client.get(f"{URL}?filter=cheap").json()["error"]["message"]
        assert client.get(f"{URL}?id=x").status_code == 422
        paths = client.get("/openapi.json").json()["paths"]
        assert "/v1/catalog" not in paths
        assert set(paths["/v1/items"]) == {"get"}


def test_ids_of_text_without_a_catalog_may_hold_anything(first_shop):
    model, index, _, _ = first_shop.files
    names = [f"ä {number}" for number in range(100)]
    trie = Trie.build(Trie.load(index).codes_of(first_shop.item_ids), (8, 16), item_ids=names)
    with TestClient(create_app(Engine(Transformer.from_pretrained(model), trie))) as client:
        assert ids(client, query="ä 7") == ["ä 7"]
        assert ids(client, query="x" * 200) == []
        assert client.get(URL, params={"id": ["x" * 5000]}).json()["items"][0]["in_index"] is False


def test_an_answer_has_a_bounded_length(shop):
    model, index, _, _ = shop.files
    rows = [{"item_id": one, "title": "x" * 60_000} for one in shop.item_ids]
    rows[0]["title"] *= 100
    catalog = Catalog.in_memory(pa.Table.from_pylist(rows), Trie.load(index))
    with TestClient(create_app(Engine(Transformer.from_pretrained(model), catalog))) as client:
        assert len(ids(client, id=[*range(1001, 1061)])) == 60
        for query in ("id=1000", "&".join(f"id={one}" for one in range(1001, 1091)), "query=xx&limit=99"):
            answer = client.get(f"{URL}?{query}")
            assert (answer.status_code, "at most 4,194,304" in answer.json()["error"]["message"]) == (422, True)
        assert client.get(f"{URL}/1000").status_code == 422
    catalog.close()


def test_an_item_that_was_removed_is_found_and_cannot_be_recommended(shop):
    engine = shop.engine()
    with TestClient(create_app(engine)) as client:
        engine.catalog.delete([1004])
        (item,) = client.get(URL, params={"query": "1004"}).json()["items"]
        assert (item["item_id"], item["in_index"], item["rules"]) == (1004, False, [])


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("limit=5&limit=6", "limit occurs twice"),
        ("query=a&limit=2&query=a", "query occurs twice"),
        ("filter=cheap&filter=in_stock", "filter occurs twice"),
        ("limit=18446744073709551615", "not '18446744073709551615'"),
        ("limit=" + "9" * 200, "not '999"),
        ("offset=3", "there is no parameter 'offset'"),
        ("limit=2.0", "not '2.0'"),
        ("limit=", "not ''"),
    ],
)
def test_a_parameter_that_would_be_left_out_is_refused(client, query, says):
    """D10. Public report: a limit beyond 64 bits wraps around and gives an empty page (qdrant 10501)."""
    answer = client.get(f"{URL}?{query}")
    assert (answer.status_code, says in answer.json()["error"]["message"]) == (422, True), answer.text
