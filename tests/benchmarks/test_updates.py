"""The benchmark of changes runs small, and its parity check is one."""

import numpy as np
import pytest

from benchmarks.micro import updates
from benchmarks.workloads import DISTRIBUTIONS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_updates_run_small(monkeypatch: pytest.MonkeyPatch, distribution: str) -> None:
    monkeypatch.setattr(updates, "LARGE_DELTA", 3_000)
    parameters, measured = updates.measure(distribution, 5_000, seconds=0.4, repeats=1)
    assert parameters["num_items"] == 5_000
    assert set(measured) == {"visible_ms", "search", "sustained"}
    assert measured["visible_ms"]["synced"]["dead_in_base"] == 3_000
    assert measured["sustained"]["delta_rows"] == 50 * 5
    assert measured["sustained"]["changes_per_second"] <= 1000  # the feed is paced, and may fall behind


def test_a_feed_begins_again_where_it_began() -> None:
    feed = updates.Feed.of(np.random.default_rng(0), "uniform", 2_000)
    first, second = feed.again(), feed.again()
    for part in (first, second):
        codes, ids = part.take(10)
        np.testing.assert_array_equal(codes, feed.codes[2_000:2_010])
        assert np.isin(ids, feed.ids[:2_000]).sum() == 0
        assert np.isin(part.victims(10), feed.ids[:2_000]).all()
