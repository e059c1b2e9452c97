"""`python -m benchmarks retrieve`: an item memory, and what fusing it with a search costs a request.

fit      seconds, and bytes of the file an item
request  the engine's answer, one request at a time, by the model, by the memory alone, and fused; the times of the three
         channels are taken in turns. The memory's answer is compared with a loop over the formula first.

One thread. The log is that of `--data`, else the synthetic shop's. The model has the `small` preset's shape and random weights,
which does not change its speed; so have the Semantic IDs, of 4 x 256.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rows import interleaved, spread
from leafbeam.datasets import make_shop
from leafbeam.engine import Engine, Request
from leafbeam.index import Trie
from leafbeam.model import new_model
from leafbeam.retrieve import ItemMemory
from leafbeam.semid import text_columns
from leafbeam.train import InteractionLog, load_log, log_from_tables, preset
from leafbeam.train.fusion import fit_memory

__all__ = ["runs"]

SIZES = (256,) * 4
CHANNELS = ("model", "memory", "fused")


def runs(quick: bool, data: Path | None = None) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured): a row for 20 beams and one for 50."""
    if data is None:
        shop = make_shop(num_items=300 if quick else 12_000, num_users=200 if quick else 22_000)
        log, source = log_from_tables(shop.interactions, shop.items), "shop"
    else:
        log, source = load_log(data), data.name
    began = time.perf_counter()
    memory = fit_memory(log, log.histories, text_columns(log.items))
    fit_s = time.perf_counter() - began
    check(memory, log)
    rng = np.random.default_rng(0)
    trie = Trie.build(rng.integers(0, 256, (log.num_items, len(SIZES))), SIZES, item_ids=log.item_ids)
    recipe = preset("small")
    vocabulary = recipe.vocabulary(SIZES)
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(0))
    torch.set_num_threads(1)
    engine = Engine(model.eval(), trie, memory=memory)
    histories = [
        tuple(log.item_ids[log.histories[user]].tolist()) for user in rng.integers(0, log.num_users, 20 if quick else 1000)
    ]
    for num_beams in (20, 50):
        seconds: dict[str, list[float]] = {channel: [] for channel in CHANNELS}
        for history in [histories[0], *histories]:
            answers = {
                channel: partial(engine.recommend, Request(history=history, channel=channel, num_beams=num_beams))
                for channel in CHANNELS
            }
            for channel, taken in interleaved(answers, 1).items():
                seconds[channel] += taken
        parameters = {"data": source, "items": log.num_items, "interactions": len(log.histories.items_E), "beams": num_beams}
        measured: dict[str, Any] = {"fit_s": round(fit_s, 2), "bytes_per_item": round(memory.nbytes / log.num_items, 1)}
        for channel, taken in seconds.items():  # the first request is not counted
            measured[f"{channel}_us"] = spread(taken[1:]) | {"p99": round(float(np.percentile(taken[1:], 99)) * 1e6, 2)}
        for name in ("p50", "p99"):
            measured[f"fused_over_model_{name}"] = round(measured["fused_us"][name] / measured["model_us"][name], 3)
        yield parameters, measured


def check(memory: ItemMemory, log: InteractionLog) -> None:
    """AssertionError unless answers without texts are sums over the counts of the memory."""
    plain = ItemMemory.fit(log.item_ids, log.histories.indptr_U1, log.histories.items_E)
    for user in range(min(20, log.num_users)):
        expected: dict[Any, float] = {}
        for step, item in enumerate(log.item_ids[log.histories[user]][::-1][: memory.config.history].tolist()):
            counts = plain.counts(item)
            for other, count in counts.items():
                part = np.log1p(count) / (memory.config.shrinkage + np.log1p(max(counts.values())))
                expected[other] = expected.get(other, 0.0) + memory.config.history_decay**step * part
        result = plain.search(log.item_ids[log.histories[user]])
        found = [expected[item] for item in result.item_ids]
        np.testing.assert_allclose(result.scores, found, rtol=1e-4)
        np.testing.assert_allclose(found, sorted(expected.values(), reverse=True)[: len(found)], rtol=1e-4)
