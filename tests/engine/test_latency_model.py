import numpy as np
import pytest

from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.latency_model import LatencyModel
from leafbeam.errors import ArgumentError


def seconds(size: BatchSize, speed: float = 1.0) -> float:
    """How long batches take on an imaginary machine."""
    attention = 2e-9 * size.tokens * size.longest + 1e-9 * size.beam_rows * size.longest
    return speed * (0.003 + 6e-6 * size.tokens + 2e-5 * size.beam_rows + attention)


def random_size(rng: np.random.Generator) -> BatchSize:
    requests = int(rng.integers(1, 17))
    lengths = np.minimum(2000, 20 + (100 * rng.pareto(1.3, requests))).astype(int)
    num_beams = int(rng.choice([20, 50, 128]))
    return BatchSize(requests=requests, tokens=int(lengths.sum()), longest=int(lengths.max()), num_beams=num_beams)


def learnt(batches: int, noise: float = 0.05, stalls: float = 0.0, seed: int = 0) -> tuple[LatencyModel, np.random.Generator]:
    rng = np.random.default_rng(seed)
    time = LatencyModel()
    for _ in range(batches):
        size = random_size(rng)
        stall = 20.0 if rng.random() < stalls else 1.0
        time.observe(size, seconds(size) * rng.lognormal(0, noise) * stall)
    return time, rng


def errors(time: LatencyModel, rng: np.random.Generator, speed: float = 1.0) -> np.ndarray:
    sizes = [random_size(rng) for _ in range(200)]
    return np.array([time.expected(size) / seconds(size, speed) - 1 for size in sizes])


def test_predictions_are_zero_before_enough_observations():
    time = LatencyModel(min_observations=3)
    size = BatchSize.of(1, 100, 20)
    for _ in range(2):
        time.observe(size, 1.0)
        assert time.expected(size) == time.p95(size) == 0.0
    time.observe(size, 1.0)
    assert time.expected(size) == pytest.approx(1.0, rel=1e-3)


def test_the_fit_recovers_the_latency_of_the_machine():
    off = errors(*learnt(300))
    assert np.median(np.abs(off)) < 0.03
    assert np.percentile(np.abs(off), 95) < 0.12


def test_rare_stalls_do_not_spoil_the_fit():
    off = errors(*learnt(300, stalls=0.03))
    assert np.median(np.abs(off)) < 0.15


def test_a_machine_that_becomes_three_times_slower_is_learnt_within_sixty_batches():
    time, rng = learnt(300)
    for _ in range(60):
        size = random_size(rng)
        time.observe(size, seconds(size, 3.0) * rng.lognormal(0, 0.05))
    assert np.median(np.abs(errors(time, rng, 3.0))) < 0.15


def test_p95_is_kept_by_nineteen_of_twenty_batches():
    time, rng = learnt(1500, noise=0.2)
    kept = []
    for _ in range(1000):
        size = random_size(rng)
        took = seconds(size) * rng.lognormal(0, 0.2)
        kept.append(took <= time.p95(size))
        time.observe(size, took)
    assert 0.9 <= np.mean(kept) <= 0.98


def test_no_term_is_ever_negative_and_more_work_never_takes_less_time():
    time, rng = learnt(200, noise=0.5)
    assert min(time.fit.seconds.values()) >= 0
    for _ in range(50):
        size = random_size(rng)
        assert time.expected(size.with_prompt(100)) >= time.expected(size)


def test_invalid_sizes_are_rejected():
    with pytest.raises(ArgumentError):
        LatencyModel(memory=1)
