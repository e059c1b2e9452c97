"""Hostile clients below HTTP: long, slow and silent headers, too many connections; a quiet client is answered meanwhile."""

import socket
import time
from contextlib import ExitStack, suppress

import httpx
import pytest

from tests.fixtures.raw_connections import GO, PATIENCE, answer, ask, connect, receive_zero, serving


@pytest.mark.parametrize(
    "line",
    [b"GET /%s HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nx: %s\r\n", b"GET / HTTP/1.1\r\n%s: x\r\n", b"GET / HTTP/1.1\r\ncookie: %s"],
    ids=["path", "value", "name", "unfinished"],
)
def test_a_long_header_is_refused_before_it_has_arrived(line: bytes) -> None:
    with serving(max_header_bytes=4096) as (port, refused), connect(port) as client:
        head, _, tail = line.partition(b"%s")
        sent = 0
        try:
            client.sendall(head)
            for _ in range(1000):  # 64 MB
                client.sendall(b"a" * 65_536)
                sent += 65_536
            client.sendall(tail + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        assert sent < 20_000_000  # socket buffers, not the server
        assert refused == ["headers_too_long"]
        assert ask(port) == "9"


MANY = b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: %s\r\n" % (n, b"v" * 20) for n in range(300))


@pytest.mark.parametrize(
    ("limits", "sent", "status", "reason", "message"),
    [
        ({"max_header_bytes": 4096}, MANY, 431, "headers_too_long", "4,096 bytes"),
        ({"max_headers": 5}, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 6 + b"\r\n", 431, "headers_too_long", "up to 5 headers of"),
        ({}, b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\nab\r\n", 400, "not_http", ""),
        ({}, b"POST /slow HTTP/1.1\r\nhost: a\r\n\r\n{}", 400, "not_http", "Content-Length"),  # public report: no answer
        ({}, b"PUT /slow HTTP/1.1\r\nhost: a\r\n\r\n{}", 400, "not_http", "Content-Length"),
        ({}, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "not_http", ""),
        ({}, b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\nGET / HTTP/1.1\r\n\r\n", 400, "not_http", ""),
    ],
    ids=["header bytes", "headers", "chunk", "POST without a length", "PUT without a length", "TLS", "CONNECT"],
)
def test_what_is_refused_gets_the_json_of_every_failure(
    limits: dict[str, int], sent: bytes, status: int, reason: str, message: str
) -> None:
    with serving(**limits) as (port, refused), connect(port) as client:
        client.sendall(sent)
        found, error = answer(client)
        assert (found, error["type"], error["reason"]) == (status, "RequestError", reason)
        assert message in error["message"]
        assert refused == [reason]


def test_trailers_count_as_headers() -> None:
    with serving(max_header_bytes=4096) as (port, refused), connect(port) as client:
        client.sendall(b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
        client.sendall(b"".join(b"t%d: %s\r\n" % (n, b"v" * 40) for n in range(200)))
        client.settimeout(PATIENCE)
        assert client.recv(1000) in (b"",) or refused == ["headers_too_long"]
        assert refused == ["headers_too_long"]


def test_headers_within_the_bound_pass_in_single_bytes() -> None:
    with serving(max_header_bytes=4096) as (port, refused), connect(port) as client:
        for byte in b"POST / HTTP/1.1\r\ncontent-length: 3\r\nconnection: close\r\n\r\nabc":
            client.sendall(bytes([byte]))
        with client.makefile("rb") as file:
            assert file.read().endswith(b"\r\n\r\n3")
        assert refused == []


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"], ids=["silent", "line", "headers"])
def test_headers_that_do_not_arrive_end_the_connection(sent: bytes) -> None:
    with serving(header_s=0.3) as (port, refused), connect(port) as client:
        client.sendall(sent)
        if sent:
            status, error = answer(client)
            assert (status, error["reason"]) == (408, "headers_too_slow")
        else:
            assert client.recv(100) == b""
        assert refused == ["headers_too_slow" if sent else "silent"]


def test_a_slow_second_request_on_a_connection_is_ended_too() -> None:
    with serving(header_s=0.3) as (port, refused), connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(1000).endswith(b"0")
        client.sendall(b"GET / HTTP/1.1\r\nho")
        assert answer(client)[0] == 408
        assert refused == ["headers_too_slow"]


def test_a_quiet_client_is_answered_beside_400_silent_connections() -> None:
    with serving(max_connections=100, header_s=PATIENCE) as (port, refused), ExitStack() as stack:
        quiet = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE))
        for number in range(400):
            silent = stack.enter_context(connect(port))
            silent.sendall(b"" if number % 2 else b"GET / HTTP/1.1\r\nx: ")
            if number % 40 == 0:
                began = time.monotonic()
                assert quiet.post("/", content=b"x" * 9).text == "9"
                assert time.monotonic() - began < PATIENCE / 2
        give_up = time.monotonic() + PATIENCE
        while refused.count("connections") < 300:
            assert time.monotonic() < give_up
            time.sleep(0.02)


def test_a_running_request_is_never_closed_for_a_new_connection() -> None:
    with serving(max_connections=4) as (port, refused), ExitStack() as stack:
        running = [stack.enter_context(connect(port)) for _ in range(4)]
        for client in running:
            client.sendall(b"POST /slow HTTP/1.1\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab")
        give_up = time.monotonic() + PATIENCE
        while "connections" not in refused:  # until the four are known to run
            assert time.monotonic() < give_up
            with connect(port) as late:
                late.settimeout(0.2)
                try:
                    data = late.recv(2000)
                except (TimeoutError, ConnectionResetError):
                    continue
                assert data.startswith(b"HTTP/1.1 503 ") or data == b""
        GO.set()
        for client in running:
            with client.makefile("rb") as file:
                assert file.read().endswith(b"2")


def test_a_request_whose_body_does_not_arrive_gives_way_to_a_new_connection() -> None:
    with serving(max_connections=4) as (port, refused), ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(port)).sendall(b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\na")
        assert ask(port) == "9"
        assert refused == ["connections"]


def test_the_last_of_pipelined_requests_is_not_closed_for_a_new_connection() -> None:
    with serving(max_connections=1) as (port, refused), connect(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\nGET /slow HTTP/1.1\r\nconnection: close\r\n\r\n")
        with client.makefile("rb") as file:
            assert file.readline() == b"HTTP/1.1 200 OK\r\n"  # the first is answered, the second runs
            with connect(port) as late:
                assert answer(late)[0] == 503
            GO.set()
            assert file.read().count(b"200 OK") == 1
        assert refused == ["connections"]


@pytest.mark.parametrize("head", [b"content-length: 99999", b"transfer-encoding: chunked"])
def test_the_rest_of_the_body_of_an_answered_request_gets_no_second_answer(head: bytes) -> None:
    with serving(max_header_bytes=4096) as (port, _), connect(port) as client:
        client.sendall(b"POST /early HTTP/1.1\r\n%s\r\n\r\n" % head)
        receive_zero(client)
        with suppress(BrokenPipeError, ConnectionResetError):
            client.sendall(b"x" * 50_000)
            assert client.recv(1000) == b""


def test_a_connection_answered_before_its_body_was_there_stays_open_behind_it() -> None:
    with serving(header_s=0.2) as (port, refused), connect(port) as client:
        client.sendall(b"POST /early HTTP/1.1\r\ncontent-length: 3\r\n\r\n")
        receive_zero(client)
        client.sendall(b"abc")
        time.sleep(0.4)
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        receive_zero(client)
        assert refused == []


def test_what_follows_an_answer_that_has_begun_gets_none() -> None:
    with serving() as (port, refused), connect(port) as client, client.makefile("rb") as file:
        client.sendall(b"GET / HTTP/1.1\r\n\r\nGET /slow HTTP/1.1\r\n\r\n{}")
        assert file.read().count(b"HTTP/1.1 ") <= 1
        assert refused == ["not_http"]


SITE, OTHER = "https://shop.example.com", "https://other.example.com"
_GARBAGE, _LONG = b"\x16\x03\x01", b"x: y\r\n" * 200


@pytest.mark.parametrize(
    ("origins", "sent", "status", "site"),
    [
        ((SITE,), _GARBAGE, 400, SITE),
        ((SITE, OTHER), _GARBAGE, 400, None),
        ((), _GARBAGE, 400, None),
        ((SITE, OTHER), b"GET / HTTP/1.1\r\nOrigin: %s\r\n" % OTHER.encode() + _LONG, 431, OTHER),
        ((SITE,), b"GET / HTTP/1.1\r\n" + _LONG, 431, SITE),
        ((SITE,), b"GET / HTTP/1.1\r\norigin: %s\r\n" % OTHER.encode() + _LONG, 431, None),
        ((SITE, OTHER), b"GET / HTTP/1.1\r\norigin: %s\r\nx: " % SITE.encode(), 408, SITE),
        (
            (SITE, OTHER),
            b"POST / HTTP/1.1\r\norigin: %s\r\ntransfer-encoding: chunked\r\n\r\n0x2\r\n" % SITE.encode(),
            400,
            SITE,
        ),
        ((SITE, OTHER), b"GET /slow HTTP/1.1\r\norigin: %s\r\n\r\n" % SITE.encode() + _GARBAGE, 400, None),
    ],
)
def test_a_page_of_a_named_site_reads_what_is_refused_before_the_headers_end(
    origins: tuple[str, ...], sent: bytes, status: int, site: str | None
) -> None:
    """A9: a page reads refusals below HTTP too, if its site is known by then."""
    with serving(origins, header_s=0.3, max_headers=50) as (port, _), connect(port) as client:
        client.sendall(sent)
        with client.makefile("rb") as file:
            first, *lines = file.read().split(b"\r\n")
    assert int(first.split()[1]) == status
    assert sites(lines) == ([] if site is None else [site])


def sites(lines: list[bytes]) -> list[str]:
    return [line.split()[1].decode() for line in lines if line.startswith(b"access-control-allow-origin: ")]


def test_the_site_of_a_request_is_not_that_of_the_next() -> None:
    """A9: a connection may carry requests of several sites."""
    with serving((SITE, OTHER)) as (port, _), connect(port) as client, client.makefile("rb") as file:
        client.sendall(b"GET / HTTP/1.1\r\norigin: %s\r\n\r\n" % SITE.encode())
        receive_zero(client)
        client.sendall(_GARBAGE)
        assert sites(file.read().split(b"\r\n")) == []


def test_an_upgrade_to_websockets_is_not_followed_because_it_has_no_bounds() -> None:
    head = b"GET / HTTP/1.1\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    with serving() as (port, _), connect(port) as client:
        client.sendall(head + b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200 ")


UPGRADE = b"POST /%s HTTP/1.1\r\nconnection: Upgrade\r\nUpgrade: h2c\r\n%s\r\n\r\n"
CHUNKS = b"23\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n\r\n0\r\n\r\n"
BODY = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "body"), [(b"content-length: 35", BODY), (b"transfer-encoding: chunked", CHUNKS)], ids=["length", "chunked"]
)
@pytest.mark.parametrize("at_once", [True, False])
def test_a_body_behind_an_upgrade_is_that_of_its_request(head: bytes, body: bytes, at_once: bool) -> None:
    last = b"GET /last HTTP/1.1\r\nconnection: close\r\n\r\n"
    with serving() as (port, refused), connect(port) as client, client.makefile("rb") as file:
        client.sendall(UPGRADE % (b"first", head) + (body if at_once else b""))
        if not at_once:
            time.sleep(0.05)
            for at in range(len(body)):
                client.sendall(body[at : at + 1])
        client.sendall(UPGRADE % (b"none", b"x: y") + last)
        assert [part[-2:] for part in file.read().split(b"HTTP/1.1 200 OK")[1:]] == [b"35", b"\n0", b"\n0"]
        assert refused == []


@pytest.mark.parametrize("url", [b"/a:b@c//d?e#f", b"http://x/y", b"*", b"//"])
def test_an_upgrade_changes_nothing_of_what_is_answered(url: bytes) -> None:
    upgrade = b"connection: upgrade, close\r\nupgrade: websocket\r\nupgrade: h2c\r\n\r\n"
    with serving() as (port, _):
        answers: list[bytes] = []
        for tail in (b"connection: close\r\n\r\n", upgrade):
            with connect(port) as client, client.makefile("rb") as file:
                client.sendall(b"GET %s HTTP/1.1\r\n" % url + tail)
                answers.append(file.read())
        assert answers[0].startswith(b"HTTP/1.1 ")
        assert answers[0].split(b"\r\n\r\n")[1] == answers[1].split(b"\r\n\r\n")[1]


def test_pipelined_requests_are_answered_in_order_up_to_the_limit() -> None:
    one = b"POST /%d HTTP/1.1\r\ncontent-length: %d\r\n\r\n"
    with serving(max_pipelined=8) as (port, refused):
        with connect(port) as client:
            client.sendall(
                b"".join(one % (n, n) + b"x" * n for n in range(1, 9)) + b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"
            )
            with client.makefile("rb") as file:
                assert [part[-1:] for part in file.read().split(b"HTTP/1.1 200 OK")[1:]] == [
                    b"%d" % n for n in (*range(1, 9), 0)
                ]
        assert refused == []
        with connect(port) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n" * 5000)
            with suppress(ConnectionResetError), client.makefile("rb") as file:
                assert file.read().count(b"200 OK") < 5000
        assert refused == ["pipelined"]


def test_a_client_that_does_not_read_its_answers_is_disconnected() -> None:
    with serving(write_s=0.2, max_pipelined=1000) as (port, refused), connect(port) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        give_up = time.monotonic() + PATIENCE
        with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            while time.monotonic() < give_up and not refused:
                client.sendall(b"GET /long HTTP/1.1\r\n\r\n")
                time.sleep(0.002)
        assert refused == ["not_reading"]
        assert ask(port) == "9"
