"""TLS, pages of other sites, request ids, and servers that other machines reach."""

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from leafbeam.engine import Engine
from leafbeam.errors import ArgumentError
from leafbeam.serve import Access, Exposure, KeyFile, Server, ServerConfig, create_app
from leafbeam.serve.keys import add_key
from tests.serve.running import thread

RECOMMEND = "/v1/recommend"


def test_answers_come_over_tls(first_shop: Any, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    with thread(first_shop.engine(), exposure=Exposure(certificate=chain, private_key=key)) as server:
        assert server.url.startswith("https://127.0.0.1:")
        with httpx.Client(verify=ssl.create_default_context(cafile=str(chain))) as client:
            assert client.post(server.url + RECOMMEND, json={}).json()["num_valid"] == 10
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url.replace("https", "http") + "/healthz")


def test_files_that_are_no_certificate_with_its_key_are_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    chain, key = certificate
    (tmp_path / "empty.pem").touch()
    for files in ((tmp_path / "none.pem", key), (tmp_path / "empty.pem", key), (chain, chain), (chain, None), (key, key)):
        with pytest.raises(ArgumentError, match="is not a certificate with its private key"):
            Exposure(certificate=files[0], private_key=files[1])
    with pytest.raises(ArgumentError, match="the private key has no certificate"):
        Exposure(private_key=key)


def test_a_server_that_other_machines_reach_needs_keys(first_shop: Any, tmp_path: Path) -> None:
    engine = first_shop.engine()
    for host in ("0.0.0.0", "::", ""):
        with pytest.raises(ArgumentError, match="leafbeam keys add NAME"):
            Server(engine, config=ServerConfig(host=host, port=0))
    add_key(tmp_path / "keys.json", "shop", "read")
    access = Access(keys=KeyFile(tmp_path / "keys.json"))
    with thread(engine, host="0.0.0.0", access=access) as server:
        assert httpx.post(f"http://127.0.0.1:{server.port}{RECOMMEND}", json={}).status_code == 401


def test_pages_of_other_sites_read_answers_only_if_they_are_named(first_shop: Any) -> None:
    site = "https://shop.example.com"
    preflight = {"origin": site, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    with first_shop.engine() as engine:
        closed = TestClient(create_app(engine))
        assert closed.options(RECOMMEND, headers=preflight).status_code == 405
        assert "access-control-allow-origin" not in closed.post(RECOMMEND, json={}, headers={"origin": site}).headers
        opened = TestClient(create_app(engine, config=ServerConfig(exposure=Exposure(origins=(site,)))))
        assert opened.options(RECOMMEND, headers=preflight).headers["access-control-allow-origin"] == site
        answer = opened.post(RECOMMEND, json={}, headers={"origin": site})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, site)
        other = opened.post(RECOMMEND, json={}, headers={"origin": "https://other.example.com"})
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", RECOMMEND, 500),
        ("GET", "/nothing", 404),
        ("GET", RECOMMEND, 405),
        ("POST", "/v1/completions", 400),
        ("PUT", "/v1/items", 403),
    ],
)
def test_a_page_of_a_named_site_reads_every_error(
    first_shop: Any, monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int
) -> None:
    """A9"""

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("a fault of the server")

    site = "https://shop.example.com"
    monkeypatch.setattr(Engine, "submit", fail)
    with first_shop.engine() as engine:
        client = TestClient(
            create_app(engine, config=ServerConfig(exposure=Exposure(origins=(site,)))),
            base_url="http://127.0.0.1",
            raise_server_exceptions=False,
        )
        answer = client.request(method, path, json={} if path == RECOMMEND else None, headers={"origin": site})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == site
        assert "x-request-id" in answer.headers


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "shop.example.com",
        "https://",
        "https://a; script-src *",
        "https://a,https://b",
        "https://ä.example",
        "https://a/",
        "https://a/b",
        "ftp://a",
        "https://u@a",
        "https://a:x",
        "null",
    ],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ArgumentError, match="is not the origin of a site"):
        Exposure(origins=(origin,))


def test_refused_keys_and_bodies_that_are_not_json_have_the_headers_of_sites_once(first_shop: Any, tmp_path: Path) -> None:
    """A9: as people reported of other servers, which sent them with good answers alone, or twice."""
    site, key = "https://shop.example.com", add_key(tmp_path / "keys.json", "shop", "read")
    with first_shop.engine() as engine:
        client = TestClient(
            create_app(
                engine,
                config=ServerConfig(exposure=Exposure(origins=(site,))),
                access=Access(keys=KeyFile(tmp_path / "keys.json")),
            )
        )
        for authorization, body, status in (("", b"{}", 401), (f"Bearer {key}", b"{", 400), (f"Bearer {key}", b"{}", 200)):
            headers = {"origin": site, "authorization": authorization, "content-type": "application/json"}
            answer = client.post(RECOMMEND, content=body, headers=headers)
            assert answer.status_code == status
            assert answer.headers.get_list("access-control-allow-origin") == [site]


def test_every_answer_has_the_id_of_its_request(first_shop: Any) -> None:
    with first_shop.engine() as engine:
        client = TestClient(create_app(engine))
        calls = [("GET", "/healthz"), ("GET", "/nothing"), ("POST", RECOMMEND), ("PUT", "/v1/items"), ("DELETE", RECOMMEND)]
        seen = [client.request(method, path).headers["x-request-id"] for method, path in calls]
        assert len(set(seen)) == len(calls)
        assert client.get("/healthz", headers={"x-request-id": "a.B-3_"}).headers["x-request-id"] == "a.B-3_"
        for hostile in ("", "a b", "x" * 65, "<script>", "\xe9"):
            answer = client.get("/healthz", headers={"x-request-id": hostile.encode("latin-1")})
            assert answer.headers["x-request-id"] != hostile
