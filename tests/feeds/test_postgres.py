"""Publications of PostgreSQL: rows and changes, in order and once."""

import json
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg")

import psycopg

from leafbeam.errors import FeedError
from leafbeam.feeds import SourceColumns, postgres
from tests.feeds.crashes import Killed, Point
from tests.feeds.database import Items, PublishedItems
from tests.feeds.follower_process import FileCatalog
from tests.feeds.followers import row, wait_for

LARGE = "x" * 9000  # it is kept outside its row
PLAIN = "item_id bigint PRIMARY KEY, title text, price double precision"
WITH_LARGE = f"{PLAIN}, large text"


def large_table(uri: str) -> PublishedItems:
    table = PublishedItems(uri=uri, columns=WITH_LARGE)
    table.run("ALTER TABLE TABLE_ ALTER large SET STORAGE EXTERNAL")
    return table


def test_rows_are_copied_and_changes_are_made_in_order(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    table.put(row(1), row(2), row(3))
    (copied,) = items.follow_to_end(table.feed({}))
    assert (len(copied.changes), items.rows) == (3, table.rows())
    assert items.position["copied"] is True
    table.put(row(2, 2.0), row(4), row(4, 9.0))
    table.delete(1)
    table.run("UPDATE TABLE_ SET item_id = 30 WHERE item_id = 3")
    batches = items.follow_to_end(table.feed(items.position))  # one, unless the database is slow
    operations = [(change.operation, change.row["item_id"]) for batch in batches for change in batch.changes]
    assert operations == [("put", 2), ("put", 4), ("put", 4), ("delete", 1), ("delete", 3), ("put", 30)]
    assert items.rows == table.rows()
    assert sorted(items.rows) == [2, 4, 30]
    assert items.follow_to_end(table.feed(items.position)) == []
    assert table.slots == [table.name]  # the slot for the copy is gone


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_any_changes_leave_the_rows_of_the_table(database: str, identity: str) -> None:
    table, items, rng = large_table(database), Items(), random.Random(0)
    table.run(f"ALTER TABLE TABLE_ REPLICA IDENTITY {identity}")
    for _ in range(12):
        for _ in range(rng.randrange(5)):
            with psycopg.connect(database) as connection:
                for _ in range(rng.choice([1, 3, 20])):
                    change_row(connection, table.name, rng, with_ids=identity == "FULL")
                if rng.random() < 0.2:
                    connection.rollback()
        items.follow_to_end(table.feed(items.position, max_changes=rng.choice([1, 2, 7, 1000])))
        assert items.rows == table.rows()


def change_row(connection: Any, name: str, rng: random.Random, *, with_ids: bool) -> None:
    """Make one of the changes that a row can have, perhaps within a savepoint that is rolled back."""
    item, other, price, large = rng.randrange(12), rng.randrange(12), rng.random(), rng.choice("abc") * 9000
    commands = [
        (f"INSERT INTO {name} VALUES (%s, 'new', %s, %s) ON CONFLICT DO NOTHING", (item, price, large)),
        (f"UPDATE {name} SET price = %s WHERE item_id = %s", (price, item)),
        (f"UPDATE {name} SET large = %s WHERE item_id = %s", (large, item)),
        (f"UPDATE {name} SET title = NULL, price = price + 1 WHERE item_id < %s", (item,)),
        (f"DELETE FROM {name} WHERE item_id = %s", (item,)),
        (
            f"UPDATE {name} SET item_id = %s WHERE item_id = %s AND NOT EXISTS (SELECT FROM {name} WHERE item_id = %s)",
            (other, item, other),
        ),
    ]
    with connection.transaction(force_rollback=rng.random() < 0.2):
        connection.execute(*rng.choice(commands if with_ids else commands[:-1]))


def test_a_large_column_that_did_not_change_stays(database: str) -> None:
    table, items = large_table(database), Items()
    table.put({"item_id": 1, "title": "old", "price": 1.0, "large": LARGE})
    items.follow_to_end(table.feed({}))
    table.run("UPDATE TABLE_ SET price = 2")
    (changes,) = items.follow_to_end(table.feed(items.position))
    assert [(change.operation, "large" in change.row) for change in changes.changes] == [("patch", False)]
    table.run("UPDATE TABLE_ SET price = 3")
    columns = SourceColumns(names=("title", "price"))
    (changes,) = items.follow_to_end(table.feed(items.position, columns=columns))
    assert [(change.operation, dict(change.row)) for change in changes.changes] == [
        ("put", {"item_id": 1, "title": "old", "price": 3.0})  # all columns that are taken came
    ]
    table.run("ALTER TABLE TABLE_ REPLICA IDENTITY FULL", "UPDATE TABLE_ SET price = 4")
    (changes,) = items.follow_to_end(table.feed(items.position))
    assert [(change.operation, change.row["large"]) for change in changes.changes] == [("put", LARGE)]
    table.run("UPDATE TABLE_ SET item_id = 2")
    items.follow_to_end(table.feed(items.position))
    assert items.rows == table.rows()
    table.run("ALTER TABLE TABLE_ REPLICA IDENTITY DEFAULT", "UPDATE TABLE_ SET item_id = 3")
    with pytest.raises(FeedError, match="item 2 became 3, and large columns that did not change did not come with it"):
        items.follow_to_end(table.feed(items.position))


def test_a_follower_that_is_killed_at_any_point_loses_and_doubles_nothing(database: str) -> None:
    """Also within a copy: rows that the first one put, and that are gone when the next one begins, are removed."""
    for number in range(200):
        table, items, point = large_table(database), Items(), Point(number)
        items.step, killed = point.step, False
        table.put(*({"item_id": item, "title": "first", "large": LARGE} for item in range(5)))
        while True:
            try:
                items.follow_to_end(table.feed(items.position, max_changes=2))
                if killed:
                    break
                table.run("UPDATE TABLE_ SET price = 7 WHERE item_id IN (2, 4, 6)", "DELETE FROM TABLE_ WHERE item_id = 0")
                table.put({"item_id": 8, "title": "later"}, {"item_id": 9, "title": "later"}, {"item_id": 3, "title": "later"})
                items.follow_to_end(table.feed(items.position, max_changes=2))
                break
            except Killed:
                killed, items.step = True, lambda: None
                table.run("DELETE FROM TABLE_ WHERE item_id IN (0, 9)", "UPDATE TABLE_ SET price = 8 WHERE item_id = 1")
                table.put({"item_id": 6, "title": "while it was down"})
        assert items.rows == table.rows()
        table.run(f"SELECT pg_drop_replication_slot('{table.name}')")
        if not killed:
            assert number > 15
            return
    raise AssertionError("every point was before the end")


@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.full)])
def test_a_process_that_is_killed_goes_on_from_what_it_wrote(database: str, tmp_path: Path, kills: int) -> None:
    table, rng = large_table(database), random.Random(0)
    table.put(*({"item_id": item, "title": "first", "large": LARGE} for item in range(10)))
    words = [sys.executable, "-m", "tests.feeds.follower_process", str(tmp_path / "items.db"), table.name, database]
    for number in range(kills + 1):
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            if number < kills:
                for _ in range(rng.randrange(1, 12)):
                    with psycopg.connect(database) as connection:
                        change_row(connection, table.name, rng, with_ids=False)
                    assert child.stdout.readline(), "it ended by itself"
            else:
                assert "end\n" in child.stdout
            child.kill()
    with closing(FileCatalog(str(tmp_path / "items.db"))) as catalog:
        assert catalog.rows == table.rows()
        assert catalog.position["copied"] is True


