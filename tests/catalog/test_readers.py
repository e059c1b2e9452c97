"""Sessions that read run at the same time, a change runs alone, and the file is closed after the last of them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog, locks
from leafbeam.catalog.items_table import ItemsTable
from leafbeam.catalog.locks import SessionLock
from leafbeam.errors import DataError
from tests.fixtures.open_files import is_open

_WAIT_S = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Catalog.create(tmp_path / "items.duckdb", pa.table({"item_id": ["a", "b", "c"], "price": [5, 50, 5]}))
    return (tmp_path / "items.duckdb").resolve()


@pytest.mark.parametrize("kind", ["closed", "held", "exclusive"])
def test_reads_do_not_wait_for_each_other(path: Path, kind: str) -> None:
    """A9: four reads meet inside their sessions, so none of them has waited for another to end."""
    options: dict[str, Any] = {"held": {"hold_s": 600.0}, "exclusive": {"exclusive": True}}.get(kind, {})
    table, meeting = ItemsTable(path, **options), threading.Barrier(4)
    if kind == "held":
        with table.writing() as session:
            session.connection.commit()

    def read(number: int) -> list[Any]:
        with table.reading(whole=number == 0) as session:
            meeting.wait(_WAIT_S)
            return session.lookup(["b"], ["price"]).to_pylist()

    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            assert list(threads.map(read, range(4))) == [[{"item_id": "b", "price": 50}]] * 4
    assert is_open(path) == (kind != "closed")
    table.close()
    assert not is_open(path)


def test_a_change_waits_for_reads_and_keeps_later_ones_out(path: Path) -> None:
    """A9"""
    table, inside, done = ItemsTable(path), threading.Event(), threading.Event()
    seen: list[Any] = []

    def read_long() -> None:
        with table.reading() as session:
            inside.set()
            assert done.wait(_WAIT_S)
            seen.append(session.lookup(["a"], ["price"]).to_pylist()[0]["price"])

    def change() -> None:
        with table.writing() as session:
            session.connection.execute("UPDATE items SET price = 7")
            session.connection.commit()
            seen.append("changed")

    with ThreadPoolExecutor(3) as threads:
        reading = threads.submit(read_long)
        assert inside.wait(_WAIT_S)
        changing = threads.submit(change)
        while not table._lock._entry.locked():  # the change waits
            pass
        later = threads.submit(lambda: seen.append(table_price(table)))
        assert seen == []
        done.set()
        for future in (reading, changing, later):
            future.result(_WAIT_S)
    assert seen == [5, "changed", 7]


def table_price(table: ItemsTable) -> int:
    with table.reading() as session:
        return session.lookup(["a"], ["price"]).to_pylist()[0]["price"]


def test_a_file_that_was_replaced_while_it_is_read_is_opened_by_the_next_reader(path: Path, tmp_path: Path) -> None:
    """A9"""
    table, inside, done = ItemsTable(path), threading.Event(), threading.Event()

    def read_long() -> int:
        with table.reading() as session:
            inside.set()
            assert done.wait(_WAIT_S)
            return session.lookup(["a"], ["price"]).to_pylist()[0]["price"]

    with ThreadPoolExecutor(2) as threads:
        before = threads.submit(read_long)
        assert inside.wait(_WAIT_S)
        Catalog.create(path, pa.table({"item_id": ["a"], "price": [9]}), overwrite=True)
        after = threads.submit(table_price, table)
        done.set()
        assert (before.result(_WAIT_S), after.result(_WAIT_S)) == (5, 9)


def test_an_error_of_a_reader_leaves_the_file_closed(path: Path) -> None:
    """A9"""
    table = ItemsTable(path)
    with pytest.raises(DataError), table.reading() as session:
        session.lookup(["a"], ["missing"])
    assert not is_open(path)
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE items SET price = 8")
    assert table_price(table) == 8


@pytest.mark.parametrize(("entry_s", "left"), [(0.0, 5.0), (3.0, 2.0), (5.5, 0.0)])
def test_a_lock_waits_for_its_timeout_once(monkeypatch: pytest.MonkeyPatch, entry_s: float, left: float) -> None:
    """A9: what is left of the time after the wait for another writer is that of the wait for readers."""
    lock, times, waits = SessionLock(), iter((100.0, 100.0 + entry_s)), list[float | None]()

    def wait_for(predicate: Callable[[], bool], timeout: float | None) -> bool:
        waits.append(timeout)
        return predicate()

    with monkeypatch.context() as patch:
        patch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: next(times)))
        patch.setattr(vars(lock)["_ended"], "wait_for", wait_for)
        with lock.alone(5.0) as is_alone:
            assert is_alone
    assert waits == [left]


def test_a_lock_that_is_not_got_in_time_keeps_nobody_out() -> None:
    """A9"""
    lock = SessionLock()
    with lock.shared():
        with lock.alone(0.01) as is_alone:
            assert not is_alone
        with lock.shared():
            pass
    with lock.alone(0.01) as is_alone:
        assert is_alone
