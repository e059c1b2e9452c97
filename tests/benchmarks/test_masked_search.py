"""Searches that mask before, after, last or never, beside all SIDs scored one by one."""

from itertools import product

import numpy as np
import pytest
import torch

from benchmarks.peers.cpu_trie import CpuTrie
from benchmarks.peers.masked_search import Masked, masked_search
from benchmarks.peers.unconstrained import Unconstrained

pytestmark = pytest.mark.slow

SIZES, BEAMS = (4, 3, 5), 60  # as many beams as SIDs, so that only the mask can lose one
RNG = np.random.default_rng(0)
LOGITS = {
    prefix: torch.tensor(RNG.normal(size=SIZES[level]), dtype=torch.float32)
    for level in range(3)
    for prefix in product(*(range(size) for size in SIZES[:level]))
}
ALLOWED = np.array(sorted(product(*map(range, SIZES))))[np.sort(RNG.choice(60, 12, replace=False))]
EXACT = CpuTrie.of_sorted(np.ascontiguousarray(ALLOWED.T), [4, 12, 12])


class Model:
    """Logits that depend on the whole prefix."""

    def __init__(self) -> None:
        self.prefixes: list[tuple[int, ...]] = []

    def __call__(self, codes: torch.Tensor | None, parents: torch.Tensor | None) -> torch.Tensor:
        if codes is None or parents is None:
            self.prefixes = [()]
            return LOGITS[()][None]
        chosen = zip(parents[0].tolist(), codes[0].tolist(), strict=True)
        self.prefixes = [(*self.prefixes[parent], code) for parent, code in chosen]
        return torch.stack([LOGITS[prefix] for prefix in self.prefixes])[None]


def score(sid: tuple[int, ...]) -> float:
    return sum(float(torch.log_softmax(LOGITS[sid[:level]], 0)[code]) for level, code in enumerate(sid))


def answers(method: Masked, num_beams: int = BEAMS) -> dict[tuple[int, ...], float]:
    codes_BKL, scores_BK = masked_search(method, Model(), batch_size=1, num_levels=3, num_beams=num_beams)
    return {
        tuple(sid): total for sid, total in zip(codes_BKL[0].tolist(), scores_BK[0].tolist(), strict=True) if total > -np.inf
    }


@pytest.mark.parametrize("when", ["before", "after", "last"])
def test_with_enough_beams_every_mask_finds_the_allowed_and_nothing_else(when):
    found = answers(Masked(peer=EXACT, when=when))
    assert found == pytest.approx({tuple(sid): score(tuple(sid)) for sid in ALLOWED.tolist()}, abs=1e-5)


def test_without_a_mask_all_sids_are_found():
    assert len(answers(Masked(peer=Unconstrained(), when="never"))) == 60


def test_with_few_beams_a_late_mask_loses_answers_and_an_early_one_does_not():
    num_beams = 4
    before, after, last = (answers(Masked(peer=EXACT, when=when), num_beams) for when in ("before", "after", "last"))
    allowed = {tuple(sid) for sid in ALLOWED.tolist()}
    assert len(before) == num_beams
    assert len(after) < num_beams
    assert allowed >= before.keys() | after.keys() | last.keys()
