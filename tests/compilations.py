"""The kernels that a new process compiles, or loads from the cache of compiled ones."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.caching import NullCache
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher


def compile_once() -> None:
    """Let processes of the tests that need the same kernel wait for the first to compile it, and load it from the cache.

    A kernel's lock is taken after numba's own, and while only locks of its callers are held, so that none waits for another.
    """
    compile_for, held, folder = Dispatcher.compile, set[str](), Path(os.environ["NUMBA_CACHE_DIR"])
    folder.mkdir(parents=True, exist_ok=True)

    def compile_alone(self: Any, sig: Any) -> Any:
        name = f"{self.py_func.__module__}.{self.py_func.__qualname__}"
        with global_compiler_lock:
            if name in held or isinstance(self._cache, NullCache):
                return compile_for(self, sig)
            with open(folder / f"{name[:200].replace('/', '-')}.lock", "wb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                held.add(name)
                try:
                    return compile_for(self, sig)
                finally:
                    held.remove(name)

    Dispatcher.compile = compile_alone


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
