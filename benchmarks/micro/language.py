"""Rounds of a beam search over regular languages on a real vocabulary, with the head for legal tokens alone.

    legal   hidden states; the head is multiplied for the legal tokens of each beam (`SequenceSearch.run(head=...)`)
    all     every logit (`hidden @ weight.T`), then the same search
    mask    every logit, a bit mask of the legal ones, log-softmax over what is left, top-k: what serving engines do, in torch

The model is random hidden states, the same for all three; a search is one request of K beams. Scores are normalised over legal
tokens. All three find the same scores, which is asserted before any speed is printed. One thread.

Shapes: K beams, V tokens, D hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from benchmarks.head_costs import measure_cpu
from benchmarks.rows import spread
from benchmarks.vocabulary import SIZE, real_vocabulary
from leafbeam.automata import Automaton, TokenTrie
from leafbeam.decode import SequenceSearch
from leafbeam.ops.head import HeadCosts

__all__ = ["masked_search", "runs"]

_END = 2  # the vocabulary's end of sequence
K, ROUNDS, D = 4, 16, 1024
Hidden = Callable[[Any, Any], NDArray[np.float32]]

_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 40},
        "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
        "kind": {"enum": ["book", "film", "song"]},
    },
    "required": ["title", "year", "kind"],
}


def runs(quick: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of each language."""
    tokens = TokenTrie.of(real_vocabulary())
    rng = np.random.default_rng(0)
    languages = {
        "json": Automaton.from_json_schema(_SCHEMA, tokens),
        "choice": Automaton.from_choices([f"item-{number:09d}" for number in rng.integers(0, 10**9, 1000)], tokens),
        "number": Automaton.from_regex(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", tokens),
    }
    hidden = 64 if quick else D
    weight_VD = rng.standard_normal((SIZE, hidden), np.float32) * np.float32(hidden**-0.5)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            costs = measure_cpu(weight_VD)
            for name, automaton in languages.items():
                parameters = {"language": name, "V": SIZE, "D": hidden, "K": K, "most_rounds": ROUNDS, "threads": 1}
                yield parameters, _measure(automaton, weight_VD, costs, repeats=1 if quick else 5)
    finally:
        torch.set_num_threads(threads)


def _measure(automaton: Automaton, weight_VD: NDArray[np.float32], costs: HeadCosts, repeats: int) -> dict[str, Any]:
    search = SequenceSearch(automaton, end_code=_END, num_codes=SIZE, num_beams=K, max_tokens=ROUNDS, scoring="allowed")

    def legal(hidden: Hidden) -> Any:
        return search.run(hidden, head=weight_VD, costs=costs)

    def everything(hidden: Hidden) -> Any:
        return search.run(lambda codes, parents: hidden(codes, parents) @ weight_VD.T)

    def mask(hidden: Hidden) -> Any:
        return masked_search(automaton, hidden, torch.from_numpy(weight_VD))

    ways = {"legal": legal, "all": everything, "mask": mask}
    found = {name: run(_model(weight_VD.shape[1], 0)) for name, run in ways.items()}
    for name, scores in (("all", found["all"].scores), ("mask", found["mask"][0])):
        np.testing.assert_allclose(scores, found["legal"].scores, rtol=1e-4, atol=1e-3, err_msg=name)
    rounds = found["legal"].rounds
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for seed in range(1, repeats + 1):
        for name, run in ways.items():
            hidden = _model(weight_VD.shape[1], 0 if repeats == 1 else seed)
            begin = time.perf_counter()
            done = run(hidden)
            took = time.perf_counter() - begin
            seconds[name].append(took / (done[1] if name == "mask" else done.rounds))
    ms = {name: spread(taken, 1e-3) for name, taken in seconds.items()}
    return {
        "round_ms": ms,
        "over_legal": {name: round(ms[name]["p50"] / ms["legal"]["p50"], 1) for name in ("all", "mask")},
        "rounds": rounds,
        "states": automaton.num_states,
        "repeats": repeats,
    }


def _model(hidden: int, seed: int) -> Hidden:
    """Random hidden states, the same for every search that asks as often for as many beams."""
    rng = np.random.default_rng(seed)

    def answer(codes_BK: Any, parents_BK: Any) -> NDArray[np.float32]:
        drawn = rng.standard_normal((K, hidden), np.float32)
        return drawn[:1] if codes_BK is None else drawn[None]

    return answer


def masked_search(automaton: Automaton, hidden: Hidden, weight_VD: torch.Tensor) -> tuple[NDArray[np.float32], int]:
    """(scores (1, K), rounds) of the same search with a mask over all logits. A beam that ended keeps its score."""
    scores_K, states_K = torch.zeros(1), np.zeros(1, np.int64)
    ended_K = np.zeros(1, np.bool_)
    codes: Any = None
    rounds = 0
    while rounds < ROUNDS and not ended_K.all():
        logits_KV = torch.from_numpy(hidden(codes, None).reshape(-1, weight_VD.shape[1])[: len(states_K)]) @ weight_VD.T
        mask_KV = np.unpackbits(automaton.masks(states_K).view(np.uint8), axis=1, bitorder="little")[:, : logits_KV.shape[1]]
        mask_KV[:, _END] = [
            ended or (state >= 0 and automaton.accepts(int(state))) for ended, state in zip(ended_K, states_K, strict=True)
        ]
        logits_KV[torch.from_numpy(ended_K)] = 0
        logits_KV.masked_fill_(torch.from_numpy(mask_KV == 0), -torch.inf)
        total_KV = scores_K[:, None] + torch.log_softmax(logits_KV, -1)
        best, at = total_KV.flatten().topk(K)
        live = best > -torch.inf
        best, at = best[live], at[live].numpy()
        parents, chosen = at // logits_KV.shape[1], at % logits_KV.shape[1]
        states_K = np.where(chosen == _END, -1, automaton.step(states_K[parents], np.where(chosen == _END, 0, chosen)))
        ended_K = chosen == _END
        scores_K, codes = best, chosen[None]
        rounds += 1
    scores = np.full((1, K), -np.inf, np.float32)
    scores[0, : len(scores_K)] = scores_K.numpy()
    return scores, rounds
