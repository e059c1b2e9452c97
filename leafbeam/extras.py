"""Optional packages: which extra installs each, and package exports that are imported when they are first used."""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from leafbeam.errors import ArgumentError, MissingExtraError

# The extra that installs each optional package, by the package's import name.
EXTRAS = {
    "adbc_driver_postgresql": "postgres",
    "confluent_kafka": "kafka",
    "deltalake": "delta",
    "duckdb": "catalog",
    "httptools": "serve",
    "httpx": "client",
    "jax": "jax",
    "jinja2": "serve",
    "marisa_trie": "bench",
    "matplotlib": "plot",
    "msgspec": "serve",
    "opentelemetry": "otel",
    "outlines_core": "automata",
    "prometheus_client": "serve",
    "psycopg": "postgres",
    "pyarrow": "catalog",
    "pyiceberg": "iceberg",
    "ray": "ray",
    "rich": "cli",
    "scipy": "train",
    "sklearn": "train",
    "starlette": "serve",
    "tokenizers": "automata",
    "torch": "torch",
    "triton": "triton",
    "typer": "cli",
    "uvicorn": "serve",
}


def require(purpose: str, *modules: str, extra: str | None = None) -> None:
    """Check that optional packages are installed, without importing them.

    purpose: what needs them, the start of the message ("`leafbeam serve`"). modules: import names, keys of `EXTRAS`.
    extra: the extra to install; by default the one of each missing package.
    Raises MissingExtraError, which names the missing packages and the command that installs them.
    """
    missing = [name for name in modules if not _is_installed(name)]
    if missing:
        raise _missing(purpose, missing, extra)


@contextmanager
def optional_imports(purpose: str, extra: str | None = None) -> Generator[None]:
    """Around `import` statements: a missing optional package raises MissingExtraError. Arguments as of `require`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise _missing(purpose, [package], extra) from error


def require_device(device: str) -> None:
    """Check that torch can run on `device` ("cpu", "cuda", "cuda:1", ...). Imports torch for any device but "cpu".

    Raises MissingExtraError without torch, ArgumentError where the device is not one of this machine's.
    """
    require(f"device {device!r}", "torch")
    if device == "cpu":
        return
    torch = importlib.import_module("torch")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if str(device).startswith("cuda") and torch.version.cuda is None:
            reason = f"torch {torch.__version__} is built for the CPU alone: install a build of torch with CUDA"
        raise ArgumentError(f"device {device!r} cannot be used: {reason}; expected 'cpu' or a device of this machine") from None


def lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose public names are imported when they are first used (PEP 562).

    package: the package's `__name__`. The names are those that its source imports under `if TYPE_CHECKING:`; a name must differ
    from its module's, because importing a module sets the package's attribute of that name. Cost: under a millisecond.
    Where a module needs an optional package that is not installed, its names raise MissingExtraError.

        if TYPE_CHECKING:
            from leafbeam.decode.beam_search import BeamSearch
        __all__ = ["BeamSearch"]
        if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
            __getattr__, __dir__ = lazy_exports(__name__)
    """
    module = sys.modules[package]
    assert module.__spec__ is not None
    source = getattr(module.__spec__.loader, "get_source")(package)  # noqa: B009 (loaders that read source have it)
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    imports = (node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom))
    exports = {alias.name: str(node.module) for node in imports for alias in node.names}
    assert all(origin != f"{package}.{name}" for name, origin in exports.items()), "a public name is also its module's"

    def getattribute(name: str) -> object:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with optional_imports(f"{package}.{name}"):
            value = getattr(importlib.import_module(exports[name]), name)
        setattr(module, name, value)
        return value

    return getattribute, lambda: sorted({*vars(module), *exports})


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _missing(purpose: str, modules: list[str], extra: str | None = None) -> MissingExtraError:
    extras = [extra] if extra is not None else sorted({EXTRAS[name] for name in modules})
    verb = "is" if len(modules) == 1 else "are"
    return MissingExtraError(
        f"{purpose} needs {', '.join(modules)}, which {verb} not installed: pip install 'leafbeam[{','.join(extras)}]'"
    )
