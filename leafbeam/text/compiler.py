"""Compiles the constraints of clients that are not trusted, in bounded time and memory."""

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from leafbeam.automata import Automaton, TokenTrie
from leafbeam.errors import AutomatonError, UnavailableError, check_number, counted
from leafbeam.json_reader import Json

_ENTRY_BYTES = 1000  # of an entry besides its text and arrays, about
_GRACE_S = 10.0  # beyond the child's own alarm, which comes first unless the child gets less than a third of a processor


@dataclass(frozen=True, kw_only=True)
class CompileLimits:
    """The limits of one constraint.

    Args:
        max_seconds: The seconds of processor time that its compilation may take.
        max_start_seconds: The seconds in which the child process must start. Its first start on a machine compiles kernels,
            which takes a minute, or several under load.
        max_mb: The megabytes of memory that its compilation may take.
        max_states: The largest number of states of its automaton.
        max_automaton_mb: The largest size of its automaton, in megabytes.
        cache_mb: The megabytes of automata that are kept for later requests with the same constraint.
    """

    max_seconds: float = 5.0
    max_start_seconds: float = 600.0
    max_mb: int = 1024
    max_states: int = 50_000
    max_automaton_mb: int = 64
    cache_mb: int = 256

    def __post_init__(self) -> None:
        check_number(exclusive=True, **vars(self))


