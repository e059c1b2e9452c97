"""Topics of Kafka: changes in order and once, and what Debezium puts into them."""

import base64
import json
import time
from contextlib import closing
from typing import Any

import pytest

from leafbeam.errors import DataError
from leafbeam.feeds import SourceColumns
from leafbeam.feeds.debezium import read_envelope
from tests.feeds.broker import created, deleted, updated

pytest.importorskip("confluent_kafka")

from leafbeam.client import Client
from leafbeam.errors import ArgumentError, FeedError
from leafbeam.feeds import Followed, KafkaFeed, follow
from tests.feeds.broker import Broker
from tests.feeds.crashes import DyingClient, DyingFeed, Killed, Point, in_index
from tests.serve.running import live


def row(item: int, price: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"item_id": item, "codes": [item % 8, item % 16], "title": f"new {item}", "price": price, "stock": 1} | more


def run(broker: Broker, topic: str, client: Any, *, skip_bad: bool = False, **options: Any) -> Followed:
    with closing(broker.feed(topic, **options)) as feed:
        return follow(feed, client, once=True, skip_bad=skip_bad, wait_s=0.05)


def counts(done: Followed) -> tuple[int, int, int, int]:
    return done.inserted, done.updated, done.deleted, done.skipped


def test_changes_of_a_topic_are_made_in_order_and_once(broker: Broker, shop: Any) -> None:
    topic = broker.new_topic()
    broker.send(topic, created(row(2000)), updated(row(2000, 2.0)), created(row(2001)), partition=0)
    broker.send(topic, created(row(2002), op="r"), deleted({"item_id": 1000}), None, partition=1)
    unchanged = {"title": "__debezium_unavailable_value"}
    with live(shop) as url, Client(url) as client:
        done = run(broker, topic, client)
        assert counts(done) == (3, 0, 1, 0)
        assert client.get_item(2000).attributes["price"] == 2
        assert in_index(client, [1000]) == [False]
        number = client.get_catalog().index_version
        assert counts(run(broker, topic, client)) == (0, 0, 0, 0)
        broker.send(topic, updated(row(2000, 5.0) | unchanged), deleted({"item_id": 1000}), partition=0)
        done = run(broker, topic, client)
        assert (counts(done), done.ignored) == ((0, 1, 0, 0), 1)
        assert client.get_item(2000).attributes == {"title": "new 2000", "price": 5, "stock": 1}
        assert client.get_catalog().index_version == number  # attributes alone
        broker.send(topic, created(row(2001)), deleted({"item_id": 2001}), created(row(2001, 9.0)), partition=0)
        assert counts(run(broker, topic, client, max_changes=1)) == (1, 1, 1, 0)
        assert client.get_item(2001).attributes["price"] == 9


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_follower_that_is_killed_at_any_point_loses_and_doubles_nothing(broker: Broker, shop: Any, every: int) -> None:
    def changes(first: int) -> str:
        topic, unchanged = broker.new_topic(), {"stock": "__debezium_unavailable_value"}
        broker.send(topic, created(row(first)), created(row(first + 1)), created(row(first + 2)), partition=0)
        broker.send(topic, updated(row(first, 7.0)), deleted({"item_id": first + 1}), partition=0)
        broker.send(topic, updated(row(first + 2, 8.0) | unchanged), partition=0)
        broker.send(topic, created(row(first + 3)), partition=2)
        return topic

    with live(shop) as url, Client(url) as client:
        number = repeated = 0
        for number in range(0, 80, every):
            first = 6000 + 10 * number
            topic, dying = changes(first), DyingClient(client)
            dying.point = point = Point(number)
            try:
                with closing(broker.feed(topic, max_changes=2)) as feed:
                    follow(DyingFeed(feed, point), dying, once=True, wait_s=0.05)  # type: ignore[arg-type]
                break
            except Killed:
                # What came since must not end up in the batch that was under way.
                broker.send(topic, created(row(first + 4)), partition=0)
                dying.point = Point(1 << 60)
                run(broker, topic, dying, max_changes=2)
            dying.check_once()
            repeated += sum(len(answers) - 1 for answers in dying.answers.values())
            assert in_index(client, [first + n for n in range(5)]) == [True, False, True, True, True]
            assert [client.get_item(first + n).attributes["price"] for n in (0, 2)] == [7, 8]
        assert number > 15
        assert every > 1 or repeated >= 4


