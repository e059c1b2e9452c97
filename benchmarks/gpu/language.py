"""Rounds over automata on a GPU: parity with the CPU's loops, then their time, on a vocabulary of 131,072 random words.

Texts to choose from, so that nothing optional is needed; states with more than a few legal tokens have masks, so that rows,
masks and the walk over a token's bytes are all met. A search is followed for some rounds, so that states are those that beams
come to.

Shapes: B requests, K beams, V codes of the model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.timing import Measured, attempt, poisoned, times
from leafbeam.automata import Automaton, TokenTrie
from leafbeam.ops.constrain import Beams, Scoring
from leafbeam.ops.constrain.cpu import automaton as automata
from leafbeam.ops.constrain.cpu.automaton import AutomatonBatch
from leafbeam.ops.constrain.triton import automaton as triton_automata

__all__ = ["Sizes", "languages_of", "measure", "parity", "runs"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """V codes of the model, texts of each language, B requests, K beams, rounds that are followed."""

    codes: int
    texts: int
    requests: int
    beams: int
    rounds: int


REAL = Sizes(codes=131_072, texts=2_000, requests=2, beams=70, rounds=4)


def runs(device: torch.device, bandwidth: float, seconds: float, sizes: Sizes = REAL) -> Measured:
    """Rows of parity, then of times."""
    until = time.monotonic() + seconds
    languages = languages_of(sizes)
    about = {"V": sizes.codes, "texts": sizes.texts, "B": sizes.requests, "K": sizes.beams}
    for scoring in ("full", "allowed"):
        parameters = {"what": "language parity", "scoring": scoring, **about}
        yield attempt(parameters, partial(parity, device, languages, sizes, scoring))
    if time.monotonic() < until:
        yield attempt({"what": "language step", **about}, partial(measure, device, languages, sizes, bandwidth))


def languages_of(sizes: Sizes) -> AutomatonBatch:
    """A different choice of random texts for each request, over one vocabulary: single bytes and random words."""
    rng = np.random.default_rng()
    letters = np.frombuffer(b"abcdefgh ", np.uint8)
    drawn, ends = letters[rng.integers(0, len(letters), (4 * sizes.codes, 8))], rng.integers(2, 9, 4 * sizes.codes)
    different = dict.fromkeys(row[:end].tobytes() for row, end in zip(drawn, ends.tolist(), strict=True))
    words = list(different)[: sizes.codes - 257]
    tokens = TokenTrie.of([*(bytes([byte]) for byte in range(256)), *words, None])
    texts = [
        [rng.choice(letters, int(rng.integers(8, 40))).tobytes() for _ in range(sizes.texts)] for _ in range(sizes.requests)
    ]
    chosen = [Automaton.from_choices(one, tokens, compress=False, dense_share=8 / sizes.codes) for one in texts]
    return automata.bind(chosen, end_code=sizes.codes - 1, num_codes=sizes.codes)


def _rounds(languages: AutomatonBatch, sizes: Sizes, scoring: Scoring) -> list[tuple[Any, Any]]:
    """(inputs, outputs of the CPU) of each round of a search with random logits."""
    rng = np.random.default_rng()
    lo, hi = automata.roots(languages)
    beams = Beams.start(lo, hi, np.zeros((sizes.requests, 1), np.float32))
    met: list[tuple[Any, Any]] = []
    for level in range(sizes.rounds):
        logits = rng.standard_normal((sizes.requests, beams.lo.shape[2], sizes.codes), np.float32) * 3
        given = (beams.lo, beams.hi, beams.scores, logits)
        beams = automata.step(languages, level, beams, logits, None, num_beams=sizes.beams, scoring=scoring)
        met.append((given, beams))
    return met


def parity(device: torch.device, languages: AutomatonBatch, sizes: Sizes, scoring: Scoring) -> dict[str, Any]:
    """Every round of a search against the CPU, outputs poisoned; raises where it differs."""
    arrays = triton_automata.bind(languages, device)
    flipped, compared = 0, 0
    for level, (given, expected) in enumerate(_rounds(languages, sizes, scoring)):
        lo, hi, scores, logits = (torch.from_numpy(one).to(device) for one in given)
        with poisoned():
            found = triton_automata.step(
                arrays, level, Beams.start(lo, hi, scores), logits, None, num_beams=sizes.beams, scoring=scoring
            )
        ours = {name: getattr(found, name).cpu().numpy() for name in ("scores", "parent", "code", "lo", "hi", "num_valid")}
        assert np.array_equal(ours["num_valid"], expected.num_valid), f"round {level}: num_valid"
        np.testing.assert_allclose(ours["scores"], expected.scores, rtol=1e-5, atol=1e-4, err_msg=f"round {level}")
        same = (ours["parent"] == expected.parent) & (ours["code"] == expected.code)
        flipped, compared = flipped + int((~same).sum()), compared + same.size
        for name in ("lo", "hi"):
            assert np.array_equal(ours[name][0, same], getattr(expected, name)[0, same]), f"round {level}: {name}"
    assert flipped <= 0.01 * compared, f"{flipped} of {compared} beams differ"
    masked = sum(int((one.filled().arrays.table.mask_S >= 0).sum()) for one in languages.automata)
    return {"parity": "ok", "rounds": sizes.rounds, "equal_scores_ordered_otherwise": flipped, "states_with_masks": masked}


def measure(device: torch.device, languages: AutomatonBatch, sizes: Sizes, bandwidth: float) -> dict[str, Any]:
    """Microseconds of each round, by graph replay, beside log-softmax and top-k of the same logits without any constraint."""
    arrays = triton_automata.bind(languages, device)
    measured: dict[str, Any] = {"full_us": [], "allowed_us": [], "unconstrained_us": []}
    for given, _ in _rounds(languages, sizes, "full"):
        tensors = [torch.from_numpy(one).to(device) for one in given]
        for scoring in ("full", "allowed"):
            beams = Beams.start(*tensors[:3])
            run = partial(triton_automata.launch, arrays, 0, beams, tensors[3], None, num_beams=sizes.beams, scoring=scoring)
            measured[f"{scoring}_us"].append(times([run] * 2, device)["p50"])
        run = partial(_unconstrained, tensors[2], tensors[3], sizes.beams)
        measured["unconstrained_us"].append(times([run] * 2, device)["p50"])
    read = 4 * sizes.requests * sizes.beams * sizes.codes
    last = measured["full_us"][-1]
    return {**measured, "logits_bytes": read, "share_of_copy_bandwidth": round(read / (last * 1e-6) / bandwidth, 4)}


def _unconstrained(scores_BK: Tensor, logits_BKV: Tensor, num_beams: int) -> tuple[Tensor, Tensor]:
    total = scores_BK[:, :, None] + torch.log_softmax(logits_BKV, -1)
    return total.flatten(1).topk(min(num_beams, total[0].numel()), -1)
