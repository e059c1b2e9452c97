"""The study of new items: its split leaks nothing, its methods rank every user, and exact scores are exact."""

import dataclasses

import numpy as np
import pytest
import torch

from benchmarks.studies.cold_split import cold_split
from benchmarks.studies.cold_start_study import METHODS, ColdResult, ColdStudy, study_cold_start
from benchmarks.studies.exact_scoring import ExactScoring, SearchChoice, choose_search
from benchmarks.studies.retriever import DenseRecipe, fit_dense
from leafbeam.decode import BeamSearch
from leafbeam.errors import LogitsError
from leafbeam.index import Trie
from leafbeam.semid import EmbeddingConfig, QuantiserConfig, fit_sids, text_vectors
from leafbeam.train import Budget, Histories, Recipe
from leafbeam.train.metrics import MISS
from tests.fixtures.logs import shop

pytestmark = pytest.mark.slow

STUDY = ColdStudy(
    recipe=Recipe(
        budget=Budget(steps=120),
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        batch_tokens=120,
        precision="fp32",
    ),
    embedding=EmbeddingConfig(text_dims=12, behaviour_dims=8),
    quantiser=QuantiserConfig(codebook_sizes=(8, 8)),
    dense=DenseRecipe(epochs=1, negatives=16, batch_items=128),
    retrievers=2,
    num_beams=12,
    batch_users=17,
)


@pytest.fixture(scope="module")
def result() -> ColdResult:
    log = shop()
    return study_cold_start(log, cold_split(log, share=0.2), STUDY)


def test_every_method_ranks_every_user(result: ColdResult):
    assert tuple(result.ranks) == tuple(METHODS)
    users = result.report.test_users
    for name, ranks in result.ranks.items():
        assert ranks.shape == (users,)
        assert (ranks >= MISS).all()
        if name not in ("unconstrained", "catalog"):
            assert ranks.max() < result.report.cold_items
    table = result.table()
    assert table["dense"]["all"].users == users == table["dense"]["alone"].users + result.another_cold_U.sum()


def test_beams_as_many_as_cold_items_find_what_scoring_every_item_finds(result: ColdResult):
    """Twelve beams over twelve cold items drop nothing; ties (items that share codes) may fall either way.

    "allowed" is compared where no cold item was seen: the search normalises over unseen items, the exact scores over all.
    """
    assert result.report.cold_items == STUDY.num_beams
    for scoring, users in (("full", slice(None)), ("allowed", ~result.another_cold_U)):
        by_beams, exact = result.ranks[f"trie_{scoring}"], result.ranks[f"exact_{scoring}"]
        assert (by_beams == exact)[users].mean() > 0.95
    assert (result.ranks_seen_kept["trie_full"] == result.ranks_seen_kept["exact_full"]).mean() > 0.95
    assert result.choice.method == "exact"  # it reads no more rows than the beams would


def test_seen_items_are_excluded_and_learnt_methods_beat_chance(result: ColdResult):
    for name in ("exact_full", "dense", "hybrid", "text"):
        assert (result.ranks[name] <= result.ranks_seen_kept[name]).all()
    chance = 1 / result.report.cold_items
    for name in (
        "hybrid",
        "exact_allowed",
        "text",
        "memory",
        "fused",
    ):  # there are six kinds, and each user takes one kind only
        assert (result.ranks[name] < 2).mean() > 1.7 * 2 * chance
    assert (result.ranks["random"] < 2).mean() < 1.6 * 2 * chance


@pytest.mark.parametrize("part", ["test", "valid"])
def test_the_newest_items_are_cold_and_no_training_sequence_has_one(part: str):
    log = shop()
    split = cold_split(log, share=0.2, part=part)
    newest = np.arange(48, 60) if part == "test" else np.arange(36, 48)
    assert split.cold_items.tolist() == newest.tolist()
    users = split.eval_set.users.tolist()
    for user in range(log.num_users):
        whole, trained = log.histories[user], split.train[user]
        has_cold, has_test = bool(split.cold_N[whole].any()), bool((whole >= 48).any())
        assert trained.tolist() == ([] if has_cold or has_test else whole.tolist())
        ends_cold = bool(split.cold_N[whole[-1]]) and (part == "test" or not has_test)
        assert (user in users) == ends_cold
        if ends_cold:
            index = users.index(user)
            assert split.eval_set.histories[index].tolist() == whole[:-1].tolist()
            assert split.cold_items[split.target_indices_U[index]] == whole[-1] == split.eval_set.targets_U[index]
            assert split.another_cold_U[index] == bool(split.cold_N[whole[:-1]].any())
            assert split.cold_items[split.seen_UC()[index]].tolist() == [row for row in whole[:-1] if split.cold_N[row]]
    assert split.report.test_users == len(users) > 10
    assert split.report.test_users_with_another_cold_item == split.another_cold_U.sum() > 0
    assert split.report.train_interactions == len(split.train.items_E) > 0


def test_the_age_is_the_column_or_else_the_first_interaction():
    with_column, without = cold_split(shop(), share=0.2), cold_split(shop(first_review=False), share=0.2)
    assert (with_column.report.age, without.report.age) == ("first_review", "first interaction")
    assert with_column.cold_items.tolist() == without.cold_items.tolist()


