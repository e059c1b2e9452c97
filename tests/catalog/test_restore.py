"""Rows go with their items where asked, a failing hook changes nothing, and a saved catalog comes back as one version."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.errors import ArgumentError, CodesError, DataError, ItemIdError, LockedError
from leafbeam.index import Trie
from leafbeam.live import LiveIndex

RULES = {"cheap": "price < 20", "red": "colour = 'red'"}


def rows(names: list[str], price: float = 5.0, colour: str = "red") -> pa.Table:
    return pa.table({"item_id": names, "price": [price] * len(names), "colour": [colour] * len(names)})


@pytest.fixture(params=["file", "exclusive", "memory"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path):
    index = Trie.build([[0, 1], [1, 0], [1, 1]], [4, 4], ["a", "b", "c"])
    items = rows(["a", "b", "c"])
    if request.param == "memory":
        made = Catalog.in_memory(items, index, RULES)
    else:
        Catalog.create(tmp_path / "items.duckdb", items)
        made = Catalog.open(tmp_path / "items.duckdb", index, RULES, exclusive=request.param == "exclusive")
    with made:
        yield made


def allowed(catalog: Catalog, rule: str) -> set[str]:
    found = catalog.filter(rule)
    assert found is not None
    return set(found.item_ids().astype(str).tolist())


def table_of(catalog: Catalog) -> dict[str, float]:
    return {row["item_id"]: row["price"] for row in catalog.lookup(list("abcdefg")).to_pylist() if row["price"] is not None}


def test_rows_go_with_their_items_and_every_later_rule_is_right(catalog: Catalog):
    with catalog.transaction() as transaction:
        transaction.delete(["a"], with_attributes=True)
        transaction.insert([[2, 2]], ["d"], [{"price": 30.0, "colour": "red"}])
    assert table_of(catalog) == {"b": 5.0, "c": 5.0, "d": 30.0}
    assert allowed(catalog, "cheap") == {"b", "c"}
    for step in range(4):  # rows move into the gap at some checkpoint
        catalog.update(["b"], [{"price": 10.0 + 5 * step}])
        with catalog.transaction() as transaction:
            transaction.delete(["d"], with_attributes=True)
            transaction.insert([[2, 3]], ["d"], [{"price": float(step), "colour": "blue"}])
        assert allowed(catalog, "cheap") == {"c", "d"} | ({"b"} if step < 2 else set())
        assert allowed(catalog, "red") == {"b", "c"}
        catalog.refresh()
        assert allowed(catalog, "red") == {"b", "c"}
    assert catalog.reload().agrees


def test_a_hook_that_raises_leaves_items_attributes_and_rules_alone(catalog: Catalog):
    def full() -> None:
        raise OSError("the disk is full")

    before = catalog.rules
    for change in ("delete", "insert", "nothing"):
        with pytest.raises(OSError, match="full"), catalog.transaction(full) as transaction:  # noqa: PT012
            if change == "delete":
                transaction.delete(["a"], with_attributes=True)
            elif change == "insert":
                transaction.insert([[2, 2]], ["d"], [{"price": 1.0}])
        assert catalog.rules is before
        assert table_of(catalog) == {"a": 5.0, "b": 5.0, "c": 5.0}
    calls: list[int] = []
    with catalog.transaction(lambda: calls.append(catalog.version().number)) as transaction:
        transaction.delete(["a"])
    assert (calls, catalog.version().number) == ([0], 1)


def test_a_saved_catalog_comes_back_as_one_version(catalog: Catalog, tmp_path: Path):
    with catalog.transaction() as transaction:
        transaction.insert([[2, 2], [3, 3]], ["d", "e"], rows(["d", "e"], 50.0))
        transaction.delete(["b"], with_attributes=True)
    saved = catalog.save(tmp_path / "saved.leafbeam", tmp_path / "saved.parquet")
    assert (saved.number, saved.num_items) == (1, 4)
    before = {name: allowed(catalog, name) for name in RULES}, table_of(catalog), content(catalog)
    with catalog.transaction() as transaction:
        transaction.replace([[0, 0]], ["a"], [{"price": 99.0}])
        transaction.delete(["c", "e"], with_attributes=True)
        transaction.insert([[3, 1]], ["f"], rows(["f"]))
        transaction.update(["d"], [{"colour": "blue"}])
    seen = catalog.rules
    for _ in range(2):  # a second time changes nothing
        catalog.restore(Trie.load(tmp_path / "saved.leafbeam"), tmp_path / "saved.parquet")
        assert ({name: allowed(catalog, name) for name in RULES}, table_of(catalog), content(catalog)) == before
        assert catalog.version().number == 3
    assert len(seen.version) == 3
    assert catalog.rules.report.agrees


def content(catalog: Catalog) -> dict[str, list[int]]:
    version = catalog.version()
    ids = version.all_items.item_ids().astype(str).tolist()
    return dict(zip(ids, version.codes_of(ids).tolist(), strict=True))


def test_items_of_other_codebooks_are_refused_before_anything_changes(catalog: Catalog, tmp_path: Path):
    with pytest.raises(CodesError, match=r"the codebooks of the saved items are \(5, 4\)"):
        catalog.restore(Trie.build([[0, 1]], [5, 4], ["a"]), rows(["a"]))
    with pytest.raises(DataError):
        catalog.restore(Trie.build([[0, 1]], [4, 4], ["a"]), tmp_path / "missing.parquet")
    with pytest.raises(ItemIdError, match="are integers"):
        catalog.restore(Trie.build([[0, 1]], [4, 4], [7]), rows(["a"]))
    decided: list[int] = []
    for damage in (b"no Parquet", b"PAR1" + bytes(40) + b"PAR1"):
        (tmp_path / "damaged.parquet").write_bytes(damage)
        with pytest.raises(DataError, match="cannot be read as Parquet"):
            catalog.restore(Trie.build([[0, 1]], [4, 4], ["a"]), tmp_path / "damaged.parquet", lambda: decided.append(1))
    assert not decided
    assert table_of(catalog) == {"a": 5.0, "b": 5.0, "c": 5.0}


def test_an_index_in_memory_becomes_durable_before_its_first_change(tmp_path: Path):
    trie = Trie.build([[0, 1], [1, 0]], [2, 2], ["a", "b"])
    with LiveIndex.create(None, trie) as live:
        live.persist(tmp_path / "live")
        with pytest.raises(ArgumentError, match="in memory"):
            live.persist(tmp_path / "other")
        live.delete(["a"])
        with pytest.raises(LockedError):
            LiveIndex.open(tmp_path / "live")
    with LiveIndex.open(tmp_path / "live") as live:
        assert live.version().knows(["a", "b"]).tolist() == [False, True]
    with LiveIndex.create(None, trie) as live:
        live.delete(["a"])
        with pytest.raises(ArgumentError, match="has not changed"):
            live.persist(tmp_path / "late")
    assert not (tmp_path / "late").exists()


def test_a_table_of_another_program_stays_readable(tmp_path: Path):
    Catalog.create(tmp_path / "items.duckdb", rows(["a"]))
    with Catalog.open(tmp_path / "items.duckdb", Trie.build([[0]], [2], ["a"])) as catalog:
        assert catalog.schema().names == ["item_id", "price", "colour"]
        with duckdb.connect(str(tmp_path / "items.duckdb")) as other:
            other.execute("ALTER TABLE items ADD COLUMN stock INTEGER")
        assert catalog.schema().names[-1] == "stock"
