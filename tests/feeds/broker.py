"""A broker of Kafka within this process: librdkafka's own mock cluster, which speaks Kafka's protocol on a local port.

It keeps topics, messages, groups' offsets and their metadata in memory. It has no transactions or compaction. It keeps about
5 MB of a partition and removes older messages. With LEAFBEAM_TEST_KAFKA=HOST:PORT, the tests use the broker there instead.
"""

import json
from typing import Any, Self
from uuid import uuid4

FAST = {"fetch.wait.max.ms": "10", "reconnect.backoff.ms": "10", "reconnect.backoff.max.ms": "50"}


class Broker:
    """The mock, or the broker at an address. address: for clients. Topics have four partitions."""

    def __init__(self, address: str | None = None) -> None:
        from confluent_kafka import Producer

        source = {"test.mock.num.brokers": 1} if address is None else {"bootstrap.servers": address}
        self._producer = Producer({**source, "log_level": 0})
        (one,) = self._producer.list_topics(timeout=10).brokers.values()
        self.address, self.is_mock = f"{one.host}:{one.port}", address is None

    def new_topic(self) -> str:
        """The name of a topic; the mock makes it with the first message."""
        topic = f"shop.public.items-{uuid4().hex}"
        if not self.is_mock:
            from confluent_kafka.admin import AdminClient, NewTopic

            admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
            admin.create_topics([NewTopic(topic, num_partitions=4, replication_factor=1)])[topic].result(10)
        return topic

    def send(self, topic: str, *values: Any, key: Any = None, partition: int = 0) -> None:
        """Messages: objects as JSON, bytes as they are, None as a tombstone."""
        for value in values:
            content = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
            self._producer.produce(topic, content, key=None if key is None else json.dumps(key).encode(), partition=partition)
        assert self._producer.flush(10) == 0

    def feed(self, topic: str, **options: Any) -> Any:
        """A KafkaFeed of a topic for a group of its own name."""
        from leafbeam.feeds import KafkaFeed

        options = {"position": f"group of {topic}", "properties": FAST, "timeout_s": 10.0} | options
        return KafkaFeed(self.address, topic, **options)

    def stop(self) -> None:
        """The broker is gone."""
        del self._producer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(self, "_producer"):
            self.stop()


def created(row: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Debezium's event of a new row."""
    return {"before": None, "after": row, "op": "c", "ts_ms": 1, "source": {"connector": "postgresql"}, **more}


def updated(row: dict[str, Any]) -> dict[str, Any]:
    return created(row, op="u")


def deleted(row: dict[str, Any] | None) -> dict[str, Any]:
    return created({}, op="d") | {"before": row, "after": None}
