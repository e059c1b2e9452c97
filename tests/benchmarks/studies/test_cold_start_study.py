import numpy as np
import pytest

from benchmarks.studies.cold_split import cold_split
from benchmarks.studies.cold_start_study import METHODS, ColdResult, ColdStudy, Fusion, fuse, study_cold_start
from benchmarks.studies.retriever import DenseRecipe
from leafbeam.errors import ArgumentError
from leafbeam.semid import EmbeddingConfig, QuantiserConfig
from leafbeam.train import Budget, Recipe
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


def test_fusion_adds_standardised_scores_and_ignores_constant_ones():
    scores = {
        "dense_averaged": np.array([[1.0, 2.0, 3.0]] * 2, np.float32),
        "exact_allowed": np.array([[-900.0, -800.0, -700.0]] * 2, np.float32),
        "text": np.array([[0.1, 0.0, -0.1]] * 2, np.float32),
        "text_faded": np.full((2, 3), 0.5, np.float32),
    }
    unit = np.array([-1, 0, 1]) * np.sqrt(1.5)
    fused = fuse(scores, np.array([False, True]), Fusion(dense=1, model=2, last=0.5, last_new=2, faded=4))
    np.testing.assert_allclose(fused, [2.5 * unit, unit], rtol=1e-5)
    with pytest.raises(ArgumentError, match="not all 0"):
        Fusion(dense=0, model=0, last=0, last_new=0, faded=0)
