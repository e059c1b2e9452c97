"""A change keeps the catalog's file open for those that follow, and gives it back."""

import time
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.catalog.items_table import ItemsTable
from leafbeam.errors import DataError
from leafbeam.index import Trie
from tests.fixtures.open_files import is_open


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Catalog.create(tmp_path / "items.duckdb", pa.table({"item_id": ["a", "b", "c"], "price": [5, 50, 5]}))
    return (tmp_path / "items.duckdb").resolve()


RULES = {"cheap": "price < 20"}
TRIE = Trie.build([[0, 0], [0, 1], [1, 0]], [2, 8], item_ids=["a", "b", "c"])


def cheap(catalog: Catalog) -> list[str]:
    return sorted(catalog.rules.filters["cheap"].item_ids().tolist())


def test_the_file_stays_open_from_a_change_to_the_next(path: Path) -> None:
    with Catalog.open(path, TRIE, RULES, hold_s=600) as catalog:
        catalog.lookup(["a"])
        assert not is_open(path)
        catalog.update(["a"], [{"price": 60}])
        assert is_open(path)
        catalog.insert([[1, 1]], ["d"], [{"price": 1}])
        catalog.delete(["c"])
        assert cheap(catalog) == ["d"]
        assert catalog.lookup(["d"]).to_pylist() == [{"item_id": "d", "price": 1}]
        assert catalog.reload().ok
        assert is_open(path)
    assert not is_open(path)


def test_the_columns_that_a_change_needs_open_the_file_for_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Catalog.open(path, TRIE, RULES, hold_s=600) as catalog:
        assert catalog.schema().names == ["item_id", "price"]
        assert not is_open(path)
        assert catalog.schema(before_change=True).names == ["item_id", "price"]
        monkeypatch.setattr(duckdb, "connect", lambda *_, **__: pytest.fail("opened again"))
        catalog.update(["a"], [{"price": 60}])
        assert cheap(catalog) == ["c"]


def test_a_held_file_has_one_thread_but_for_the_whole_table(path: Path) -> None:
    def num_threads(*, whole: bool) -> int:
        with table.reading(whole=whole) as session:
            return session.connection.execute("SELECT current_setting('threads')").fetchall()[0][0]

    with duckdb.connect() as other:
        (default,) = other.execute("SELECT current_setting('threads')").fetchall()[0]
    with closing(ItemsTable(path, hold_s=600)) as table:
        with table.writing():
            pass
        assert num_threads(whole=False) == 1
        assert num_threads(whole=True) == default
        with pytest.raises(DataError), table.reading(whole=True) as session:
            session.connection.execute("SELECT nothing FROM items")
        assert num_threads(whole=False) == 1


def test_others_write_the_file_after_the_hold_and_a_reload_sees_it(path: Path) -> None:
    with Catalog.open(path, TRIE, RULES, hold_s=0.05) as catalog:
        for price in (1, 70):
            catalog.update(["a"], [{"price": 60}])
            give_up = time.monotonic() + 20
            while is_open(path):
                assert time.monotonic() < give_up
                time.sleep(0.01)
            with duckdb.connect(str(path)) as other:
                other.execute("INSERT INTO items VALUES (?, 2)", [f"new {price}"])
                other.execute("UPDATE items SET price = ? WHERE item_id = 'c'", [price])
            catalog.insert([[1, price % 8]], [f"new {price}"])
            assert catalog.reload().ok
            assert cheap(catalog) == (["c", "new 1"] if price == 1 else ["new 1", "new 70"])


def test_a_file_that_is_put_in_the_place_of_a_held_one_is_used(path: Path) -> None:
    with Catalog.open(path, TRIE, RULES, hold_s=600) as catalog:
        catalog.update(["a"], [{"price": 60}])
        Catalog.create(path, pa.table({"item_id": ["b"], "price": [3]}), overwrite=True)
        catalog.update(["c"], [{"price": 4}])
        assert catalog.reload().num_items == 2
        assert cheap(catalog) == ["b", "c"]
    assert not is_open(path)
    with Catalog.open(path, TRIE, RULES) as catalog:
        assert cheap(catalog) == ["b", "c"]


def test_a_change_that_fails_is_not_kept_by_a_held_file(path: Path) -> None:
    with Catalog.open(path, TRIE, RULES, hold_s=600) as catalog:
        catalog.update(["a"], [{"price": 60}])

        def fail() -> None:
            raise RuntimeError("before the commit")

        with pytest.raises(RuntimeError), catalog.transaction(fail) as transaction:
            transaction.update(["a"], [{"price": 1}])
        assert catalog.lookup(["a"]).to_pylist() == [{"item_id": "a", "price": 60}]
        assert cheap(catalog) == ["c"]


def test_beside_another_catalog_of_the_file_nothing_is_held(path: Path) -> None:
    with Catalog.open(path, TRIE, RULES), Catalog.open(path, TRIE, RULES, hold_s=600) as catalog:
        with pytest.warns(UserWarning, match="another process has"):
            catalog.update(["a"], [{"price": 60}])
        assert not is_open(path)
