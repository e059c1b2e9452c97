"""Hostile clients below HTTP: how much a connection reads at a time, the rate that clients share, and limits that cannot be."""

import asyncio
import math
from contextlib import suppress

import pytest
import uvicorn
from uvicorn.server import ServerState

from leafbeam.errors import ArgumentError
from leafbeam.serve.connection import BoundedConnection
from leafbeam.serve.connection_limits import ConnectionLimits, descriptor_limit
from tests.fixtures.raw_connections import answer, connect, echo, serving


class Transport(asyncio.Transport):
    """Of a client that has sent more than the server has read. reads: whether the server reads now."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0  # `pause_writing` is called for the first byte that a client does not read


def test_a_connection_reads_a_bounded_part_in_each_turn_of_the_loop() -> None:
    async def run() -> list[bool]:
        config = uvicorn.Config(echo, log_config=None, lifespan="off")
        config.load()
        limits = ConnectionLimits(max_connections=9, bulk_bytes_per_s=math.inf)
        factory = BoundedConnection.factory(limits, lambda reason: None)
        connection = factory(config=config, server_state=(state := ServerState()), app_state={})
        connection.connection_made(transport := Transport())
        buffer = connection.get_buffer(-1)
        assert len(buffer) <= 8192
        buffer[:] = b"POST / HTTP/1.1\r\ncontent-length: 99999\r\n\r\n".ljust(len(buffer), b"x")
        connection.buffer_updated(len(buffer))
        states = [transport.reads]
        await asyncio.sleep(0.01)
        states.append(transport.reads)
        connection.buffer_updated(6)
        states.append(transport.reads)
        assert not connection.cycle.disconnected
        connection.eof_received()
        assert connection.cycle.disconnected
        connection.connection_lost(ConnectionResetError())
        await asyncio.gather(*state.tasks)
        return states

    assert asyncio.run(run()) == [False, True, True]


def test_clients_that_send_much_share_a_rate() -> None:
    async def run() -> list[float]:
        config = uvicorn.Config(echo, log_config=None, lifespan="off")
        config.load()
        limits = ConnectionLimits(max_connections=9, bulk_bytes_per_s=8192 / 0.05)
        factory, state, loop = BoundedConnection.factory(limits, lambda reason: None), ServerState(), asyncio.get_running_loop()
        begun, transports = loop.time(), [Transport(), Transport()]
        connections = [factory(config=config, server_state=state, app_state={}) for _ in transports]
        for connection, transport in zip(connections, transports, strict=True):
            connection.connection_made(transport)
            buffer = connection.get_buffer(-1)
            buffer[:] = b"POST / HTTP/1.1\r\ncontent-length: 99999\r\n\r\n".ljust(len(buffer), b"x")
            connection.buffer_updated(len(buffer))
        times: list[float] = []
        for connection, transport in zip(connections, transports, strict=True):
            while not transport.reads:
                await asyncio.sleep(0.001)
            times.append(loop.time() - begun)
            connection.connection_lost(ConnectionResetError())
        await asyncio.gather(*state.tasks)
        return times

    first, second = asyncio.run(run())
    assert first >= 0.049
    assert second >= 0.099


def test_a_chunk_takes_a_share_of_the_rate() -> None:
    async def run() -> float:
        config = uvicorn.Config(echo, log_config=None, lifespan="off")
        config.load()
        limits = ConnectionLimits(max_connections=9, bulk_bytes_per_s=1e6)
        factory, state, loop = BoundedConnection.factory(limits, lambda reason: None), ServerState(), asyncio.get_running_loop()
        begun, transport = loop.time(), Transport()
        connection = factory(config=config, server_state=state, app_state={})
        connection.connection_made(transport)
        body = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200
        connection.get_buffer(-1)[: len(body)] = body
        connection.buffer_updated(len(body))
        while not transport.reads:
            await asyncio.sleep(0.001)
        waited = loop.time() - begun
        connection.connection_lost(ConnectionResetError())
        await asyncio.gather(*state.tasks)
        return waited

    assert asyncio.run(run()) >= 0.051  # of 1,200 bytes alone there would be no wait


def test_a_body_of_tiny_chunks_is_refused_and_lines_as_chunks_are_not() -> None:
    head = b"POST / HTTP/1.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    with serving() as (port, refused):
        with connect(port) as client:
            with suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(head + b"1\r\nx\r\n" * 4097)
            status, error = answer(client)
            assert (status, error["reason"]) == (400, "small_chunks")
        with connect(port) as client, client.makefile("rb") as file:
            client.sendall(head + b"c\r\n{'id': 12345\r\n" * 10_000 + b"0\r\n\r\n")
            assert file.read().endswith(b"\r\n120000")
        assert refused == ["small_chunks"]


def test_more_headers_than_a_request_needs_are_refused() -> None:
    with serving(max_headers=5) as (port, _), connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 6 + b"\r\n")
        status, body = answer(client)
    assert status == 431
    assert "up to 5 headers of" in body["message"]


def test_limits_that_cannot_be_are_refused() -> None:
    for wrong in ({"max_header_bytes": 10}, {"header_s": 0}, {"max_connections": 0}, {"idle_s": float("nan")}):
        with pytest.raises(ArgumentError, match="must be"):
            ConnectionLimits(**wrong)  # type: ignore[arg-type]
    assert 8 <= descriptor_limit() <= 16_384
