"""Rules over values that people reported other filters to treat wrongly: nulls, empty lists, NaN, letters in two spellings."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.index import Trie

NAN, INF = float("nan"), float("inf")
ITEMS = pa.table(
    {
        "item_id": ["a", "b", "c", "d", "e", "f"],
        "price": [1.0, None, NAN, 50.0, INF, -0.0],
        "tags": pa.array([["x"], [], None, ["y", "x"], [None], ["X"]], pa.list_(pa.string())),
        "brand": ["X", "x", None, "", "É", "E\u0301"],
        "n": [1, 2, 3, None, 5, 6],
    }
)


@pytest.fixture(scope="module")
def catalog() -> Iterator[Catalog]:
    trie = Trie.build([[n % 3, n // 3] for n in range(6)], [3, 2], item_ids=ITEMS["item_id"].to_pylist())
    with Catalog.in_memory(
        ITEMS, trie, {"cheap": "price < 20", "dear": "price >= 20", "x": "list_contains(tags, 'x')"}
    ) as catalog:
        yield catalog


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        pytest.param("list_has_any(tags, [])", "", id="no value to have"),
        pytest.param("len(tags) = 0 OR list_has_any(tags, [])", "b", id="the same beside another condition (milvus 47008)"),
        pytest.param("list_has_all(tags, [])", "abdef", id="all of no values"),
        pytest.param("n IN ()", "", id="one of no numbers (milvus 51617, ravendb 5547)"),
        pytest.param("n NOT IN ()", "abcef", id="none of no numbers, and a number"),
        pytest.param("NOT list_contains(tags, 'x')", "bef", id="a null list neither has it nor lacks it"),
        pytest.param("NOT (price < 20)", "cde", id="nulls are in neither half"),
        pytest.param("price >= 20", "cde", id="NaN is larger than every number (polars 21833)"),
        pytest.param("price >= 20 AND NOT isnan(price)", "de", id="as the page on rules says"),
        pytest.param("brand <> 'X'", "bdef", id="another brand, and there is one"),
        pytest.param("brand IS DISTINCT FROM 'X'", "bcdef", id="another brand or none"),
        pytest.param("brand NOT IN ('X', NULL)", "", id="not one of a list with null: unknown"),
        pytest.param("brand = NULL", "", id="equal to null: unknown"),
        pytest.param("brand IS NULL", "c", id="null"),
        pytest.param("brand = ''", "d", id="empty text is not null"),
        pytest.param("brand = 'É'", "e", id="letters in two spellings are two texts"),
        pytest.param("price = 0", "f", id="zero with a sign"),
        pytest.param("true", "abcdef", id="all"),
    ],
)
def test_a_rule_over_missing_values_allows_what_sql_says(catalog: Catalog, predicate: str, expected: str) -> None:
    """Public reports: each case names its own."""
    catalog.add_rule("tried", predicate)
    assert "".join(sorted(catalog.rules.filters["tried"].item_ids().tolist())) == expected


def items(catalog: Catalog, expression: str) -> list[str]:
    allowed = catalog.filter(expression)
    assert allowed is not None
    return sorted(allowed.item_ids().tolist())


def test_expressions_over_rules_are_sets_of_items(catalog: Catalog) -> None:
    """Public report: "not" of a filter leaves items without the value out, or lets deleted ones in (qdrant, milvus)."""
    assert items(catalog, "cheap | dear") == ["a", "c", "d", "e", "f"]
    assert items(catalog, "dear - x") == ["c", "e"]  # c has no list: it is not in the rule x


def test_rules_of_a_file_and_of_memory_agree(tmp_path: Path, catalog: Catalog) -> None:
    Catalog.create(tmp_path / "items.duckdb", ITEMS)
    trie = Trie.build([[n % 3, n // 3] for n in range(6)], [3, 2], item_ids=ITEMS["item_id"].to_pylist())
    with Catalog.open(tmp_path / "items.duckdb", trie, {"cheap": "price < 20", "dear": "price >= 20"}) as other:
        for rule in ("cheap", "dear"):
            assert other.rules.filters[rule].item_ids().tolist() == catalog.rules.filters[rule].item_ids().tolist()
