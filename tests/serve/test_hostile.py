"""Attacks of one client on a real server: how long they hold its event loop, and what memory they take."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.resident import peak_bytes, resident_bytes
from benchmarks.serving.hostile_client import ATTACKS
from benchmarks.serving.loop_time import timed_callbacks
from leafbeam.serve import Server, ServerConfig

PATIENCE = 20


@pytest.fixture(scope="module")
def server(first_shop) -> Iterator[tuple[Server, NDArray[np.float64]]]:
    """A server, and the CPU seconds of the longest callback of its loop."""
    engine, longest, ready = first_shop.engine(), np.zeros(1), threading.Event()
    engine.warm_up()
    with timed_callbacks(longest):
        server = Server(engine, config=ServerConfig(port=0), on_ready=lambda line: ready.set())
        runner = threading.Thread(target=server.run)
        runner.start()
        assert ready.wait(PATIENCE)
        try:
            yield server, longest
        finally:
            server.stop()
            runner.join(PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "busy"])
def test_one_attack_holds_the_loop_for_milliseconds_and_takes_little_memory(server, attack: str) -> None:
    running, longest = server
    with httpx.Client(base_url=running.url, timeout=PATIENCE) as quiet:
        assert quiet.get("/healthz").status_code == 200
        before = resident_bytes()[0]
        peak_bytes(anew=True)
        for _ in range(3):  # a busy machine slows one down, and a slow callback all of them
            longest[0] = 0.0
            with suppress(OSError), socket.create_connection(("127.0.0.1", running.port), PATIENCE) as connection:
                ATTACKS[attack](connection)
            assert quiet.get("/healthz").status_code == 200
            if longest[0] < 0.02:
                break
        assert 0 < longest[0] < 0.02  # CPU time; about 3 ms at most, and a body or header took seconds once
        assert peak_bytes() - before < 10_000_000
