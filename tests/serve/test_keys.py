"""Keys: who may do what, rotation while a server runs, rates; and answers that do not say which part was wrong."""

import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient
from typer.testing import CliRunner

from leafbeam.cli import app
from leafbeam.engine import Limits
from leafbeam.errors import ArgumentError, DataError
from leafbeam.serve import Access, create_app
from leafbeam.serve.keys import Key, KeyFile, add_key, digest_of, read_keys, remove_key
from leafbeam.serve.openapi import document_of
from tests.fixtures.clocks import Clock

RECOMMEND = "/v1/recommend"


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    return {scope: add_key(tmp_path / "keys.json", scope, scope) for scope in ("read", "write", "admin")}  # type: ignore[arg-type]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def served(first_shop: Any, tmp_path: Path, keys: dict[str, str]) -> Iterator[tuple[TestClient, KeyFile, Clock]]:
    clock = Clock()
    file = KeyFile(tmp_path / "keys.json", clock=clock)
    with TestClient(create_app(first_shop.engine(), access=Access(keys=file)), base_url="http://shop.example.com") as client:
        yield client, file, clock


def test_the_file_keeps_hashes_alone_and_is_the_owners(tmp_path: Path, keys: dict[str, str]) -> None:
    path = tmp_path / "keys.json"
    assert not any(key in path.read_text() for key in keys.values())
    assert path.stat().st_mode & 0o077 == 0
    assert [key.name for key in read_keys(path)] == ["read", "write", "admin"]
    assert all(re.fullmatch(r"lb_[\w-]{43}", key) for key in keys.values())
    with pytest.raises(ArgumentError, match="has a key 'read' already"):
        add_key(path, "read", "admin")
    with pytest.raises(ArgumentError, match="it has: read, write, admin"):
        remove_key(path, "nobody")


def test_an_application_that_is_mounted_in_another_asks_for_the_same_scopes(
    first_shop: Any, tmp_path: Path, keys: dict[str, str]
) -> None:
    inner = create_app(first_shop.engine(), access=Access(keys=KeyFile(tmp_path / "keys.json")))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with inner.router.lifespan_context(inner):
            yield

    outer = Starlette(routes=[Mount("/shop", inner)], lifespan=lifespan)
    with TestClient(outer, base_url="http://shop.example.com") as client:
        assert client.get("/shop/readyz").status_code == 200
        assert client.post(f"/shop{RECOMMEND}", json={}).status_code == 401
        assert client.post(f"/shop{RECOMMEND}", json={}, headers=bearer(keys["read"])).status_code == 200
        for method, path, scope in (
            ("PUT", "/v1/items", "read"),
            ("PUT", "/v1/rules/x", "write"),
            ("GET", "/v1/rules", "write"),
        ):
            assert client.request(method, f"/shop{path}", json={}, headers=bearer(keys[scope])).status_code == 403, path


@pytest.mark.parametrize("root", ["/", "/v", "/v1", "/v1/items", "/shop", "/shop/", "//"])
def test_a_root_path_of_a_server_changes_no_scope(first_shop: Any, tmp_path: Path, keys: dict[str, str], root: str) -> None:
    app = create_app(first_shop.engine(), access=Access(keys=KeyFile(tmp_path / "keys.json")))
    calls = ("PUT", "/v1/items"), ("DELETE", "/v1/items/1000"), ("GET", "/v1/rules"), ("POST", "/v1/catalog/rollback")
    with TestClient(app, base_url="http://shop.example.com", root_path=root) as client:
        for prefix in ("", root.rstrip("/")):
            for method, path in calls:
                status = client.request(method, f"{prefix}{path}", json={}, headers=bearer(keys["read"])).status_code
                assert status in (403, 404), (method, prefix, path, status)


def test_a_method_that_a_path_lacks_needs_what_its_changes_need(served: Any, keys: dict[str, str]) -> None:
    client, _, _ = served
    assert client.put("/v1/catalog", headers=bearer(keys["read"])).status_code == 405
    assert client.put("/v1/catalog/rollback", headers=bearer(keys["write"])).status_code == 403
    assert client.patch("/v1/rules/x", headers=bearer(keys["write"])).status_code == 403
    assert client.head("/v1/catalog", headers=bearer(keys["read"])).status_code in (200, 405)


