import dataclasses
import io
import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from rich.console import Console

from leafbeam.errors import ArgumentError, ItemIdError
from leafbeam.index import Trie
from leafbeam.model import Transformer, Vocabulary
from leafbeam.retrieve import ItemMemory
from leafbeam.semid import SidTable
from leafbeam.train import (
    Budget,
    EvaluationConfig,
    EvaluationSet,
    InteractionLog,
    RankingMetrics,
    Recipe,
    Split,
    evaluate,
    leave_one_out,
    train,
)
from leafbeam.train import evaluation as evaluation_module
from leafbeam.train.baselines import SidSet, text_neighbours, unconstrained_search
from leafbeam.train.evaluation import Validation
from leafbeam.train.metrics import MISS, Estimate, Ranks
from leafbeam.train.report import Verdict
from tests.fixtures.logs import log_of, walks

SIZES = (4, 5, 3)
TINY = Recipe(
    budget=Budget(steps=150),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=16,
    max_items=6,
    batch_tokens=180,
    learning_rate=1e-2,
    dropout=0.0,
    precision="fp32",
)


def sids_of(log: InteractionLog, *, seed: int = 0) -> SidTable:
    every = np.array(list(itertools.product(*map(range, SIZES))))
    codes = every[np.random.default_rng(seed).permutation(len(every))[: log.num_items]]
    return SidTable(item_ids=log.item_ids, codes=codes, codebook_sizes=SIZES)


def trie_of(sids: SidTable) -> Trie:
    return Trie.build(sids.codes, codebook_sizes=sids.codebook_sizes, item_ids=sids.item_ids)


def model_of(seed: int = 0) -> Transformer:
    """An untrained model with opinions: logits far enough apart that no two SIDs tie."""
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    config = dataclasses.replace(TINY.model_config(vocabulary), initializer_range=0.3)
    return Transformer(config, vocabulary, torch.Generator().manual_seed(seed)).eval()


@torch.inference_mode()
def log_probabilities(model: Transformer, history_codes: np.ndarray, sids_ML: np.ndarray, scoring: str = "full") -> np.ndarray:
    """Teacher-forced log p of each SID after a history, in one row each and without any cache."""
    prompt = [model.vocabulary.bos, *model.vocabulary.tokens(history_codes).reshape(-1)]
    tokens_ML = model.vocabulary.tokens(sids_ML)
    rows = torch.as_tensor(np.concatenate([np.tile(prompt, (len(sids_ML), 1)), tokens_ML[:, :-1]], axis=1))
    hidden_MLD = model(rows)[:, len(prompt) - 1 :]
    total = torch.zeros(len(sids_ML), dtype=torch.float64)
    for level in range(sids_ML.shape[1]):
        log_p = torch.log_softmax(model.head(hidden_MLD[:, level], level).double(), -1)
        if scoring == "vocabulary":
            of_all = torch.log_softmax(model.logits(hidden_MLD[:, level]).double(), -1)
            log_p = of_all[:, model.vocabulary.level_tokens(level)]
        total += log_p[torch.arange(len(sids_ML)), torch.as_tensor(sids_ML[:, level])]
    return total.numpy()


@pytest.fixture(scope="module")
def shop() -> tuple[InteractionLog, Split, SidTable, Trie]:
    log = walks(80)
    sids = sids_of(log)
    return log, leave_one_out(log), sids, trie_of(sids)


@pytest.mark.parametrize(("part", "scoring"), [("valid", "full"), ("test", "full"), ("test", "vocabulary")])
def test_the_scores_equal_a_brute_force_ranking_of_every_item(
    shop: tuple[InteractionLog, Split, SidTable, Trie], part: Any, scoring: Any
):
    log, split, sids, trie = shop
    model, ranks, free_ranks, invalid = model_of(), [], [], []
    every = np.array(list(itertools.product(*map(range, SIZES))))
    exists = {tuple(code) for code in sids.codes.tolist()}
    for items in (log.histories[user] for user in range(log.num_users)):
        if len(items) < 3:
            continue
        back = 2 if part == "valid" else 1
        history, target = items[:-back][-4:], items[-back]
        scores = log_probabilities(model, sids.codes[history], sids.codes, scoring)
        ranks.append(int((scores > scores[target]).sum()))
        order = np.argsort(-log_probabilities(model, sids.codes[history], every))
        free_ranks.append([tuple(every[row]) for row in order].index(tuple(sids.codes[target])))
        invalid.append(np.mean([tuple(every[row].tolist()) not in exists for row in order]))
    report = evaluate(
        model,
        trie,
        log,
        split,
        config=EvaluationConfig(
            part=part, num_beams=60, scoring=scoring, max_items=4, unconstrained_users=10**6, batch_users=7
        ),
    )
    assert report.rankings["model"].kept == RankingMetrics.from_ranks(np.array(ranks))
    assert report.users == len(ranks)
    assert report.unconstrained is not None
    assert report.unconstrained.scores == RankingMetrics.from_ranks(np.array(free_ranks))
    assert report.unconstrained.constrained == report.rankings["model"].kept
    assert report.unconstrained.invalid.mean == pytest.approx(np.mean(invalid))


