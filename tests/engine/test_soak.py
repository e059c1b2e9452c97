import pytest

from benchmarks.serving.soak import soak


@pytest.mark.slow
def test_under_all_faults_at_once_no_request_is_lost_no_answer_is_wrong_and_memory_is_flat():
    """Ten seconds of what `python -m benchmarks soak` does for ten minutes, where Python's own bytes are counted too."""
    found = soak(10.0, faults=0.1, trace=False)
    assert found.wrong == []
    assert found.lost == 0
    assert found.ended == found.asked
    assert sum(found.counts["answered"].values()) > 20
    assert found.changes > 3
    faults = found.counts["batch_faults"]
    assert faults["error"] > 0
    assert faults["out_of_memory"] + faults["wedged"] > 0
    assert found.growth("resident") < 40e6
