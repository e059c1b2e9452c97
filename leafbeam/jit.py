"""`njit` for all kernels: machine code is cached in the user's cache directory, and the first compilation is logged.

numba's own default, `__pycache__` beside the source, would leave an importable empty `leafbeam` in site-packages when the
package is uninstalled.
"""

import ctypes
import importlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numba
from llvmlite import binding
from numba.core import event

log = logging.getLogger("leafbeam.jit")

config: Any = numba.config  # has no types

Function = TypeVar("Function", bound=Callable[..., Any])


class _CompilationNotice(event.Listener):
    """Logs one line when the first cached kernel of this process is compiled rather than loaded from the cache."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kernels: set[Callable[..., object]] = set()
        self.logged = False

    def on_start(self, event: Any) -> None:
        if self.logged or event.data["dispatcher"].py_func not in self.kernels:
            return
        self.logged = True
        log.info(
            "compiling kernels for this machine, which can take a minute; later runs load them from %s",
            kernel_directory(),
        )

    def on_end(self, event: object) -> None:
        pass

    def warn_of_no_cache(self) -> None:
        """Say once that compiled kernels cannot be kept, in place of the line about the compilation."""
        if not self.logged:
            self.logged = True
            log.warning(
                "no directory for compiled kernels can be written, so that each start compiles them for up to a minute: set "
                "NUMBA_CACHE_DIR to a directory that this user may write (it is %s)",
                kernel_directory(),
            )


_NOTICE = _CompilationNotice()
event.register("numba:compile", _NOTICE)


def njit(*signature: Any, **options: Any) -> Callable[[Function], Function]:
    """Return `numba.njit(*signature, **options)`; with `cache=True`, the code is kept in leafbeam's cache directory.

    NUMBA_CACHE_DIR and `numba.config.CACHE_DIR` take precedence. Where the directory cannot be written, numba chooses
    another. If no directory can be written, kernels are compiled at each start, and a warning says so.

    Without `cache`, the function is a part of kernels: they call it, and Python must not, because it is compiled without the
    code that takes arguments from Python: such a call ends the process. That code is a sixth of the time that a kernel of many
    parts takes to compile.
    """
    if not options.get("cache"):
        options = {"no_cpython_wrapper": True} | options
    decorate: Any = numba.njit(*signature, **options)

    def compile_when_called(function: Function) -> Function:
        if not options.get("cache"):
            return decorate(function)
        _NOTICE.kernels.add(function)
        with _NOTICE.lock:  # numba reads its cache directory from a global setting, here and only here
            before, config.CACHE_DIR = config.CACHE_DIR, config.CACHE_DIR or _cache_directory()
            try:
                return decorate(function)
            except RuntimeError as error:
                if "no locator available" not in str(error):
                    raise
                _NOTICE.warn_of_no_cache()
                without_cache: Any = numba.njit(*signature, **options | {"cache": False})
                return without_cache(function)
            finally:
                config.CACHE_DIR = before

    return compile_when_called


def name_functions(library: str, names: Sequence[str], mode: int = ctypes.DEFAULT_MODE) -> bool:
    """Give functions of a C library to compiled kernels, as leafbeam_NAME, and say whether it has them.

    Where it lacks one, all names stand for another function, which kernels must not call. Has to run before a kernel is read
    from numba's cache, which needs the names.
    """
    try:
        loaded = ctypes.CDLL(library, mode=mode)
        functions, found = [getattr(loaded, name) for name in names], True
    except (OSError, AttributeError):
        functions, found = [ctypes.pythonapi.Py_IsInitialized] * len(names), False
    for name, function in zip(names, functions, strict=True):
        binding.add_symbol(f"leafbeam_{name}", ctypes.cast(function, ctypes.c_void_p).value)
    return found


def kernel_directory() -> str:
    """Return the directory of compiled kernels."""
    return config.CACHE_DIR or _cache_directory() or "__pycache__"


def _cache_directory() -> str:
    """Return the user's cache directory for this version, or "" where there is no home directory."""
    try:
        root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return ""
    return str(root / "leafbeam" / importlib.import_module("leafbeam").__version__)
