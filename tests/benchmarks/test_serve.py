"""The serving study in small: a shop made, the engine beside its peers, a real server under load from a second process."""

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.peers import searches
from benchmarks.peers.failure import PeerFailure
from benchmarks.serving import bound, changes, latency, load, memory, objectives, overload, profile, serve
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.load_server import serving
from leafbeam.decode import BeamSearch
from leafbeam.model.cpu.threads import torch_threads

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadRun]:
    with torch_threads(1):
        yield LoadRun.make(tmp_path_factory.mktemp("load"), items=300, users=120)


def test_peers_are_measured_only_where_they_agree(run: LoadRun):
    parameters, measured = serve.measure_engine(run, 2, repeats=2)
    assert parameters["K"] == 50
    assert measured["identical_item_sets"] == 4
    assert set(measured["over_leafbeam"]) == {"hf_generate", "paged_attention", "per_beam_copies"}
    assert measured["over_leafbeam"]["hf_generate"] > 1
    leafbeam = searches.searches_of(run.model, BeamSearch(run.trie, 10, scoring="allowed"))["leafbeam"]
    prompts = run.prompts(np.random.default_rng(1), 1)
    mine = leafbeam(prompts)
    wrong = np.argsort(-np.arange(run.trie.num_leaves))[None, :10]
    with pytest.raises(AssertionError):
        serve.check_same(run, mine, wrong, mine.scores - 1)


def test_peers_that_fail_are_named_and_the_others_are_measured(run: LoadRun, monkeypatch: pytest.MonkeyPatch):
    def missing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'transformers'")

    def full(*_: object, **__: object) -> None:
        raise MemoryError("8 GiB")

    monkeypatch.setattr(serve.HfGenerate, "of", missing)
    monkeypatch.setattr(searches.per_beam_engine, "start", full)
    _, measured = serve.measure_engine(run, 1, repeats=2)
    assert {name: why["status"] for name, why in measured["failed"].items()} == {
        "per_beam_copies": "out of memory",
        "hf_generate": "missing",
    }
    assert set(measured["over_leafbeam"]) == {"paged_attention"}
    _, measured = serve.measure_equal_p99(run, quick=True)
    assert measured["failed"]["hf_generate"]["status"] == "missing"
    _, measured = serve.measure_long_prompts_within(run, 40, (0.5,), 3, num_beams=16)
    assert set(measured["failed"]) == {"per_beam_copies"}
    assert set(measured["lasting_per_s"]) == {"leafbeam", "paged_attention"}
    monkeypatch.setattr(serve, "BeamSearch", full)
    with pytest.raises(MemoryError):
        serve.measure_engine(run, 1, repeats=1)


def test_long_prompts_are_measured_on_one_core_and_on_two(run: LoadRun):
    for workers in (1, 2):
        parameters, measured = serve.measure_long_prompts(run, 1, 40, repeats=2, workers=workers, num_beams=16)
        assert parameters["threads"] == workers
        assert set(measured["over_leafbeam"]) == {"paged_attention", "per_beam_copies"}
        held = measured["kv_bytes"]
        assert held["per_beam_copies"] > 4 * held["leafbeam"]
        assert held["leafbeam"] < held["paged_attention"] < held["per_beam_copies"]
    for slo_s, lasting in ((1e-6, 0.0), (1e3, 4.0)):
        _, measured = serve.measure_long_prompts_within(run, 40, (0.5, 4.0), 6, num_beams=16, slo_s=slo_s)
        assert set(measured["lasting_per_s"].values()) == {lasting}
        assert measured["leafbeam_over"]["paged_attention"] == (1 if lasting else None)


def test_the_profile_counts_every_call_of_a_request(run: LoadRun):
    _, measured = profile.measure(run, repeats=3)
    calls = {one["function"].split()[-1]: one for one in measured["top"]}
    num_levels = run.trie.num_levels  # one call each but the last, and one more for each level that a proof goes back to
    assert num_levels - 1 <= calls["extend"]["calls"] <= 2 * (num_levels - 1)
    assert calls["extend"]["own_us"] < calls["extend"]["all_us"]
    assert measured["own_us"] >= sum(one["own_us"] for one in measured["top"]) - 1


def test_proofs_are_timed_beside_beams_of_a_fixed_width(run: LoadRun):
    parameters, measured = bound.measure(run, 0.5, batch=2, num_items=10, batches=3)
    assert (parameters["B"], parameters["beams"], measured["repeats"]) == (2, 128, 3)
    assert measured["proved"] == 1
    _, widths = bound.measure_widths(run, 1.0, users=3)
    found = widths["by_width"]
    assert found["proof"]["recall"] == 1 >= found["20"]["recall"] >= found["10"]["recall"]
    assert found["10"]["rows"] < found["20"]["rows"]
    assert bound.draw([{"parameters": {"what": "widths", "share": 1.0}, "measured": widths}]).axes
    bench = bound.Bench(run=run, share=0.5, num_items=10)
    assert bound.narrowest(bench, users=3, most_missed=1.1) == 10 < bound.narrowest(bench, users=3)
    _, caps = objectives.measure_caps(run, batches=3)
    assert caps["searches"] >= 1
    _, ranked = objectives.measure_reranking(run, users=3)
    assert 0 <= ranked["found"]["20"] <= ranked["found"]["512"] <= 1


