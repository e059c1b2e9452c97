"""The architecture page says what the code is: its walks name files that exist, its table of imports is counted from them."""

import re
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from docs import concepts

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
# Files of one noun without a package of their own.
_FLAT = {"errors", "extras", "files", "html_table", "ids", "jit", "__main__"}


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


def test_the_table_of_ideas_counts_the_code() -> None:
    assert concepts.written(PAGE) == PAGE, "run: python docs/concepts.py"
    assert all(idea.places() for idea in concepts.IDEAS)  # a pattern that finds nothing counts nothing
