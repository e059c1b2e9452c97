"""Hostile clients, each in a process of its own: what they send, repeated on command.

    python -m benchmarks.serving.hostile_client URL

Each line of standard input is `SECONDS ATTACK`: repeat it for so long, each time on a new connection, and print how many
were made; with 0 seconds, one.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

__all__ = ["ATTACKS", "HEALTH", "post"]

_PATIENCE_S = 2.0  # of a hostile client with its own request


def post(body: bytes, *, length: int | None = None) -> bytes:
    head = "POST /v1/recommend HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: "
    return f"{head}{len(body) if length is None else length}\r\n\r\n".encode() + body


def _array(field: str, value: str, count: int) -> bytes:
    return post(f'{{"{field}": [{",".join([value] * count)}]}}'.encode())


def _sent(data: bytes) -> Callable[[socket.socket], None]:
    """Sends a request and waits for the answer's first bytes."""

    def attack(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.recv(65536)

    return attack


def _long_header(connection: socket.socket) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\nx: ")
    for _ in range(1600):  # 100 MB
        connection.sendall(b"a" * 65536)


def _slowly(data: bytes) -> Callable[[socket.socket], None]:
    def attack(connection: socket.socket) -> None:
        for byte in data:
            connection.sendall(bytes([byte]))
            time.sleep(0.002)

    return attack


def _half_body(connection: socket.socket) -> None:
    connection.sendall(post(b'{"history": [' + b"1," * 250_000, length=1_000_000))
    time.sleep(0.2)


def _silent(connection: socket.socket) -> None:
    place = connection.getpeername()
    others = [socket.create_connection(place, timeout=_PATIENCE_S) for _ in range(200)]
    time.sleep(1.0)
    for other in others:
        other.close()


def _cancelled(connection: socket.socket) -> None:
    connection.sendall(post(b'{"num_items": 3}'))


def _unread(connection: socket.socket) -> None:
    for _ in range(100):
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\n\r\n" * 10)
        time.sleep(0.005)


def _work(connection: socket.socket) -> None:
    sum(range(100_000))


HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
ATTACKS: dict[str, Callable[[socket.socket], None]] = {
    "busy": _work,
    "349,000 empty lists": _sent(_array("history", "[]", 349_000)),
    "170,000 floats": _sent(_array("history", "1.5", 170_000)),
    "500,000 numbers as rules": _sent(_array("rules", "1", 500_000)),
    "95,000 ids": _sent(_array("history", "1234567890", 95_000)),
    "the most ids allowed": _sent(post(b'{"history": [%b0], "deny_item_ids": [%b0]}' % (b"123456," * 2047, b"123456," * 9999))),
    "strings of 1 MB": _sent(post(b'{"user": "' + b"\\u00e9" * 170_000 + b'"}')),
    "header of 100 MB": _long_header,
    "8,000 headers": _sent(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 8_000 + b"\r\n"),
    "slow headers": _slowly(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 30),
    "half a body": _half_body,
    "chunks of one byte": _sent(b"POST /v1/recommend HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200_000),
    "20,000 pipelined requests": _sent(b"GET /healthz HTTP/1.1\r\n\r\n" * 20_000),
    "200 silent connections": _silent,
    "cancelled requests": _cancelled,
    "answers not read": _unread,
}


def main(url: str) -> None:
    """Obey standard input."""
    place = urlsplit(url)
    for line in sys.stdin:
        seconds, _, attack = line.strip().partition(" ")
        sent, end = 0, time.perf_counter() + float(seconds)
        while sent == 0 or time.perf_counter() < end:
            with (
                suppress(OSError),
                socket.create_connection((place.hostname or "", place.port or 80), _PATIENCE_S) as connection,
            ):
                ATTACKS[attack](connection)
            sent += 1
        print(sent, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
