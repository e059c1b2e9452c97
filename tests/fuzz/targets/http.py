"""Bytes to the HTTP connection, and bodies to the parser and the checks before the queue."""

import asyncio
import functools
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import uvicorn
from starlette.requests import Request as HttpRequest
from uvicorn.server import ServerState

from leafbeam.catalog import Catalog
from leafbeam.engine import Engine
from leafbeam.index import Trie
from leafbeam.model import Vocabulary
from leafbeam.serve.catalog_schema import MAX_ITEMS
from leafbeam.serve.connection import BoundedConnection
from leafbeam.serve.engine_routes import parse_body, request_of
from leafbeam.serve.exchange import BoundedExecutor
from leafbeam.serve.exposure import ConnectionLimits
from leafbeam.serve.item_search import ItemSearchRoute
from leafbeam.serve.schema import RecommendBody
from tests.fixtures.shops import small_model

LIMITS = ConnectionLimits(max_header_bytes=2048, header_s=1000, max_connections=4)


class MemoryTransport(asyncio.Transport):
    """Collects what the server writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body."""
    size, more = 0, True
    while more and (message := await receive())["type"] != "http.disconnect":
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(str(size)))]})
    await send({"type": "http.response.body", "body": str(size).encode()})


@functools.cache
def _server() -> tuple[asyncio.AbstractEventLoop, uvicorn.Config]:
    config = uvicorn.Config(echo, log_config=None, log_level="error", lifespan="off")
    config.load()
    return asyncio.new_event_loop(), config


def fuzz_http(data: bytes) -> None:
    """Feeds a connection in up to four pieces, as the first byte says; it answers in HTTP, and nothing of it stays."""
    loop, config = _server()
    state, transport, refused = ServerState(), MemoryTransport(), list[str]()

    async def run() -> None:
        factory = BoundedConnection.factory(LIMITS, refused.append)
        connection = factory(config=config, server_state=state, app_state={}, _loop=loop)
        connection.connection_made(transport)
        size = len(data) // (1 + (data[0] & 3 if data else 0)) + 1
        for begin in range(0, len(data), size):
            if not transport.is_closing():
                connection.data_received(data[begin : begin + size])
                await asyncio.sleep(0)
        connection.connection_lost(None)
        async with asyncio.timeout(5):
            await asyncio.gather(*state.tasks)
        assert not factory.keywords["shared"].waiting
        assert not state.connections

    loop.run_until_complete(run())
    assert not transport.written or transport.written.startswith(b"HTTP/1.1 "), transport.written[:80]


@functools.cache
def _engine() -> Engine:
    sizes = (8, 8)
    codes_NL = np.random.default_rng(0).integers(0, 8, (40, 2))
    ids = [f"item {n}" for n in range(39)] + ["é"]
    table = pa.table({"item_id": ids, "title": ids, "price": np.arange(40), "stock": np.arange(40) % 3})
    catalog = Catalog.in_memory(
        table, Trie.build(codes_NL, sizes, item_ids=ids), {"cheap": "price < 20", "in_stock": "stock > 0"}
    )
    return Engine(small_model(Vocabulary(codebook_sizes=sizes), intermediate_size=16), catalog)


@functools.cache
def _item_search() -> ItemSearchRoute:
    return ItemSearchRoute(_engine(), BoundedExecutor("look-ups", 1))


def fuzz_item_query(data: bytes) -> None:
    """The query of `GET /v1/items`, through the route to the table."""
    route, (loop, _) = _item_search(), _server()
    scope = {"type": "http", "method": "GET", "path": "/v1/items", "headers": [], "query_string": data}
    found = loop.run_until_complete(route._found(HttpRequest(scope)))
    answer = msgspec.json.decode(found)
    assert len(answer["items"]) <= MAX_ITEMS
    assert answer["num_allowed"] <= answer["num_items"] == 40


def fuzz_body(data: bytes) -> None:
    """A body through the parser, the limits and the preparation of the engine."""
    engine = _engine()
    request = parse_body(data, "application/json", engine.limits)
    engine.limits.check(request)
    pending = engine._preparer.prepare(request, 0.0)
    assert len(pending.codes) <= len(request.history)
    assert request_of(RecommendBody()) is not None