def test_a_bad_change_is_named_by_its_offset_or_skipped_and_counted(broker: Broker, shop: Any, caplog: Any) -> None:
    topic = broker.new_topic()
    broker.send(topic, created(row(2000)), b"no envelope", created(row(2001)), partition=3)
    with live(shop) as url, Client(url) as client:
        for _ in range(2):  # it is not committed
            with pytest.raises(FeedError, match=r"partition 3, offset 1: its value cannot be read as JSON.*--skip-bad"):
                run(broker, topic, client)
        assert in_index(client, [2000]) == [False]
        assert counts(run(broker, topic, client, skip_bad=True)) == (2, 0, 0, 1)
        assert "skipped partition 3, offset 1" in caplog.text
        broker.send(topic, created(row(2002, colour="red")), created(row(2003)), created(row(2004, codes=[99, 0])), partition=3)
        with pytest.raises(FeedError, match=r"2 of its changes cannot be applied.*offset 3: there is no column 'colour'"):
            run(broker, topic, client)
        assert in_index(client, [2003]) == [False]
        assert counts(run(broker, topic, client, skip_bad=True)) == (1, 0, 0, 2)
        broker.send(topic, created(row(2002, colour="red")), partition=3)
        columns = SourceColumns(names=("codes", "title", "price", "stock"))
        assert counts(run(broker, topic, client, columns=columns)) == (1, 0, 0, 0)


def test_a_follower_may_begin_at_the_end_and_stays_there(broker: Broker, shop: Any) -> None:
    topic = broker.new_topic()
    broker.send(topic, created(row(2000)))
    broker.feed(topic, start="now").close()
    broker.send(topic, created(row(2001)))
    with live(shop) as url, Client(url) as client:
        assert counts(run(broker, topic, client, start="now")) == (1, 0, 0, 0)
        assert in_index(client, [2000, 2001]) == [False, True]


def test_a_batch_has_messages_of_all_partitions_where_the_catalog_keeps_the_position(broker: Broker) -> None:
    topic, sizes = broker.new_topic(), []
    for partition in range(4):
        broker.send(topic, *[created(row(partition + 4 * number)) for number in range(10)], partition=partition)
    position: dict[str, object] = {}
    seen: dict[int, list[int]] = {partition: [] for partition in range(4)}
    with closing(broker.feed(topic, position=position, max_changes=16)) as feed:
        time.sleep(1)  # so that messages of all partitions are at hand
        while not feed.is_at_end:
            batch = feed.read(0.05)
            if batch is not None:
                sizes.append((len(batch.changes), len(batch.end)))
                for change in batch.changes:
                    seen[change.row["item_id"] % 4].append(change.row["item_id"])
                assert batch.position == feed.position | batch.end
                feed.commit(batch)
                assert feed.position == batch.position
    assert max(count for count, _ in sizes) <= 16
    assert max(partitions for _, partitions in sizes) > 1
    assert seen == {partition: [partition + 4 * number for number in range(10)] for partition in range(4)}


def test_a_change_after_a_quiet_time_does_not_make_the_items_old(broker: Broker) -> None:
    topic = broker.new_topic()
    for partition in range(4):
        broker.send(topic, created(row(2000 + partition)), partition=partition)
    with closing(broker.feed(topic)) as feed:

        def read_to_end() -> None:
            while not feed.is_at_end:
                batch = feed.read(0.05)
                if batch is not None:
                    feed.commit(batch)

        read_to_end()
        quiet_until = time.time() + 0.5
        while time.time() < quiet_until:
            assert feed.read(0.05) is None
        broker.send(topic, created(row(2004)), partition=1)
        batch = None
        while batch is None:
            batch = feed.read(0.05)
        assert feed.complete_until is not None
        assert feed.complete_until > quiet_until - 0.2  # not when the last change before it came
        feed.commit(batch)
        read_to_end()
        assert feed.complete_until > quiet_until


