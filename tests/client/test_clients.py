"""Both clients over a real server: every route, what a lost answer leaves behind, keys, TLS, and what they need installed."""

import asyncio
import doctest
import inspect
import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import leafbeam
from leafbeam.client import AsyncClient, Client, InteractionBody, calls, clients
from leafbeam.engine import CatalogFiles, Engine, Limits
from leafbeam.errors import AccessDeniedError, InvalidRequestError, NotFoundError, ServerBusyError
from leafbeam.retrieve import ItemMemory
from leafbeam.serve import Access, KeyFile
from leafbeam.serve.keys import add_key
from leafbeam.serve.openapi import document_of
from leafbeam.serve.operations import BY_NAME
from leafbeam.serve.schema import RecommendBody
from tests.client.both import FAST, KINDS
from tests.client.scripted_server import Act, Seen, scripted
from tests.serve.running import live, thread

both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def url(first_shop: Any) -> Iterator[str]:
    """A server of a shop that nobody changes."""
    with thread(first_shop.engine()) as server:
        yield server.url


def answer_of(name: str) -> str:
    """Return the name of the type that a call is declared to be answered with."""
    return typing.get_type_hints(getattr(calls, name))["return"].__args__[0].__name__


def test_every_route_of_the_document_has_a_method_of_its_name():
    paths = document_of(Limits(), has_text=True)["paths"]
    names = {route["operationId"]: (path, method) for path, methods in paths.items() for method, route in methods.items()}
    for name in names.keys() - {"complete", "chat"}:  # those of OpenAI's clients
        for kind in (Client, AsyncClient):
            assert inspect.signature(getattr(kind, name)).parameters.keys() - {"self"} == (
                inspect.signature(getattr(calls, name)).parameters.keys()
            )
        path, method = names[name]
        assert BY_NAME[name].answer in (answer_of(name), "text/plain"), name
        assert f"`{method.upper()} {path}`" in getattr(calls, name).__doc__, name
    assert {"complete", "chat"} <= names.keys()
    assert inspect.signature(calls.recommend).parameters.keys() == set(RecommendBody.__struct_fields__)
    assert set(dir(Client)) - {"__enter__", "__exit__"} == set(dir(AsyncClient)) - {"__aenter__", "__aexit__"}


@both
def test_recommendations_keep_rules_and_say_why(kind, url, first_shop):
    with KINDS[kind](url) as client:
        answer = client.recommend(
            [1003, 1004],
            user=5,
            num_items=7,
            rules=["cheap"],
            filter="cheap - none",
            deny_item_ids=[1002],
            keep_history=True,
            num_beams=50,
            scoring="allowed",
            channel="model",
            explain=True,
            deadline_ms=20_000,
        )
        assert set(answer.item_ids) <= first_shop.allowed(["cheap"], [1002])
        assert (answer.num_valid, answer.channel, len(answer.levels), answer.num_history_left_out) == (7, "model", 2, 0)
        plain = client.recommend()
        assert (plain.num_valid, plain.exact, plain.num_exact) == (10, True, 10)
        with pytest.raises(InvalidRequestError) as caught:
            client.recommend(rules=["no such rule"])
        assert (caught.value.status, caught.value.code) == (422, "UnknownRuleError")
        assert caught.value.request_id
        with pytest.raises(ServerBusyError) as busy:
            client.recommend(deadline_ms=1e-6)
        assert (busy.value.status, busy.value.reason) == (429, "deadline_unreachable")


