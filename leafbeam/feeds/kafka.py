"""KafkaFeed: the changes of a table that Debezium writes to a Kafka topic."""

import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from leafbeam.errors import ArgumentError, DataError, FeedError
from leafbeam.extras import optional_imports
from leafbeam.feeds.batch import START_AGAIN, Batch, ItemChange, SourceColumns, Start, check_max_changes
from leafbeam.feeds.debezium import read_envelope

with optional_imports("leafbeam.feeds.KafkaFeed", "kafka"):
    from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

T = TypeVar("T")


class KafkaFeed:
    """The messages of a topic, each a change in Debezium's envelope (JSON), which this process alone reads.

    With a consumer group, a batch is of one partition: the offset's metadata holds the end and the key of the unfinished batch
    until it is committed. Where the catalog keeps the position, a batch is of all partitions with messages.

    Args:
        servers: The brokers, such as "localhost:9092,other:9092".
        topic: The name of the topic.
        position: The consumer group under which Kafka keeps the offsets; use one for each catalog. Or the position of the last
            batch that was made, where the catalog keeps it, empty at first.
        columns: The columns that are taken.
        start: Where to begin in a partition that has no offset yet.
        max_changes: The largest number of changes of a batch.
        properties: Properties of librdkafka, such as security.protocol.
        timeout_s: The seconds without an answer of a broker after which the feed ends.

    Raises:
        FeedError: If there is no broker or no such topic, or the offsets no longer exist.
        ArgumentError: If a property is invalid.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        position: str | Mapping[str, object],
        *,
        columns: SourceColumns | None = None,
        start: Start = "beginning",
        max_changes: int = 1000,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        check_max_changes(max_changes)
        self.name, self._servers, self._topic = f"Kafka topic {topic}", servers, topic
        self._kept = None if isinstance(position, str) else dict(position)
        self._group = position if isinstance(position, str) else "leafbeam"
        self._columns, self._start, self._max_changes = columns or SourceColumns(), start, max_changes
        self._timeout_s = timeout_s
        fixed: dict[str, object] = {"bootstrap.servers": servers, "group.id": self._group, "enable.auto.commit": False}
        fixed |= {"enable.partition.eof": True, "auto.offset.reset": "error"}
        try:
            self._consumer = Consumer({"log_level": 0, **(properties or {}), **fixed})
        except (KafkaException, ValueError, TypeError) as error:
            raise ArgumentError(f"{self.name}: librdkafka does not take these properties: {error}") from None
        self._again: deque[Batch] = deque()  # batches that were under way when the last process ended
        self._waiting: dict[int, list[Message]] = {}
        self._ended: set[int] = set()  # partitions of which nothing is left
        self._positions: dict[int, int] = {}  # where the next batch of each partition begins
        self._polled_at = 0.0
        self._made_until: dict[int, float] = {}  # the time before which nothing is missing from a partition
        self._read_until: dict[int, float] = {}  # the same of the batch that is under way
        try:
            self._positions = self._open() if self._kept is None else self._open_at(self._kept)
            self._listed = time.monotonic()
        except BaseException:
            self._consumer.close()
            raise

    @property
    def position(self) -> dict[str, int]:
        """Return where the next batch of each partition begins, by the partition's number."""
        return {str(partition): offset for partition, offset in sorted(self._positions.items())}

    @property
    def complete_until(self) -> float | None:
        """Return the time before which no change is missing (see CatalogFeed)."""
        done = self._ended - self._waiting.keys()
        times = [self._polled_at if partition in done else self._made_until.get(partition) for partition in self._positions]
        known = [at for at in times if at is not None]
        return min(known) if known and len(known) == len(times) else None

    @property
    def is_at_end(self) -> bool:
        """Return whether the last `read` found nothing left in any partition."""
        return not self._again and not self._waiting and self._ended >= self._positions.keys()

    def read(self, wait_s: float) -> Batch | None:
        """Return the next batch (see Feed)."""
        if self._again:
            return self._again.popleft()
        give_up = time.monotonic() + wait_s
        while not self._waiting:  # the end of one partition may come before a message of another
            left = give_up - time.monotonic()
            for message in self._poll(max(left, 0.0)):
                self._waiting.setdefault(_partition(message), []).append(message)
            if not self._waiting and (left <= 0 or self.is_at_end):
                self._add_partitions()
                return None
        partitions = [next(iter(self._waiting))] if self._kept is None else list(self._waiting)
        read = {partition: self._waiting.pop(partition) for partition in partitions}
        self._read_until = {
            partition: max(message.timestamp()[1] for message in messages) / 1e3 for partition, messages in read.items()
        }
        ends = {partition: _offset(messages[-1]) + 1 for partition, messages in read.items()}
        batch = self._batch(read, uuid4().hex, ends)
        for partition, messages in read.items():
            pending = json.dumps({"until": batch.end[str(partition)], "key": batch.key})
            self._commit([TopicPartition(self._topic, partition, _offset(messages[0]), pending)])
        return batch

    def commit(self, batch: Batch) -> None:
        """Record that a batch is done (see Feed)."""
        for name, offset in batch.end.items():
            partition = int(name)
            self._positions[partition] = offset
            self._made_until[partition] = max(self._read_until.get(partition, 0.0), self._made_until.get(partition, 0.0))
            self._commit([TopicPartition(self._topic, partition, offset, "")])

    def close(self) -> None:
        """Leave the brokers; changes that are not committed are delivered again."""
        self._consumer.close()

    def _open(self) -> dict[int, int]:
        """Return where each partition goes on, after the batches that were under way have been read again."""
        partitions = sorted(self._partitions())
        requested = [TopicPartition(self._topic, partition) for partition in partitions]
        committed = self._ask(lambda: self._consumer.committed(requested, timeout=self._timeout_s))
        positions: dict[int, int] = {}
        pending: dict[int, tuple[int, str]] = {}
        for offset in committed:
            self._check(offset.error)
            partition, low, high = offset.partition, *self._bounds(offset.partition)
            if offset.offset < 0:
                positions[partition] = low if self._start == "beginning" else high
                continue
            if not low <= offset.offset <= high:
                raise FeedError(
                    f"{self.name}: group {self._group!r} is at offset {offset.offset} of partition {partition}, but the topic "
                    f"has {low} to {high}: changes were removed before they were read, or the topic was made again. Import the "
                    "whole table, or follow with another --group"
                )
            positions[partition] = offset.offset
            if offset.metadata:
                pending[partition] = _pending_of(offset.metadata, f"{self.name}, group {self._group!r}")
        fresh = [offset for offset in committed if offset.offset < 0]
        if fresh:  # so that a start at the end is the same start after a crash
            self._commit([TopicPartition(self._topic, offset.partition, positions[offset.partition], "") for offset in fresh])
        for partition, (until, key) in pending.items():
            messages = self._reread(partition, positions[partition], until)
            self._again.append(self._batch({partition: messages}, key, {partition: until}))
            positions[partition] = until
        self._assign(positions)
        return positions

    def _open_at(self, position: Mapping[str, object]) -> dict[int, int]:
        """Return where each partition goes on after a position."""
        positions: dict[int, int] = {}
        for partition in sorted(self._partitions()):
            low, high = self._bounds(partition)
            offset = position.get(str(partition), high if self._start == "now" and not position else low)
            if type(offset) is not int or not low <= offset <= high:
                raise FeedError(
                    f"{self.name}: the catalog has followed partition {partition} up to offset {offset!r:.40}, but the topic "
                    f"has {low} to {high}: changes were removed before they were read, or the topic was made again. "
                    f"{START_AGAIN}"
                )
            positions[partition] = offset
        self._assign(positions)
        return positions

    def _reread(self, partition: int, begin: int, until: int) -> list[Message]:
        """Return the messages of one partition from `begin` to before `until`; some may have been compacted away since."""
        self._assign({partition: begin})
        messages: list[Message] = []
        give_up = time.monotonic() + self._timeout_s
        while partition not in self._ended and (not messages or _offset(messages[-1]) + 1 < until):
            messages += self._poll(0.1)
            if time.monotonic() > give_up:
                raise FeedError(f"{self.name}: no message of partition {partition} came within {self._timeout_s:g} s")
        return [message for message in messages if _offset(message) < until]

    def _assign(self, positions: Mapping[int, int]) -> None:
        self._ended.clear()
        self._ask(
            lambda: self._consumer.assign(
                [TopicPartition(self._topic, partition, offset) for partition, offset in positions.items()]
            )
        )

    def _add_partitions(self) -> None:
        """Follow partitions that the topic got since; while nothing comes, this says too whether a broker is there."""
        if time.monotonic() - self._listed < self._timeout_s:
            return
        new = self._partitions() - self._positions.keys()
        self._listed = time.monotonic()
        if new:
            positions = {partition: self._bounds(partition)[0] for partition in new}
            self._commit([TopicPartition(self._topic, number, offset, "") for number, offset in positions.items()])
            self._ask(
                lambda: self._consumer.incremental_assign(
                    [TopicPartition(self._topic, number, offset) for number, offset in positions.items()]
                )
            )
            self._positions |= positions

    def _poll(self, wait_s: float) -> list[Message]:
        """Return the messages that are there, or the first ones that come."""
        # Of a partition at its end nothing was missing at the last poll, however long ago its last message came.
        self._made_until |= dict.fromkeys(self._ended - self._waiting.keys(), self._polled_at)
        first = self._ask(lambda: self._consumer.poll(wait_s))
        self._polled_at = time.time()
        if first is None:
            return []
        rest = self._max_changes - 1
        messages = [first, *(self._ask(lambda: self._consumer.consume(rest, 0)) if rest else ())]
        changes: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                self._ended.discard(_partition(message))
                changes.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # pyright: ignore[reportPrivateUsage]: its public name
                self._ended.add(_partition(message))
            else:
                self._check(error)
        return changes

    def _batch(self, read: Mapping[int, Sequence[Message]], key: str, ends: Mapping[int, int]) -> Batch:
        """Return the batch of some messages. ends: where the next batch of each partition begins."""
        changes: list[ItemChange] = []
        bad: dict[str, str] = {}
        for message in itertools.chain.from_iterable(read.values()):
            value, where = message.value(), f"partition {_partition(message)}, offset {_offset(message)}"
            if value is None:  # a tombstone: the message before it was the deletion
                continue
            try:
                operation, row = read_envelope(value, message.key(), self._columns)
                changes.append(ItemChange(operation=operation, row=row, place=where))
            except DataError as error:
                bad[where] = str(error)
        end = {str(partition): offset for partition, offset in ends.items()}
        return Batch(
            changes=tuple(changes),
            bad=bad,
            key=key,
            end=end,
            position=self.position | end,
        )

    def _partitions(self) -> set[int]:
        """Return the topic's partitions. Raises FeedError without a broker or a topic."""
        topic = self._ask(lambda: self._consumer.list_topics(self._topic, timeout=self._timeout_s)).topics[self._topic]
        if topic.error is not None or not topic.partitions:
            raise FeedError(f"{self.name}: the brokers at {self._servers} have no such topic ({topic.error}): check its name")
        return set(topic.partitions)

    def _bounds(self, partition: int) -> tuple[int, int]:
        """Return the first offset that the topic still has, and the next one."""
        topic_partition = TopicPartition(self._topic, partition)
        # None if a broker does not answer in time, whatever its types say.
        bounds: Any = self._ask(lambda: self._consumer.get_watermark_offsets(topic_partition, timeout=self._timeout_s))
        if bounds is None:
            raise FeedError(f"{self.name}: no broker at {self._servers} reported the offsets of partition {partition} in time")
        return bounds[0], bounds[1]

    def _commit(self, offsets: list[TopicPartition]) -> None:
        if self._kept is not None:  # the catalog keeps them
            return
        for offset in self._ask(lambda: self._consumer.commit(offsets=offsets, asynchronous=False)) or ():
            self._check(offset.error)

    def _ask(self, call: Callable[[], T]) -> T:
        """Return the answer of the brokers. Raises FeedError."""
        try:
            return call()
        except KafkaException as error:
            raise self._failure(error.args[0]) from None

    def _check(self, error: KafkaError | None) -> None:
        if error is not None:
            raise self._failure(error)

    def _failure(self, error: object) -> FeedError:
        text = error.str() if isinstance(error, KafkaError) else str(error)
        return FeedError(
            f"{self.name}: {text}. Are the brokers at {self._servers} up, and may group {self._group!r} read the "
            "topic? Start again once they are: it goes on after the last change that was made"
        )


def _pending_of(metadata: str, name: str) -> tuple[int, str]:
    """Return (end, key) of the batch under way. Raises FeedError."""
    try:
        content = json.loads(metadata)
        until, key = content["until"], content["key"]
        if type(until) is not int or type(key) is not str:
            raise TypeError("other fields")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FeedError(
            f"{name}: another program committed offsets with the metadata {metadata[:80]!r}: use another --group"
        ) from None
    return until, key


def _partition(message: Message) -> int:
    partition = message.partition()
    assert partition is not None
    return partition


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset
