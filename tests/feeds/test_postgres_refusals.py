"""Slots, tables, databases and users with which a publication cannot be followed: each is named."""

import threading
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("psycopg")

import psycopg

from leafbeam.errors import ArgumentError, FeedError
from leafbeam.feeds import Publication, SourceColumns, postgres
from tests.feeds.database import Items, PublishedItems
from tests.feeds.followers import row, wait_for


def test_an_emptied_table_is_named_or_skipped(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    table.put(row(1))
    items.follow_to_end(table.feed({}))
    table.run("TRUNCATE TABLE_")
    table.put(row(2))
    for _ in range(2):  # nothing is made behind it
        with pytest.raises(FeedError, match=r"transaction \w+/\w+, change 1: the table was emptied \(truncate\)"):
            items.follow_to_end(table.feed(items.position))
    items.follow_to_end(table.feed(items.position), skip_bad=True)
    assert sorted(items.rows) == [1, 2]


def test_a_position_that_the_slot_cannot_continue_is_named(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    table.put(row(1))
    items.follow_to_end(table.feed({}))
    table.put(row(2))
    wrong = [
        ({"system": "17"}, f"another database system \\(17, and this is {items.position['system']}\\)"),
        ({"seen": "FFFF/0"}, "followed it up to FFFF/0, but the database's log ends at .*restored from an older state"),
        ({"lsn": "0/1", "seen": "0/1"}, f"followed it up to 0/1, but slot {table.name} has only the changes since"),
    ]
    for fields, message in wrong:
        with pytest.raises(FeedError, match=message + ".*Begin with a newer snapshot"):
            table.feed({**items.position, **fields})
    for fields in ({"lsn": "x"}, {"lsn": "FF/0"}, {"copied": 1}, {"change": True}, {"more": 1}):
        with pytest.raises(FeedError, match="is not a position in a followed table"):
            table.feed({**items.position, **fields})
    table.run(f"SELECT pg_drop_replication_slot('{table.name}')")
    with pytest.raises(FeedError, match=f"slot {table.name} is gone, and with it the changes since"):
        table.feed(items.position)
    table.run(f"SELECT pg_create_logical_replication_slot('{table.name}', 'pgoutput')")
    with pytest.raises(FeedError, match="has only the changes since"):
        table.feed(items.position)
    table.run(f"SELECT pg_drop_replication_slot('{table.name}')")
    table.run(f"SELECT pg_create_physical_replication_slot('{table.name}')")
    with pytest.raises(FeedError, match="has the plugin None: expected pgoutput"):
        table.feed(items.position)


def test_changes_that_the_database_removed_are_named(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    items.follow_to_end(table.feed({}))
    with psycopg.connect(database, autocommit=True) as connection:
        try:
            connection.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
            connection.execute("SELECT pg_reload_conf()")
            for _ in range(4):
                table.put(row(1))
                connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
            with pytest.raises(FeedError, match=f"removed changes that slot {table.name} had not sent yet"):
                table.feed(items.position)
        finally:
            connection.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.execute("SELECT pg_reload_conf()")


def test_a_slot_serves_one_server(database: str) -> None:
    table = PublishedItems(uri=database)
    table.put(row(1))
    first, second = Items(), Items()
    with closing(table.feed({}, start="now")) as feed:
        with pytest.raises(FeedError, match=r"is active for PID.*Each server needs a slot of its own"):
            table.feed(feed.position)
        second.follow_to_end(table.feed({}, slot=f"{table.name}_second"))
        table.put(row(2))
        first.follow_to_end(feed)
    second.follow_to_end(table.feed(second.position, slot=f"{table.name}_second"))
    assert (sorted(first.rows), sorted(second.rows)) == ([2], [1, 2])
    assert first.position["lsn"] == second.position["lsn"]


def test_publications_that_cannot_be_followed_are_named(database: str) -> None:
    def refusal(*commands: str, **options: Any) -> str:
        table = PublishedItems(uri=database)
        if commands:
            table.run(*commands)
        with pytest.raises(FeedError) as refused:
            table.feed({}, **options)
        assert table.slots == []
        return str(refused.value).replace(table.name, "NAME")

    assert "there is no such publication: expected one with one table" in refusal("DROP PUBLICATION TABLE_")
    assert "it publishes no table: expected" in refusal("ALTER PUBLICATION TABLE_ DROP TABLE TABLE_")
    two = refusal("CREATE TABLE TABLE_b (item_id int PRIMARY KEY)", "ALTER PUBLICATION TABLE_ ADD TABLE TABLE_b")
    assert "it publishes public.NAME, public.NAMEb: expected" in two
    assert "some changes are not published: ALTER" in refusal("ALTER PUBLICATION TABLE_ SET (publish = 'insert, delete')")
    assert "does not have the column 'item_id'" in refusal("ALTER TABLE TABLE_ REPLICA IDENTITY NOTHING")
    assert "does not have the column 'title'" in refusal(columns=SourceColumns(item_id="title"))


def test_a_table_that_is_published_later_is_named(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    with closing(table.feed({})) as feed:
        table.run("CREATE TABLE TABLE_b (item_id int PRIMARY KEY)", "ALTER PUBLICATION TABLE_ ADD TABLE TABLE_b")
        table.run("INSERT INTO TABLE_b VALUES (1)")
        with pytest.raises(FeedError, match=f"has the table public.{table.name}b too"):
            items.follow_to_end(feed)


def test_databases_that_cannot_be_reached_are_named_without_secrets(database: str) -> None:
    for wrong in (f"{database}&port=1", "postgresql://u:hunter2@127.0.0.1:9/x"):
        with pytest.raises(FeedError, match=r"PostgreSQL publication p: .*Is the database up") as refused:
            postgres.PostgresFeed(Publication(name="p", database=wrong), {})
        assert "hunter2" not in str(refused.value)
    for options, message in [
        ({"database": "postgresql://u:hunter2@[x"}, "the connection string is invalid"),
        ({"database": "password hunter2"}, "the connection string is invalid"),
        ({"properties": {"hots": "hunter2"}}, 'libpq does not take these properties: .*"hots"'),
        ({"slot": "Server-1"}, "slot 'Server-1': expected 1 to 58 characters"),
    ]:
        with pytest.raises(ArgumentError, match=message) as invalid:
            Publication(name="p", **options)  # type: ignore[arg-type]
        assert "hunter2" not in str(invalid.value)
    assert "hunter2" not in repr(Publication(name="p", database="password=hunter2", properties={"password": "hunter2"}))


def test_a_user_that_may_read_and_replicate_is_enough(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    table.put(row(1))
    table.run("CREATE ROLE TABLE_ LOGIN REPLICATION")
    as_user = replace(table.publication(), database=database.replace("user=leafbeam", f"user={table.name}"))
    with pytest.raises(FeedError, match=r"permission denied for table .*may this user read the table"):
        postgres.PostgresFeed(as_user, {})
    table.run("GRANT SELECT ON TABLE_ TO TABLE_")
    items.follow_to_end(postgres.PostgresFeed(as_user, {}))
    table.put(row(2))
    items.follow_to_end(postgres.PostgresFeed(as_user, items.position))
    assert items.rows == table.rows()
    table.run("ALTER ROLE TABLE_ NOREPLICATION")
    with pytest.raises(FeedError, match="may this user read the table and replicate"):
        postgres.PostgresFeed(as_user, items.position)


def test_a_transaction_that_is_left_open_is_named(database: str) -> None:
    table = PublishedItems(uri=database)
    with psycopg.connect(database) as connection:
        connection.execute(f"INSERT INTO {table.name} (item_id) VALUES (1)".encode())
        for _ in range(2):
            with pytest.raises(FeedError, match=r"after 0\.5 s\. A slot waits for the end of all transactions that write"):
                table.feed({}, timeout_s=0.5)
            assert table.slots == []
        opening = threading.Timer(0.5, connection.commit)
        opening.start()
        items = Items()
        items.follow_to_end(table.feed({}))
        opening.join()
    assert sorted(items.rows) == [1]


def test_a_connection_that_ends_is_named_and_nothing_is_lost(database: str) -> None:
    table, items = PublishedItems(uri=database), Items()
    items.follow_to_end(table.feed({}))
    with closing(table.feed(items.position)) as feed:
        table.run(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %(slot)s", slot=table.name
        )
        with pytest.raises(FeedError, match="terminating connection due to administrator command"):
            feed.read(5)
    table.put(row(1))
    wait_for(lambda: not table.run("SELECT active FROM pg_replication_slots WHERE slot_name = %(s)s", s=table.name)[0][0])
    items.follow_to_end(table.feed(items.position))
    assert sorted(items.rows) == [1]
