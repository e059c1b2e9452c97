"""Three servers, each a process, that follow one topic, table or publication, are killed at any moment and started again."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import pyarrow as pa
import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("deltalake")

from leafbeam.client import Client
from tests.feeds.broker import FAST, Broker, created, deleted
from tests.feeds.followers import copy_of, row, wait_for
from tests.fixtures.lakes import DeltaFiles
from tests.serve.running import PATIENCE

ITEMS = range(7000, 7040)
Prices = Mapping[int, int]
_PROGRAM = """
import json, sys
from functools import partial
from pathlib import Path
from leafbeam.engine import CatalogFiles
from leafbeam.feeds import CatalogSource
from leafbeam.serve import FeedConfig, ServerConfig, serve
run = Path(sys.argv[1])
files = CatalogFiles(index=run / "index.leafbeam", catalog=run / "catalog.duckdb", rules=run / "rules.toml")
feed = FeedConfig(batch=7, **json.loads(sys.argv[2]))
config = ServerConfig(port=0, grace_s=5, feed=feed)
serve(run / "model", files, config=config, changes=run / "live", source=partial(CatalogSource, feed))
"""


class Written(Protocol):
    """A source that the test writes."""

    def settings(self, number: int) -> dict[str, Any]:
        """Return the settings of one of the servers that follow it."""
        ...

    def write(self, changed: list[int], prices: Prices) -> None:
        """Write the changes of these items, one after the other; those that are not in `prices` then are gone."""

    def is_end(self, position: Mapping[str, Any]) -> bool:
        """Return whether a position is behind the last change."""
        ...

    def compared(self, position: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what servers with the same items have in common."""
        return position


