"""The kernels that a new process compiles, or loads from the cache of compiled ones."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher


@contextmanager
def compilations() -> Generator[list[str]]:
    """The kernels compiled so far while open, with their argument types."""
    compiled, compile_for = list[str](), Dispatcher.compile

    def compile_and_count(self: Any, sig: Any) -> Any:
        if sig not in self.overloads:
            compiled.append(f"{self.py_func.__module__}.{self.py_func.__name__}{sig}")
        return compile_for(self, sig)

    Dispatcher.compile = compile_and_count
    try:
        yield compiled
    finally:
        Dispatcher.compile = compile_for


def printed_alone(module: str, function: str) -> str:
    """What a function without arguments returns in a process of its own, where no other test has compiled, printed."""
    command = [sys.executable, "-c", f"from {module} import {function}; print({function}())"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()
