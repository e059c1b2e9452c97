"""Items without a row in the table are not answered, rows without an item are named, and other users of a file are seen."""

import fcntl
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pytest

from leafbeam.catalog import Catalog
from leafbeam.catalog.locks import UseLock
from leafbeam.errors import CatalogInUseWarning, UnknownRuleError
from tests.catalog.shop import IDS, NUM_ITEMS, TRIE, change, items, names

RULES = {"all": "true", "cheap": "price < 20"}
GONE = {"é003", "é044", "é150"}


def write(path: Path, sql: str) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(sql)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Catalog.create(tmp_path / "shop.duckdb", items())
    return tmp_path / "shop.duckdb"


def shown(catalog: Catalog) -> set:
    """The items of a request without a rule."""
    chosen = catalog.filter()
    version = catalog.version()
    return set((version.all_items if chosen is None else chosen).item_ids().tolist())


def test_an_item_whose_row_was_deleted_is_not_answered_after_a_reload_with_or_without_a_rule(path: Path) -> None:
    with Catalog.open(path, TRIE, RULES) as catalog:
        pinned = catalog.rules
        assert pinned.filter() is None
        write(path, f"DELETE FROM items WHERE item_id IN {tuple(GONE)}; ALTER TABLE items RENAME COLUMN price TO cost")
        report = catalog.reload()
        assert report.not_in_catalog == 3
        assert "3 items of the index are not in the table: not recommended" in str(report)
        assert shown(catalog) == set(IDS) - GONE
        assert names(catalog, "all") == set(IDS) - GONE
        assert len(names(catalog, "cheap") & GONE) == 0  # it failed and keeps its last good filter
        allowed = catalog.filter(deny=["é000"])
        assert allowed is not None
        assert set(allowed.item_ids().tolist()) == set(IDS) - GONE - {"é000"}
        assert pinned.filter() is None
        write(path, "INSERT INTO items SELECT * REPLACE ('é044' AS item_id) FROM items WHERE item_id = 'é000'")
        assert catalog.reload().not_in_catalog == 2
        assert shown(catalog) == set(IDS) - GONE | {"é044"}


def test_a_catalog_without_rules_shows_no_item_without_a_row_either(path: Path) -> None:
    write(path, f"DELETE FROM items WHERE item_id IN {tuple(GONE)}")
    with Catalog.open(path, TRIE) as catalog:
        assert shown(catalog) == set(IDS) - GONE
        assert (len(catalog.rules.filters), list(catalog.rules.filters)) == (0, [])
        for name in ("", "all"):
            with pytest.raises(UnknownRuleError):
                catalog.filter([name])


def test_a_new_row_without_a_semantic_id_is_named_and_counted(path: Path) -> None:
    with Catalog.open(path, TRIE, RULES) as catalog:
        write(path, "INSERT INTO items SELECT 'new ' || range, 1.0, 1 FROM range(5)")
        report = catalog.reload()
        assert (report.not_in_index, report.examples) == (5, ("new 0", "new 1", "new 2"))
        assert "5 items of the table are not in the index (such as 'new 0', 'new 1', 'new 2')" in str(report)
        catalog.insert([[0, 0]], ["new 0"])
        report = catalog.reload()
        assert (report.not_in_index, report.examples) == (4, ("new 1", "new 2", "new 3"))
        assert "new 0" in shown(catalog)
        write(path, "CREATE TABLE copy AS SELECT * FROM items; DROP TABLE items; ALTER TABLE copy RENAME TO items")
        assert catalog.reload().examples == ("new 1", "new 2", "new 3")


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("where", ["memory", "file", "exclusive", "held"])
def test_changes_keep_what_has_a_row(path: Path, where: str, compacts: bool) -> None:
    write(path, f"DELETE FROM items WHERE item_id IN {tuple(GONE)}")
    catalog = Catalog.open(path, TRIE, RULES, exclusive=where == "exclusive", hold_s=600 if where == "held" else 0)
    if where == "memory":
        catalog = Catalog.in_memory(items(), TRIE, RULES)
        change(catalog, f"DELETE FROM items WHERE item_id IN {tuple(GONE)}")
        catalog.reload()
    with catalog:
        catalog.insert([[1, 1], [2, 2]], ["a", "b"], [{"price": 1.0}, {"price": 30.0}])
        catalog.insert([[3, 3]], ["c"])
        catalog.update(["é003"], [{"price": 5.0}])
        catalog.delete(["é000", "a"])
        catalog.replace([[4, 4]], ["b"])
        catalog.replace([[4, 5]], ["é044"])
        if compacts:
            catalog.compact(wait=True)
        expected = set(IDS) - GONE - {"é000"} | {"b", "c", "é003"}
        assert shown(catalog) == expected
        assert names(catalog, "all") == expected
        assert {"c", "b", "é044"}.isdisjoint(names(catalog, "cheap"))
        report = catalog.reload()
        assert shown(catalog) == expected
        assert report.not_in_catalog == 2


