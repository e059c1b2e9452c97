"""Row numbers of removed rows are given back: a catalog whose rows come and go stays as large as its rows."""

from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog, evaluator
from leafbeam.index import Trie

NUM_ITEMS = 40
RULES = {"cheap": "price < 20", "tagged": "list_contains(tags, 1)"}
TRIE = Trie.build([[i % 8, i // 8] for i in range(NUM_ITEMS)], [8, 8], item_ids=list(range(NUM_ITEMS)))


def rows_of(ids: np.ndarray) -> list[dict]:
    return [{"price": float(i % 40), "tags": [i % 3]} for i in ids.tolist()]


def table() -> pa.Table:
    return pa.Table.from_pylist([{"item_id": i, "price": float(i % 40), "tags": [i % 3]} for i in range(NUM_ITEMS)])


def in_memory(_: Path) -> Catalog:
    return Catalog.in_memory(table(), TRIE, RULES)


def exclusive(folder: Path) -> Catalog:
    Catalog.create(folder / "items.duckdb", table())
    return Catalog.open(folder / "items.duckdb", TRIE, RULES, exclusive=True)


def held(folder: Path) -> Catalog:
    Catalog.create(folder / "items.duckdb", table())
    return Catalog.open(folder / "items.duckdb", TRIE, RULES, hold_s=600)


def opened_each_time(folder: Path) -> Catalog:
    Catalog.create(folder / "items.duckdb", table())
    return Catalog.open(folder / "items.duckdb", TRIE, RULES)


def end_of(catalog: Catalog) -> int:
    with catalog._table.reading() as session:
        return session.fingerprint()[1]


def obeys_rules(catalog: Catalog, live: np.ndarray) -> bool:
    expected = {"cheap": live[live % 40 < 20], "tagged": live[live % 3 == 1]}
    return all(sorted(catalog.filter(rule).item_ids().tolist()) == ids.tolist() for rule, ids in expected.items())


@pytest.fixture(autouse=True)
def small_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "_SPARE_ROWS", 50)


OPENED = pytest.mark.parametrize("opened", [in_memory, exclusive, held, opened_each_time])


@pytest.mark.slow
@OPENED
@pytest.mark.parametrize(("reload", "purge"), [(False, False), (True, True)])
def test_row_numbers_stay_near_the_rows_while_items_come_and_go(
    opened: Callable[[Path], Catalog], reload: bool, purge: bool, tmp_path: Path
) -> None:
    with opened(tmp_path) as catalog:
        live = np.arange(NUM_ITEMS)
        for first in range(NUM_ITEMS, NUM_ITEMS + 300, 20):
            new, gone = np.arange(first, first + 20), live[:20]
            live = np.concatenate([live[20:], new])
            with catalog.transaction() as change:
                change.insert(np.stack([new % 8, new // 8 % 8], axis=1), new, rows_of(new))
                change.delete(gone, with_attributes=not purge)
            if purge:
                catalog.purge()
            if reload:
                assert catalog.reload().ok
            assert obeys_rules(catalog, live)
            assert end_of(catalog) <= 2 * NUM_ITEMS + 50 + 90
        assert catalog.reload().ok
        assert obeys_rules(catalog, live)
        assert catalog.lookup(live[:3]).to_pylist() == [
            {"item_id": i} | row for i, row in zip(live[:3], rows_of(live[:3]), strict=True)
        ]


@OPENED
def test_changes_of_a_list_column_take_new_numbers_and_give_the_old_ones_back(
    opened: Callable[[Path], Catalog], tmp_path: Path
) -> None:
    live = np.arange(NUM_ITEMS)
    with opened(tmp_path) as catalog:
        for turn in range(15):
            catalog.update(live[turn : turn + 10], [{"tags": [9]}] * 10)
            catalog.update(live[turn : turn + 10], rows_of(live[turn : turn + 10]))
            assert obeys_rules(catalog, live)
        assert end_of(catalog) <= 2 * NUM_ITEMS + 50 + 70


def test_a_read_that_began_before_sees_the_rows_of_then(tmp_path: Path) -> None:
    with exclusive(tmp_path) as catalog:
        for _ in range(12):
            catalog.update(np.arange(10), [{"tags": [9]}] * 10)
        with catalog._table.reading() as session:
            before = session.fingerprint()
            for _ in range(24):
                catalog.update(np.arange(10), [{"tags": [1]}] * 10)
            assert session.fingerprint() == before
            assert session.lookup([0], ["tags"]).to_pylist() == [{"item_id": 0, "tags": [9]}]
        assert end_of(catalog) <= 2 * NUM_ITEMS + 50 + 70
        assert catalog.lookup([0], ["tags"]).to_pylist() == [{"item_id": 0, "tags": [1]}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE items ALTER COLUMN price SET NOT NULL",
        "CREATE INDEX by_price ON items (price)",
        "ALTER TABLE items ALTER COLUMN price SET DEFAULT 7",
        "COMMENT ON COLUMN items.price IS 'in euros'",
        "COMMENT ON TABLE items IS 'the shop'",
    ],
)
def test_a_table_that_a_copy_would_change_is_not_copied(statement: str, tmp_path: Path) -> None:
    def properties() -> list[tuple]:
        with duckdb.connect(path) as connection:
            found = connection.execute("SELECT sql, comment FROM duckdb_tables() WHERE table_name = 'items'").fetchall()
            found += connection.execute("SELECT column_name, comment FROM duckdb_columns()").fetchall()
            return found + connection.execute("SELECT index_name FROM duckdb_indexes()").fetchall()

    path = tmp_path / "items.duckdb"
    Catalog.create(path, table())
    with duckdb.connect(path) as connection:
        connection.execute(statement)
    before = properties()
    with Catalog.open(path, TRIE, RULES, exclusive=True) as catalog:
        for turn in range(20):
            catalog.update(np.arange(10), [{"tags": [turn]}] * 10)
        assert end_of(catalog) >= NUM_ITEMS
        assert catalog.lookup([0], ["tags"]).to_pylist() == [{"item_id": 0, "tags": [19]}]
    assert properties() == before
