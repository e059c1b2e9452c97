"""A server over raw sockets that answers each request as its script says, right or wrong, and notes what it was sent."""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 20


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class Act:
    """What is done with a request: send these bytes, then maybe hang until the end of the test, then maybe hang up.

    drop: sent again and again while it hangs.
    """

    data: bytes = b""
    drop: bytes = b""
    hang: bool = False
    hang_up: bool = False


Step = Act | Callable[[Seen], Act]


def http(status: int, body: Any = None, headers: dict[str, str] | None = None, **act: Any) -> Act:
    """A whole answer. body: bytes, or what is sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = {"content-type": "application/json", "content-length": str(len(content)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return Act(data=f"HTTP/1.1 {status} x\r\n{head}\r\n".encode() + content, **act)


@dataclass
class Scripted:
    """The server: the steps that are left, and the requests so far."""

    steps: list[Step]
    url: str = ""
    seen: list[Seen] = field(default_factory=list[Seen])
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    connections: list[socket.socket] = field(default_factory=list[socket.socket])

    def talk(self, connection: socket.socket) -> None:
        """Answer the requests of one connection."""
        with connection, suppress(OSError, ValueError), connection.makefile("rb") as stream:
            while (first := stream.readline()).strip():
                headers: dict[str, str] = {}
                while line := stream.readline().strip():
                    name, _, value = line.decode("latin-1").partition(":")
                    headers[name.lower()] = value.strip()
                method, target, _ = first.decode("latin-1").split()
                body = stream.read(int(headers.get("content-length", "0")))
                request = Seen(method=method, target=target, headers=headers, body=body)
                with self.lock:
                    self.seen.append(request)
                    step = self.steps.pop(0)
                act = step(request) if callable(step) else step
                connection.sendall(act.data)
                while act.hang and not self.closing.wait(0.02 if act.drop else PATIENCE):
                    connection.sendall(act.drop)
                if act.hang or act.hang_up:
                    return


@contextmanager
def scripted(*steps: Step, port: int = 0) -> Iterator[Scripted]:
    """A server with a thread for each connection. port: 0 takes a free one."""
    server, threads = Scripted(steps=list(steps)), list[threading.Thread]()
    with socket.create_server(("127.0.0.1", port)) as listening:
        server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def accept() -> None:
            with suppress(OSError):
                while not server.closing.is_set():
                    connection, _ = listening.accept()
                    server.connections.append(connection)
                    threads.append(threading.Thread(target=server.talk, args=(connection,), daemon=True))
                    threads[-1].start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield server
        finally:
            server.closing.set()
            for one in (listening, *server.connections):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
    acceptor.join(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def methods(seen: Sequence[Seen]) -> list[str]:
    return [f"{one.method} {one.target}" for one in seen]