def test_each_scope_may_do_what_those_before_it_may(served: Any, keys: dict[str, str]) -> None:
    client, _, _ = served
    calls = [
        ("POST", RECOMMEND, 0), ("GET", "/metrics", 0), ("GET", "/docs", 0), ("GET", "/openapi.json", 0),
        ("GET", "/v1/models", 0), ("GET", "/v1/catalog", 0), ("GET", "/v1/items/1000", 0), ("GET", "/v1/nothing", 0),
        ("PUT", "/v1/items", 1), ("DELETE", "/v1/items/1000", 1), ("POST", "/v1/interactions", 1),
        ("GET", "/v1/rules", 2), ("PUT", "/v1/rules/x", 2), ("DELETE", "/v1/rules/x", 2),
        ("GET", "/v1/boosts", 2), ("PUT", "/v1/boosts/x", 2), ("DELETE", "/v1/boosts/x", 2),
        ("POST", "/v1/catalog/rollback", 2), ("POST", "/v1/catalog/compact", 2), ("DELETE", "/v1/catalog/snapshots/x", 2),
    ]  # fmt: skip
    for method, path, needed in calls:
        for rank, scope in enumerate(("read", "write", "admin")):
            status = client.request(method, path, json={}, headers=bearer(keys[scope])).status_code
            assert (status == 403) == (rank < needed), (method, path, scope, status)
            assert status != 401
        assert client.request(method, path, json={}).status_code == 401
    for path in ("/healthz", "/readyz", "/", "/playground/main.js"):
        assert client.get(path).status_code == 200
    for path in ("/playground", "/playground/../v1/items", "/playground/%2e%2e/v1/items", "//v1/items"):
        assert client.get(path).status_code in (401, 404)


def test_without_a_key_a_ready_server_names_no_rules(served: Any, keys: dict[str, str]) -> None:
    client, _, _ = served
    known = client.get("/readyz", headers=bearer(keys["read"])).json()
    assert known["rules"].keys() == {"cheap", "in_stock", "none"}
    for headers in ({}, bearer("lb_" + "x" * 43)):
        assert client.get("/readyz", headers=headers).json() == {**known, "rules": {}}


def test_answers_do_not_say_which_part_was_wrong(served: Any, keys: dict[str, str]) -> None:
    client, _, _ = served
    wrong = [
        {}, {"authorization": ""}, bearer(""), bearer("lb_" + "x" * 43), bearer(keys["read"] + "x"), bearer(keys["read"][:-1]),
        {"authorization": f"Basic {keys['read']}"}, {"authorization": keys["read"]}, {"authorization": "Bearer"},
        {"authorization": b"Bearer \xff\xfe\x80"}, {"x-api-key": keys["read"]}, bearer(digest_of(keys["read"])),
        bearer("x" * 20_000),
    ]  # fmt: skip
    answers = [client.post(RECOMMEND, json={}, headers=headers) for headers in wrong]
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.text for answer in answers}) == 1
    assert answers[0].headers["www-authenticate"] == "Bearer"
    refused = [client.put("/v1/items", headers=bearer(keys["read"])), client.put("/v1/rules/a", headers=bearer(keys["write"]))]
    assert {answer.status_code for answer in refused} == {403}
    assert len({answer.text for answer in refused}) == 1
    assert "use a key of a wider scope" in refused[0].json()["error"]["message"]


