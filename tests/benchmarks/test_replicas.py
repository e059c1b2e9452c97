"""The benchmark of replicas: lags are counted from looks, throttled processes get their share, a small run has all parts."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("confluent_kafka")

from benchmarks.serving import replicas
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import Served
from benchmarks.serving.replicas import Look
from benchmarks.serving.throttle import throttled
from leafbeam.model.cpu.threads import torch_threads


def test_a_change_is_visible_at_the_first_look_behind_it() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        written = [np.sort(rng.random(rng.integers(0, 20))) for _ in range(2)]
        first, at = rng.integers(0, 9, 2), np.sort(rng.random(12))
        seen = [np.sort(rng.integers(0, len(times) + 1, 12)) for times in written]
        for offsets, times in zip(seen, written, strict=True):
            offsets[-1] = len(times)
        looks = [Look(at=at[n], offsets=[int(first[p] + seen[p][n]) for p in range(2)], lag_s=None) for n in range(12)]
        expected = [
            next(look.at for look in looks if look.offsets[partition] > first[partition] + number) - written_at
            for partition in range(2)
            for number, written_at in enumerate(written[partition])
        ]
        assert replicas.visible_after(looks, first, written).tolist() == expected


@pytest.mark.slow
def test_a_throttled_process_gets_its_share_of_a_core_and_all_of_it_afterwards() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        served = Served(url="", pid=child.pid, log=Path())

        def share(seconds: float) -> float:
            time.sleep(0.1)
            before, began = served.cpu_seconds, time.monotonic()
            time.sleep(seconds)
            return (served.cpu_seconds - before) / (time.monotonic() - began)

        with throttled([child.pid], 0.3):
            part = share(2)
        whole = share(1)
        child.kill()
    assert 0.1 < part < 0.75 * whole


@pytest.mark.full
def test_replicas_are_measured_in_all_their_parts(tmp_path: Path) -> None:
    with torch_threads(1):
        run = LoadRun.make(tmp_path, items=300, users=120)
    with replicas.replicas(run, 2) as (servers, topic):
        rows = list(replicas.measure_answers(run, servers, 1.0, 1))
        assert [(parameters["share"], parameters["replicas"]) for parameters, _ in rows] == [(1.0, 1), (0.4, 1), (0.4, 2)]
        assert all(measured["errors"] == 0 for _, measured in rows)
        assert rows[1][1]["over_one"] == 1
        assert rows[0][1]["calculated"]["kept"] <= 1
        assert rows[2][1]["cores_of_server"] < rows[0][1]["cores_of_server"]
        for requests_per_s in (0.0, 10.0):
            parameters, measured = replicas.measure_lag(run, servers, topic, seconds=2.0, requests_per_s=requests_per_s)
            assert (parameters["changes_per_s"], measured["changes"]) == (1000, 2000)
            assert 0 < measured["lag_ms"]["p50"] <= measured["lag_ms"]["p99"] <= measured["lag_ms"]["max"]
            assert ("requests" in measured) == (requests_per_s > 0)