class ConstraintCompiler:
    """Turns constraints in JSON into automata over a vocabulary, one at a time, in a child process.

    The determinisation of some short patterns takes exponential time, in a library that cannot be interrupted: a child that
    exceeds its time or memory dies, and the next constraint gets a new one. A child that does not answer at all is
    killed, so that no caller waits for ever. `close` ends the child.

    Args:
        tokens: The vocabulary.
        limits: The limits of each constraint.
        filled: Whether the child computes the legal tokens of all states, which searches on devices need.
    """

    def __init__(self, tokens: TokenTrie, limits: CompileLimits | None = None, *, filled: bool = False) -> None:
        self.limits = limits or CompileLimits()
        self._filled = filled
        self._tokens, self._lock = tokens, threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._directory = _new_directory()
        self._cache: OrderedDict[str, Automaton | AutomatonError] = OrderedDict()  # by constraint; or why there is none
        self._cached_bytes, self._num_kept = 0, 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"ConstraintCompiler({counted(len(self._cache), 'constraint')} cached, {self.limits})"

    def start(self) -> None:
        """Start the child, which takes seconds, so that the first constraint need not wait for it.

        Raises:
            UnavailableError: If the child does not start within `max_start_seconds`.
        """
        with self._lock:
            self._started()

    def close(self) -> None:
        """End the child, also in the middle of a constraint. Later calls of `compile` raise UnavailableError."""
        self._is_closed = True
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            self._end()
            self._directory.cleanup()

    def cached(self, constraint: str) -> Automaton | None:
        """Return the automaton of a constraint that was compiled before, or None. If its compilation failed, raise its
        AutomatonError.
        """
        found = self._cache.get(constraint)
        if found is not None:
            with suppress(KeyError):  # forgotten in between, in another thread
                self._cache.move_to_end(constraint)
        if isinstance(found, AutomatonError):
            raise AutomatonError(str(found), pointer=found.pointer)
        return found

    def compile(self, constraint: str) -> Automaton:
        """Return the automaton of a constraint in JSON (`constraint_from_json`), with its forced chains.

        It waits until other constraints are compiled.

        Raises:
            AutomatonError: If the constraint is invalid or above a limit.
        """
        with self._lock:
            found = self.cached(constraint)
            if found is not None:
                return found
            try:
                found = self._compile(constraint)
            except AutomatonError as error:
                self._keep(constraint, AutomatonError(str(error), pointer=error.pointer))
                raise
            self._keep(constraint, found)
            return found

    def _compile(self, constraint: str) -> Automaton:
        child = self._started()
        if not Path(self._directory.name).is_dir():  # a cleaner of temporary files was here
            self._directory.cleanup()
            self._directory = _new_directory()
        path = Path(self._directory.name) / "automaton.leafbeam"
        seconds = self.limits.max_seconds + _GRACE_S
        with _killed_after(child, seconds) as killed:
            answer = self._ask(child, {"constraint": constraint, "path": str(path)})
        if answer is None:
            self._raise_if_closed()
            if killed.is_set():
                said = f"the compiler of constraints did not answer within {seconds:g} s and was ended: try again"
                raise UnavailableError(said, reason="compiler")
            if child.returncode == -signal.SIGKILL:  # by the system, as where memory runs out, or by a person
                raise UnavailableError("the compiler of constraints was killed: try again", reason="compiler")
            if child.returncode > 0:
                raise AutomatonError(f"the constraint cannot be compiled (exit code {child.returncode}): the log says why")
            timed_out = child.returncode == -signal.SIGPROF
            bound = f"{self.limits.max_seconds:g} s of a processor" if timed_out else f"{self.limits.max_mb:,} MiB"
            raise AutomatonError(f"the constraint takes more than {bound} to compile: make it smaller, or more regular")
        if "failure" in answer:
            raise UnavailableError(f"the automaton cannot be written ({answer['failure']}): try again", reason="compiler")
        if "error" in answer:
            raise AutomatonError(answer["error"], pointer=answer.get("pointer"))
        try:
            return Automaton.load(path, self._tokens, max_bytes=self.limits.max_automaton_mb << 20)
        finally:
            path.unlink()

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise UnavailableError("the server is stopping", reason="draining")

    def _started(self) -> "subprocess.Popen[str]":
        self._raise_if_closed()
        if self._child is not None:
            return self._child
        source = str(Path(__file__).parents[2])
        paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        child = self._child = subprocess.Popen(
            [sys.executable, "-m", "leafbeam.text.compile_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            text=True,
            start_new_session=True,  # Ctrl-C in a terminal is for the server
        )
        if self._is_closed:  # `close` may have looked for a child just before there was one
            child.kill()
        tokens, limits = self._tokens, self.limits
        spellings = (tokens.bytes_of(token) for token in range(tokens.vocabulary_size))
        options = {
            "vocabulary": [base64.b64encode(spelling).decode() if spelling else None for spelling in spellings],
            "max_seconds": limits.max_seconds,
            "max_bytes": limits.max_mb << 20,
            "max_states": limits.max_states,
            "max_automaton_bytes": limits.max_automaton_mb << 20,
            "filled": self._filled,
        }
        with _killed_after(child, limits.max_start_seconds) as killed:
            answer = self._ask(child, options)
        if answer is None:
            self._raise_if_closed()
            seconds = f"within {limits.max_start_seconds:g} s: raise max_start_seconds"
            why = seconds if killed.is_set() else f"(exit code {child.wait()})"
            raise UnavailableError(f"the compiler of constraints did not start {why}", reason="compiler")
        return child

    def _ask(self, child: "subprocess.Popen[str]", line: Mapping[str, object]) -> Json | None:
        """Return the child's answer, or None if the child has died."""
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(line) + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer.endswith("\n"):
            self._end()
            return None
        return json.loads(answer)

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        try:
            child.wait(0 if self._is_closed else 10)  # how it died
        except subprocess.TimeoutExpired:
            child.kill()
        with suppress(BrokenPipeError), child:
            pass

    def _keep(self, constraint: str, found: Automaton | AutomatonError) -> None:
        """Keep a result. Automata grow while they are used: they are counted anew, of thousands only now and then."""
        self._cache[constraint] = found
        self._num_kept += 1
        self._cached_bytes += _nbytes(constraint, found)
        if self._num_kept % (1 + len(self._cache) // 1000) == 0:
            self._cached_bytes = sum(_nbytes(*entry) for entry in list(self._cache.items()))
        while self._cached_bytes > self.limits.cache_mb << 20 and self._cache:
            self._cached_bytes -= _nbytes(*self._cache.popitem(last=False))


def _new_directory() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="leafbeam-", ignore_cleanup_errors=True)


def _nbytes(constraint: str, found: Automaton | AutomatonError) -> int:
    """Return the bytes of a cached constraint. Its text counts too, because a client may send any number of short ones."""
    size = found.nbytes if isinstance(found, Automaton) else sys.getsizeof(str(found))
    return sys.getsizeof(constraint) + size + _ENTRY_BYTES


@contextmanager
def _killed_after(child: "subprocess.Popen[str]", seconds: float) -> Generator[threading.Event]:
    """Kill the child if the block takes too long, which ends its pipes. Yields a flag that says whether this has happened."""
    killed = threading.Event()

    def kill() -> None:
        killed.set()
        child.kill()

    timer = threading.Timer(seconds, kill)
    timer.daemon = True
    timer.start()
    try:
        yield killed
    finally:
        timer.cancel()