@both
def test_what_a_server_says_of_itself(kind, url):
    with KINDS[kind](url) as client:
        assert client.get_health().alive
        ready = client.get_readiness()
        assert (ready.ready, ready.num_items, ready.rules["cheap"]) == (True, 100, 60)
        assert "leafbeam_index_items 100.0" in client.get_metrics()
        assert [model.id for model in client.list_models().data] == ["items"]
        assert [item.item_id for item in client.find_items("thing 1042").items] == [1042]
        found = client.find_items(item_ids=[1001, 1002], rules=["cheap"], filter="in_stock")
        assert [item.allowed for item in found.items] == [True, False]
        assert client.find_items(limit=0).items == ()
        assert isinstance(client.list_slow_batches().batches, list)
        assert client.reload_catalog().rules[0].error is None
        loaded = client.load_model()
        assert loaded.model_version == loaded.previous_version == ready.model_version
        with pytest.raises(InvalidRequestError, match="the server keeps the former model"):
            client.load_model("/no such directory")
        with pytest.raises(InvalidRequestError, match="without a place to keep changes"):
            client.put_items([{"item_id": 1}])


@both
def test_items_rules_and_snapshots_are_changed(kind, shop):
    with live(shop) as url, KINDS[kind](url) as client:
        assert client.put_items([{"item_id": 7, "codes": [1, 2], "title": "new", "price": 3, "stock": 1}]).inserted == 1
        assert client.patch_items([{"item_id": 7, "price": 30}]).updated == 1
        item = client.get_item(7)
        assert (item.codes, item.rules, item.attributes["price"]) == ((1, 2), ("in_stock",), 30)
        assert client.save_snapshot("before").num_items == 101
        assert client.delete_items([7, 55], missing_ok=True).deleted == 1
        assert client.delete_item(1000).deleted == 1
        with pytest.raises(NotFoundError):
            client.get_item(7)
        with pytest.raises(InvalidRequestError, match="lines") as wrong:
            client.put_items([{"item_id": 8, "codes": [0, 0]}, {"item_id": 9, "codes": [99, 99]}])
        assert list(wrong.value.lines) == [2]
        assert client.roll_back("before").inserted == 2
        assert client.delete_snapshot("before").snapshots == ()
        assert client.put_rule("dear", "price >= 30", refresh="60s").num_items > 0
        assert client.get_rule("dear").refresh_s == 60
        assert {rule.name for rule in client.list_rules().rules} == {"cheap", "in_stock", "none", "dear"}
        assert client.delete_rule("dear").name == "dear"
        with pytest.raises(NotFoundError):
            client.get_rule("dear")
        assert client.put_boost("margin", "price / 10", refresh="60s").num_items > 0
        assert client.get_boost("margin").expression == "price / 10"
        assert [boost.name for boost in client.list_boosts().boosts] == ["margin"]
        assert client.delete_boost("margin").name == "margin"
        with pytest.raises(NotFoundError):
            client.get_boost("margin")
        assert client.compact_catalog().num_items == client.get_catalog().num_items == 101


@both
def test_interactions_are_counted(kind, first_shop, tmp_path):
    ids = list(first_shop.item_ids)
    ItemMemory.fit(ids, np.array([0, 2]), np.array([0, 1])).save(tmp_path / "memory.leafbeam")
    model, index, catalog, rules = first_shop.files
    files = CatalogFiles(index=index, catalog=catalog, rules=rules, memory=tmp_path / "memory.leafbeam", learn=True)
    with thread(Engine.load(model, files)) as server, KINDS[kind](server.url) as client:
        event = InteractionBody(history=[1005], item_id=1042)
        assert client.count_interactions([event], key="a").pairs == 1
        assert client.count_interactions([event], key="a").pairs == 1  # the same answer; counted once
        assert client.recommend([1005], channel="memory").item_ids[0] == 1042


