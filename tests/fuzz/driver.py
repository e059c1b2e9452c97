"""Runs a target on mutated inputs in a child process, which a signal may end, and keeps what crashed it."""

import faulthandler
import hashlib
import importlib
import json
import logging
import mmap
import multiprocessing
import pkgutil
import random
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from leafbeam.errors import LeafbeamError
from tests.fuzz import targets
from tests.fuzz.mutate import mutate

Target = Callable[[bytes], None]

HERE = Path(__file__).parent
CRASHES = HERE / "crashes"
MAX_BYTES = 1 << 16
_HANG_S, _COMPILE_S, _TRACED_SHARE, _MAX_CORPUS = 30, 600, 0.2, 2_000
_MEMORY = 4 << 30  # that a target may allocate: an absurd size is a MemoryError


def all_targets() -> dict[str, Target]:
    """The functions `fuzz_NAME` of all target modules, by name; a name of two modules is a mistake."""
    modules = [importlib.import_module(f"{targets.__name__}.{info.name}") for info in pkgutil.iter_modules(targets.__path__)]
    found = [
        (name.removeprefix("fuzz_"), item)
        for module in modules
        for name, item in vars(module).items()
        if name.startswith("fuzz_")
    ]
    by_name = dict(sorted(found))
    assert len(by_name) == len(found), f"two targets have one name: {sorted(name for name, _ in found)}"
    return by_name


def corpus_of(name: str) -> list[bytes]:
    """The committed inputs of a target."""
    return [path.read_bytes() for path in sorted((HERE / "corpus" / name).iterdir())]


def check(target: Target, data: bytes) -> bool:
    """Whether the target accepts an input; False for a LeafbeamError, and any other exception passes."""
    try:
        target(data)
    except LeafbeamError:
        return False
    return True


@dataclass(kw_only=True)
class Figures:
    """Of one target. lines: of leafbeam that it reached. crashes: one message for each different crash."""

    cases: int = 0
    accepted: int = 0
    seconds: float = 0.0
    lines: int = 0
    corpus: int = 0
    crashes: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        rate, share = self.cases / max(self.seconds, 1e-9), self.accepted / max(self.cases, 1)
        return (
            f"{self.cases:,} cases, {rate:,.0f}/s, {share:.0%} accepted, {self.lines:,} lines reached, "
            f"{self.corpus:,} inputs, {len(self.crashes)} crashes"
        )


class LineCoverage:
    """Lines of leafbeam that run. A code object of which all lines are known is not traced any more."""

    def __init__(self) -> None:
        self.num_lines = 0
        self._left: dict[CodeType, set[int]] = {}

    def run(self, target: Target, data: bytes) -> tuple[bool, bool]:
        """(whether the target accepts the input, whether it reached new lines)."""
        before = self.num_lines
        sys.settrace(self._enter)
        try:
            accepted = check(target, data)
        finally:
            sys.settrace(None)
        return accepted, self.num_lines > before

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            is_ours = "/leafbeam/" in code.co_filename and "/tests/" not in code.co_filename
            left = self._left[code] = {line for *_, line in code.co_lines() if line} if is_ours else set()
        return self._line if left else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        left = self._left[frame.f_code]
        if event == "line" and frame.f_lineno in left:
            left.discard(frame.f_lineno)
            self.num_lines += 1
        return self._line


def fuzz(name: str, cases: int, seed: int) -> Figures:
    """Run so many cases of a target in child processes: a new one after each that died."""
    total, died, context = Figures(), 0, multiprocessing.get_context("spawn")
    with tempfile.NamedTemporaryFile() as file:  # number of the running case, length and bytes of its input
        file.write(bytes(MAX_BYTES + 16))
        file.flush()
        while total.cases < cases and died < 20:
            receiver, sender = context.Pipe(duplex=False)
            arguments = (name, cases - total.cases, f"{seed} {name} {died}", file.name, sender)
            child = context.Process(target=_child, args=arguments)
            child.start()
            sender.close()
            try:
                found = Figures(**json.loads(receiver.recv()))
                child.join()
            except EOFError:
                child.join()
                found, died = _of_dead(name, Path(file.name).read_bytes(), child.exitcode), died + 1
            total.cases, total.accepted = total.cases + found.cases, total.accepted + found.accepted
            total.seconds, total.crashes = total.seconds + found.seconds, total.crashes | found.crashes
            total.lines, total.corpus = max(total.lines, found.lines), max(total.corpus, found.corpus)
    return total


def _of_dead(name: str, shared: bytes, exitcode: int | None) -> Figures:
    """The figures of a child that ended in the middle of a case."""
    number, length = (int.from_bytes(shared[at : at + 8], "little") for at in (0, 8))
    message = f"the process ended with {exitcode}: a signal, or a case of more than {_HANG_S} s"
    return Figures(cases=number + 1, crashes={keep(name, shared[16 : 16 + length]): message})


def keep(name: str, data: bytes) -> str:
    """Save an input that crashed; its path."""
    path = CRASHES / name / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path.relative_to(HERE.parent.parent))


def _child(name: str, cases: int, seed: str, shared_path: str, sender: Any) -> None:
    logging.disable(logging.CRITICAL)
    target, dice, coverage, figures = all_targets()[name], random.Random(seed), LineCoverage(), Figures()
    committed, seen, began = corpus_of(name), set[str](), time.perf_counter()
    corpus = list(committed)
    with open(shared_path, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    for number in range(cases):
        if number == len(committed):  # imported, compiled and mapped is now what a target needs
            _bound_memory()
        if number == 0 or (number >= len(committed) and number % 64 == 0):
            faulthandler.dump_traceback_later(_HANG_S if number else _COMPILE_S, exit=True)
        is_first = number < len(committed)
        data = committed[number] if is_first else mutate(dice, dice.choice(corpus), corpus, MAX_BYTES)
        shared[: 16 + len(data)] = number.to_bytes(8, "little") + len(data).to_bytes(8, "little") + data
        try:
            if is_first or dice.random() < _TRACED_SHARE:
                accepted, is_new = coverage.run(target, data)
                if is_new and not is_first and len(corpus) < _MAX_CORPUS:
                    corpus.append(data)
            else:
                accepted = check(target, data)
            figures.accepted += accepted
        except BaseException as error:
            crash = _place(error)
            if crash not in seen:
                seen.add(crash)
                figures.crashes[keep(name, data)] = f"{crash}: {str(error)[:200]}"
    faulthandler.cancel_dump_traceback_later()
    figures.cases, figures.seconds = cases, time.perf_counter() - began
    figures.lines, figures.corpus = coverage.num_lines, len(corpus)
    sender.send(json.dumps(vars(figures)))


def _bound_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, resource.RLIM_INFINITY))


def _place(error: BaseException) -> str:
    """The exception's class, and the innermost line of leafbeam."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if "/leafbeam/" in frame.filename), frames[-1])
    return f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
