"""A Kafka topic in a process of its own, and the changes of items that are written to it.

    python -m benchmarks.serving.changes_topic TOPIC KNOWN CODEBOOK_SIZES

KNOWN and CODEBOOK_SIZES are JSON lists: ids of items whose prices change, and the codes of each level. Prints the address of
the broker. Then it reads numbers of seconds, one a line; for each it writes changes for so long, and prints the times at which
it did, a list for each partition. It ends when its input does.

The broker is librdkafka's own mock cluster, which speaks Kafka's protocol on a local port and keeps everything in memory.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Producer

from benchmarks.serving.changes_client import BATCH, BATCHES_PER_S, batches

__all__ = ["CHANGES_PER_S", "PARTITIONS"]

PARTITIONS = 4  # of each topic of the mock cluster
CHANGES_PER_S = BATCH * BATCHES_PER_S
_TICK = 20  # changes that are written at once


def main(topic: str, known: list[Any], sizes: list[int]) -> None:
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = producer.list_topics(timeout=10).brokers.values()
    ticks = _ticks(known, sizes)
    print(f"{broker.host}:{broker.port}", flush=True)
    for line in sys.stdin:
        written: list[list[float]] = [[] for _ in range(PARTITIONS)]
        began = time.perf_counter()
        for number in range(round(float(line) * CHANGES_PER_S / _TICK)):
            time.sleep(max(0.0, began + number * _TICK / CHANGES_PER_S - time.perf_counter()))
            for partition, event in next(ticks):
                producer.produce(topic, event, partition=partition)
                written[partition].append(time.time())
            producer.poll(0)
        assert producer.flush(10) == 0, "the broker did not take all changes"
        print(json.dumps(written), flush=True)


def _ticks(known: list[Any], sizes: list[int]) -> Iterator[list[tuple[int, bytes]]]:
    """Yield (partition, Debezium's event) of the changes of each tick, without end; an item is in one partition."""
    for operation, rows in batches(known, sizes):
        changes = [(zlib.crc32(str(row["item_id"]).encode()) % PARTITIONS, _event(operation, row)) for row in rows]
        yield from (changes[begin : begin + _TICK] for begin in range(0, BATCH, _TICK))


def _event(operation: str, row: dict[str, Any]) -> bytes:
    before, after = (row, None) if operation == "delete" else (None, row)
    op = {"put": "c", "patch": "u", "delete": "d"}[operation]
    return json.dumps({"before": before, "after": after, "op": op, "source": {"connector": "postgresql"}}).encode()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3]))
