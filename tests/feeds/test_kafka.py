"""A topic with Debezium's events, from a broker to a real server: nothing is lost or made twice, and mistakes have a place."""

from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from leafbeam.client import Client
from leafbeam.errors import ArgumentError, FeedError
from leafbeam.feeds import Followed, KafkaFeed, SourceColumns, follow
from tests.feeds.broker import Broker, created, deleted, updated
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
        with pytest.raises(FeedError, match=r"2 of its changes cannot be made.*offset 3: there is no column 'colour'"):
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


def test_what_is_wrong_with_a_broker_or_a_topic_is_named(broker: Broker) -> None:
    for error, call, says in (
        (FeedError, lambda: broker.feed("nowhere"), "have no such topic"),
        (FeedError, lambda: KafkaFeed("127.0.0.1:1", "x", group="g", timeout_s=0.5), r"Are the brokers at 127\.0\.0\.1:1 up"),
        (
            ArgumentError,
            lambda: KafkaFeed(broker.address, "x", group="g", properties={"no.such.thing": "1"}),
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
