"""The fused ranking on logs of many kinds, with tiny budgets, and the settings that validation users choose."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from leafbeam.datasets import make_shop
from leafbeam.index import Trie
from leafbeam.retrieve import MemoryConfig
from leafbeam.semid import fit_sids, text_columns
from leafbeam.train import Budget, EvaluationConfig, InteractionLog, evaluate, leave_one_out, log_from_tables, preset, train
from leafbeam.train.evaluation import fit_fusion
from leafbeam.train.fusion import fit_memory, tune_memory
from leafbeam.train.report import SERVED

KINDS: dict[str, dict[str, Any]] = {
    "purchases": {"num_items": 600, "num_users": 800},
    "music": {"num_items": 600, "num_users": 800, "repeats": 0.6},
    "groceries": {"num_items": 300, "num_users": 500, "repeats": 0.3},
    "few users": {"num_items": 3000, "num_users": 120},
    "few items": {"num_items": 120, "num_users": 1500},
    "no texts": {"num_items": 600, "num_users": 800},
}


def log_of_kind(kind: str, seed: int = 0) -> InteractionLog:
    shop = make_shop(**KINDS[kind], seed=seed)
    return log_from_tables(shop.interactions, shop.items.select(["item_id"]) if kind == "no texts" else shop.items)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_fused_ranking_is_never_a_standard_error_below_its_best_channel(kind: str):
    log = log_of_kind(kind)
    split = leave_one_out(log)
    sids = fit_sids(log.items, split.train).table
    model = train(log, split, sids, replace(preset("tiny"), budget=Budget(steps=150), precision="fp32"))
    trie = Trie.build(sids.codes, sids.codebook_sizes, sids.item_ids)
    memory = tune_memory(fit_memory(log, split.train, text_columns(log.items)), split)
    memory.fusion = fit_fusion(model, trie, log, split, memory)
    report = evaluate(model, trie, log, split, memory=memory, config=EvaluationConfig(unconstrained_users=0))
    for seen in ("kept", "removed"):
        channels = {name: getattr(report.rankings[name], seen).recall_10 for name in SERVED}
        best = max(channels.values(), key=lambda recall: recall.mean)
        assert channels["fused"].mean >= best.mean - best.error


def test_validation_users_choose_settings_and_without_them_the_defaults_stay():
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 60, 150)
    steps = np.where(rng.random((150, 6)) < 0.5, 1, rng.integers(0, 60, (150, 6)))
    rows = [
        (user, int(item), at)
        for user, walk in enumerate((starts[:, None] + steps.cumsum(1)) % 60)
        for at, item in enumerate(walk)
    ]
    users, items, times = zip(*rows, strict=True)
    texts = [" ".join(rng.choice(["red", "green", "blue", "shoe", "tea"], 3)) for _ in range(60)]
    log = log_from_tables(
        pa.table({"user_id": users, "item_id": items, "timestamp": times}), pa.table({"item_id": range(60), "title": texts})
    )
    split = leave_one_out(log)
    memory = fit_memory(log, split.train, ["title"])
    assert memory.config == MemoryConfig()
    tuned = tune_memory(memory, split)
    assert tuned.config.text_weight < MemoryConfig().text_weight  # the texts are noise
    assert tuned.config.history_decay < MemoryConfig().history_decay  # the last item alone decides
    assert tuned.search([0]).item_ids != memory.search([0]).item_ids
    assert tune_memory(memory, split.with_valid()) is memory
