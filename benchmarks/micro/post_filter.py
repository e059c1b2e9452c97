"""How many answers are left under a rule: the rule in the search, against a rule that is applied to the search's answers.

STATIC has no filters. With an index built for the rule it is exact, for one build and one index a rule; with one index of all
items its answers are filtered afterwards, once with as many beams as answers are asked for, once with ten times as many.
leafbeam reads the rule in every round; its answers must equal those of an index built on the allowed items alone before
anything is counted. Logits are standard normal; the rule does not depend on them.

Shapes: B requests, K answers asked for, V codes, L levels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.micro.step import K, L, V
from benchmarks.peers import static
from benchmarks.peers.masked_search import Masked, masked_search
from benchmarks.peers.static_matrix import matrix_of_codes
from benchmarks.workloads import DISTRIBUTIONS, random_codes, random_logits
from leafbeam.decode import BeamSearch
from leafbeam.index import Filter, Trie

__all__ = ["SHARES", "TIMED", "measure", "runs"]

TIMED = False

SHARES = (0.5, 0.1, 0.01, 0.001)  # of the items that the rule allows
OVERSAMPLING = 10
B = 16


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """One row for each distribution."""
    for distribution in DISTRIBUTIONS:
        yield measure(distribution, 10_000 if quick else 1_000_000)


def measure(distribution: str, num_items: int, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """(parameters, measured): mean answers of a request that obey the rule, of K, by the rule's share and method."""
    rng = np.random.default_rng(seed)
    codes = random_codes(rng, distribution, num_items, V, L)
    logits = [random_logits(rng, B, 1, V) for _ in range(L)]  # of a level, the same for all beams of a request
    trie = Trie.build(codes, [V] * L)
    peer = static.StaticPeer.of(matrix_of_codes(codes, [V] * L))
    after = {"post_filter": _static_leaves(trie, peer, logits, K)}
    after["post_filter_oversampled"] = _static_leaves(trie, peer, logits, OVERSAMPLING * K)
    answers: dict[str, dict[str, float]] = {}
    index_bytes: dict[str, dict[str, int]] = {}
    for share in SHARES:
        mask = rng.random(num_items) < share
        rule = trie.filter(mask)
        found = _codes(trie, rule, logits)
        for ours, alone in zip(found, _codes(Trie.build(codes[mask], [V] * L), None, logits), strict=True):
            np.testing.assert_array_equal(ours, alone)
        counts = {
            name: [min(K, int(np.isin(kept, rule.parts[0].leaf_positions()).sum())) for kept in leaves]
            for name, leaves in after.items()
        }
        counts["leafbeam"] = [len(ours) for ours in found]
        own = static.StaticPeer.of(matrix_of_codes(codes[mask], [V] * L))
        counts["static_of_the_rule"] = [len(kept) for kept in _static_leaves(trie, own, logits, K)]
        index_bytes[f"{share:g}"] = {"static_of_the_rule": own.nbytes, "leafbeam_rule": rule.nbytes}
        answers[f"{share:g}"] = {name: round(float(np.mean(each)), 2) for name, each in counts.items()}
    parameters = {"distribution": distribution, "num_items": num_items, "B": B, "K": K, "V": V, "L": L}
    return parameters, {"answers": answers, "asked": K, "oversampling": OVERSAMPLING, "bytes": index_bytes}


def _codes(trie: Trie, rule: Filter | None, logits: list[NDArray[np.float32]]) -> list[NDArray[np.int64]]:
    """The SIDs that a search under a rule answers each request with, best first."""
    rounds = iter(logits)

    def model(codes: NDArray[np.int64] | None, parents: NDArray[np.int64] | None) -> NDArray[np.float32]:
        fresh = next(rounds)
        return fresh[:, 0] if codes is None else np.repeat(fresh, codes.shape[1], axis=1)

    result = BeamSearch(trie, num_beams=K).run(model, batch_size=B, filters=rule)
    return [result.codes[request, :number] for request, number in enumerate(result.num_valid)]


def _static_leaves(
    trie: Trie, peer: static.StaticPeer, logits: list[NDArray[np.float32]], num_beams: int
) -> list[NDArray[np.int64]]:
    """The leaves that STATIC answers each request with, best first."""
    rounds = iter(logits)

    def model(codes: torch.Tensor | None, parents: torch.Tensor | None) -> torch.Tensor:
        fresh = torch.from_numpy(next(rounds))
        return fresh[:, 0] if codes is None else fresh.expand(B, codes.shape[1], V)

    search = Masked(peer=peer, when="before")
    codes_BKL, scores_BK = masked_search(search, model, batch_size=B, num_levels=L, num_beams=num_beams)
    alive = scores_BK > -np.inf
    return [np.array([trie.leaf_of(sid) for sid in codes_BKL[row][alive[row]].tolist()], np.int64) for row in range(B)]
