"""Bodies in another encoding than plain UTF-8: what is wrong with one is said by name, on every route with a body."""

import gzip
import shutil
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.fixtures.servers import served
from tests.serve.running import live

JSON, LINES = "application/json", "application/x-ndjson"
ROUTES = [
    ("POST", "/v1/recommend", JSON, '{"num_items": 3}'),
    ("POST", "/v1/interactions", JSON, '{"interactions": []}'),
    ("POST", "/v1/completions", JSON, '{"model": "items", "prompt": "1000"}'),
    ("PUT", "/v1/items", JSON, '{"item_id": 1, "codes": [1, 2]}'),
    ("PUT", "/v1/items", LINES, '{"item_id": 1, "codes": [1, 2]}'),
    ("PATCH", "/v1/items", LINES, '{"item_id": 1000, "stock": 1}'),
    ("PUT", "/v1/rules/new", JSON, '{"where": "price < 1"}'),
]


@pytest.fixture(scope="module")
def refusing(first_shop: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of a shop that takes changes, of which the tests expect that it refuses all."""
    directory = tmp_path_factory.mktemp("encodings") / "shop"
    shutil.copytree(first_shop.directory, directory)
    with served(replace(first_shop, directory=directory)) as client:
        yield client


@pytest.mark.parametrize(
    ("headers", "compress"),
    [
        ({"content-encoding": "gzip"}, gzip.compress),
        ({"content-encoding": "GZIP"}, gzip.compress),
        ({"content-encoding": "deflate"}, zlib.compress),
        ({"content-encoding": "zstd, identity"}, bytes),
        ({"content-encoding": "gzip"}, bytes),
        ({"transfer-encoding": "gzip, chunked"}, gzip.compress),
    ],
)
def test_a_compressed_body_is_refused_by_name(refusing: TestClient, headers: dict[str, str], compress: Any) -> None:
    """Public report: a gzip body gets an error about an invalid first character of the JSON (ollama 12386)."""
    for method, path, kind, body in ROUTES:
        answer = refusing.request(method, path, content=compress(body.encode()), headers={"content-type": kind, **headers})
        assert answer.status_code == 415, (path, answer.text)
        assert "compressed" in answer.text
    assert refusing.get("/v1/catalog").json()["num_changed"] == 0


def test_the_encoding_identity_is_none(client: TestClient) -> None:
    answer = client.post("/v1/recommend", content=b"{}", headers={"content-type": JSON, "content-encoding": "identity"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("encoding", "says"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16"),
        ("utf-16-be", "UTF-16"),
        ("utf-32", "UTF-32"),
        ("utf-32-be", "UTF-32"),
        ("latin-1", "byte 2 is 0xe9"),
        ("cp1252", "byte 2 is 0xe9"),
    ],
)
def test_json_in_another_encoding_is_refused_with_the_place(refusing: TestClient, encoding: str, says: str) -> None:
    """Public report: a body in another encoding is said to be malformed JSON, though it is JSON (D3 is the same of files)."""
    for method, path, kind, _ in ROUTES:
        body = '{"é": 1}'.encode(encoding)
        answer = refusing.request(method, path, content=body, headers={"content-type": f"{kind}; charset={encoding}"})
        assert (answer.status_code, says in answer.text) == (400, True), (path, answer.text)


def test_a_byte_order_mark_of_utf8_is_left_out_as_in_files(shop: Any) -> None:
    """Public report: PowerShell writes a byte order mark before JSON, which servers call an unexpected character."""
    with served(shop) as client:
        for method, path, kind, body in ROUTES:
            plain, marked = (
                client.request(method, path, content=body.encode(encoding), headers={"content-type": kind})
                for encoding in ("utf-8", "utf-8-sig")
            )
            assert plain.status_code == marked.status_code, (path, marked.text)


def test_http_workers_refuse_the_same(shop: Any) -> None:
    import httpx

    with live(shop, http_workers=1) as url, httpx.Client(base_url=url) as client:
        for path in ("/v1/recommend", "/v1/completions"):
            for content, headers, status in (
                (gzip.compress(b"{}"), {"content-encoding": "gzip"}, 415),
                ('{"é": 1}'.encode("latin-1"), {}, 400),
                ("{}".encode("utf-16"), {}, 400),
            ):
                assert client.post(path, content=content, headers={"content-type": JSON, **headers}).status_code == status
        assert client.post("/v1/recommend", content="{}".encode("utf-8-sig"), headers={"content-type": JSON}).status_code == 200
