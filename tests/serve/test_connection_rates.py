"""Hostile clients below HTTP: how much a connection reads at a time, the rate that clients share, and limits that cannot be."""

import asyncio
import math
from contextlib import suppress

import pytest
import uvicorn
from uvicorn.server import ServerState

from leafbeam.errors import ArgumentError
from leafbeam.serve.connection import BoundedConnection
from leafbeam.serve.exposure import ConnectionLimits, descriptor_limit
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


class Fed:
    """Connections that have received what fills their buffers, or a body that does, and are not answered yet."""

    def __init__(self, count: int, bulk_bytes_per_s: float, sent: bytes) -> None:
        config = uvicorn.Config(echo, log_config=None, lifespan="off")
        config.load()
        limits = ConnectionLimits(max_connections=9, bulk_bytes_per_s=bulk_bytes_per_s)
        factory, self.state = BoundedConnection.factory(limits, lambda reason: None), ServerState()
        self.begun, self.transports = asyncio.get_running_loop().time(), [Transport() for _ in range(count)]
        self.connections = [factory(config=config, server_state=self.state, app_state={}) for _ in range(count)]
        for connection, transport in zip(self.connections, self.transports, strict=True):
            connection.connection_made(transport)
            buffer = connection.get_buffer(-1)
            assert len(buffer) <= 8192
            sent = sent.ljust(len(buffer), b"x") if sent.endswith(b"\n\r\n") else sent
            buffer[: len(sent)] = sent
            connection.buffer_updated(len(sent))

    async def seconds_until_read(self) -> list[float]:
        times: list[float] = []
        for connection, transport in zip(self.connections, self.transports, strict=True):
            while not transport.reads:
                await asyncio.sleep(0.001)
            times.append(asyncio.get_running_loop().time() - self.begun)
            connection.connection_lost(ConnectionResetError())
        await asyncio.gather(*self.state.tasks)
        return times


LONG = b"POST / HTTP/1.1\r\ncontent-length: 99999\r\n\r\n"
CHUNKS = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200


def test_a_connection_reads_a_bounded_part_in_each_turn_of_the_loop() -> None:
    async def run() -> list[bool]:
        fed = Fed(1, math.inf, LONG)
        (connection,), (transport,) = fed.connections, fed.transports
        states = [transport.reads]
        await asyncio.sleep(0.01)
        states.append(transport.reads)
        connection.buffer_updated(6)
        states.append(transport.reads)
        assert not connection.cycle.disconnected
        connection.eof_received()
        assert connection.cycle.disconnected
        await fed.seconds_until_read()
        return states

    assert asyncio.run(run()) == [False, True, True]


@pytest.mark.parametrize(
    ("sent", "rate", "seconds"),
    [(LONG, 8192 / 0.05, [0.049, 0.099]), (CHUNKS, 1e6, [0.051])],  # of 1,200 bytes alone there would be no wait
    ids=["clients share it", "a chunk takes a share"],
)
def test_what_is_sent_in_bulk_is_read_at_a_rate(sent: bytes, rate: float, seconds: list[float]) -> None:
    async def run() -> list[float]:
        return await Fed(len(seconds), rate, sent).seconds_until_read()

    assert all(found >= wanted for found, wanted in zip(asyncio.run(run()), seconds, strict=True))


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


def test_limits_that_cannot_be_are_refused() -> None:
    for wrong in ({"max_header_bytes": 10}, {"header_s": 0}, {"max_connections": 0}, {"idle_s": float("nan")}):
        with pytest.raises(ArgumentError, match="must be"):
            ConnectionLimits(**wrong)  # type: ignore[arg-type]
    assert 8 <= descriptor_limit() <= 16_384
