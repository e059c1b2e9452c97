"""Three servers, each a process, that follow one topic, are killed at any moment and started again."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

pytest.importorskip("confluent_kafka")

from leafbeam.client import Client
from tests.feeds.broker import FAST, Broker, created, deleted
from tests.feeds.test_catalog_source import copy_of, row, wait_for
from tests.serve.running import PATIENCE

_PROGRAM = """
import sys
from functools import partial
from pathlib import Path
from leafbeam.engine import CatalogFiles
from leafbeam.feeds import CatalogSource
from leafbeam.serve import FeedConfig, ServerConfig, serve
directory, broker, topic, *properties = sys.argv[1:]
run = Path(directory)
files = CatalogFiles(index=run / "index.leafbeam", catalog=run / "catalog.duckdb", rules=run / "rules.toml")
feed = FeedConfig(kafka=topic, servers=broker, batch=7, properties=tuple(properties))
config = ServerConfig(port=0, grace_s=5, feed=feed)
serve(run / "model", files, config=config, changes=run / "live", source=partial(CatalogSource, feed))
"""


@dataclass(kw_only=True)
class Replica:
    """A server that is started again after each kill."""

    shop: Any
    arguments: list[str]
    starts: int = 0
    child: "subprocess.Popen[str] | None" = field(default=None, repr=False)
    url: str = ""

    def start(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(self.shop.directory), *self.arguments], stdout=subprocess.PIPE, text=True
        )
        self.starts += 1

    def wait_until_up(self) -> None:
        assert self.child is not None
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if " at http" in line:
                self.url = line.split(" at ", 1)[1].split(" ", 1)[0]
                return
        raise AssertionError(f"it ended with {self.child.wait(PATIENCE)}")

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.child is not None
        self.child.send_signal(number)
        self.child.wait(PATIENCE)
        assert self.child.stdout is not None
        self.child.stdout.close()

    @property
    def position(self) -> dict[str, int]:
        return httpx.get(f"{self.url}/readyz", timeout=PATIENCE).json()["feed"]["position"]


@contextmanager
def replicas(shop: Any, broker: Broker, topic: str) -> Generator[list[Replica]]:
    arguments = [broker.address, topic, *(f"{name}={value}" for name, value in FAST.items())]
    with ExitStack() as stack:
        made = [Replica(shop=copy_of(shop, f"replica-{number}"), arguments=arguments) for number in range(3)]
        for replica in made:
            replica.start()
            stack.callback(replica.kill)
        for replica in made:
            replica.wait_until_up()
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.full)])
def test_servers_that_are_killed_have_the_same_items_at_the_same_position(broker: Broker, shop: Any, kills: int) -> None:
    topic, rng = broker.new_topic(), random.Random(0)
    prices: dict[int, float] = {}
    sent = dict.fromkeys(range(4), 0)

    def change(count: int) -> None:
        for _ in range(count):
            item = rng.randrange(7000, 7040)  # an item is in one partition, as with Debezium's keys
            if item in prices and rng.random() < 0.3:
                event = deleted({"item_id": item})
                del prices[item]
            else:
                prices[item] = float(rng.randrange(1000))
                event = created(row(item, prices[item]))
            broker.send(topic, event, partition=item % 4)
            sent[item % 4] += 1

    change(40)
    with replicas(shop, broker, topic) as running:
        for _ in range(kills):
            replica = rng.choice(running)
            change(rng.randrange(1, 30))
            time.sleep(rng.random() * 0.3)
            replica.kill()
            change(rng.randrange(1, 30))
            replica.start()
            change(rng.randrange(1, 10))
            replica.wait_until_up()
        assert sum(replica.starts for replica in running) == 3 + kills
        for replica in running:
            expected = {str(partition): count for partition, count in sent.items()}
            wait_for(lambda replica=replica, expected=expected: replica.position == expected)
            with Client(replica.url) as client:
                found = {item.item_id: item for item in client.find_items(item_ids=range(7000, 7040)).items}
            assert {item: one.attributes["price"] for item, one in found.items() if one.in_index} == prices
