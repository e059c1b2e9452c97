"""Servers that follow a publication of PostgreSQL, each by its own slot."""

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("psycopg")

from leafbeam.client import Client
from leafbeam.feeds import CatalogSource
from leafbeam.ingest import CatalogWriter
from leafbeam.serve.feed_config import FeedConfig
from tests.feeds.database import PublishedItems
from tests.feeds.followers import copy_of, row, wait_for
from tests.serve.running import opened, serving


class Servers:
    """Servers of one publication; leaving ends them."""

    def __init__(self, table: PublishedItems) -> None:
        self._table, self._stack = table, ExitStack()

    def start(self, shop: Any, slot: str, snapshot: Path | None = None) -> httpx.Client:
        """Start a server, and return a client of it."""
        engine, writer = self._stack.enter_context(opened(shop, "on"))
        assert isinstance(writer, CatalogWriter)
        assert snapshot is None or writer.begin_with(snapshot)
        config = FeedConfig(postgres=self._table.name, database=self._table.uri, slot=slot, batch=3)
        writer.source = CatalogSource(config, writer)
        return self._stack.enter_context(serving(engine, writer=writer))[1]

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def feed_of(client: httpx.Client) -> dict[str, Any]:
    return client.get("/readyz").json()["feed"]


def prices(client: httpx.Client) -> dict[Any, Any]:
    with Client(str(client.base_url)) as asking:
        found = asking.find_items(item_ids=range(2000, 2020)).items
        return {item.item_id: item.attributes["price"] for item in found if item.in_index}


def test_servers_follow_one_publication_and_a_new_one_begins_with_a_snapshot(database: str, shop: Any) -> None:
    table, third = PublishedItems(uri=database), copy_of(shop, "third")
    table.put(row(2000), row(2001), row(2002), row(2003))
    slots = [f"{table.name}_{number}" for number in range(3)]
    with Servers(table) as servers:
        running = [servers.start(shop, slots[0]), servers.start(copy_of(shop, "second"), slots[1])]
        for client in running:  # a slot that begins after the changes has another position until the next change
            wait_for(lambda client=client: feed_of(client)["position"].get("copied"))
        table.put(row(2000, 5.0), row(2004))
        table.delete(2003, 1000)  # and one that was never there
        for client in running:
            wait_for(lambda client=client: prices(client) == {2000: 5.0, 2001: 1.0, 2002: 1.0, 2004: 1.0})
            wait_for(lambda client=client: client.get("/readyz").status_code == 200)
            assert feed_of(client)["lag_s"] < 10
            assert re.search("leafbeam_feed_lag_seconds [0-9]", client.get("/metrics").text)
            refused = client.put("/v1/items", json=row(2005))
            assert (refused.status_code, f"follow PostgreSQL publication {table.name}" in refused.text) == (409, True)
        wait_for(lambda: feed_of(running[0])["position"]["lsn"] == feed_of(running[1])["position"]["lsn"])
        # The slot of the new server is older than the snapshot, so that no change is between them.
        table.run(f"SELECT pg_create_logical_replication_slot('{slots[2]}', 'pgoutput')")
        table.put(row(2001, 9.0))
        wait_for(lambda: prices(running[0])[2001] == 9.0)
        assert running[0].post("/v1/catalog/snapshot", json={"name": "now"}).status_code == 200
        table.put(row(2002, 8.0))
        running.append(servers.start(third, slots[2], shop.directory / "live/snapshots/now"))
        for client in running:
            wait_for(lambda client=client: prices(client) == {2000: 5.0, 2001: 9.0, 2002: 8.0, 2004: 1.0})
        wait_for(lambda: len({feed_of(client)["position"]["lsn"] for client in running}) == 1)
        assert len({client.get("/readyz").json()["rules_version"] for client in running}) == 1


def test_a_slot_that_is_gone_is_told_and_the_items_stay(database: str, shop: Any) -> None:
    table = PublishedItems(uri=database)
    table.put(row(2000))
    with Servers(table) as servers:
        client = servers.start(shop, table.name)
        wait_for(lambda: prices(client) == {2000: 1.0})
        wait_for(lambda: feed_of(client)["position"].get("copied"))
        table.run(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %(slot)s", slot=table.name
        )
        wait_for(lambda: feed_of(client)["error"])
        table.put(row(2001))
        wait_for(lambda: prices(client) == {2000: 1.0, 2001: 1.0})  # it tried again
        wait_for(lambda: feed_of(client)["error"] is None)
    table.run(f"SELECT pg_drop_replication_slot('{table.name}')")
    with Servers(table) as servers:
        client = servers.start(shop, table.name)
        wait_for(lambda: f"slot {table.name} is gone, and with it the changes since" in (feed_of(client)["error"] or ""))
        assert prices(client) == {2000: 1.0, 2001: 1.0}
        assert client.get("/readyz").status_code == 503
        for line in ("leafbeam_feed_failing 1", "leafbeam_ready 0"):
            assert re.search(line, client.get("/metrics").text)
