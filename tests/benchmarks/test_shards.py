"""The benchmark of an index in shards runs, and counts what a search of its shape has to send."""

import pytest

from benchmarks.micro.step import B, K, L, V
from benchmarks.serving import shards
from tests.fixtures.ray_warnings import RAY_WARNINGS

pytest.importorskip("ray", reason="Ray is not installed: pip install 'leafbeam[ray]'", exc_type=ImportError)
pytestmark = [
    pytest.mark.slow,
    *RAY_WARNINGS,
]


def test_shards_over_ray_are_measured_beside_one_index() -> None:
    parameters, measured = shards.measure("uniform", 20_000, 2, 2)
    assert (parameters["num_items"], parameters["shards"]) == (20_000, 2)
    assert sum(measured["items_of_shard"]) == 20_000
    assert measured["hops"] == L + 1
    leaves = B * K * (8 + 8 + 4)
    assert measured["bytes_sent"] == (L - 1) * measured["bytes_sent_of_round"] + leaves
    assert measured["bytes_sent_of_round"] == B * K * (28 + 4 * V)
    assert len(measured["memory_of_actor_mb"]) == 2
    assert measured["search_ms"]["one"]["p50"] < measured["search_ms"]["shards"]["p50"]