class WrittenTopic(Written):
    """A topic of four partitions."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self._topic = broker, broker.new_topic()
        self._sent = dict.fromkeys(range(4), 0)
        properties = [f"{name}={value}" for name, value in FAST.items()]
        self._settings = {"kafka": self._topic, "servers": broker.address, "properties": properties}

    def settings(self, number: int) -> dict[str, Any]:
        return self._settings

    def write(self, changed: list[int], prices: Prices) -> None:
        for item in changed:
            event = created(row(item, prices[item])) if item in prices else deleted({"item_id": item})
            self._broker.send(self._topic, event, partition=item % 4)  # an item is in one partition, as with Debezium's keys
            self._sent[item % 4] += 1

    def is_end(self, position: Mapping[str, Any]) -> bool:
        return position == {str(partition): count for partition, count in self._sent.items()}


class WrittenTable(Written):
    """A Delta table; each call of `write` makes a version."""

    def __init__(self, folder: Path) -> None:
        self._files = DeltaFiles(folder)

    def settings(self, number: int) -> dict[str, Any]:
        return {"delta": self._files.uri, "every_s": 0.1}

    def write(self, changed: list[int], prices: Prices) -> None:
        names = {"item_id": pa.int64(), "codes": pa.list_(pa.int64()), "title": pa.string()}
        schema = pa.schema([*names.items(), ("price", pa.int64()), ("stock", pa.int64())])
        self._files.write(pa.Table.from_pylist([row(item, price) for item, price in sorted(prices.items())], schema=schema))

    def is_end(self, position: Mapping[str, Any]) -> bool:
        return (position.get("version"), position.get("to")) == (self._files.source().newest(), None)


class WrittenPublication(Written):
    """A published table of PostgreSQL; each call of `write` is a transaction."""

    def __init__(self, database: str) -> None:
        from tests.feeds.database import PublishedItems

        self._items, self._before = PublishedItems(uri=database), 0

    def settings(self, number: int) -> dict[str, Any]:
        name = self._items.name
        return {"postgres": name, "slot": f"{name}_{number}", "database": self._items.uri}

    def write(self, changed: list[int], prices: Prices) -> None:
        self._before = lsn_of(self._items.log_end)
        self._items.change({item: row(item, prices[item]) if item in prices else None for item in changed})

    def is_end(self, position: Mapping[str, Any]) -> bool:
        return "lsn" in position and lsn_of(position["lsn"]) > self._before and not position["change"]

    def compared(self, position: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: position[name] for name in ("system", "lsn", "change", "copied")}


def lsn_of(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


@dataclass(kw_only=True)
class Replica:
    """A server that is started again after each kill."""

    shop: Any
    settings: dict[str, Any]
    starts: int = 0
    child: "subprocess.Popen[str] | None" = field(default=None, repr=False)
    url: str = ""

    def start(self) -> None:
        words = [sys.executable, "-c", _PROGRAM, str(self.shop.directory), json.dumps(self.settings)]
        self.child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
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
    def readiness(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/readyz", timeout=PATIENCE).json()

    def answer(self, *rules: str) -> list[tuple[float, int]]:
        """All items that the rules allow with their scores, best first; items of one Semantic ID, which tie, by their ids."""
        body = {"num_items": 200, "num_beams": 200, "rules": rules}
        answer = httpx.post(f"{self.url}/v1/recommend", json=body, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        scores = answer.json()["scores"]
        assert scores == sorted(scores, reverse=True)
        return sorted(zip(scores, answer.json()["item_ids"], strict=True), key=lambda one: (-one[0], one[1]))


@contextmanager
def replicas(shop: Any, source: Written) -> Generator[list[Replica]]:
    with ExitStack() as stack:
        made = [Replica(shop=copy_of(shop, f"replica-{number}"), settings=source.settings(number)) for number in range(3)]
        for replica in made:
            replica.start()
            stack.callback(replica.kill)
        for replica in made:
            replica.wait_until_up()
        yield made


def wait_for_end(running: list[Replica], source: Written) -> None:
    for replica in running:
        wait_for(lambda replica=replica: source.is_end(replica.readiness["feed"]["position"]))


def check_equal(running: list[Replica], source: Written, prices: Prices) -> None:
    """Once all are at the end of the source, they give the same answers, which have each item once and no other."""
    wait_for_end(running, source)
    for replica in running:
        with Client(replica.url) as client:
            items = {item.item_id: item for item in client.find_items(item_ids=ITEMS).items}
        assert {item: found.attributes["price"] for item, found in items.items() if found.in_index} == prices
    states = [
        (source.compared(replica.readiness["feed"]["position"]), replica.readiness["rules_version"]) for replica in running
    ]
    assert states[0] == states[1] == states[2]
    for rules in ((), ("cheap",)):
        answers = [replica.answer(*rules) for replica in running]
        assert answers[0] == answers[1] == answers[2]
        ids = [item for _, item in answers[0]]
        allowed = sorted(item for item, price in prices.items() if not rules or price < 20)
        assert sorted(item for item in ids if item in ITEMS) == allowed
        assert len(ids) == (60 if rules else 100) + len(allowed)  # the shop's own items and these


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["topic", "table", "publication"])
@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.full)])
def test_servers_that_are_killed_give_the_same_answers_at_the_same_position(
    request: pytest.FixtureRequest, broker: Broker, shop: Any, tmp_path: Path, kind: str, kills: int
) -> None:
    source: Written = WrittenTopic(broker) if kind == "topic" else WrittenTable(tmp_path)
    if kind == "publication":
        source = WrittenPublication(request.getfixturevalue("database"))
    rng, prices = random.Random(0), dict[int, int]()

    def change(count: int) -> None:
        changed: list[int] = []
        for _ in range(count):
            item = rng.choice([item for item in ITEMS if item not in changed])
            if item in prices and rng.random() < 0.3:
                del prices[item]
            else:
                prices[item] = rng.randrange(40)
            changed.append(item)
        source.write(changed, prices)

    def check(running: list[Replica]) -> None:
        """Compare the servers behind a change that all read: a copy that a kill began anew may end behind the others'."""
        wait_for_end(running, source)
        change(1)
        check_equal(running, source, prices)

    change(40)
    with replicas(shop, source) as running:
        number, checked = 0, 0
        while number < kills:
            victims = rng.sample(running, min(rng.choice([1, 1, 1, 2, 3]), kills - number))
            change(rng.randrange(1, 30))
            time.sleep(rng.random() * 0.3)
            for replica in victims:
                replica.kill()
            change(rng.randrange(1, 30))
            for replica in victims:
                replica.start()
            change(rng.randrange(1, 10))
            for replica in victims:
                replica.wait_until_up()
            number += len(victims)
            if number // 10 > checked:
                checked = number // 10
                check(running)
        assert sum(replica.starts for replica in running) == 3 + kills
        check(running)
