from itertools import chain
from random import Random

import pytest

from benchmarks.serving.cost_model import H200, ONE_REC
from benchmarks.serving.traffic import month, runs
from benchmarks.serving.traffic_simulation import Clients, simulate
from leafbeam.engine.capacity import BatchSize
from leafbeam.engine.settings import Settings


def batch_seconds(size: BatchSize) -> float:
    return 0.001 + 1e-5 * size.padded_tokens + 1e-5 * size.beam_rows


def outcome_of(rate: float, *, seed: int = 0, **clients):
    windows = iter([(1.0, rate / 2, False), (4.0, rate, True)])
    return simulate(windows, Settings(slo_s=0.2), batch_seconds, clients=Clients(**clients), seed=seed)


@pytest.mark.parametrize("rate", [20.0, 150.0, 900.0])
def test_every_request_ends_once(rate):
    one = outcome_of(rate, impatient=0.1)
    ended = one.in_time.total() + one.late + one.left.total() + one.gave_up
    assert one.offered.total() == ended > 0
    assert len(one.latencies) == one.in_time.total() + one.late
    assert (one.left.total() > 0) == (rate > 100)  # a quiet server answers before anybody leaves


def test_a_quiet_server_answers_all_and_a_flooded_one_keeps_its_goodput():
    quiet, flooded = outcome_of(40.0, impatient=0.0), outcome_of(900.0, impatient=0.0)
    assert quiet.in_time == quiet.offered
    assert quiet.latency(0.99) < 0.2
    assert not quiet.refused
    assert flooded.gave_up > 0
    assert flooded.goodput > 1.5 * quiet.goodput
    # Nothing is worked on that is late: who is accepted is answered in time, but for noise.
    assert flooded.late < 0.05 * flooded.in_time.total()


def test_the_seed_decides_everything():
    assert vars(outcome_of(300.0)) == vars(outcome_of(300.0))
    assert vars(outcome_of(300.0)) != vars(outcome_of(300.0, seed=1))


def test_retries_and_replicas():
    assert outcome_of(900.0, retries=0).refused.total() < outcome_of(900.0, retries=3, retry=1.0).refused.total()
    rate = 1_200.0
    windows = [(1.0, rate / 2, False), (3.0, rate, True)]
    one, four = (
        simulate(iter(windows), Settings(slo_s=0.2), batch_seconds, clients=Clients(), replicas=n, seed=3) for n in (1, 4)
    )
    assert four.goodput > 1.5 * one.goodput
    assert four.gave_up < one.gave_up / 2


def test_a_month_is_a_wave_with_weekends_and_bursts():
    hours = [(seconds, rate) for seconds, rate, counted in month(Random(0), 28, 5.0, 100.0) if counted]
    assert len(hours) == 28 * 24
    rates = [rate for _, rate in hours]
    assert min(rates) == pytest.approx(20, rel=0.01)
    assert max(chain(*([rate] for rate in rates[:120] if rate <= 100.001))) == pytest.approx(100, rel=0.02)
    assert 0.005 < sum(rate > 120 for rate in rates) / len(rates) < 0.05


def test_the_cost_model_counts_products_and_bytes():
    few, many = BatchSize.of(1, 30, 20), BatchSize.of(16, 500, 128)
    # Few rows: the weights are read three times, from memory at half its peak.
    reads = 3 * 2 * ONE_REC.weights / (H200.bandwidth * H200.share)
    assert ONE_REC.seconds(few, H200) == pytest.approx(reads + 3 * H200.launch_s, rel=0.05)
    # Many: products decide.
    products = 2 * ONE_REC.weights * (16 * 500 + 2 * 16 * 128) / (H200.flops * H200.share)
    assert ONE_REC.seconds(many, H200) == pytest.approx(products + 3 * H200.launch_s, rel=0.15)


@pytest.mark.slow
def test_the_row():
    ((parameters, measured),) = runs(quick=True)
    assert parameters["device"]["name"] == "H200"
    assert measured["flood_goodput_share"] > 0.95
    assert measured["steady"]["0.5"]["in_time"] > 0.97
    assert set(measured["month"]) == {"0.8", "1.5"}