def test_test_interactions_change_no_sid_and_no_weight():
    """Whatever users with a cold item took, and which cold item they end in: split, SIDs and weights stay bit for bit."""
    log = shop()
    split = cold_split(log, share=0.2)
    rng = np.random.default_rng(3)
    items_E = log.histories.items_E.copy()
    held_E = ~np.isin(log.histories.users_E, np.flatnonzero(split.train.lengths_U))
    items_E[held_E] = rng.integers(0, 48, held_E.sum())
    ends = log.histories.indptr_U1[1:][split.eval_set.users] - 1
    items_E[ends] = rng.choice(split.cold_items, len(ends))
    histories = Histories(indptr_U1=log.histories.indptr_U1, items_E=items_E, times_E=log.histories.times_E)
    other = cold_split(dataclasses.replace(log, histories=histories), share=0.2)
    assert (other.eval_set.targets_U != split.eval_set.targets_U).any()

    def learnt(histories: Histories) -> tuple[np.ndarray, np.ndarray]:
        sids = fit_sids(log.items, histories, quantiser=QuantiserConfig(codebook_sizes=(8, 8))).table.codes
        model = fit_dense(histories, text_vectors(log.items, ("title",), dims=16, seed=0), DenseRecipe(epochs=1, negatives=8))
        return sids, np.concatenate([weight.detach().numpy().ravel() for weight in model.parameters()])

    for first, second in zip(learnt(split.train), learnt(other.train), strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.isin(split.train.items_E, split.cold_items).any()


SIZES = (5, 4, 6)


def index_of(items: int, *, seed: int = 0) -> Trie:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, items) for size in SIZES], axis=1)  # some items share a SID
    return Trie.build(codes, codebook_sizes=SIZES, item_ids=[f"i{row}" for row in rng.permutation(items)])


class Table:
    """Logits that depend on the whole prefix, so that a wrong parent shows."""

    def __init__(self, batch: int, *, seed: int = 1, kind: str = "numpy") -> None:
        rng = np.random.default_rng(seed)
        self.tables = [
            rng.normal(size=(batch, *SIZES[:level], size), scale=2).astype(np.float32) for level, size in enumerate(SIZES)
        ]
        self.batch, self.kind, self.prefixes, self.rows = batch, kind, [[()]] * batch, 0

    def __call__(self, codes_BK, parents_BK):
        if codes_BK is None:
            self.prefixes = [[()] for _ in range(self.batch)]
        else:
            codes_BK, parents_BK = np.asarray(codes_BK), np.asarray(parents_BK)
            self.prefixes = [
                [(*self.prefixes[b][parent], code) for code, parent in zip(codes_BK[b], parents_BK[b], strict=True)]
                for b in range(self.batch)
            ]
            self.rows += codes_BK.shape[1]
        level = len(self.prefixes[0][0])
        logits = np.stack([[self.tables[level][b][prefix] for prefix in self.prefixes[b]] for b in range(self.batch)])
        logits = logits[:, 0] if level == 0 else logits
        return torch.as_tensor(logits) if self.kind == "torch" else logits


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("allowed", [1, 2, 17, 60])
def test_every_item_has_the_score_of_a_beam_search_that_drops_nothing(scoring: str, kind: str, allowed: int):
    index = index_of(60)
    ids = np.random.default_rng(5).permutation(index.item_ids)[:allowed]
    exact = ExactScoring(index, ids, scoring)
    model = Table(3, kind=kind)
    scores_BC = exact.run(model, batch_size=3)
    assert scores_BC.dtype == np.float32
    assert model.rows == exact.rows == sum(exact.nodes_per_level[:-1])
    found = BeamSearch(index, num_beams=200, scoring=scoring).run(model, 3, filters=index.filter(item_ids=ids))
    for b in range(3):
        by_beam = dict(zip(found.item_ids[b].tolist(), found.scores[b, :allowed].tolist(), strict=True))
        assert by_beam.keys() == set(ids.tolist())
        np.testing.assert_allclose(scores_BC[b], [by_beam[item] for item in ids.tolist()], atol=1e-4)


def test_scores_allowed_are_probabilities_of_the_set():
    index = Trie.build([[0, 1, 2], [0, 3, 2], [4, 0, 0]], codebook_sizes=SIZES, item_ids=[7, 8, 9])
    assert np.exp(ExactScoring(index, [9, 7], "allowed").run(Table(2), 2)).sum(axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert (np.exp(ExactScoring(index, [9, 7, 8], "full").run(Table(2), 2)).sum(axis=1) < 0.9).all()


def test_what_the_model_excludes_scores_minus_infinity_and_nan_is_an_error():
    index = Trie.build([[0, 1, 2], [4, 0, 0]], codebook_sizes=SIZES, item_ids=["a", "b"])
    model = Table(1)
    assert ExactScoring(index, ["a", "b"]).run(Table(1, kind="torch")).shape == (1, 2)
    model.tables[0][0, 0] = -np.inf
    assert np.isneginf(ExactScoring(index, ["a", "b"], "full").run(model)).tolist() == [[True, False]]
    model.tables[1][0, 4] = -np.inf  # a whole row
    assert np.isneginf(ExactScoring(index, ["a", "b"], "allowed").run(model)).all()
    model.tables[1][0, 4, 2] = np.nan
    with pytest.raises(LogitsError, match="level 1"):
        ExactScoring(index, ["a", "b"]).run(model)


def test_exact_scoring_is_chosen_where_it_costs_no_more():
    index = index_of(60)
    few, all_of_it = ExactScoring(index, index.item_ids[:4]), ExactScoring(index, index.item_ids)
    assert choose_search(few, 20) == SearchChoice(method="exact", exact_rows=few.rows, beam_rows=few.rows)
    beam = choose_search(all_of_it, [2, 3, 9])
    assert (beam.method, beam.beam_rows) == ("beam", 5)
    assert choose_search(all_of_it, [2, 3, 9], most_rows=all_of_it.rows).method == "exact"
    assert choose_search(all_of_it, [2, 3, 9], factor=all_of_it.rows / 5).method == "exact"
    assert str(beam) == f"beam: 5 rows a request, exact scoring would read {all_of_it.rows}"
