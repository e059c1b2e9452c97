"""The programs of examples/ run as they are; each checks its own answer."""

import ast
import runpy
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
EXTRAS = {"leafbeam.catalog": "duckdb", "leafbeam.automata": "outlines_core"}  # what a package of leafbeam needs in an example


def imported(path: Path) -> set[str]:
    """The modules that a program imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_every_kind_of_use_has_an_example() -> None:
    names = {"automata", "bring_your_own_model", "hf_generate", "jax_search", "live_items", "quickstart", "rules"}
    assert {path.stem for path in EXAMPLES} >= names


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in imported(path):
        package = EXTRAS.get(name, name.partition(".")[0])
        if find_spec(package) is None:
            pytest.skip(f"{path.name} needs {package}, which is not installed")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out.strip()
