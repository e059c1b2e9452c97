"""Simulated requests: some schedules of each kind, and that the simulated threads themselves do what they say."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.simulation import requests
from tests.simulation.threads import LATENCY_S, Deadlock, World


def test_every_request_ends_once_in_schedules_of_faults_hangs_and_cancellations(tmp_path: Path) -> None:
    counts = sum((requests.run(seed, tmp_path) for seed in range(150)), Counter[str]())
    for name in ("answered", "cancelled", "shed", "failed", "hangs", "released", "refused: deadline_unreachable"):
        assert counts[name] > 10, name


def test_a_schedule_of_a_seed_is_the_same_every_time(tmp_path: Path) -> None:
    assert [requests.run(seed, tmp_path) for seed in range(5)] == [requests.run(seed, tmp_path) for seed in range(5)]


def test_time_passes_only_while_every_thread_waits() -> None:
    world, seen = World(Random(0)), []

    def sleep(seconds: float) -> None:
        world.sleep(seconds)
        seen.append((seconds, world.now))

    threads = [world.Thread(target=lambda seconds=seconds: sleep(seconds)) for seconds in (3.0, 1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [seconds for seconds, _ in seen] == [1.0, 2.0, 3.0]
    assert all(seconds <= now <= seconds + LATENCY_S for seconds, now in seen)


def test_a_notification_that_is_missing_is_found_as_a_deadlock() -> None:
    world = World(Random(0))
    condition = world.Condition(world.RLock())

    def wait() -> None:
        with condition._lock:
            condition.wait()

    thread = world.Thread(target=wait)
    thread.start()
    with pytest.raises(Deadlock):
        thread.join()
    with condition._lock:
        condition.notify()
    thread.join()
    assert not thread.is_alive()