def test_a_failed_reload_keeps_what_was_shown(path: Path) -> None:
    write(path, f"DELETE FROM items WHERE item_id IN {tuple(GONE)}")
    with Catalog.open(path, TRIE, RULES) as catalog:
        write(path, "DROP TABLE items")
        assert catalog.reload().error is not None
        assert shown(catalog) == set(IDS) - GONE
        assert len(catalog.rules.version) == NUM_ITEMS


# A file that another process has open too.


def test_changes_of_a_catalog_that_another_process_has_open_warn_by_name(path: Path) -> None:
    code = "import sys; from pathlib import Path; from leafbeam.catalog.locks import UseLock\n"
    code += "lock = UseLock(Path(sys.argv[1])); print('open', flush=True); sys.stdin.readline()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with Catalog.open(path, TRIE, RULES) as catalog:
        catalog.delete(["é000"])
        with subprocess.Popen([sys.executable, "-c", code, str(path)], **pipes) as server:
            assert server.stdout.readline() == "open\n"
            for change_items in (
                lambda: catalog.delete(["é001"]),
                lambda: catalog.insert([[0, 0]], ["new"]),
                lambda: catalog.update(["é002"], [{"price": 1.0}]),
                catalog.purge,
            ):
                with pytest.warns(CatalogInUseWarning, match=r"another process has .*shop.duckdb open"):
                    change_items()
            server.stdin.write("\n")
            server.stdin.flush()
            server.wait(20)
        catalog.delete(["é003"])  # warnings are errors here


def test_a_catalog_of_the_same_process_counts_until_it_is_closed(path: Path) -> None:
    first = Catalog.open(path, TRIE)
    with Catalog.open(path, TRIE) as second:
        with pytest.warns(CatalogInUseWarning):
            second.delete(["é001"])
        first.close()
        second.delete(["é002"])
    with warnings.catch_warnings():
        UseLock(path)  # released when nothing refers to it


@pytest.mark.parametrize("num_others", [1, 3])
def test_processes_that_look_for_each_other_at_the_same_time_all_see_the_others(path: Path, num_others: int) -> None:
    """A6: looking drops no share of the lock, however the looks of several processes meet."""
    code = "import sys; from pathlib import Path; from leafbeam.catalog.locks import UseLock\n"
    code += "lock = UseLock(Path(sys.argv[1])); print('open', flush=True); sys.stdin.readline()\n"
    code += "print(sum(not lock.is_shared() for _ in range(2000)), flush=True); sys.stdin.readline()"
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with ExitStack() as stack:
        lock = UseLock(path)
        assert not lock.is_shared()
        others = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", code, str(path)], **pipes)) for _ in range(num_others)
        ]
        assert [other.stdout.readline() for other in others if other.stdout] == ["open\n"] * num_others
        for other in others:
            print(file=other.stdin, flush=True)
        assert sum(not lock.is_shared() for _ in range(2000)) == 0
        assert [other.stdout.readline() for other in others if other.stdout] == ["0\n"] * num_others
        assert lock.is_shared()  # nobody has lost its share
        for other in others:
            print(file=other.stdin, flush=True)
            other.wait(20)
        assert not lock.is_shared()


def test_catalogs_of_one_process_take_turns_too(path: Path) -> None:
    """A6"""
    locks = [UseLock(path) for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        seen = threads.map(lambda lock: [lock.is_shared() for _ in range(500)], locks)
        assert all(all(found) for found in seen)
    for lock in locks[1:]:
        lock.close()
    assert not locks[0].is_shared()


def test_a_directory_that_another_program_keeps_locked_delays_nothing_for_long(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A6: the careful answer, and a catalog that opens without the lock."""
    monkeypatch.setattr("leafbeam.catalog.locks._WAIT_S", 0.01)
    lock, descriptor = UseLock(path), os.open(path.parent, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert lock.is_shared()
    with Catalog.open(path, TRIE) as catalog:
        catalog.delete(["é001"])
    os.close(descriptor)
    assert not lock.is_shared()


def test_the_lock_writes_nothing_and_follows_no_link(path: Path, tmp_path: Path) -> None:
    lock = tmp_path / "shop.duckdb.lock"
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"symbolic link"):
        UseLock(path)
    with Catalog.open(path, TRIE) as catalog:  # it opens all the same
        catalog.delete(["é001"])
    assert not (tmp_path / "elsewhere").exists()
    lock.unlink()
    os.mkfifo(lock)
    with Catalog.open(path, TRIE) as catalog:
        catalog.delete(["é001"])