@both
def test_a_change_whose_answer_is_lost_is_made_once(kind, shop):
    """A proxy hands requests on to the real server, and cuts the first answer to each in the middle."""
    seen: set[str] = set()

    def proxy(url: str) -> Any:
        def hand_on(request: Seen) -> Act:
            kept = {name: value for name, value in request.headers.items() if name not in ("host", "content-length")}
            answer = httpx.request(request.method, url + request.target, headers=kept, content=request.body)
            head = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
            data = f"HTTP/1.1 {answer.status_code} x\r\n{head}\r\n".encode() + answer.content
            is_first = (key := request.headers.get("idempotency-key", "")) not in seen
            seen.add(key)
            return Act(data=data[: len(data) - 20] if is_first else data, hang_up=True)

        return hand_on

    with live(shop) as url, scripted(*[proxy(url)] * 12) as server, KINDS[kind](server.url, retries=FAST) as client:
        items = [{"item_id": n, "codes": [n % 8, n % 16], "price": 3} for n in range(5)]
        done = client.import_items(items, chunk_items=2)
        assert (done.inserted, done.updated, done.number, len(server.seen)) == (5, 0, 3, 6)
        again = client.import_items(items, chunk_items=2, key=done.key)
        assert (again.inserted, again.updated, again.number, len(server.seen)) == (5, 0, 3, 9)
        assert client.delete_items([0, 1]).deleted == 2  # a second time, they would not be there
    with live(shop) as url, KINDS[kind](url) as client:
        assert client.get_catalog().num_items == 103


def test_ids_of_any_characters_are_one_part_of_a_path(tmp_path):
    names = ["a/b", "..", ".", "é", "%2F", "?a=b", "#", " ", "a b", "'\"\\", "日本", "x" * 200]
    for name in names:
        target = calls.get_item(name).target
        path = httpx.URL(f"http://a{target}").raw_path.decode()
        assert path.count("/") == 3
        assert httpx.URL(f"http://a{path}").path == f"/v1/items/{name}"


@both
def test_a_key_opens_what_its_scope_may_do(kind, first_shop, tmp_path):
    key = add_key(tmp_path / "keys.json", "shop", "read", rate=1.0)
    with thread(first_shop.engine(), access=Access(keys=KeyFile(tmp_path / "keys.json"))) as server:
        with KINDS[kind](server.url) as client, pytest.raises(AccessDeniedError) as caught:
            client.recommend()
        assert (caught.value.status, caught.value.code) == (401, "RequestError")
        with KINDS[kind](server.url, key=key) as client:
            assert client.recommend().num_valid == 10
            assert client.recommend().num_valid == 10  # beyond its rate: it waits as long as the server says
            with pytest.raises(AccessDeniedError, match="403"):
                client.list_rules()
            assert key not in repr(client)


def test_the_examples_run(shop):
    with live(shop) as url:
        names = {"url": url, "Client": Client, "AsyncClient": AsyncClient, "asyncio": asyncio}
        for found in (
            doctest.DocTestFinder(recurse=False).find(clients.Client, globs=names),
            doctest.DocTestFinder(recurse=False).find(clients.AsyncClient, globs=names),
        ):
            (example,) = found
            assert len(example.examples) >= 2
            assert doctest.DocTestRunner().run(example).failed == 0


def test_many_threads_share_a_client(url):
    from concurrent.futures import ThreadPoolExecutor

    with Client(url) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: client.recommend([number], num_items=5), range(1000, 1040)))
    assert [answer.num_valid for answer in answers] == [5] * 40


def test_many_tasks_share_a_client(url):
    async def main() -> list[int]:
        async with AsyncClient(url) as client:
            answers = await asyncio.gather(*(client.recommend([number], num_items=5) for number in range(1000, 1040)))
            return [answer.num_valid for answer in answers]

    assert asyncio.run(main()) == [5] * 40


IMPORTS = """
import json, sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in json.loads(sys.argv[1]):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
import leafbeam
assert "httpx" not in sys.modules
from leafbeam.client import *
leafbeam.Client("http://127.0.0.1:1").close()
"""


def test_a_client_needs_nothing_of_the_server():
    blocked = [
        "torch",
        "numba",
        "numpy",
        "duckdb",
        "pyarrow",
        "starlette",
        "uvicorn",
        "prometheus_client",
        "typer",
        "rich",
        "scipy",
        "jinja2",
    ]
    done = subprocess.run([sys.executable, "-c", IMPORTS, json.dumps(blocked)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert leafbeam.Client is Client
    assert leafbeam.AsyncClient is AsyncClient
