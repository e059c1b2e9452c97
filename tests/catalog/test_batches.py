"""Rules over a table of many rows are evaluated some rows at a time, with the values of all rows at once."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.catalog import Catalog, definitions, row_map, sessions
from leafbeam.index import Trie
from tests.catalog.shop import change, groups, numbers

RULES = {
    "cheap": "price < 20",
    "branded": "brand IS NOT NULL",
    "dear": "price > (SELECT avg(price) FROM items)",  # reads other rows
    "none": "false",
    "unknown": "NULL",
    "every": "true",
}
BOOSTS = {"margin": {"expression": "price / 10"}}
CHUNK = 64


@pytest.fixture
def read_rows(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Count the rows that are in memory at a time: of ids, and of the values of a rule."""
    read: dict[str, list[int]] = {"ids": [], "values": []}
    find, values = row_map._find_all, definitions.Rule.values

    def find_noted(trie: Trie, ids_n: np.ndarray, *arguments: Any) -> np.ndarray:
        read["ids"].append(len(ids_n))
        return find(trie, ids_n, *arguments)

    def values_noted(self: definitions.Rule, column: Any) -> np.ndarray:
        read["values"].append(len(column))
        return values(self, column)

    monkeypatch.setattr(sessions, "_CHUNK", CHUNK)
    monkeypatch.setattr(sessions, "_IDS", CHUNK)
    monkeypatch.setattr(row_map, "_find_all", find_noted)
    monkeypatch.setattr(definitions.Rule, "values", values_noted)
    return read


def catalog_of(num_items: int, seed: int, kind: str, rules: dict[str, str]) -> tuple[Catalog, dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(num_items * 2)[:num_items]
    ids = numbers if kind == "integers" else np.array([f"é{number}" for number in numbers])
    trie = Trie.build(rng.integers(0, 9, (num_items, 3)), [9] * 3, item_ids=ids)
    order = np.arange(num_items) if seed % 2 else rng.permutation(num_items)  # the index's order, or another one
    price, brand = rng.integers(0, 40, num_items).astype(float), rng.integers(0, 4, num_items)
    names = [None if number == 0 else f"brand {number}" for number in brand[order].tolist()]
    unindexed = [-1 - row for row in range(3)] if kind == "integers" else [f"other {row}" for row in range(3)]
    table = pa.table(
        {
            "item_id": [*unindexed[:2], *ids[order].tolist(), unindexed[2]],
            "price": [1.0, 2.0, *price[order].tolist(), 3.0],
            "brand": ["brand 1", None, *names, "brand 2"],
        }
    )
    catalog = Catalog.in_memory(table, trie, [rules, BOOSTS], background=False)
    return catalog, {"ids": ids, "price": price, "brand": brand}


def expected(facts: dict[str, np.ndarray], live: np.ndarray, mean: float) -> dict[str, set[int | str]]:
    price, brand, ids = facts["price"], facts["brand"], facts["ids"]
    masks = {
        "cheap": price < 20,
        "branded": brand > 0,
        "dear": price > mean,
        "none": np.zeros(len(ids), np.bool_),
        "unknown": np.zeros(len(ids), np.bool_),
        "every": np.ones(len(ids), np.bool_),
    }
    return {name: set(ids[mask & live].tolist()) for name, mask in masks.items()}


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([1, 61, 64, 200, 1000]), st.integers(0, 2**32), st.sampled_from(["integers", "strings"]), st.booleans())
def test_batches_have_the_values_of_all_rows_at_once(num_items: int, seed: int, kind: str, has_gaps: bool) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sessions, "_CHUNK", CHUNK)
        patched.setattr(sessions, "_IDS", CHUNK)
        catalog, facts = catalog_of(num_items, seed, kind, RULES)
        live = np.ones(num_items, np.bool_)
        with catalog:
            if has_gaps:
                live[::3] = False
                gone = ", ".join(repr(item_id) for item_id in facts["ids"][::3].tolist())
                change(catalog, f"DELETE FROM items WHERE item_id IN ({gone})")
                assert catalog.reload().ok
            mean = float(np.mean([*facts["price"][live], 1.0, 2.0, 3.0]))
            for name, ids in expected(facts, live, mean).items():
                assert set(catalog.rules.filters[name].item_ids().tolist()) == ids, name
            prices = dict(zip(facts["ids"].tolist(), np.where(live, facts["price"], 0).tolist(), strict=True))
            assert numbers(catalog, catalog.rules.boost("margin")) == {
                item_id: np.float32(price / 10) for item_id, price in prices.items()
            }
            brands = {
                item_id: f"brand {brand}" if brand and is_live else None
                for item_id, brand, is_live in zip(facts["ids"].tolist(), facts["brand"].tolist(), live, strict=True)
            }
            assert groups(catalog, "brand") == brands


@pytest.mark.parametrize("kind", ["integers", "strings"])
@pytest.mark.parametrize("has_gaps", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_more_rows_than_a_batch_are_in_memory(read_rows: dict[str, list[int]], kind: str, has_gaps: bool) -> None:
    """Ids are read in whole vectors of DuckDB, of 2,048 rows."""
    catalog, _ = catalog_of(10_000, 0, kind, {"cheap": "price < 20"})
    with catalog:
        if has_gaps:
            change(catalog, "DELETE FROM items WHERE price = 7")
            read_rows["ids"].clear()
            read_rows["values"].clear()
            assert catalog.reload().ok
        assert max(read_rows["ids"]) <= 2048
        assert sum(read_rows["ids"]) > 9_000
        assert max(read_rows["values"]) <= CHUNK
        assert len(read_rows["values"]) == -(-10_003 // CHUNK)
