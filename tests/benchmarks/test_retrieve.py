import pytest

from benchmarks.micro import retrieve

pytestmark = pytest.mark.slow


def test_retrieve_runs_small() -> None:
    rows = list(retrieve.runs(quick=True))
    assert [parameters["beams"] for parameters, _ in rows] == [20, 50]
    for _, measured in rows:
        assert 32 < measured["bytes_per_item"] < 400
        assert measured["memory_us"]["p50"] < measured["model_us"]["p50"] * 10
        assert measured["fused_over_model_p50"] > 0
