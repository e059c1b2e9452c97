"""Requests that change a catalog, through the whole application: no failure of the server, and the catalog goes on."""

import asyncio
import atexit
import functools
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from leafbeam.catalog import Catalog
from leafbeam.engine import Engine
from leafbeam.errors import RequestError
from leafbeam.index import Trie
from leafbeam.ingest import CatalogWriter, LiveDirectory
from leafbeam.model import Vocabulary
from leafbeam.retrieve import ItemMemory, LiveMemory, MemoryConfig
from leafbeam.semid import QuantiserConfig, fit_sids
from leafbeam.serve import create_app
from tests.fixtures.shops import small_model

METHODS = {"PUT", "PATCH", "DELETE", "POST", "GET"}
TITLES = ("red shoe", "red boot", "blue shoe", "green tea", "old green tea", "black tea")


@functools.cache
def _app() -> tuple[asyncio.AbstractEventLoop, Any]:
    """The application of six items with texts, an encoder, a rule and a memory."""
    opened = ExitStack()
    folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
    atexit.register(opened.close)
    items = pa.table({"item_id": [f"i{n}" for n in range(6)], "title": TITLES, "price": np.arange(6.0)})
    fitted = fit_sids(items, None, quantiser=QuantiserConfig(codebook_sizes=(2, 4), collision_strategy="spread"))
    sids = fitted.table
    Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids).save(folder / "index.leafbeam")
    ItemMemory.fit(sids.item_ids, np.array([0, 2]), np.array([0, 1]), config=MemoryConfig(shrinkage=0.0)).save(
        folder / "memory"
    )
    Catalog.create(folder / "items.duckdb", items)
    live = opened.enter_context(LiveDirectory.open(folder / "live", folder / "index.leafbeam", sync=False))
    rules = [{"cheap": "price < 3"}, live.rules_file]
    catalog = opened.enter_context(Catalog.open(folder / "items.duckdb", live.index, rules, rule_timeout_s=1.0))
    memory = opened.enter_context(LiveMemory.open(folder / "memory"))
    writer = CatalogWriter(catalog, live, encoder=fitted.encoder, memory=memory)
    model = small_model(Vocabulary(codebook_sizes=sids.codebook_sizes), intermediate_size=16)
    return asyncio.new_event_loop(), create_app(Engine(model, catalog, memory=memory), writer=writer)


def fuzz_changes(data: bytes) -> None:
    """The first line is a method, a path and a content type; the rest is the body. An answer of 4xx is refused input."""
    loop, app = _app()
    head, _, body = data.partition(b"\n")
    method, path, kind, *_ = [*head.decode("utf-8", "replace").split(" "), "", "", ""]
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "method": method if method in METHODS else "PUT",
        "path": path if path.startswith("/v1/") else "/v1/items",
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), (b"content-type", kind.encode("latin-1", "replace"))],
        "scheme": "http",
        "server": ("localhost", 8000),
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }
    sent: list[dict[str, Any]] = []

    async def run(scope: dict[str, Any], content: bytes) -> int:
        sent.clear()
        messages = [{"type": "http.request", "body": content, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return sent[0]["status"]

    status = loop.run_until_complete(run(scope, body))
    assert status < 500, (status, sent[1:])
    assert loop.run_until_complete(run(scope | {"method": "GET", "path": "/v1/catalog", "query_string": b""}, b"")) == 200
    if status >= 400:
        raise RequestError(f"refused with {status}")