def test_what_is_wrong_with_a_broker_or_a_topic_is_named(broker: Broker) -> None:
    for error, call, says in (
        (FeedError, lambda: broker.feed("nowhere"), "have no such topic"),
        (
            FeedError,
            lambda: KafkaFeed("127.0.0.1:1", "x", position="g", timeout_s=0.5),
            r"Are the brokers at 127\.0\.0\.1:1 up",
        ),
        (
            ArgumentError,
            lambda: KafkaFeed(broker.address, "x", position="g", properties={"no.such.thing": "1"}),
            "librdkafka does not take these properties",
        ),
        (ArgumentError, lambda: broker.feed("x", max_changes=0), "a batch may have 1 to 10,000 changes"),
    ):
        with pytest.raises(error, match=says):
            call()
    topic = broker.new_topic()
    broker.send(topic, created(row(1)))
    with closing(broker.feed(topic)) as feed:
        batch = feed.read(60)
        assert batch is not None
        feed.commit(batch)
    from confluent_kafka import Consumer, TopicPartition

    other = Consumer({"bootstrap.servers": broker.address, "group.id": f"group of {topic}"})
    for offset, metadata, message in (
        (99, "", "is at offset 99 of partition 0, but the topic has 0 to 1"),
        (0, "x", "metadata 'x'"),
    ):
        other.commit(offsets=[TopicPartition(topic, 0, offset, metadata)], asynchronous=False)
        with pytest.raises(FeedError, match=message):
            broker.feed(topic)
    other.close()


def test_a_broker_that_goes_away_ends_the_feed() -> None:
    with Broker() as broker:
        topic = broker.new_topic()
        broker.send(topic, created(row(1)))
        with closing(broker.feed(topic, timeout_s=0.5)) as feed:
            batch = feed.read(60)
            assert batch is not None
            feed.commit(batch)
            broker.stop()

            def read_on() -> None:
                for _ in range(100):
                    feed.read(0.1)

            with pytest.raises(FeedError, match="goes on after the last change"):
                read_on()


SKU = SourceColumns(item_id="sku")


def read(content: Any, key: Any = None, columns: SourceColumns = SKU) -> tuple[str, dict[str, Any]]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_envelope(data, None if key is None else json.dumps(key).encode(), columns)


def with_schema(payload: Any, kinds: dict[str, tuple[str, dict[str, str]]]) -> dict[str, Any]:
    fields = [{"field": name, "name": kind, "parameters": more, "type": "x"} for name, (kind, more) in kinds.items()]
    schema = {"type": "struct", "fields": [{"field": "before", "fields": []}, {"field": "after", "fields": fields}]}
    return {"schema": schema, "payload": payload}


def test_rows_are_put_and_deleted() -> None:
    row = {"sku": "a", "price": 3.5, "title": None, "codes": [1, 2]}
    put = ("put", {"item_id": "a", "price": 3.5, "title": None, "codes": [1, 2]})
    assert read(created(row)) == put
    assert read(updated(row)) == put
    assert read(created(row, op="r")) == put
    assert read({"schema": None, "payload": created(row)}) == put
    assert read(created(row), columns=SourceColumns(item_id="sku", names=("price",))) == ("put", {"item_id": "a", "price": 3.5})
    assert read(deleted({"sku": "a", "price": None})) == ("delete", {"item_id": "a"})
    assert read(deleted(None), key={"sku": 7}) == ("delete", {"item_id": 7})
    assert read(deleted(None), key={"schema": {}, "payload": {"sku": "b"}}) == ("delete", {"item_id": "b"})


def test_a_large_column_that_did_not_change_is_left_as_it_is() -> None:
    row = {"sku": "a", "price": 4, "text": "__debezium_unavailable_value"}
    assert read(updated(row)) == ("patch", {"item_id": "a", "price": 4})
    row["text"] = base64.b64encode(b"__debezium_unavailable_value").decode()
    assert read(updated(row)) == ("patch", {"item_id": "a", "price": 4})
    narrow = SourceColumns(item_id="sku", names=("price",))
    assert read(updated(row), columns=narrow) == ("put", {"item_id": "a", "price": 4})