def test_keys_come_and_go_while_a_server_runs(served: Any, tmp_path: Path, keys: dict[str, str], caplog: Any) -> None:
    client, file, clock = served
    path = tmp_path / "keys.json"
    new = add_key(path, "new", "read")
    remove_key(path, "read")
    assert client.post(RECOMMEND, json={}, headers=bearer(new)).status_code == 401  # not looked at yet
    clock.now += 1
    assert client.post(RECOMMEND, json={}, headers=bearer(new)).status_code == 200
    assert client.post(RECOMMEND, json={}, headers=bearer(keys["read"])).status_code == 401
    for content in ("", "{}", '{"keys": 3}', '{"keys": [{"name": "x"}]}', "[" * 5000, None):
        path.unlink() if content is None else path.write_text(content)
        clock.now += 1
        assert client.post(RECOMMEND, json={}, headers=bearer(new)).status_code == 200
        assert "the keys stay as they were" in caplog.text
        caplog.clear()
    path.write_text('{"keys": []}')
    clock.now += 1
    assert client.post(RECOMMEND, json={}, headers=bearer(new)).status_code == 401
    assert len(file) == 0


def test_a_key_beyond_its_rate_gets_429_until_it_has_waited(served: Any, tmp_path: Path, keys: dict[str, str]) -> None:
    client, _, clock = served
    slow = bearer(add_key(tmp_path / "keys.json", "slow", "read", rate=2.0))
    clock.now += 1
    statuses = [client.get("/v1/models", headers=slow) for _ in range(3)]
    assert [answer.status_code for answer in statuses] == [200, 200, 429]
    assert (statuses[2].headers["retry-after"], statuses[2].json()["error"]["reason"]) == ("1", "key_rate")
    assert statuses[2].json()["error"]["retry_after_ms"] == 500
    assert client.get("/v1/models", headers=bearer(keys["read"])).status_code == 200  # other keys have their own
    clock.now += 0.5
    assert [client.get("/v1/models", headers=slow).status_code for _ in range(2)] == [200, 429]
    clock.now += 1000
    assert [client.get("/v1/models", headers=slow).status_code for _ in range(3)] == [200, 200, 429]
    assert client.put("/v1/items", headers=bearer(keys["read"])).status_code == 403
    page = client.get("/metrics", headers=bearer(keys["read"])).text
    for reason, number in (("key_rate", 3), ("forbidden", 1), ("unauthorized", 0)):
        assert f'leafbeam_access_refused_total{{reason="{reason}"}} {number:.1f}' in page


