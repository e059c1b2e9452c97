"""Servers whose items follow a source: each by itself, with its position on disk beside the changes."""

import re
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("confluent_kafka")

from leafbeam.client import Client
from leafbeam.errors import ArgumentError, ConflictError, FeedError
from leafbeam.feeds import Batch, CatalogSource, Followed, ItemChange, KafkaFeed
from leafbeam.feeds.catalog_source import WriterTarget
from leafbeam.feeds.follower import make
from leafbeam.ingest import CatalogWriter, Lines
from leafbeam.ingest.request_log import RequestLog
from leafbeam.serve.feed_config import FeedConfig
from tests.feeds.broker import FAST, Broker, created, deleted, updated
from tests.feeds.crashes import Killed, Point
from tests.feeds.followers import copy_of, row, wait_for
from tests.serve.running import opened, serving

PROPERTIES = tuple(f"{name}={value}" for name, value in FAST.items())


def config(broker: Broker, topic: str, **options: Any) -> FeedConfig:
    return FeedConfig(kafka=topic, servers=broker.address, properties=PROPERTIES, **options)


def contents(client: httpx.Client, ids: range) -> dict[Any, Any]:
    with Client(str(client.base_url)) as asking:
        return {item.item_id: item.attributes for item in asking.find_items(item_ids=ids).items if item.in_index}


def test_servers_follow_one_topic_and_a_new_one_begins_with_a_snapshot(broker: Broker, shop: Any) -> None:
    topic, third = broker.new_topic(), copy_of(shop, "third")
    broker.send(topic, created(row(2000)), updated(row(2000, 2.0)), created(row(2001)), partition=0)
    broker.send(topic, created(row(2002)), deleted({"item_id": 1000}), None, partition=1)
    expected = {2000: 2.0, 2001: 1.0, 2002: 1.0}
    with ExitStack() as stack:

        def server(which: Any, snapshot: Path | None = None) -> httpx.Client:
            engine, writer = stack.enter_context(opened(which, "on"))
            assert isinstance(writer, CatalogWriter)
            assert snapshot is None or writer.begin_with(snapshot)
            assert snapshot is None or not writer.begin_with(snapshot)
            writer.source = CatalogSource(config(broker, topic), writer)
            return stack.enter_context(serving(engine, writer=writer))[1]

        def feed(client: httpx.Client) -> dict[str, Any]:
            return client.get("/readyz").json()["feed"]

        first, second = server(shop), server(copy_of(shop, "second"))
        for client in (first, second):
            wait_for(lambda client=client: feed(client)["position"] == {"0": 3, "1": 3, "2": 0, "3": 0})
            wait_for(lambda client=client: client.get("/readyz").status_code == 200)
            found = contents(client, range(2000, 2003))
            assert {item: one["price"] for item, one in found.items()} == expected
            assert not contents(client, range(1000, 1001))
            assert client.get("/readyz").json()["feed"]["lag_s"] < 10
            assert re.search("leafbeam_feed_lag_seconds [0-9]", client.get("/metrics").text)
            refused = client.put("/v1/items", json=row(2005))
            assert refused.status_code == 409
            assert f"follow Kafka topic {topic}" in refused.text
        assert first.post("/v1/catalog/snapshot", json={"name": "now"}).status_code == 200
        (saved,) = first.get("/v1/catalog").json()["snapshots"]
        assert saved["feed"] == {"0": 3, "1": 3, "2": 0, "3": 0}
        assert first.post("/v1/catalog/rollback", json={}).status_code == 409
        broker.send(topic, updated(row(2001, 9.0)), partition=0)
        fresh = server(third, shop.directory / "live/snapshots/now")
        for client in (first, second, fresh):
            wait_for(lambda client=client: feed(client)["position"]["0"] == 4)
            found = contents(client, range(2000, 2003))
            assert {item: one["price"] for item, one in found.items()} == expected | {2001: 9.0}


