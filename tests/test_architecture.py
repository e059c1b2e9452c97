"""The architecture page says what the code is: its walks name files that exist, its table of imports is counted from them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from docs import concepts

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match)
# Files of one noun without a package of their own.
_FLAT = {path.stem for path in (ROOT / "leafbeam").glob("*.py")}


def sections(name: str) -> str:
    """The text between `<!-- name -->` and `<!-- end name -->`."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end {name} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def imports_between_packages() -> Iterator[tuple[str, str]]:
    """(importer, imported) for each direct import of one package of leafbeam by another."""
    graph = grimp.build_graph("leafbeam", cache_dir=None)
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            here, there = (name.split(".")[1:2] for name in (module, imported))
            if here and there and here != there:
                yield here[0], there[0]


@pytest.mark.parametrize(("walk", "most"), [("codes", 10), ("request", 12), ("change", 8)])
def test_a_walk_names_files_that_exist_and_is_short(walk: str, most: int) -> None:
    files = re.findall(r"^\d+\. `([^`]+)`", sections(f"walk {walk}"), re.MULTILINE)
    assert 3 <= len(files) <= most
    assert [file for file in files if not (ROOT / file).is_file()] == []


def test_the_counted_imports_are_those_of_the_code() -> None:
    edges = [(here, there) for here, there in imports_between_packages() if not {here, there} & _FLAT]
    packages = {path.name for path in (ROOT / "leafbeam").iterdir() if (path / "__init__.py").is_file()}
    expected = f"| now | {len(packages)} | {len(set(edges))} | {len(edges)} |"
    assert expected in sections("arrows"), f"write into docs/explanation/architecture.md: {expected}"


def test_no_file_of_the_package_is_longer_than_500_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "leafbeam").rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > 500} == {}


def _nesting(node: ast.AST, depth: int = 0) -> int:
    """The levels of blocks in a function, without those of functions in it; an elif is no deeper than its if."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
            deepest = max(deepest, _nesting(child, depth + (isinstance(child, _BLOCKS) and not is_elif)))
    return deepest


def _beyond_bounds(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if any(word in ast.unparse(decorator) for decorator in node.decorator_list for word in ("jit", "intrinsic")):
        return False
    arguments = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    documented = node.body[0].end_lineno if ast.get_docstring(node) is not None else None
    lines = (node.end_lineno or 0) - node.lineno + 1
    if documented is not None:
        lines -= documented - node.body[0].lineno + 1
    return lines > 60 or len(arguments) - (arguments[:1] in (["self"], ["cls"])) > 8 or _nesting(node) > 4


def test_functions_beyond_the_bounds_are_those_that_the_page_names() -> None:
    beyond = set[str]()
    for path in (ROOT / "leafbeam").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _beyond_bounds(node):
                beyond.add(f"`{node.name}` of `{path.relative_to(ROOT).as_posix()}`")
    assert beyond - set(re.findall(r"`\w+` of `[\w/.]+`", sections("bounds"))) == set()


def test_no_test_imports_the_file_of_another_test() -> None:
    imported: list[str] = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests"):
                names = [node.module or "", *(alias.name for alias in node.names)]
                imported += [f"{path.name}: {name}" for name in names if name.rpartition(".")[2].startswith("test_")]
    assert imported == []


def test_the_table_of_ideas_counts_the_code() -> None:
    assert concepts.written(PAGE) == PAGE, "run: python docs/concepts.py"
    assert all(idea.places() for idea in concepts.IDEAS)  # a pattern that finds nothing counts nothing
