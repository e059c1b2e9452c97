"""Rules that read other rows of the table are right after every change, also for the items that did not change."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.catalog.catalog_rules import CatalogRules
from leafbeam.index import Trie

IDS = ["b1", "b2", "d1", "d2", "f1"]
TRIE = Trie.build([[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]], [2, 8], item_ids=IDS)
ROWS = [{"item_id": one, "brand": one[0], "price": int(one[1]) * 10} for one in IDS]
RULES = {
    "first of brand": "item_id IN (SELECT min(item_id) FROM items GROUP BY brand)",
    "below average": "price < (SELECT avg(price) FROM items)",
    "only of brand": "NOT EXISTS (SELECT 1 FROM items o WHERE o.brand = items.brand AND o.item_id != items.item_id)",
    "few items": "(SELECT count(*) FROM items) < 6",
    "dearest": "price = (SELECT max(price) FROM items)",
    "by a window": "item_id IN (SELECT item_id FROM items QUALIFY row_number() OVER (PARTITION BY brand ORDER BY price) = 1)",
    "by a view": "item_id IN (SELECT item_id FROM cheapest)",
    "by a macro": "price = lowest()",
    "joined": "cheap_item AND price = lowest()",
    "of the row": "price < 15",
    "of another table": "item_id IN (SELECT item_id FROM promo)",
}
RULES = {name.replace(" ", "_"): where.replace("cheap_item", "price < 15") for name, where in RULES.items()}
SQL = """
CREATE TABLE promo AS SELECT 'b1' AS item_id UNION ALL SELECT 'a0' UNION ALL SELECT 'g9';
CREATE VIEW cheapest AS SELECT item_id FROM items WHERE price = (SELECT min(price) FROM items);
CREATE MACRO lowest() AS (SELECT min(price) FROM items);
"""
Change = Callable[[Catalog], Any]
CHANGES: dict[str, Change] = {
    "insert before": lambda catalog: catalog.insert([[0, 2]], ["a0"], [{"brand": "b", "price": 1}]),
    "insert after": lambda catalog: catalog.insert([[0, 2], [0, 3]], ["g9", "g8"], [{"brand": "f", "price": 90}] * 2),
    "update": lambda catalog: catalog.update(["f1"], [{"brand": "b", "price": 500}]),
    "replace": lambda catalog: catalog.replace([[0, 5]], ["b1"], [{"brand": "z", "price": 15}]),
    "delete": lambda catalog: catalog.delete(["b1", "d2"]),
    "delete, purge": lambda catalog: (catalog.delete(["b1", "d2"]), catalog.purge()),
}


@pytest.fixture(
    params=["closed", pytest.param("held", marks=pytest.mark.slow), pytest.param("exclusive", marks=pytest.mark.slow)]
)
def catalog(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    path = tmp_path / "shop.duckdb"
    Catalog.create(path, pa.Table.from_pylist(ROWS))
    with duckdb.connect(str(path)) as connection:
        connection.execute(SQL)
    options: dict[str, Any] = {"held": {"hold_s": 600.0}, "exclusive": {"exclusive": True}}.get(request.param, {})
    with Catalog.open(path, TRIE, RULES, background=False, **options) as made:
        yield made


def allowed(catalog: Catalog) -> dict[str, list[str]]:
    return {name: sorted(items.item_ids().tolist()) for name, items in catalog.rules.filters.items()}


@pytest.mark.parametrize("change", CHANGES)
def test_after_a_change_every_rule_is_that_of_a_catalog_opened_anew(catalog: Catalog, change: str) -> None:
    """A4"""
    CHANGES[change](catalog)
    changed = allowed(catalog)
    assert catalog.reload().ok
    assert changed == allowed(catalog)


@pytest.mark.slow
def test_rules_are_right_after_each_of_many_changes_and_a_compaction(catalog: Catalog) -> None:
    """A4: two of one brand are never allowed."""
    for number in range(8):
        catalog.insert([[0, 2 + number % 6]], [f"a{9 - number}"], [{"brand": "b", "price": 5}])
        catalog.compact(wait=True)
        first = allowed(catalog)["first_of_brand"]
        assert [one for one in first if one[0] in "ab"] == [f"a{9 - number}"]


def test_only_rules_that_read_other_rows_are_evaluated_anew(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A4: what a rule reads is known from its plan, through views and macros too."""
    evaluated: list[str] = []
    refresh = CatalogRules.refresh_one
    monkeypatch.setattr(CatalogRules, "refresh_one", lambda self, name: (evaluated.append(name), refresh(self, name)))
    catalog.update(["f1"], [{"brand": "b", "price": 500}])
    assert sorted(evaluated) == sorted(set(RULES) - {"of_the_row", "of_another_table"})
    evaluated.clear()
    for name in RULES:
        if name != "of_the_row":
            catalog.add_rule(name, "price > 3 AND brand IN ('a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l')")
    evaluated.clear()
    catalog.update(["f1"], [{"brand": "b", "price": 400}])
    assert evaluated == []


def test_a_rule_that_fails_over_the_new_rows_keeps_its_filter_and_is_reported(catalog: Catalog) -> None:
    """A4"""
    catalog.add_rule("least", "price = (SELECT min(CAST(substr(item_id, 2) AS INTEGER)) * 10 FROM items)")
    before = allowed(catalog)["least"]
    catalog.insert([[0, 7]], ["xx"], [{"brand": "x", "price": 5}])
    (status,) = (status for status in catalog.status if status.name == "least")
    assert status.kept
    assert "least" in str(status.error)
    assert [one for one in allowed(catalog)["least"] if one != "xx"] == before


def test_a_change_during_the_first_evaluation_of_a_rule_is_not_lost(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A4"""
    evaluate = catalog._rules.evaluator.evaluate

    def and_change(*args: Any, **options: Any) -> Any:
        result = evaluate(*args, **options)
        monkeypatch.setattr(catalog._rules.evaluator, "evaluate", evaluate)
        thread = threading.Thread(target=lambda: catalog._active.write_lock.acquire() and catalog._active.write_lock.release())
        thread.start()
        thread.join(20)
        catalog.insert([[0, 2]], ["a0"], [{"brand": "b", "price": 1}])
        return result

    monkeypatch.setattr(catalog._rules.evaluator, "evaluate", and_change)
    catalog.add_rule("late", RULES["first_of_brand"])
    assert allowed(catalog)["late"] == ["a0", "d1", "f1"]
