"""The second process: sends planned requests over HTTP/1.1 when they are due, and writes down what came back.

    python -m benchmarks.serving.load_client PLAN ANSWERS URL...

Several servers get requests in turns, at the path of their URL, else at /v1/recommend. PLAN: one JSON object a line, `at` and
`body`. ANSWERS: one a line, in the order in which they came back. A small client of its own, because a general one would take
more of the machine than the server that it measures: connections are kept and reused, and as many are opened as requests are
under way.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from benchmarks.serving.load import Answered, Planned, read_trace

__all__ = ["send_all"]

_GIVE_UP_S = 60.0
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def send_all(urls: Sequence[str], planned: Sequence[Planned]) -> list[Answered]:
    """Send every request at its time, independent of earlier answers, to the servers in turns.

    A connection that breaks is an answer of status 0.
    """
    places = [urlsplit(url) for url in urls]
    hosts = [(place.hostname or "127.0.0.1", place.port or 80) for place in places]
    idle_of: list[list[Connection]] = [[] for _ in urls]
    answers: list[Answered] = []
    bodies = [_request(places[n % len(urls)], json.dumps(one.body).encode()) for n, one in enumerate(planned)]

    async def send(one: Planned, raw: bytes, due: float, server: int) -> None:
        idle, (host, port) = idle_of[server], hosts[server]
        late = time.perf_counter() - due
        status, body = 0, b"{}"
        connection: Connection | None = None
        try:
            async with asyncio.timeout(_GIVE_UP_S):
                connection = _take(idle) or await asyncio.open_connection(host, port)
                connection[1].write(raw)
                status, body, stays = await _answer(connection[0])
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            stays, body = False, json.dumps({"error": {"type": type(error).__name__, "message": str(error)}}).encode()
        answers.append(
            Answered(at=one.at, late=late, status=status, seconds=time.perf_counter() - due, body=_slim(json.loads(body)))
        )
        if connection is not None:
            if stays:
                idle.append(connection)
            else:
                await _close(connection[1])

    began = time.perf_counter() + 0.05
    running: set[asyncio.Task[None]] = set()
    for number, (one, raw) in enumerate(zip(planned, bodies, strict=True)):
        wait = began + one.at - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(send(one, raw, began + one.at, number % len(urls)))
        running.add(task)
        task.add_done_callback(running.discard)
    if running:
        await asyncio.gather(*running)
    await asyncio.gather(*(_close(writer) for idle in idle_of for _, writer in idle))
    return answers


def _take(idle: list[Connection]) -> Connection | None:
    """The connection used last; those that the server has closed since, as it does with idle ones, are thrown away."""
    while idle:
        connection = idle.pop()
        if not connection[0].at_eof():
            return connection
        connection[1].close()
    return None


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _request(place: SplitResult, body: bytes) -> bytes:
    head = [f"POST {place.path.rstrip('/') or '/v1/recommend'} HTTP/1.1", f"host: {place.hostname}"]
    head += ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


async def _answer(reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
    """(status, body, whether the connection may be used again)."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(fields["content-length"]))
    return int(first.split(" ")[1]), body, fields.get("connection", "").lower() != "close"


def _slim(body: dict[str, Any]) -> dict[str, Any]:
    """What is looked at afterwards."""
    return {name: body[name] for name in ("item_ids", "batch_size", "timings_ms", "error") if name in body}


def main(plan: str, answers: str, *urls: str) -> None:
    planned = read_trace(Path(plan))
    gc.disable()  # a pause of the client would look like one of the server
    found = asyncio.run(send_all(urls, planned))
    Path(answers).write_text("".join(json.dumps(asdict(one)) + "\n" for one in found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