class Stepping:
    """A writer with a step before and after each write, which may be the last."""

    def __init__(self, writer: CatalogWriter, point: Point) -> None:
        self._writer, self._point, self.catalog = writer, point, writer.catalog

    def follow(self, *arguments: Any) -> Any:
        self._point.step()
        answer = self._writer.follow(*arguments)
        self._point.step()
        return answer


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_server_that_is_killed_at_any_point_loses_and_doubles_nothing(broker: Broker, shop: Any, every: int) -> None:
    for number in range(0, 60, every):
        topic, first = broker.new_topic(), 6000 + 10 * number
        broker.send(topic, created(row(first)), created(row(first + 1)), updated(row(first, 7.0)), partition=0)
        broker.send(topic, deleted({"item_id": first + 1}), created(row(first + 2)), partition=0)
        broker.send(topic, updated(row(first + 2, 8.0) | {"stock": "__debezium_unavailable_value"}), partition=0)
        broker.send(topic, created(row(first + 3)), partition=2)
        killed, point = False, Point(number)
        with opened(shop, "on") as (_, writer):
            assert isinstance(writer, CatalogWriter)
            writer.move({})  # of this topic nothing is made yet
        while True:
            try:
                with opened(shop, "on") as (_, writer):
                    assert isinstance(writer, CatalogWriter)
                    follow_to_end(broker, topic, writer, point)
                break
            except Killed:
                killed, point = True, Point(1 << 60)
        with opened(shop, "on") as (_, writer):
            assert isinstance(writer, CatalogWriter)
            ids = [first, first + 1, first + 2, first + 3]
            assert writer.catalog.index.version().knows(ids).tolist() == [True, False, True, True]
            prices = {found["item_id"]: found["price"] for found in writer.catalog.lookup(ids).to_pylist()}
            assert prices == {first: 7.0, first + 1: None, first + 2: 8.0, first + 3: 1.0}
            assert writer.position == {"0": 6, "1": 0, "2": 1, "3": 0}
        if not killed:
            return
    raise AssertionError("every point was before the end")


def follow_to_end(broker: Broker, topic: str, writer: CatalogWriter, point: Point) -> None:
    target = WriterTarget(writer)
    target._writer = Stepping(writer, point)  # type: ignore[assignment]
    feed = KafkaFeed(broker.address, topic, position=writer.position, max_changes=2, properties=FAST, timeout_s=10.0)
    with closing(feed):
        done = Followed.nothing()
        while not feed.is_at_end:
            batch = feed.read(0.05)
            if batch is not None:
                done = make(feed.name, batch, target, done, skip_bad=False)
                point.step()
                feed.commit(batch)
                point.step()


class Scripted:
    """A feed of a test: what each `read` returns, or raises."""

    name = "a script"

    def __init__(self, *reads: Any) -> None:
        self._reads, self.position, self.complete_until, self.is_at_end = list(reads), {}, None, False
        self.closed = 0

    def read(self, wait_s: float) -> Batch | None:
        found = self._reads.pop(0) if self._reads else None
        if isinstance(found, Exception):
            raise found
        if isinstance(found, float):
            self.complete_until, found = found, None
        time.sleep(0.01)
        return found

    def commit(self, batch: Batch) -> None:
        self.position = dict(batch.position)

    def close(self) -> None:
        self.closed += 1


def batch(*rows: dict[str, Any], position: int = 1) -> Batch:
    changes = tuple(ItemChange(operation="put", row=one, place=f"number {one['item_id']}") for one in rows)
    return Batch(changes=changes, bad={}, key="k", end={}, position={"0": position})


def test_a_server_is_ready_once_it_has_caught_up_and_while_its_lag_is_small(shop: Any) -> None:
    clock = [1000.0]
    feed = Scripted(None, 970.0, batch(row(3000)), 995.0)
    with opened(shop, "on") as (_, writer):
        assert isinstance(writer, CatalogWriter)
        settings = FeedConfig(kafka="t", max_lag_s=20)
        source = CatalogSource(settings, writer, clock=lambda: clock[0], open_feed=lambda config, position: feed)
        assert source.status.lag_s is None
        assert source.unready_reason == "the changes of Kafka topic t up to now are still being made"
        source.start()
        wait_for(lambda: source.status.lag_s == 5)
        assert source.unready_reason is None
        clock[0] = 1030.0
        assert source.unready_reason == "the items are 35 s behind Kafka topic t, and max_lag_s is 20"
        source.stop()
        assert (feed.closed, writer.position) == (1, {"0": 1})
        late = CatalogSource(
            FeedConfig(kafka="t"), writer, clock=lambda: clock[0], open_feed=lambda config, position: Scripted(1025.0)
        )
        late.start()
        wait_for(lambda: late.unready_reason is None)
        clock[0] = 9e9  # without a limit, a server that was ready stays so: all would leave at once where the source is gone
        assert late.unready_reason is None
        late.stop()


