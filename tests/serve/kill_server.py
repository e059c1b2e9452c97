"""Kill `leafbeam serve` many times while a client changes its catalog; test_kill runs it in a process that forks quickly.

    python -m tests.serve.kill_server FOLDER KILLS SEED

The client sends batches that depend on the seed alone, each with a key. The server is killed at a random moment and started
again. What it serves then has every acknowledged batch, and the one under way as a whole or not at all. Sent again with its
key, that one is made once; batches of before are answered as they were and change nothing. Prints one JSON line.
"""

import importlib
import json
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import httpx

from leafbeam.cli import app
from leafbeam.engine import CatalogFiles, Engine
from leafbeam.live import LiveIndex, live_index

IDS = list(range(1, 25))
NDJSON = {"content-type": "application/x-ndjson"}
Items = dict[int, int]  # price by id: of the items that the client made
Batch = tuple[str, list[dict[str, Any]]]


def next_batch(dice: random.Random, items: Items) -> Batch:
    """One batch that is right for these items."""
    method = dice.choice(["PUT", "PUT", "PATCH", "DELETE"]) if items else "PUT"
    ids = dice.sample(IDS if method == "PUT" else sorted(items), dice.randint(1, min(6, len(items) or 6)))
    if method == "DELETE":
        return method, [{"item_id": item} for item in ids]
    rows = [{"item_id": item, "price": dice.choice([5, 50])} for item in ids]
    if method == "PUT":
        rows = [{**row, "codes": [dice.randrange(8), dice.randrange(16)]} for row in rows]
    return method, rows


def after(items: Items, batch: Batch) -> Items:
    method, rows = batch
    if method == "DELETE":
        return {item: price for item, price in items.items() if item not in {row["item_id"] for row in rows}}
    return items | {row["item_id"]: row["price"] for row in rows}


def start(shop: Path, port: int, compact_after: int) -> int:
    """The command in a child process, killed by its number."""
    child = os.fork()
    if child:
        return child
    try:
        policy: Any = live_index.CompactionPolicy
        policy.__init__ = _compacting(policy, compact_after)
        app(["serve", "--run", str(shop), "--port", str(port), "--threads", "1"], prog_name="leafbeam")
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(3)


def _compacting(policy: Any, min_changes: int) -> Any:
    init = policy.__init__
    return lambda self, **options: init(self, **{"fraction": 0.01, "min_changes": min_changes} | options)


def wait_until_ready(client: httpx.Client, child: int) -> None:
    give_up = time.monotonic() + 300
    while True:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert os.waitpid(child, os.WNOHANG)[0] == 0, "the server ended by itself"
        assert time.monotonic() < give_up
        time.sleep(0.01)


def served(client: httpx.Client) -> tuple[set[int], set[int]]:
    """Of the client's items: those that are answered, and those that the rule `cheap` allows."""
    found: list[set[int]] = []
    for rules in ([], ["cheap"]):
        answer = client.post("/v1/recommend", json={"num_items": 200, "num_beams": 200, "rules": rules})
        assert answer.status_code == 200, answer.text
        found.append(set(answer.json()["item_ids"]) & set(IDS))
    return found[0], found[1]


def expected(items: Items) -> tuple[set[int], set[int]]:
    return set(items), {item for item, price in items.items() if price < 20}


def send(client: httpx.Client, batch: Batch, key: str) -> dict[str, Any]:
    method, rows = batch
    content = "\n".join(map(json.dumps, rows))
    answer = client.request(method, "/v1/items", content=content, headers={**NDJSON, "Idempotency-Key": key})
    assert answer.status_code == 200, answer.text
    return answer.json()


def main(shop: Path, kills: int, seed: int) -> dict[str, int]:
    dice, items = random.Random(seed), Items()
    answers: dict[str, tuple[Batch, dict[str, Any]]] = {}
    totals = {"kills": 0, "acknowledged": 0, "made_before_the_answer": 0, "not_made": 0, "retries": 0}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    importlib.import_module("leafbeam.serve")  # a child inherits what is loaded
    warm = Engine.load(shop / "model", CatalogFiles(index=shop / "index.leafbeam"))
    warm.warm_up()  # and what is compiled
    under_way: tuple[str, Batch] | None = None
    while totals["kills"] < kills:
        child = start(shop, port, dice.choice([5, 20, 1_000_000]))
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_until_ready(client, child)
            if under_way is not None:
                key, batch = under_way
                found, later = served(client), after(items, batch)
                assert found in (expected(items), expected(later)), f"{batch}: {found} of {items}"
                if expected(items) != expected(later):
                    totals["made_before_the_answer" if found == expected(later) else "not_made"] += 1
                answers[key] = batch, send(client, batch, key)
                items = later
            assert served(client) == expected(items)
            for key in dice.sample(sorted(answers), min(3, len(answers))):
                batch, answer = answers[key]
                assert send(client, batch, key) == answer
                totals["retries"] += 1
            assert served(client) == expected(items)
            left, killer, seconds = dice.randint(1, 6), None, 0.0
            try:
                while True:
                    if left == 0:  # in the middle of one of the next batches, however fast they are here
                        killer = threading.Timer(dice.random() * 2 * seconds, os.kill, (child, signal.SIGKILL))
                        killer.start()
                    left, began = left - 1, time.monotonic()
                    batch = next_batch(dice, items)
                    under_way = key, batch = f"{seed}-{totals['kills']}-{len(answers)}", batch
                    answers[key] = batch, send(client, batch, key)
                    items, under_way, seconds = after(items, batch), None, time.monotonic() - began
                    totals["acknowledged"] += 1
            except httpx.TransportError:
                assert killer is not None
                killer.join()
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the server ended by itself: {status}"
        totals["kills"] += 1
    with LiveIndex.open(shop / "live" / "index", read_only=True) as live:
        assert live.version().num_items >= 100
    return totals


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
