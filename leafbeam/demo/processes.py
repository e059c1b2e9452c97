"""leafbeam's commands and server as child processes."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from leafbeam.client.calls import Call
from leafbeam.client.retries import Retries
from leafbeam.client.transport import BlockingTransport
from leafbeam.errors import DemoError, NoAnswerError, ServerError
from leafbeam.json_reader import Json

COMMAND = (sys.executable, "-m", "leafbeam")
ADDRESS = re.compile(r"http://[^\s;]+:\d+")
READY_SECONDS = 600.0  # a loaded machine compiles kernels for minutes; a server that cannot start ends earlier
STOP_SECONDS = 15.0
USUAL_PORT = 8000


def run_command(arguments: Sequence[str]) -> Iterator[str]:
    """Run `leafbeam arguments...` and yield the lines of its stdout; its progress goes to our stderr.

    Raises DemoError where it fails, after it has printed its own message.
    """
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, text=True, encoding="utf-8", env=_environment()
    ) as child:
        assert child.stdout is not None
        try:
            yield from (line.rstrip("\n") for line in child.stdout)
        except BaseException:
            child.terminate()
            raise
    if child.returncode != 0:
        raise DemoError(f"`leafbeam {' '.join(arguments)}` ended with exit code {child.returncode}; its message is above")


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The status and the JSON body of an answer, and the latency seen by the client in milliseconds."""

    status: int
    body: Json
    milliseconds: float

    @property
    def item_ids(self) -> list[int | str]:
        return self.body["item_ids"]

    @property
    def index_version(self) -> str:
        return str(self.body["index_version"])

    @property
    def message(self) -> str:
        """Return the message of a failure."""
        return str(self.body["error"])


@dataclass(frozen=True, kw_only=True)
class Server:
    """`leafbeam serve` in a child process."""

    address: str
    child: "subprocess.Popen[bytes]"
    log: Path
    transport: BlockingTransport = field(init=False, repr=False)

    def __post_init__(self) -> None:
        transport = BlockingTransport(httpx.Client(), self.address, headers={}, retries=Retries(attempts=2))
        object.__setattr__(self, "transport", transport)

    def request(self, path: str, body: Json | None = None) -> Response:
        """GET `path`, or POST `body` to it. Raises DemoError if the server does not answer; a failure is an answer."""
        call = Call(
            method="GET" if body is None else "POST",
            target=path,
            answer=dict[str, object],
            body=None if body is None else json.dumps(body).encode(),
        )
        start, status, content = time.perf_counter(), 200, dict[str, object]()
        try:
            content = self.transport.run(call)
        except NoAnswerError as error:
            raise DemoError(f"the server at {self.address} does not answer ({error}); its log is {self.log}") from error
        except ServerError as error:
            status, content = error.status or 0, {"error": str(error)}
        return Response(status=status, body=content, milliseconds=1e3 * (time.perf_counter() - start))

    def reload(self) -> None:
        """Make the server read rules and items again (SIGHUP)."""
        self.child.send_signal(signal.SIGHUP)

    def wait(self) -> None:
        """Return at Ctrl-C or SIGTERM. Raises DemoError if the server ends before."""
        is_main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGTERM, signal.default_int_handler) if is_main else None
        try:
            code = self.child.wait()
        except KeyboardInterrupt:
            return
        finally:
            if is_main:
                signal.signal(signal.SIGTERM, before)
        raise DemoError(f"the server ended with exit code {code}; its log is {self.log}")


def usual_port() -> int:
    """Return the port of `leafbeam serve` if it is free, so that the commands of the documents reach the server; else 0."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


@contextmanager
def running_server(run: Path, *, port: int = 0) -> Generator[Server]:
    """Start `leafbeam serve`, wait until it is ready, and stop it at the end. port: 0 lets the server choose a free one.

    Raises DemoError, with the end of its log and the command that goes on, where it does not become ready.
    """
    log, interactions = run / "server.log", run / "interactions.parquet"
    command = [*COMMAND, "serve", "--run", str(run), "--port", str(port)]
    if interactions.exists():  # of the synthetic shop, which anyone may see
        command += ["--set", f"users={interactions}"]
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=_environment())
    try:
        server = Server(address=_wait_for_address(child, log, run), child=child, log=log)
        with closing(server.transport):
            if (response := server.request("/readyz")).status != 200:
                raise DemoError(f"the server is up but not ready: {response.message}")
            yield server
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait_for_address(child: "subprocess.Popen[bytes]", log: Path, run: Path) -> str:
    """Return the address that the server prints once it is ready; it chose a free port itself."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        if match := ADDRESS.search(log.read_text(encoding="utf-8", errors="replace")):
            return match.group()
        time.sleep(0.1)
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    code = child.poll()
    state = f"ended with exit code {code}" if code is not None else f"was not ready after {READY_SECONDS:.0f} s"
    again = shlex.join(["leafbeam", "serve", "--run", str(run)])
    raise DemoError(f"the server {state}. The run is complete: `{again}` starts it again. The end of {log}:\n{tail}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}