def test_a_rate_changes_while_a_server_runs(served: Any, tmp_path: Path, keys: dict[str, str]) -> None:
    client, _, clock = served
    path = tmp_path / "keys.json"
    entries = json.loads(path.read_text())
    entries["keys"][0]["rate"] = 1.0
    path.write_text(json.dumps(entries))
    clock.now += 1
    assert [client.get("/v1/models", headers=bearer(keys["read"])).status_code for _ in range(2)] == [200, 429]
    entries["keys"][0]["rate"] = 3.0
    path.write_text(json.dumps(entries) + " ")
    clock.now += 1
    assert [client.get("/v1/models", headers=bearer(keys["read"])).status_code for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.parametrize(
    "content",
    [
        "", "no json", "[]", "{}", '{"keys": {}}', '{"keys": [1]}', "\ud800".encode("utf-8", "surrogatepass"),
        '{"keys": [{"name": "a", "scope": "root", "sha256": "%s"}]}' % ("0" * 64),
        '{"keys": [{"name": "a", "scope": "read", "sha256": "%s"}]}' % ("g" * 64),
        '{"keys": [{"name": "a", "scope": "read", "sha256": 3}]}',
        '{"keys": [{"name": "a", "scope": ["read"], "sha256": "%s"}]}' % ("0" * 64),
        '{"keys": [{"name": "../a", "scope": "read", "sha256": "%s"}]}' % ("0" * 64),
        '{"keys": [{"name": "a", "scope": "read", "sha256": "%s", "rate": -1}]}' % ("0" * 64),
        '{"keys": [{"name": "a", "scope": "read", "sha256": "%s", "rate": NaN}]}' % ("0" * 64),
        json.dumps({"keys": [{"name": "a", "scope": "read", "sha256": "0" * 64}] * 2}),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_keys_is_refused_before_anything_is_served(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError):
        KeyFile(path)


def test_of_ten_thousand_keys_each_is_its_own_and_a_changed_one_is_none(tmp_path: Path) -> None:
    """A7"""
    path = tmp_path / "keys.json"
    entries = [{"name": f"k{number}", "scope": "read", "sha256": digest_of(f"secret {number}")} for number in range(10_000)]
    path.write_text(json.dumps({"keys": entries}))
    keys = KeyFile(path)
    assert len(keys) == 10_000
    for number in (0, 1, 4_999, 9_999):
        found = keys.find(f"Bearer secret {number}")
        assert found is not None
        assert found.name == f"k{number}"
    for wrong in ("Bearer secret 10000", "Bearer ", "Bearer", "Basic secret 1", f"Bearer {entries[3]['sha256']}", "", None):
        assert keys.find(wrong) is None


def test_a_request_hashes_its_key_once_however_many_keys_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A7: no key of the file is looked at but the one with the hash."""
    path, compared = tmp_path / "keys.json", list[str]()
    entries = [{"name": f"k{number}", "scope": "read", "sha256": digest_of(f"secret {number}")} for number in range(1000)]
    path.write_text(json.dumps({"keys": entries}))
    keys = KeyFile(path)

    class Counted(Key):
        def __getattribute__(self, name: str) -> Any:
            compared.append(name)
            return super().__getattribute__(name)

    monkeypatch.setattr(keys, "_keys", {key.sha256: Counted(**asdict(key)) for key in read_keys(path)})
    compared.clear()
    assert keys.find("Bearer secret 500") is not None
    assert keys.find("Bearer other") is None
    assert compared == []


def test_two_keys_of_one_hash_are_refused(tmp_path: Path) -> None:
    """A7"""
    entries = [{"name": name, "scope": scope, "sha256": "0" * 64} for name, scope in (("a", "read"), ("b", "admin"))]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": entries}))
    with pytest.raises(DataError, match="'a' and 'b' have the same sha256"):
        KeyFile(tmp_path / "keys.json")


def test_keys_are_made_listed_and_removed_by_command(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def call(*words: str) -> Any:
        return CliRunner().invoke(app, ["keys", *words, "--keys", str(path)], env={"COLUMNS": "100"})

    made = call("add", "shop", "--scope", "write", "--rate", "50").stdout.strip()
    assert KeyFile(path).find(f"Bearer {made}") == read_keys(path)[0]
    listed = call("list").stdout
    assert "shop" in listed
    assert "write" in listed
    assert made not in listed
    assert call("remove", "shop").exit_code == 0
    assert KeyFile(path).find(f"Bearer {made}") is None
    assert call("remove", "shop").exit_code == 2
    assert call("add", "no name").exit_code == 2


@pytest.mark.parametrize("has_keys", [False, True])
def test_each_route_names_the_scope_of_the_key_that_it_needs(has_keys: bool) -> None:
    """A9"""
    document = document_of(Limits(), has_text=True, has_keys=has_keys)
    ((scheme, fields),) = document["components"]["securitySchemes"].items()
    assert (fields["type"], fields["scheme"]) == ("http", "bearer")
    needed = {
        (method.upper(), path): operation["security"]
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    scopes = {route: security[0][scheme][0] for route, security in needed.items() if security}
    assert [route[1] for route in needed.keys() - scopes.keys()] == [
        path for _, path in needed.keys() - scopes.keys() if "health" in path or path == "/readyz"
    ]
    for route, scope in (
        (("POST", "/v1/recommend"), "read"),
        (("GET", "/v1/items"), "read"),
        (("PUT", "/v1/items"), "write"),
        (("DELETE", "/v1/items/{item_id}"), "write"),
        (("POST", "/v1/interactions"), "write"),
        (("PUT", "/v1/rules/{name}"), "admin"),
        (("POST", "/v1/catalog/rollback"), "admin"),
        (("GET", "/metrics"), "read"),
    ):
        assert scopes[route] == scope, route
        assert needed[route] == [{scheme: [scope]}] + ([] if has_keys else [{}])
