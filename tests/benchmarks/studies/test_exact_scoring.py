import numpy as np
import pytest
import torch

from benchmarks.studies.exact_scoring import ExactScoring, SearchChoice, choose_search
from leafbeam.decode import BeamSearch
from leafbeam.errors import LogitsError
from leafbeam.index import Trie

pytestmark = pytest.mark.slow

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
