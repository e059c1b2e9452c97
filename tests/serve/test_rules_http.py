"""Rules over HTTP: expressions, hostile text, live changes and failing rules, as a client sees them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from leafbeam.catalog import Catalog
from leafbeam.catalog.items_table import ItemsTable
from leafbeam.engine import Engine, Settings
from leafbeam.index import Trie
from leafbeam.model import Transformer
from leafbeam.serve import create_app
from tests.serve.conftest import MEANING, RULES
from tests.serve.metric_of import metric
from tests.waiting import held

URL = "/v1/recommend"

# Each with its meaning, in Python's own precedence.
EXPRESSIONS = {
    "cheap": lambda cheap, stock: cheap,
    "cheap & in_stock": lambda cheap, stock: cheap and stock,
    "cheap | in_stock": lambda cheap, stock: cheap or stock,
    "cheap - in_stock": lambda cheap, stock: cheap and not stock,
    "in_stock - cheap": lambda cheap, stock: stock and not cheap,
    "(cheap | in_stock) - (cheap & in_stock)": lambda cheap, stock: cheap != stock,
    "cheap | in_stock - cheap": lambda cheap, stock: cheap or stock,
    "none | cheap & in_stock": lambda cheap, stock: cheap and stock,
    "none": lambda cheap, stock: False,
}

HOSTILE = [
    "cheap; DROP TABLE items; --",
    "cheap'; DELETE FROM items; --",
    'cheap" OR "1"="1',
    "1=1) OR (1=1",
    "price < 3",
    "cheap UNION SELECT * FROM items",
    "cheap /* */ & in_stock",
    "cheap\x00& in_stock",
    "read_csv('/etc/passwd')",
    "cheap & (in_stock",
    "&",
    "(" * 40 + "cheap" + ")" * 40,
    "cheap & " * 500 + "cheap",
]


def meant(shop, expression: str) -> set[int]:
    meaning = EXPRESSIONS[expression]
    return {one for one in shop.item_ids if meaning(MEANING["cheap"](one), MEANING["in_stock"](one))}


@pytest.fixture
def live(shop):
    """(client, catalog, model): a server whose items change."""
    rows = [{"item_id": one, "price": float(one % 40), "stock": one % 3} for one in shop.item_ids]
    trie, model = Trie.load(str(shop.files[1])), Transformer.from_pretrained(shop.files[0])
    with (
        Catalog.in_memory(pa.Table.from_pylist(rows), trie, shop.files[3], background=False) as catalog,
        TestClient(create_app(Engine(model, catalog))) as client,
    ):
        yield client, catalog, model


def ask(client: TestClient, expression: str | None = None, **fields) -> dict:
    response = client.post(URL, json={"filter": expression, "num_items": 128, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_every_request_of_a_batch_has_an_expression_of_its_own(first_shop):
    engine = first_shop.engine(settings=Settings(max_batch=64))
    asked = [(text, list(range(1000 + number, 1100, 7))) for number, text in enumerate(EXPRESSIONS)]
    with TestClient(create_app(engine)) as client, ThreadPoolExecutor(len(asked) + 1) as threads:
        with held(engine.model) as began:
            first = threads.submit(ask, client)
            assert began.wait(20)
            answers = [threads.submit(ask, client, text, deny_item_ids=deny) for text, deny in asked]
            until = time.monotonic() + 20
            while engine.scheduler.load.waiting < len(asked):
                assert time.monotonic() < until
                time.sleep(0.002)
        for (text, deny), answer in zip(asked, answers, strict=True):
            found = answer.result(20)
            assert set(found["item_ids"]) == meant(first_shop, text) - set(deny), text
            assert found["num_valid"] == len(found["item_ids"])
            assert found["batch_size"] == len(asked)
        assert set(first.result(20)["item_ids"]) == set(first_shop.item_ids)


def test_names_and_an_expression_hold_together(client, first_shop):
    found = ask(client, "cheap | none", rules=["in_stock"])
    assert set(found["item_ids"]) == meant(first_shop, "cheap & in_stock")


@pytest.mark.parametrize("field", ["rules", "filter"])
def test_an_unknown_rule_is_422_and_names_the_known_ones(client, field):
    response = client.post(URL, json={field: ["fresh"] if field == "rules" else "cheap & fresh"})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["type"] == "UnknownRuleError"
    assert "unknown rule 'fresh'; the rules of this catalog are: cheap, in_stock, none" in error["message"]


def test_hostile_text_is_refused_by_name_and_never_reaches_the_table(shop, monkeypatch):
    """The table cannot even be opened while the requests come."""
    before = shop.files[2].read_bytes()
    with TestClient(create_app(shop.engine())) as client, monkeypatch.context() as locked:
        locked.setattr(ItemsTable, "reading", None)
        locked.setattr(ItemsTable, "writing", None)
        for text in HOSTILE:
            for body in ({"filter": text}, {"rules": [text]}):
                response = client.post(URL, json=body)
                assert response.status_code == 422, (text, response.text)
                assert response.json()["error"]["type"] in ("RequestError", "UnknownRuleError")
            for body in ({"history": [text]}, {"deny_item_ids": [text]}):  # text, where this index has numbers
                assert client.post(URL, json=body).status_code == 422
        assert set(ask(client, "cheap")["item_ids"]) == shop.allowed(["cheap"], [])
    assert shop.files[2].read_bytes() == before


def test_a_change_is_seen_by_the_next_request(live, shop):
    client, catalog, _ = live
    cheap = meant(shop, "cheap")
    assert set(ask(client, "cheap")["item_ids"]) == cheap
    catalog.insert([[0, 0], [1, 1]], [1, 2], [{"price": 3.0, "stock": 1}, {"price": 30.0, "stock": 1}])
    assert set(ask(client, "cheap")["item_ids"]) == cheap | {1}
    assert ask(client, history=[1, 2])["num_history_used"] == 2
    catalog.delete([1, 1000])
    assert set(ask(client, "cheap")["item_ids"]) == cheap - {1000}
    catalog.replace([[5, 5]], [2], [{"price": 1.0, "stock": 0}])
    found = ask(client, "cheap - in_stock")
    assert found["codes"][found["item_ids"].index(2)] == [5, 5]
    catalog.update([2], [{"price": 99.0}])
    assert set(ask(client, "cheap")["item_ids"]) == cheap - {1000}
    version = ask(client)["index_version"]
    catalog.compact(wait=True)
    after = ask(client, "cheap")
    assert after["index_version"] != version
    assert set(after["item_ids"]) == cheap - {1000}
    assert client.get("/readyz").json()["rules"]["cheap"] == len(cheap) - 1


def test_a_running_batch_keeps_its_version(live, shop):
    client, catalog, model = live
    cheap = meant(shop, "cheap")
    with ThreadPoolExecutor(1) as threads:
        with held(model) as began:
            running = threads.submit(ask, client, "cheap")
            assert began.wait(20)
            catalog.delete(sorted(cheap)[:10])
            catalog.insert([[2, 2]], [7], [{"price": 0.0, "stock": 1}])
            catalog.compact(wait=True)
        old = running.result(20)
    new = ask(client, "cheap")
    assert set(old["item_ids"]) == cheap
    assert set(new["item_ids"]) == cheap - set(sorted(cheap)[:10]) | {7}
    assert old["index_version"] != new["index_version"]


@pytest.mark.parametrize(
    "fault", ["ALTER TABLE items RENAME COLUMN price TO cost", "ALTER TABLE items ALTER price TYPE VARCHAR USING 'x'"]
)
def test_a_rule_that_fails_keeps_its_last_good_filter_and_the_metrics_say_so(shop, fault):
    mend = "ALTER TABLE items RENAME COLUMN cost TO price" if "RENAME" in fault else None
    engine = shop.engine()
    assert engine.catalog is not None
    with TestClient(create_app(engine)) as client:
        with duckdb.connect(str(shop.files[2])) as connection:
            connection.execute(fault)
        engine.catalog.refresh()
        assert set(ask(client, "cheap & in_stock")["item_ids"]) == meant(shop, "cheap & in_stock")
        assert metric(client, 'leafbeam_rule_failed{rule="cheap"}') == 1
        assert metric(client, 'leafbeam_rule_failed{rule="in_stock"}') == 0
        assert metric(client, 'leafbeam_rule_items{rule="cheap"}') == len(meant(shop, "cheap"))
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["rules"]["cheap"]) == (200, len(meant(shop, "cheap")))
        if mend is not None:
            with duckdb.connect(str(shop.files[2])) as connection:
                connection.execute(mend)
            engine.catalog.refresh()
            assert metric(client, 'leafbeam_rule_failed{rule="cheap"}') == 0


def test_a_malformed_rules_file_leaves_all_rules_in_force(shop):
    engine = shop.engine()
    assert engine.catalog is not None
    with TestClient(create_app(engine)) as client:
        for text in ("[rules\n", "[rules]\ncheap = 'price <'\nin_stock = 'stock > 0'\nnone = 'false'\n", ""):
            shop.files[3].write_text(text)
            assert not engine.catalog.reload().ok
            assert set(ask(client, "cheap - none")["item_ids"]) == meant(shop, "cheap")
        shop.files[3].write_text(RULES)
        assert engine.catalog.reload().ok


def test_answers_under_constant_change_see_whole_transactions(live, shop):
    """Two items take turns: every answer has exactly one of them, under each rule."""
    client, catalog, _ = live
    catalog.insert([[3, 3]], [1], [{"price": 1.0, "stock": 1}])
    stop, wrong = threading.Event(), []

    def swap() -> None:
        rng, here = np.random.default_rng(0), 1
        while not stop.is_set():
            there = 3 - here
            with catalog.transaction() as change:
                change.delete([here])
                change.insert([rng.integers(0, 8, 2)], [there], [{"price": 1.0, "stock": 1}])
            here = there
            if rng.random() < 0.05:
                catalog.compact()

    def look(expression: str) -> None:
        for _ in range(25):
            found = set(ask(client, expression)["item_ids"])
            if found - {1, 2} != meant(shop, expression) or len(found & {1, 2}) != 1:
                wrong.append((expression, found))

    with ThreadPoolExecutor(4) as threads:
        writer = threads.submit(swap)
        try:
            for done in [threads.submit(look, text) for text in ("cheap", "cheap & in_stock", "cheap | in_stock")]:
                done.result(120)
        finally:
            stop.set()
        writer.result(20)
    assert wrong == []