def test_an_error_is_told_and_following_is_tried_again(shop: Any) -> None:
    feeds = [
        Scripted(FeedError("the broker is gone")),
        Scripted(batch(row(3100)), batch({"item_id": 3101}, position=2)),
        Scripted(),
    ]
    with opened(shop, "on") as (_, writer):
        assert isinstance(writer, CatalogWriter)
        source = CatalogSource(FeedConfig(kafka="t"), writer, open_feed=lambda config, position: feeds.pop(0))
        source.start()
        wait_for(lambda: source.status.error == "the broker is gone")
        wait_for(lambda: "number 3101" in (source.status.error or ""))  # it has no codes, and there is no encoder
        assert writer.position == {"0": 1}
        assert writer.catalog.index.version().knows([3100, 3101]).tolist() == [True, False]
        wait_for(lambda: source.status.error is None)
        source.stop()
        skipping = CatalogSource(
            FeedConfig(kafka="t", skip_bad=True),
            writer,
            open_feed=lambda config, position: Scripted(batch({"item_id": 1}, position=5)),
        )
        skipping.start()
        wait_for(lambda: writer.position == {"0": 5})
        skipping.stop()


def test_a_position_is_shown_once_requests_see_its_changes(shop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[Any, bool]] = []
    with opened(shop, "on") as (_, writer):
        assert isinstance(writer, CatalogWriter)
        append = RequestLog.append

        def append_and_look(log: RequestLog, *arguments: Any, **options: Any) -> None:
            append(log, *arguments, **options)
            shown.append((writer.position, bool(writer.catalog.index.version().knows([3300])[0])))

        monkeypatch.setattr(RequestLog, "append", append_and_look)
        writer.move({"0": 5})
        writer.follow("put", Lines.of_rows([row(3300)]), {"0": 6})
        assert shown == [({"0": 5}, False)]  # it is on disk
        assert (writer.position, writer.catalog.index.version().knows([3300]).tolist()) == ({"0": 6}, [True])


def test_changes_of_clients_are_refused_where_items_follow_a_source(shop: Any) -> None:
    with opened(shop, "on") as (_, writer):
        assert isinstance(writer, CatalogWriter)
        writer.source = CatalogSource(FeedConfig(delta="lake/items"), writer)
        for change in (writer.put, writer.patch, writer.delete):
            with pytest.raises(ConflictError, match="follow Delta table lake/items: make the change there"):
                change(Lines.of_rows([row(3200)]))
        with pytest.raises(ConflictError, match="follow Delta table"):
            writer.rollback()


def test_an_offset_that_the_topic_does_not_have_is_named(broker: Broker) -> None:
    topic = broker.new_topic()
    broker.send(topic, created(row(1)), partition=0)
    for offset in (7, -1, "x"):
        with pytest.raises(FeedError, match=f"up to offset {offset!r}, but the topic has 0 to 1"):
            KafkaFeed(broker.address, topic, position={"0": offset}, properties=FAST, timeout_s=10.0)


def test_a_topic_that_lost_changes_before_they_were_read_is_named_and_the_items_stay(broker: Broker, shop: Any) -> None:
    if not broker.is_mock:
        pytest.skip("a real broker keeps more than 5 MB of a partition")
    topic = broker.new_topic()
    broker.send(topic, created(row(4100)), created(row(4101)), partition=0)
    with opened(shop, "on") as (_, writer):
        assert isinstance(writer, CatalogWriter)
        source = CatalogSource(config(broker, topic), writer)
        source.start()
        before = {"0": 2, "1": 0, "2": 0, "3": 0}
        wait_for(lambda: writer.position == before)
        source.stop()
        broker.send(topic, created(row(4102)), deleted({"item_id": 4100}), partition=0)
        broker.send(topic, *[created(row(4103, title="x" * 900_000))] * 7, partition=0)  # the broker keeps 5 MB of a partition
        source = CatalogSource(config(broker, topic), writer)
        source.start()
        error = wait_for(lambda: source.status.error)
        assert re.search(
            "followed partition 0 up to offset 2, but the topic has [1-9][0-9]* to 11: changes were removed", error
        )
        assert "Begin with a newer snapshot" in error
        assert source.unready_reason is not None
        source.stop()
        assert writer.position == before
        assert writer.catalog.index.version().knows([4100, 4101, 4102, 4103]).tolist() == [True, True, False, False]


def test_settings_of_a_source_are_checked(shop: Any) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"kafka": "t", "delta": "d"}, "follow one source, not kafka and delta"),
        ({"max_lag_s": 5.0}, "max_lag_s limits the lag behind a source"),
        ({"kafka": "t", "max_lag_s": 0.0}, "max_lag_s must be a number of seconds above 0, not 0.0"),
        ({"kafka": "t", "every_s": float("nan")}, "every_s must be a number of seconds above 0, not nan"),
    ]
    for options, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            FeedConfig(**options)
    with opened(shop, "on") as (_, writer), pytest.raises(ArgumentError, match="there is nothing to follow"):
        CatalogSource(FeedConfig(), writer)  # type: ignore[arg-type]
