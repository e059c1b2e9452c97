"""Running leafbeam's own commands, the way a person would, and the server, the way an operator would."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leafbeam.errors import DemoError

__all__ = ["Answer", "Server", "run_command", "running_server"]

PYTHON = (sys.executable, "-m", "leafbeam")
ADDRESS = re.compile(r"http://[^\s;]+:\d+")
READY_SECONDS = 90.0
STOP_SECONDS = 15.0


def run_command(words: Sequence[str]) -> Iterator[str]:
    """Run `leafbeam words...`; yields what it says, line by line. Its progress goes to our stderr.

    Raises DemoError where it fails; its own message has then been shown already.
    """
    with subprocess.Popen([*PYTHON, *words], stdout=subprocess.PIPE, text=True, encoding="utf-8", env=_environment()) as child:
        assert child.stdout is not None
        try:
            yield from (line.rstrip("\n") for line in child.stdout)
        except BaseException:
            child.terminate()
            raise
    if child.returncode != 0:
        raise DemoError(f"`leafbeam {' '.join(words)}` ended with exit code {child.returncode}; its message is above")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the server said: an HTTP status, the JSON, and how long it took as seen from here, in milliseconds."""

    status: int
    body: dict[str, Any]
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Server:
    """`leafbeam serve` in a process of its own."""

    address: str
    child: "subprocess.Popen[bytes]"
    log: Path

    def ask(self, path: str, request: dict[str, Any] | None = None) -> Answer:
        """GET `path`, or POST `request` to it. Any status is an answer; DemoError where nobody answers."""
        body = None if request is None else json.dumps(request).encode()
        call = urllib.request.Request(
            self.address + path, data=body, headers={"content-type": "application/json"} if body else {}
        )
        began = time.perf_counter()
        try:
            with urllib.request.urlopen(call, timeout=30) as reply:
                status, text = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        except OSError as error:
            raise DemoError(f"the server at {self.address} does not answer ({error}); its log is {self.log}") from error
        milliseconds = 1e3 * (time.perf_counter() - began)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = {"text": text.decode(errors="replace")}
        return Answer(status=status, body=answer, milliseconds=milliseconds)

    def reload(self) -> None:
        """Tell the server to read its rules and the table of items again."""
        self.child.send_signal(signal.SIGHUP)


@contextmanager
def running_server(run: Path) -> Generator[Server]:
    """Start `leafbeam serve` on a free port, wait until it is ready, and stop it at the end.

    Raises DemoError where it does not become ready, with the end of its log.
    """
    log = run / "server.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [*PYTHON, "serve", "--run", str(run), "--port", "0"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=_environment(),
        )
    try:
        server = Server(_address(child, log), child, log)
        if (answer := server.ask("/readyz")).status != 200:
            raise DemoError(f"the server is up but not ready: {answer.body}")
        yield server
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _address(child: "subprocess.Popen[bytes]", log: Path) -> str:
    """The address that the server announces once it answers; it chose a free port itself."""
    give_up = time.monotonic() + READY_SECONDS
    while time.monotonic() < give_up and child.poll() is None:
        if found := ADDRESS.search(log.read_text(encoding="utf-8", errors="replace")):
            return found.group()
        time.sleep(0.1)
    tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    code = child.poll()
    state = f"ended with exit code {code}" if code is not None else f"did not answer after {READY_SECONDS:.0f} s"
    raise DemoError(f"the server {state}; the end of {log}:\n{tail}")


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}