@pytest.mark.full
def test_each_way_of_a_request_is_timed_beside_the_others(run: LoadRun):
    parameters, measured = latency.measure(run, turns=1)
    assert (parameters["K"], measured["repeats"]) == (latency.BEAMS, 19)
    assert list(measured["p50_ms"]) == ["model", "search", "recommend", "submit", "http"]
    assert list(measured["added_ms"]) == ["search", "recommend", "submit", "http"]
    assert measured["over"]["recommend_over_model"] > 0


def test_requests_are_measured_with_and_without_changes(run: LoadRun):
    held = sorted(run.path.rglob("*"))
    parameters, measured = changes.measure(run, seconds=1.0, turns=1, requests_per_s=20)
    assert (parameters["changes_per_s"], parameters["seconds"]) == (1000, 1.0)
    assert measured["without"]["errors"] == measured["beside"]["errors"] == 0
    assert measured["without"]["sent"] > 5 < measured["beside"]["sent"]
    latencies = [measured[name]["latency_ms"]["p99"] for name in ("without", "beside")]
    assert measured["ratio"]["latency_ms"]["p99"] == pytest.approx(latencies[1] / latencies[0], rel=0.01)
    made = measured["beside"]["changes"]
    assert made["sent"] % 100 == 0
    assert 0 < made["acknowledged_per_s"] <= 1000
    assert 0 < made["acknowledged_ms"]["p50"] <= made["acknowledged_ms"]["p99"]
    assert sorted(run.path.rglob("*")) == held


def test_a_server_answers_load_from_a_second_process(run: LoadRun):
    rng = np.random.default_rng(2)
    with serving(run.path, "--beams", "20", "--threads", "1") as server:
        times = load.arrivals(rng, load.steady(10), 2)
        answers = server.send(run.planned(rng, times, num_items=5))
        found = load.summary(answers, seconds=2, slo_s=10)
        assert found["sent"] == len(times)
        assert found["errors"] == 0
        answered = sum(one.status == 200 for one in answers)
        assert found["answered_per_s"] == found["goodput_per_s"] == pytest.approx(answered / 2)
        assert answered + found["refused"] == len(times)
        assert found["stages_ms"]["total"]["p50"] < max(1e3 * one.seconds for one in answers)
        assert all(len(one.body["item_ids"]) == 5 for one in answers if one.status == 200)
        now, peak = server.resident_bytes
        assert 10**8 < now <= peak
        assert "leafbeam_requests" in server.metrics()


def test_an_overload_answers_or_refuses_everybody(run: LoadRun):
    parameters, measured = overload.measure(run, 1, 0.5, 0.5, 1.0)
    assert (parameters["run"], parameters["seconds"]) == (1, 1.0)
    assert measured["unanswered"] == measured["errors"] == 0
    assert measured["sent"] > measured["capacity_per_s"] > 0
    assert measured["goodput_over_best_rate"] == pytest.approx(measured["goodput_per_s"] / measured["best_per_s"], rel=0.01)
    assert set(measured["loop_ms"]) == {"answer", "refusal"}


def test_a_peer_without_memory_has_its_status_at_its_points(monkeypatch: pytest.MonkeyPatch):
    def probe(point: memory.Point) -> dict[str, int]:
        if point.kind == failing and point.beams > 128:
            raise PeerFailure("out of memory", "exit status -9: it printed nothing")
        return {"allocator": point.formula, "resident": point.formula}

    monkeypatch.setattr(memory, "probe", probe)
    failing = "per_beam_copies"
    _, measured = memory.measure("beams", quick=True)
    assert [peak["status"] for peak in measured["peaks"] if "status" in peak] == ["out of memory"] * 2
    assert set(measured["over_leafbeam"]["per_beam_copies"]) == {"formula"}
    assert set(measured["over_leafbeam"]["paged_attention"]) == {"formula", "allocator", "resident"}
    failing = "leafbeam"
    with pytest.raises(PeerFailure):
        memory.measure("beams", quick=True)


def test_a_search_holds_what_the_formula_says(capfd: pytest.CaptureFixture[str]):
    small, large = (memory.Point(kind="leafbeam", beams=beams, tokens=200, inflight=2) for beams in (40, 160))
    held = [memory.probe(point)["allocator"] for point in (small, large)]
    assert 1 <= (held[1] - held[0]) / (large.formula - small.formula) < 1.1
