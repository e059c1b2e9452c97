"""The benchmark of Semantic IDs: its rows say what was made, and a stream's memory is that of its process."""

import json

import pytest

from benchmarks.micro import tokeniser


def test_rows_hold_the_report_and_the_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokeniser, "_SHAPES", {"kmeans": (8, 8)})
    rows = iter(tokeniser.runs(True))
    parameters, measured = next(rows)
    assert (parameters["part"], parameters["method"], parameters["items"], parameters["dims"]) == ("fit", "kmeans", 1500, 384)
    assert measured["distinct_after"] == 1500 > measured["distinct_sids"]
    assert 0 < measured["neighbour_overlap"] <= 1
    assert measured["levels"][2]["unexplained"] is None
    excess = 1500 - measured["distinct_sids"]  # a group of n colliding items has n - 1 in excess
    assert excess < measured["colliding_items"] <= 2 * excess
    assert measured["levels"][0]["codes_used"] <= 8
    json.dumps([parameters, measured], allow_nan=False)


@pytest.mark.slow
def test_a_stream_is_quantised_in_a_process_of_its_own():
    parameters, measured = tokeniser._stream(4000, dims=8)
    assert parameters["items"] == 4000
    assert measured["file_bytes"] == 4000 * 8 * 4
    assert 0 < measured["variance_left"] < 0.6
    assert measured["grown_bytes"] < 200e6