def test_a_log_that_can_be_memorised_is_recalled_in_first_place_and_popularity_is_not(
    shop: tuple[InteractionLog, Split, SidTable, Trie],
):
    log, split, sids, trie = shop
    model = train(log, split, sids, dataclasses.replace(TINY, validations=1, validation_users=20))
    report = evaluate(model, trie, log, split, config=EvaluationConfig(num_beams=10, max_items=6))
    ranking, popular = report.rankings["model"].removed, report.rankings["popularity"].removed
    assert ranking.recall_1.mean > 0.6
    assert ranking.ndcg_5.mean >= ranking.recall_1.mean
    assert popular.recall_1.mean < 0.3
    assert set(report.rankings) == {"model", "popularity"}
    validation = Validation(trie, log, split, max_items=6, sample=30)
    assert validation(model) > 0.6 > validation.recalls["popularity"]
    best, popular = (getattr(report.rankings[name], report.verdict.seen) for name in ("model", "popularity"))
    assert (report.verdict.best, report.verdict.other) == ("model", "popularity")
    assert report.verdict.lead.mean == pytest.approx(best.recall_10.mean - popular.recall_10.mean)
    assert str(report.verdict).endswith('name the channel "model" in requests.')


def test_a_user_is_searched_before_the_time_of_validations_counts(
    shop: tuple[InteractionLog, Split, SidTable, Trie], monkeypatch: pytest.MonkeyPatch
):
    log, split, sids, _ = shop
    sizes: list[int] = []
    run_batch = evaluation_module._Evaluator.run_batch

    def counted(self: Any, batch: NDArray[np.int64], **options: bool) -> None:
        sizes.append(len(batch))
        run_batch(self, batch, **options)

    monkeypatch.setattr(evaluation_module._Evaluator, "run_batch", counted)
    train(log, split, sids, dataclasses.replace(TINY, validations=1, validation_users=20))
    assert sizes == [1, 20, 20]  # the kernels are compiled, a validation's time is estimated, then the validation itself


def test_removed_seen_items_are_not_ranked_by_the_model(shop: tuple[InteractionLog, Split, SidTable, Trie]):
    log, split, sids, trie = shop
    model, ranks = model_of(), []
    eval_set = EvaluationSet.from_split(split, "test")
    for index, target in enumerate(eval_set.targets_U):
        history = eval_set.histories[index]
        scores = log_probabilities(model, sids.codes[history[-4:]], sids.codes)
        above = set(np.flatnonzero(scores > scores[target]).tolist()) - set(history.tolist())
        ranks.append(MISS if target in history else len(above))
    vectors = np.random.default_rng(0).standard_normal((log.num_items, 4))
    config = EvaluationConfig(num_beams=60, max_items=4, unconstrained_users=5, batch_users=7)
    rankings = evaluate(model, trie, log, split, config, baselines={"text": text_neighbours(vectors)}).rankings
    assert rankings["model"].removed == RankingMetrics.from_ranks(np.array(ranks))
    assert list(rankings) == ["model", "popularity", "text"]
    assert all(ranking.removed != ranking.kept for ranking in rankings.values())


