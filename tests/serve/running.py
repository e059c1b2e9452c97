"""Servers that run beside a test, in a thread of this process or in one of their own, and what asks them."""

import gc
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import httpx

from leafbeam.engine import CatalogFiles, Engine
from leafbeam.ingest import CatalogWriter
from leafbeam.model import load_model
from leafbeam.serve import Server, ServerConfig
from leafbeam.serve.changes import open_changed

URL = "/v1/recommend"
PATIENCE = 20
_PROGRAM = """
import sys
from leafbeam.engine import CatalogFiles
from leafbeam.serve import ServerConfig, serve
from leafbeam.serve.log_format import configure_log
configure_log("json")
print("loading", flush=True)
model, index, catalog, rules, http_workers = sys.argv[1:]
files = CatalogFiles(index=index, catalog=catalog, rules=rules, rule_timeout_s=3600)
serve(model, files, config=ServerConfig(port=0, grace_s=20, http_workers=int(http_workers)))
"""


@contextmanager
def thread(engine: Engine | None, **options: Any) -> Generator[Server]:
    """A server in a thread of this process.

    engine: or None, with the option `text`. options: of `Server`, or fields of its config.
    """
    if engine is not None:
        engine.warm_up()  # the first compile of the kernels may take longer than the wait below
    lines: list[str] = []
    ready = threading.Event()

    def on_ready(line: str) -> None:
        lines.append(line)
        ready.set()

    names = {field.name for field in fields(ServerConfig)}
    config: dict[str, Any] = {name: options.pop(name) for name in list(options) if name in names}
    server = Server(engine, config=ServerConfig(port=0, **{"grace_s": PATIENCE, **config}), on_ready=on_ready, **options)
    runner = threading.Thread(target=server.run)
    gc.freeze()  # what other tests left: the server collects garbage before it serves, in half a second with them
    runner.start()
    try:
        assert ready.wait(300 if "text" in options else PATIENCE)  # a language model warms up in the server's thread
        assert server.url in lines[0]
        yield server
    finally:
        server.stop()
        runner.join(PATIENCE)
        assert not runner.is_alive()


@contextmanager
def serving(engine: Engine, **options: Any) -> Generator[tuple[Server, httpx.Client]]:
    """The same, and a client of it."""
    with thread(engine, **options) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        yield server, client


@contextmanager
def opened(shop: Any, changes: Any = "auto") -> Generator[tuple[Engine, CatalogWriter | str]]:
    """The engine and the writer of a shop, as `serve` puts them together."""
    model, index, catalog, rules = shop.files
    memory = shop.memory if shop.memory.exists() else None
    with ExitStack() as stack:
        files = CatalogFiles(index=index, catalog=catalog, rules=rules, memory=memory, learn=memory is not None)
        changed = open_changed(files, shop.directory / "live", stack, encoder="there is no encoder here", changes=changes)
        yield Engine(load_model(model), changed.source, memory=changed.memory), changed.writer


@contextmanager
def live(shop: Any, **options: Any) -> Generator[str]:
    """The address of a server of a shop that takes changes."""
    with opened(shop) as (engine, writer), thread(engine, writer=writer, **options) as server:
        yield server.url


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    """A server in a process of its own, which has said that it serves. log_path: of its log, lines of JSON."""

    child: "subprocess.Popen[str]"
    url: str
    log_path: Path

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def http_workers(self) -> list[int]:
        """The processes that it has started for HTTP."""
        return [int(found) for found in re.findall(r"HTTP worker \d is process (\d+)", self.log)]


@contextmanager
def process(shop: Any, *, http_workers: int = 0, while_it_loads: int | None = None) -> Generator[ServerProcess]:
    """A server of a shop in a process of its own. while_it_loads: a signal that it gets before it serves."""
    command = [sys.executable, "-c", _PROGRAM, *map(str, shop.files), str(http_workers)]
    log_path = shop.directory / "log"
    with open(log_path, "w") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "loading\n", log_path.read_text()
            if while_it_loads is not None:
                time.sleep(0.05)
                child.send_signal(while_it_loads)
            line = child.stdout.readline()
            assert line.startswith("leafbeam serves 100 items"), (line, log_path.read_text())
            url = next(word for word in line.split() if word.startswith("http://"))
            yield ServerProcess(child=child, url=url, log_path=log_path)
        finally:
            child.kill()


def until(found: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def post(port: int) -> socket.socket:
    """A connection on which a request has been sent, and nothing read."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    body = b'{"num_items": 3}'
    head = f"POST {URL} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def ask_until_closed(url: str, outcomes: list[object]) -> None:
    """Ask until the server accepts no more; statuses, then "closed", or an error if an answer was cut off."""
    try:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while True:
                outcomes.append(client.post(URL, json={"num_items": 100}).status_code)
    except (httpx.ConnectError, httpx.ReadError, httpx.WriteError):
        outcomes.append("closed")
    except httpx.RemoteProtocolError as error:
        # An idle connection was closed between two requests; half an answer would read otherwise.
        outcomes.append("closed" if "without sending a response" in str(error) else error)


def end_under_load(server: ServerProcess) -> None:
    """SIGTERM while clients keep asking: every request that is in gets its answer, and the process ends."""
    outcomes: list[object] = []
    threads = [threading.Thread(target=ask_until_closed, args=(server.url, outcomes)) for _ in range(4)]
    for one in threads:
        one.start()
    until(lambda: len(outcomes) > 20)
    server.child.send_signal(signal.SIGTERM)
    assert server.child.wait(PATIENCE) == 0
    for one in threads:
        one.join(PATIENCE)
    assert set(outcomes) <= {200, 503, "closed"}
    assert outcomes.count(200) > 20
