"""The cache of compiled kernels: where it lies, which settings win, and the one line before a compilation."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import leafbeam

SOURCE = """
from leafbeam.jit import njit

@njit(nogil=True)
def part(x):
    return 2 * x

@njit(cache=True)
def twice(x):
    return part(x)
"""
RUN = """
import logging
logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
import numba, kernel
before = numba.config.CACHE_DIR
print(kernel.twice(21), repr(before))
"""


def run(folder: Path, **settings: str) -> tuple[str, str]:
    """(stdout, stderr) of a process that calls a kernel, with a home of its own."""
    (folder / "kernel.py").write_text(SOURCE)
    environment = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    path = os.pathsep.join([str(folder), str(Path(leafbeam.__file__).parents[1])])
    environment |= {"HOME": str(folder / "home"), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", **settings}
    finished = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, env=environment)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout, finished.stderr


def test_kernels_are_cached_for_the_user_and_compilation_is_logged_once(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    cache = tmp_path / "home" / ".cache" / "leafbeam" / leafbeam.__version__
    stdout, stderr = run(tmp_path)
    assert stdout == "42 ''\n"  # numba's global setting is what it was
    assert stderr.count("leafbeam.jit compiling kernels") == 1
    assert str(cache) in stderr
    assert list(cache.rglob("kernel.twice*.nbc"))
    assert not (tmp_path / "__pycache__").exists()
    assert run(tmp_path) == ("42 ''\n", "")


@pytest.mark.slow
def test_directories_that_the_user_chose_win(tmp_path: Path) -> None:
    _, stderr = run(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "chosen"))
    assert str(tmp_path / "chosen") in stderr
    assert list((tmp_path / "chosen").rglob("kernel.twice*.nbc"))
    run(tmp_path, XDG_CACHE_HOME=str(tmp_path / "xdg"))
    assert list((tmp_path / "xdg" / "leafbeam").rglob("kernel.twice*.nbc"))
    assert not (tmp_path / "home").exists()


@pytest.mark.slow
def test_a_home_that_cannot_be_written_falls_back_to_the_choice_of_numba(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the directory should be")
    stdout, _ = run(tmp_path)
    assert stdout == "42 ''\n"
    assert list((tmp_path / "__pycache__").glob("kernel.twice*.nbc"))


@pytest.mark.slow
def test_kernels_run_where_no_directory_can_be_written_and_one_line_says_so(
    tmp_path: Path,
) -> None:
    """A container with a read-only file system has no such directory, and its user no home."""
    (tmp_path / "file").write_text("a file where the directory should be")
    chosen = str(tmp_path / "file" / "kernels")
    stdout, stderr = run(tmp_path, NUMBA_CACHE_DIR=chosen, NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator")
    assert stdout.startswith("42 ")
    assert stderr.count("set NUMBA_CACHE_DIR to a directory that this user may write") == 1
    assert chosen in stderr


# Each compiles, and may cache in `__pycache__` beside the source.
_COMPILERS = {"jit", "njit", "vectorize", "guvectorize", "cfunc", "stencil", "generated_jit", "jit_module", "cuda"}


def numba_compilers_in(source: str) -> list[int]:
    """Lines that name one of numba's own compilers: imported, or as an attribute of the module under any name."""
    tree, lines, modules = ast.parse(source), list[int](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name.split(".")[0] for alias in node.names if alias.name.split(".")[0] == "numba"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "numba":
            lines += [node.lineno for alias in node.names if alias.name in _COMPILERS | {"*"}]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _COMPILERS:
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            if isinstance(root, ast.Name) and root.id in modules:
                lines.append(node.lineno)
    return lines


def test_every_kernel_of_the_package_is_compiled_by_leafbeam_jit() -> None:
    """M8: kernels of numba.njit were cached inside the installed package, which then could not be uninstalled cleanly."""
    package = Path(leafbeam.__file__).parent
    files = [path for path in package.rglob("*.py") if path != package / "jit.py"]
    assert len(files) > 200
    lines = {path: numba_compilers_in(path.read_text(encoding="utf-8")) for path in files}
    assert {path.relative_to(package).as_posix(): found for path, found in lines.items() if found} == {}


def parts_of_kernels(sources: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """(module, function) of each function that kernels alone may call."""
    return {
        (module, node.name)
        for module, tree in sources.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any((name := ast.unparse(one)).startswith("njit") and "cache=True" not in name for one in node.decorator_list)
    }


def calls_from_python(tree: ast.AST, parts: set[str]) -> list[int]:
    """Lines outside compiled functions that name one of these parts."""
    lines: list[int] = []
    for child in ast.iter_child_nodes(tree):
        decorators = [ast.unparse(one) for one in getattr(child, "decorator_list", [])]
        if not any(name.startswith(("njit", "numba.njit", "overload", "intrinsic")) for name in decorators):
            lines += [child.lineno] if isinstance(child, ast.Name) and child.id in parts else calls_from_python(child, parts)
    return lines


def test_python_calls_no_part_of_a_kernel() -> None:
    root = Path(leafbeam.__file__).parents[1]
    files = [path for folder in ("leafbeam", "benchmarks", "tests") for path in (root / folder).rglob("*.py")]
    sources = {path.relative_to(root).with_suffix("").as_posix().replace("/", "."): path for path in files}
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in sources.items()}
    parts = parts_of_kernels({name: tree for name, tree in trees.items() if not name.startswith("tests.")})
    called = dict[str, list[int]]()
    assert len(parts) > 80
    for module, tree in trees.items():
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names = {one.asname or one.name for node in imports for one in node.names if (node.module, one.name) in parts}
        names |= {name for home, name in parts if home == module}
        if lines := calls_from_python(tree, names):
            called[module] = lines
    assert called == {}


def test_a_call_of_a_part_is_seen() -> None:
    source = "@njit(nogil=True)\ndef part(): ...\n@njit(cache=True)\ndef kernel(): part()\ndef f(): part()"
    tree = ast.parse(source)
    assert parts_of_kernels({"m": tree}) == {("m", "part")}
    assert calls_from_python(tree, {"part"}) == [5]


@pytest.mark.parametrize(
    "source",
    [
        "from numba import njit",
        "from numba import types, jit as fast",
        "from numba import *",
        "import numba\n@numba.njit(cache=True)\ndef f(): ...",
        "import numba as nb\nf = nb.vectorize(lambda x: x)",
        "import numba.core\nf = numba.core.decorators.njit(lambda x: x)",
        "def later():\n    from numba.core.decorators import njit",
    ],
)
def test_any_other_way_to_compile_is_seen(source: str) -> None:
    """M8: the test above sees each spelling."""
    assert numba_compilers_in(source)


def test_the_rest_of_numba_may_be_used() -> None:
    """M8: types, intrinsics and leafbeam's own njit."""
    source = "from numba import types\nfrom numba.extending import intrinsic\nfrom leafbeam.jit import njit\nx.njit()"
    assert numba_compilers_in(source) == []
