"""Costs that benchmarks measure: those of a head's paths, and those of the parts of a prompt's attention."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.gpu.split_costs import AttentionTime, fit_costs
from benchmarks.head_costs import measure_cpu
from leafbeam.ops.attention.costs import AttentionCosts, AttentionWork
from leafbeam.ops.head import LegalCodes, cpu

QWEN3 = AttentionWork(requests=1, tokens=1000, beams=512, heads=16, groups=8, size=128)
WORKS = [
    replace(QWEN3, requests=requests, tokens=tokens, beams=beams)
    for requests in (1, 8)
    for tokens in (100, 500, 3000)
    for beams in (1, 20, 512)
]


def times(costs: AttentionCosts, works: list[AttentionWork], constant: float = 9_000.0) -> list[AttentionTime]:
    return [
        AttentionTime(work=work, splits=splits, nanoseconds=constant * work.beams + costs.nanoseconds(work, splits))
        for work in works
        for splits in work.splits()
    ]


@pytest.mark.parametrize(
    "truth",
    [
        AttentionCosts(programs=132, wave=3_000.0, block=400.0, merge=0.01),
        AttentionCosts(programs=528, wave=0.0, block=2_000.0, merge=0.0),
    ],
)
def test_a_fit_finds_the_costs_that_made_the_times(truth: AttentionCosts) -> None:
    found = fit_costs(times(truth, WORKS), programs=[132, 264, 396, 528], device="a GPU")
    assert (found.programs, found.device) == (truth.programs, "a GPU")
    assert (found.wave, found.block, found.merge) == pytest.approx((truth.wave, truth.block, truth.merge), rel=1e-6, abs=1e-6)


def test_what_helps_in_the_times_is_never_a_negative_cost() -> None:
    noisy = [replace(time, nanoseconds=time.nanoseconds / time.splits**2) for time in times(AttentionCosts(), WORKS)]
    found = fit_costs(noisy, programs=[132, 264])
    assert min(found.wave, found.block, found.merge) >= 0


@pytest.mark.parametrize("measured", [[], times(AttentionCosts(), [replace(QWEN3, tokens=60)] * 3)])
def test_times_that_tell_nothing_are_refused(measured: list[AttentionTime]) -> None:
    with pytest.raises(ValueError, match="do not say what parts cost"):
        fit_costs(measured, programs=[132])


def test_measured_costs_are_positive_and_give_correct_logits() -> None:
    rng = np.random.default_rng(4)
    hidden, weight = rng.standard_normal((8, 32), np.float32), rng.standard_normal((4096, 32), np.float32)
    costs = measure_cpu(weight, rows=(1, 8), seconds=0.001)
    assert all(value > 0 for _, value in costs.dense)
    assert min(costs.gather, costs.token, costs.shared, costs.call) > 0
    legal_codes = LegalCodes.of(np.arange(9) * 200, np.tile(np.arange(0, 4000, 20), 8))
    found = cpu.head(hidden, weight, legal_codes, "allowed", costs=costs)
    expected = cpu.head(hidden, weight, legal_codes, "allowed", path="gather")
    np.testing.assert_allclose(found.logit_C, expected.logit_C, rtol=1e-4, atol=1e-5)