def test_the_rank_of_an_item_on_a_shared_sid_counts_the_others(shop: tuple[InteractionLog, Split, SidTable, Trie]):
    log, split, sids, _ = shop
    shared = dataclasses.replace(sids, codes=sids.codes[np.arange(log.num_items) // 3 * 3])
    report = evaluate(
        model_of(), trie_of(shared), log, split, config=EvaluationConfig(num_beams=60, max_items=4, unconstrained_users=0)
    )
    assert report.rankings["model"].kept.recall_1.mean == 0
    assert report.rankings["model"].kept.recall_10.mean > 0


def test_the_verdict_compares_what_is_served_with_the_best_baseline_on_the_same_users():
    def ranks(kept: list[int], removed: list[int]) -> Ranks:
        return Ranks(kept=np.array(kept * 20), removed=np.array(removed * 20))

    model, graph = ranks([0, 11, 11, 11], [0, 0, 11, 11]), ranks([0, 11, 11, 11], [0, 0, 9, 9])
    worse = ranks([MISS] * 4, [MISS] * 4)
    verdict = Verdict.from_ranks({"model": model, "popularity": worse, "graph": graph})
    assert (verdict.best, verdict.other, verdict.seen) == ("graph", "model", "removed")
    assert verdict.lead == Estimate.from_values(np.array([0.0, 0.0, 1.0, 1.0] * 20))
    assert "the best Recall@10 is that of transition graph, 8.9 standard errors above model alone" in str(verdict)
    verdict = Verdict.from_ranks({"model": model, "popularity": worse, "fused": graph})
    assert (verdict.best, verdict.other) == ("fused", "popularity")
    assert "no clear difference" in str(Verdict.from_ranks({"model": model, "graph": model}))


@pytest.mark.parametrize("served", [[0, 20] * 40, [20, 20] * 40])
@pytest.mark.parametrize("baseline", ["graph", "text"])
def test_the_advice_to_train_longer_is_a_command_for_this_run(served: list[int], baseline: str):
    def ranks(values: list[int]) -> Ranks:
        return Ranks(kept=np.array(values), removed=np.array(values))

    verdict = Verdict.from_ranks({"model": ranks(served), baseline: ranks([0, 20] * 40)})
    assert verdict.advice("leafbeam train --run runs/cooking --resume").endswith(": leafbeam train --run runs/cooking --resume")


def test_every_user_is_ranked_once_whatever_the_batches(shop: tuple[InteractionLog, Split, SidTable, Trie]):
    log, split, _, trie = shop
    seen: list[tuple[int, int]] = []
    settings = {"num_beams": 5, "max_items": 4}
    whole = evaluate(model_of(), trie, log, split, EvaluationConfig(**settings, unconstrained_users=0))
    small = evaluate(
        model_of(),
        trie,
        log,
        split,
        progress=lambda *at: seen.append(at),
        config=EvaluationConfig(**settings, batch_users=3, unconstrained_users=20),
    )
    assert small.rankings == whole.rankings
    assert whole.unconstrained is None
    assert seen[-1] == (whole.users, whole.users)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    users = np.concatenate(list(EvaluationSet.from_split(split, "test").batches(4, 3)))
    assert sorted(users.tolist()) == list(range(whole.users))


def test_a_sample_is_drawn_by_its_seed(shop: tuple[InteractionLog, Split, SidTable, Trie]):
    _, split, _, _ = shop
    users = [EvaluationSet.from_split(split, "test", sample=12, seed=seed).users for seed in (0, 0, 1)]
    assert len(np.unique(users[0])) == 12
    assert (users[0] == users[1]).all()
    assert (users[0] != users[2]).any()


def test_histories_before_the_test_hold_the_validation_item_and_never_the_target(
    shop: tuple[InteractionLog, Split, SidTable, Trie],
):
    log, split, _, _ = shop
    for part, back in (("valid", 2), ("test", 1)):
        eval_set = EvaluationSet.from_split(split, part)
        for index, user in enumerate(eval_set.users):
            assert eval_set.histories[index].tolist() == log.histories[user][:-back].tolist()
            assert eval_set.targets_U[index] == log.histories[user][-back]


def test_an_index_that_does_not_fit_is_refused(shop: tuple[InteractionLog, Split, SidTable, Trie]):
    log, split, sids, trie = shop
    other = Trie.build(sids.codes, codebook_sizes=(5, 5, 3), item_ids=sids.item_ids)
    with pytest.raises(ArgumentError, match=r"\(5, 5, 3\).*\(4, 5, 3\)"):
        evaluate(model_of(), other, log, split)
    with pytest.raises(ItemIdError):
        evaluate(model_of(), Trie.build(sids.codes[:9], codebook_sizes=SIZES, item_ids=sids.item_ids[:9]), log, split)
    with pytest.raises(ArgumentError, match="part"):
        evaluate(model_of(), trie, log, split, config=EvaluationConfig(part="train"))
    with pytest.raises(ArgumentError, match="num_beams must be"):
        evaluate(model_of(), trie, log, split, config=EvaluationConfig(num_beams=0))


def test_a_split_with_nothing_held_out_is_refused():
    log = log_of([[1, 2], [3, 4]])
    with pytest.raises(ArgumentError, match="three interactions"):
        evaluate(model_of(), trie_of(sids_of(log)), log, leave_one_out(log))


def test_a_report_prints_recall_and_ndcg_of_every_ranking_and_writes_json(shop: tuple[InteractionLog, Split, SidTable, Trie]):
    log, split, _, trie = shop
    text = text_neighbours(np.random.default_rng(0).standard_normal((log.num_items, 4)))
    report = evaluate(
        model_of(), trie, log, split, baselines={"text": text}, config=EvaluationConfig(num_beams=8, unconstrained_users=10)
    )
    recall = json.loads(report.to_json())["rankings"]["model"]["removed"]["recall_10"]["mean"]
    assert recall == report.rankings["model"].removed.recall_10.mean
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report.table())
    text = console.export_text()
    assert report.unconstrained is not None
    both = [metrics for ranking in report.rankings.values() for metrics in (ranking.kept, ranking.removed)]
    assert len(both) == 6
    for scores in (*both, report.unconstrained.scores):
        for name in ("Recall@10", "NDCG@10"):
            assert str(scores.estimates[name]) in text
    assert f"{report.unconstrained.invalid.mean:.2%}" in text
    console.print(report.segment_table())
    text = console.export_text()
    for segment in (*report.segments["popularity"], *report.segments["history"]):
        assert f"{segment.name} " in text
        assert str(segment.recall_10["model"]) in text
    assert f"{report.lists['model'].coverage:.1%}" in text
    assert len(report.plot().axes) == 2


@pytest.mark.parametrize("num_beams", [60, 4])
def test_segments_and_lists_are_those_of_each_user_s_own_list(
    shop: tuple[InteractionLog, Split, SidTable, Trie], num_beams: int
):
    log, split, _, trie = shop
    model = model_of()
    config = EvaluationConfig(num_beams=num_beams, max_items=4, unconstrained_users=0)
    memory = ItemMemory.fit(log.item_ids, split.train.indptr_U1, split.train.items_E)
    report = evaluate(model, trie, log, split, config=config, memory=memory)
    removes, interactions_N = report.verdict.seen == "removed", np.bincount(split.train.items_E, minlength=log.num_items)
    hits: dict[str, list[bool]] = {"model": [], "popularity": []}
    listed: dict[str, list[int]] = {"model": [], "popularity": []}
    users = split.test_users().tolist()
    codes_NL = trie.codes_of(log.item_ids)
    for user in users:
        history = split.before_test[user]
        scores = {"popularity": interactions_N.astype(np.float64)}
        scores["model"] = log_probabilities(model, codes_NL[history[-4:]], codes_NL)
        for name, scores_N in scores.items():
            if removes:
                scores_N[history] = -np.inf
            order = np.argsort(-scores_N, kind="stable")[:10]
            order = order[scores_N[order] > -np.inf][: num_beams if name == "model" else 10]
            target = split.test_U[user]
            before = (scores_N >= scores_N[target]).sum() - 1
            hits[name].append(bool(scores_N[target] > -np.inf and before < (min(10, num_beams) if name == "model" else 10)))
            listed[name] += order.tolist()
    for name, values in (("popularity", interactions_N[split.test_U[users]]), ("history", split.before_test.lengths_U[users])):
        segments = report.segments[name]
        assert sum(segment.users for segment in segments) == len(users)
        for segment in segments:
            low, _, high = segment.name.replace(" or more", " to 1000000").partition(" to ")
            chosen = (values >= int(low)) & (values <= int(high or low))
            assert segment.users == chosen.sum() > 0
            assert set(segment.recall_10) == {"model", "fused", "memory", "popularity"}
            if num_beams == 60:  # a narrower beam search may miss the best items
                for ranking in hits:
                    assert segment.recall_10[ranking] == Estimate.from_values(np.array(hits[ranking], np.float64)[chosen])
    for name in ("popularity", "model") if num_beams == 60 else ("popularity",):
        bits = [-np.log2(max(1, interactions_N[item]) / interactions_N.sum()) for item in listed[name]]
        assert report.lists[name].coverage == len(set(listed[name])) / log.num_items
        assert report.lists[name].novelty == pytest.approx(np.mean(bits))
    assert report.lists["model"].coverage > 0


def test_a_wide_unconstrained_search_equals_an_enumeration_of_every_sid():
    model = model_of(3)
    every = np.array(list(itertools.product(*map(range, SIZES))))
    history = np.array([[1, 2, 0], [3, 3, 1]])
    scores = log_probabilities(model, history, every)
    tokens_BT, lengths_B = model.vocabulary.prompts([history])
    rounds = model.start(torch.as_tensor(tokens_BT), torch.as_tensor(lengths_B))
    codes_BKL, scores_BK = unconstrained_search(rounds.step_fn, num_levels=3, num_beams=60)
    order = np.argsort(-scores)
    assert (codes_BKL[0].numpy() == every[order]).all()
    np.testing.assert_allclose(scores_BK[0].numpy(), scores[order], atol=1e-4)


def test_the_sid_set_contains_exactly_its_sids():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, (40, 3, 50), (200, 3))
    codes[:5, 0] = 2**31 - 1
    sids = np.concatenate([codes, rng.integers(0, (40, 3, 50), (500, 3))])
    known = {tuple(code) for code in codes.tolist()}
    assert SidSet(codes).contains(sids).tolist() == [tuple(code) in known for code in sids.tolist()]
    assert not SidSet(codes[:0]).contains(sids).any()
    assert MISS == -1
