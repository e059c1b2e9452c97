import pytest

from benchmarks.serving.traffic_simulation import Clients, simulate
from leafbeam.engine.batcher import BatchSize
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
