"""Expressions over rules, as a client sees them."""

import time
from concurrent.futures import ThreadPoolExecutor

from starlette.testclient import TestClient

from leafbeam.engine import Settings
from leafbeam.serve import create_app
from tests.serve.conftest import MEANING
from tests.waiting import busy

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


def meant(shop, expression: str) -> set[int]:
    meaning = EXPRESSIONS[expression]
    return {one for one in shop.item_ids if meaning(MEANING["cheap"](one), MEANING["in_stock"](one))}


def ask(client: TestClient, expression: str | None = None, **fields) -> dict:
    response = client.post(URL, json={"filter": expression, "num_items": 128, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_every_request_of_a_batch_has_an_expression_of_its_own(first_shop):
    engine = first_shop.engine(settings=Settings(max_batch=64))
    asked = [(text, list(range(1000 + number, 1100, 7))) for number, text in enumerate(EXPRESSIONS)]
    with TestClient(create_app(engine)) as client, ThreadPoolExecutor(len(asked) + 1) as threads:
        with busy(engine.model, lambda: threads.submit(ask, client)) as first:
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