def test_a_large_transaction_is_made_in_parts_and_goes_on_within(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    items.follow_to_end(table.feed({}))
    table.put(*map(row, range(10)))
    with closing(table.feed(items.position, max_changes=4)) as feed:
        batch = feed.read(5)
        assert batch is not None
        assert (len(batch.changes), batch.position["change"], feed.is_at_end) == (4, 4, False)
        assert batch.position["lsn"] == items.position["lsn"]
    rest = items.follow_to_end(table.feed(batch.position, max_changes=3))
    assert [len(one.changes) for one in rest] == [3, 3]
    assert rest[-1].position["change"] == 0  # the commit came with the last part
    assert sorted(items.rows) == list(range(4, 10))


def test_a_file_keeps_the_position_and_the_batch_under_way(database: str, tmp_path: Path) -> None:
    table, path = PublishedItems(uri=database), tmp_path / "position.json"
    Items().follow_to_end(table.feed(path))
    table.put(row(1), row(2), row(3))
    with closing(table.feed(path, max_changes=2)) as feed:
        unfinished = feed.read(5)
    table.put(row(4))  # it must not end up in the batch that was under way
    with closing(table.feed(path, max_changes=1000)) as feed:
        assert unfinished is not None
        again = feed.read(5)
        assert again is not None
        assert (again.key, again.changes, again.position) == (unfinished.key, unfinished.changes, unfinished.position)
        assert len(again.changes) == 2
        feed.commit(again)
        rest = feed.read(5)
        assert rest is not None
        assert [change.row["item_id"] for change in rest.changes] == [3, 4]
        assert rest.key != again.key
    for content in ("[]", "{}", '{"format": 1, "lsn": 5}', path.read_text().replace('"change": 2', '"change": -2')):
        path.write_text(content)
        with pytest.raises(FeedError, match="is not a position in a followed table"):
            table.feed(path)


def test_only_changes_from_now_on_are_taken(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    table.put(row(1))
    table.feed(items.position, start="now").close()
    table.put(row(2))
    items.follow_to_end(table.feed({}, start="now"))  # from the slot's begin
    assert sorted(items.rows) == [2]


def test_values_are_read_as_their_types_say(database: str) -> None:
    own = PublishedItems(uri=database)
    own.run("CREATE TYPE TABLE_mood AS ENUM ('glad', 'sad')", "CREATE DOMAIN TABLE_amount AS int CHECK (value > 0)")
    columns: list[tuple[str, str, Any]] = [
        ("int8", "9007199254740993", 9007199254740993),
        ("float4", "0.1", 0.1),
        ("float8", "'-Infinity'", float("-inf")),
        ("numeric(20, 2)", "123456789012345678.90", "123456789012345678.90"),
        ("bool", "true", True),
        ("text", r"E'a\\b\n''c'", "a\\b\n'c"),
        ("char(4)", "'ab'", "ab  "),
        ("date", "'2026-01-31'", "2026-01-31"),
        ("timestamptz", "'2026-01-31 10:00:00.5+02'", "2026-01-31 08:00:00.5+00"),
        ("timestamp", "'2026-01-31 10:00:00'", "2026-01-31 10:00:00"),
        ("uuid", "'6f5f2a5e-3c1b-4b8e-9d0a-5d7e4f6a1b2c'", "6f5f2a5e-3c1b-4b8e-9d0a-5d7e4f6a1b2c"),
        ("jsonb", """'{"a": [1]}'""", '{"a": [1]}'),
        ("bytea", r"'\x00ff'", r"\x00ff"),
        ("int[]", "'{1,2,NULL}'", [1, 2, None]),
        ("float8[]", "'{0.5,1e300}'", [0.5, 1e300]),
        ("text[]", """'{"a,b",c,"d\\"e",NULL}'""", ["a,b", "c", 'd"e', None]),
        ("numeric[]", "'{1.50}'", ["1.50"]),
        ("date[]", "'{2026-01-31}'", ["2026-01-31"]),
        ("int[][]", "'{{1,2},{3,4}}'", [[1, 2], [3, 4]]),
        (f"{own.name}mood", "'sad'", "sad"),
        (f"{own.name}mood[]", "'{sad,glad}'", ["sad", "glad"]),
        (f"{own.name}amount", "5", 5),
        (f"{own.name}amount[]", "'{5,6}'", [5, 6]),
        ("text", "NULL", None),
    ]
    names = [f"c{number}" for number in range(len(columns))]
    definitions = ", ".join(f"{name} {kind}" for name, (kind, _, _) in zip(names, columns, strict=True))
    table = PublishedItems(
        uri=database, columns=f"item_id text PRIMARY KEY, {definitions}, twice bigint GENERATED ALWAYS AS (c0 * 2) STORED"
    )
    insert = f"INSERT INTO TABLE_ (item_id, {', '.join(names)}) VALUES (%(id)s, {', '.join(sql for _, sql, _ in columns)})"
    expected = dict(zip(names, [value for _, _, value in columns], strict=True))
    table.run(insert, id="copied")
    items = Items()
    items.follow_to_end(table.feed({}))
    table.run(insert, id="changed")
    items.follow_to_end(table.feed(items.position))
    assert items.rows == {name: {"item_id": name, **expected} for name in ("copied", "changed")}


def test_columns_and_rows_that_are_not_published_are_not_copied(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    table.run("ALTER PUBLICATION TABLE_ SET TABLE TABLE_ (item_id, price) WHERE (item_id < 10)")
    table.put(row(1), row(11))
    items.follow_to_end(table.feed({}))
    table.put(row(2), row(12))
    items.follow_to_end(table.feed(items.position))
    assert items.rows == {item: {"item_id": item, "price": 1.0} for item in (1, 2)}


def test_a_column_that_is_added_comes_with_the_changes_after_it(database: str) -> None:
    table, items = PublishedItems(uri=database, columns=PLAIN), Items()
    table.put({"item_id": 1})
    items.follow_to_end(table.feed({}))
    with closing(table.feed(items.position)) as feed:
        table.put({"item_id": 2})
        table.run("ALTER TABLE TABLE_ ADD tags text[]", "ALTER TABLE TABLE_ DROP title")
        table.put({"item_id": 3, "tags": ["a"]})
        items.follow_to_end(feed)
    assert items.rows[2] == {"item_id": 2, "title": None, "price": None}
    assert items.rows[3] == {"item_id": 3, "price": None, "tags": ["a"]}


def test_a_copy_is_of_one_moment_and_changes_during_it_come_after_it(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    table.put(*map(row, range(6)))
    with closing(table.feed({}, max_changes=2)) as feed:
        first = feed.read(5)
        while first is None:
            first = feed.read(5)
        table.put(row(5, 9.0), row(7))
        table.delete(0, 4)
        copied = [change.row["item_id"] for change in first.changes]
        feed.commit(first)
        while not feed.position["copied"]:
            batch = feed.read(5)
            assert batch is not None
            copied += [change.row["item_id"] for change in batch.changes]
            assert {change.row["price"] for change in batch.changes} <= {1.0}
            feed.commit(batch)
        assert sorted(copied) == list(range(6))
        items.rows = {item: row(item) for item in copied}
        items.follow_to_end(feed)
    assert items.rows == table.rows()


def test_the_lag_is_that_of_the_last_change_that_is_made(database: str) -> None:
    table = PublishedItems(uri=database)
    with closing(table.feed({}, start="now")) as feed:
        assert feed.complete_until is None
        before = time.time()
        wait_for(lambda: feed.read(0.1) is None and feed.is_at_end)
        assert before <= (feed.complete_until or 0) <= time.time()
        table.put(row(1))
        at_end = feed.complete_until
        batch = feed.read(5)
        assert batch is not None
        time.sleep(0.3)
        assert feed.complete_until == at_end
        feed.commit(batch)
        assert time.time() - 5 < (feed.complete_until or 0) < time.time() - 0.29


def test_a_slot_keeps_nothing_of_other_tables(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, other = PublishedItems(uri=database), PublishedItems(uri=database)
    monkeypatch.setattr(postgres, "_SEEN_S", 0.0)
    with closing(table.feed({}, start="now")) as feed:
        table.put(row(1))
        batch = feed.read(5)
        assert batch is not None
        feed.commit(batch)
        other.put(row(1))
        goal = other.log_end

        def kept() -> bool:
            batch = feed.read(0.1)
            if batch is not None:
                assert batch.changes == ()
                feed.commit(batch)
            query = "SELECT confirmed_flush_lsn >= %(goal)s FROM pg_replication_slots WHERE slot_name = %(slot)s"
            return table.run(query, goal=goal, slot=table.name)[0][0]

        wait_for(kept)
        assert feed.position["lsn"] == batch.position["lsn"]  # two servers compare it
        assert feed.position["seen"] != batch.position["seen"]
        position = feed.position
    assert Items().follow_to_end(table.feed(position)) == []


def test_positions_are_json(database: str) -> None:
    table = PublishedItems(uri=database)
    with closing(table.feed({})) as feed:
        assert json.loads(json.dumps(feed.position)) == feed.position