@pytest.mark.parametrize(
    ("kind", "more", "value", "expected"),
    [
        ("io.debezium.time.Date", {}, 20_000, "2024-10-04"),
        ("io.debezium.time.Timestamp", {}, 1_700_000_000_123, "2023-11-14T22:13:20.123000"),
        ("io.debezium.time.MicroTimestamp", {}, -1, "1969-12-31T23:59:59.999999"),
        ("io.debezium.time.NanoTimestamp", {}, 1_700_000_000_000_000_999, "2023-11-14T22:13:20.000000999"),
        ("io.debezium.time.Time", {}, 3_723_004, "01:02:03.004000"),
        ("io.debezium.time.MicroTime", {}, 0, "00:00:00"),
        ("io.debezium.time.ZonedTimestamp", {}, "2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z"),
        ("org.apache.kafka.connect.data.Decimal", {"scale": "2"}, base64.b64encode(b"\x30\x39").decode(), "123.45"),
        ("org.apache.kafka.connect.data.Decimal", {"scale": "0"}, base64.b64encode(b"\xff").decode(), "-1"),
        ("io.debezium.data.VariableScaleDecimal", {}, {"scale": 3, "value": base64.b64encode(b"\x01").decode()}, "0.001"),
        ("io.debezium.time.Date", {}, None, None),
        ("io.debezium.data.Json", {}, "{}", "{}"),
    ],
)
def test_types_of_databases_are_converted_by_the_schema(kind: str, more: dict[str, str], value: Any, expected: Any) -> None:
    content = with_schema(created({"sku": "a", "x": value}), {"x": (kind, more)})
    assert read(content) == ("put", {"item_id": "a", "x": expected})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "its value cannot be read as JSON"),
        (b"\xff", "its value cannot be read as JSON"),
        (b"[" * 100_000, "its value cannot be read as JSON"),
        ([], "expected an object with op"),
        ({}, "its op is None"),
        (created({"sku": "a"}, op="t"), "the table was emptied"),
        (created({"sku": "a"}, op="x"), "its op is 'x'"),
        (created({"sku": "a"}, op=["c"]), "its op is ['c']"),
        (created({"sku": "a"}) | {"after": None}, "its row after is None"),
        (created({"price": 3}), "it has no 'sku'; its columns: 'price'"),
        (created({"sku": 1.5}), "its id is 1.5"),
        (created({"sku": True}), "its id is True"),
        (created({"sku": "a", "item_id": "b"}), "a column 'item_id' too"),
        (deleted(None), "it has no 'sku'; its columns: none"),
        (deleted({"price": 3}), "it has no 'sku'"),
        (created({}, op="d") | {"before": [1]}, "its row before is [1]"),
        ({"schema": 3, "payload": created({"sku": "a"})}, "its schema cannot be read"),
        ({"schema": {"fields": [{"field": "after"}]}, "payload": created({"sku": "a"})}, "its schema cannot be read"),
        (with_schema(created({"sku": "a", "x": 1 << 70}), {"x": ("io.debezium.time.Date", {})}), "column 'x' is"),
        (with_schema(created({"sku": "a", "x": "b"}), {"x": ("io.debezium.time.Timestamp", {})}), "column 'x' is 'b'"),
        (with_schema(created({"sku": "a", "x": 90_000_000}), {"x": ("io.debezium.time.Time", {})}), "column 'x' is"),
        (with_schema(created({"sku": "a", "x": "!"}), {"x": ("org.apache.kafka.connect.data.Decimal", {})}), "column 'x' is"),
        (
            with_schema(
                created({"sku": "a", "x": "A" * 400}), {"x": ("org.apache.kafka.connect.data.Decimal", {"scale": "1"})}
            ),
            "too many digits",
        ),
    ],
    ids=range(23),
)
def test_what_is_no_envelope_is_named(content: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read(content)
    assert message in str(caught.value)


def test_a_column_that_was_asked_for_must_be_there() -> None:
    with pytest.raises(DataError, match="it has no column 'price'; its columns: 'sku', 'title'"):
        read(created({"sku": "a", "title": "x"}), columns=SourceColumns(item_id="sku", names=("price",)))
