"""The GPU harness, run small under Triton's interpreter: parity passes, fails when it should, and rows are whole."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import attention as gpu_attention
from benchmarks.gpu import decode as gpu_decode
from benchmarks.gpu import fp8 as gpu_fp8
from benchmarks.gpu import head as gpu_head
from benchmarks.gpu import language as gpu_language
from benchmarks.gpu import parts
from benchmarks.gpu import server as gpu_server
from benchmarks.gpu import shapes as gpu_shapes
from benchmarks.gpu import splits as gpu_splits
from benchmarks.gpu import static as gpu_static
from benchmarks.gpu import step as gpu_step
from benchmarks.gpu.timing import attempt, ceilings, poisoned, relative_error, times
from benchmarks.micro.attention import Shape
from benchmarks.peers import peer
from benchmarks.serving.load_run import LoadRun
from leafbeam.ops.attention import triton as attention_kernels
from leafbeam.ops.attention.costs import AttentionCosts, AttentionWork
from leafbeam.ops.linear.fp8 import Fp8Matrix
from leafbeam.ops.linear.rounded import round_rows

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
SHAPE = Shape(requests=1, beams=8, tokens=70, codes=2, heads=4, groups=2, size=16)


def test_without_a_gpu_it_says_so_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit) as exit_info:
        parts.main([])
    assert exit_info.value.code == 2
    assert "nothing was measured" in capsys.readouterr().err


def test_attention_parity_and_times_run() -> None:
    rows = list(gpu_attention.runs(CPU, 1e10, 1e10, 0.0, SHAPE))
    assert [row[1].get("parity") for row in rows[:5]] == ["ok"] * 5
    assert all("left_out" in measured for _, measured in rows[5:])
    measured = gpu_attention.measure(CPU, SHAPE, 1e10, 1e10)
    assert set(measured["over_shared"]) == {"shared, torch", "cascade, torch", "paged", "tree mask, torch"}


def test_a_wrong_kernel_is_a_failed_row_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention_kernels.attend
    monkeypatch.setattr(attention_kernels, "attend", lambda *given, **how: right(*given, **how) * 1.1)
    _, measured = attempt({}, partial(gpu_attention.parity, CPU, SHAPE))
    assert "relative errors" in measured["failed"]


def test_splits_are_timed_fitted_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def timed(runs: list[Any], device: torch.device, **how: Any) -> dict[str, float]:
        """The kernel runs; its time is one of 5 us a block and 1 us a part, whatever this machine does meanwhile."""
        runs[0]()
        splits, tokens = runs[0].keywords["splits"], runs[0].args[1].shape[3]
        if isinstance(splits, AttentionCosts):
            return {"p50": 100.0 - 5 * splits.descriptors + 3 * splits.one_launch}
        return {"p50": 100.0 + 5 * -(-tokens // (64 * splits)) + splits}

    monkeypatch.setattr(gpu_splits, "times", timed)
    works = [AttentionWork(requests=1, tokens=tokens, beams=1, heads=1, groups=1, size=8) for tokens in (65, 257)]
    rows = list(gpu_splits.runs(CPU, 1e6, works, tmp_path / "costs.json"))
    assert [list(measured["us_by_splits"]) for _, measured in rows[:2]] == [[1, 2], [1, 2, 3]]
    fitted = rows[2][1]
    assert (rows[2][0]["calls"], fitted["block_ns"], fitted["merge_ns"]) == (2, pytest.approx(5e3), pytest.approx(1e3 / 8))
    assert fitted["time_of_pick_over_best"]["fitted, of all"] == {"mean": 1.0, "max": 1.0}
    assert fitted["time_of_pick_over_best"]["one part, of all"]["max"] > 1
    costs = AttentionCosts.load(tmp_path / "costs.json")
    assert (costs.programs, costs.block) == (fitted["programs"], fitted["block_ns"])
    assert (costs.one_launch, costs.descriptors) == (False, True)  # the quickest of those above
    assert fitted["us_by_launches_and_descriptors"]["1, without"] == [103.0, 103.0]


def test_head_parity_and_times_run() -> None:
    sizes = gpu_head.Sizes(codes=130, hidden=24, rows=(3,))
    rows = list(gpu_head.runs(CPU, 1e10, 0.0, sizes))
    assert rows[0][1]["parity"] == "ok"
    assert [measured.get("left_out") for _, measured in rows[1:7]] == ["after 0 s"] * 6
    assert "failed" not in rows[7][1]
    shared = gpu_head.draw_legal_codes(CPU, 3, 130, 5, shared=True)
    assert (len(shared.code_C), len(shared.code_C.unique())) == (15, 5)


def test_step_parity_and_times_run() -> None:
    sizes = gpu_step.Sizes(items=200, codes=9, levels=3, requests=1, beams=2)
    assert gpu_step.parity(CPU, "zipf", 2, "full", sizes)["parity"] == "ok"
    trie = gpu_step.random_trie("uniform", sizes)
    measured = gpu_step.search_times(CPU, trie, sizes, 1e10, copies=1)
    assert len(measured["leafbeam_us_by_level"]) == len(measured["static_scatter_us_by_level"]) == 3


def test_decode_parity_and_times_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = gpu_decode.Sizes(items=60, codes=6, levels=3, layers=1, hidden=16, requests=2, tokens=5, beams=4)
    rows = list(gpu_decode.runs(CPU, 0.0, sizes))
    assert [measured.get("parity") for _, measured in rows[:4]] == ["ok"] * 4
    assert [measured.get("left_out") for _, measured in rows[4:8]] == ["after 0 s"] * 4
    assert set(rows[8][1]["seconds"]) == {"default stream"}  # on a GPU each in its own too
    assert set(gpu_decode.measure(CPU, "encoder-decoder", "allowed", sizes)["ms"]) == {"graph", "launches"}
    right = gpu_decode.reference.attend
    monkeypatch.setattr(gpu_decode.reference, "attend", lambda *given: right(*given) * 1.5)
    with pytest.raises(AssertionError):
        gpu_decode.parity(CPU, "decoder", "full", sizes)


def test_language_parity_and_times_run() -> None:
    sizes = gpu_language.Sizes(codes=300, texts=60, requests=1, beams=2, rounds=2)
    rows = list(gpu_language.runs(CPU, 1e10, 1e6, sizes))
    assert [measured.get("parity") for _, measured in rows] == ["ok", "ok", None]
    assert rows[0][1]["states_with_masks"] >= 1  # one language at least is stored with masks
    assert len(rows[2][1]["allowed_us"]) == 2


def test_poison_shows_what_was_not_written_and_is_gone_afterwards() -> None:
    with poisoned():
        assert torch.empty(3).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()
    assert not relative_error(torch.tensor([1.0, torch.nan]), torch.ones(2)) < 1
    assert times([lambda: None], CPU)["how"].startswith("once")
    assert 1e6 < ceilings(CPU)["copy_bytes_a_second"] < 1e13


def test_static_is_timed_after_equal_scores_and_rules_are_those_of_leafbeam_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "compiled_round", lambda: peer.extend)  # a compiler is not needed here
    sizes = gpu_step.Sizes(items=200, codes=9, levels=3, requests=2, beams=2)
    trie = gpu_step.random_trie("uniform", sizes)
    measured = gpu_static.measure(CPU, trie, sizes, 0, copies=1)
    assert len(measured["static_compiled_us_by_level"]) == 3
    assert set(gpu_static.measure(CPU, trie, sizes, 2, copies=1)) == {"leafbeam_us", "leafbeam_us_by_level"}
    monkeypatch.setattr(peer, "compiled_round", lambda: lambda *given: replace_scores(peer.extend(*given)))
    with pytest.raises(AssertionError):
        gpu_static.measure(CPU, trie, sizes, 0, copies=1)
    rows = list(gpu_static.runs(CPU, 0.0, sizes))
    assert len(rows) == 12
    assert all("were left" in measured["left_out"] for _, measured in rows)


def replace_scores(beams: Any) -> Any:
    return replace(beams, scores_BK=beams.scores_BK + 1)


def test_sweeps_run() -> None:
    sizes = gpu_step.Sizes(items=60, codes=9, levels=2, requests=1, beams=2)
    rows = list(gpu_step.sweeps(CPU, 1e10, 100.0, sizes))
    assert [parameters["what"] for parameters, _ in rows] == ["step by codes", "step by requests"]
    assert all("leafbeam_us" in measured for _, measured in rows)


TINY = gpu_server.Shape(
    name="tiny",
    sizes={
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    },
    codes=16,
    catalog=500,
    beams=(12,),
    items=(5,),
    at_once=(2,),
    rates=(4,),
)


def test_whole_decodes_of_real_shapes_run_as_graphs_and_without() -> None:
    rows = list(gpu_shapes.runs(CPU, 100.0, (TINY,), items=500))
    assert [set(measured["ms"]) for _, measured in rows] == [{"graph", "launches"}]
    assert rows[0][0] == {"what": "whole decode", "model": "tiny", "beams": 12, "tokens": 16, "codes": 16}


def test_fp8_products_recall_and_decodes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoadRun, "demo", lambda quick: LoadRun.make(tmp_path, items=100, users=40))
    monkeypatch.setattr(Fp8Matrix, "unavailable_reason", staticmethod(lambda device: None))
    monkeypatch.setattr(gpu_fp8, "_ROWS", (3,))
    shape = replace(TINY, sizes=TINY.sizes | {"num_key_value_heads": 2})
    rows = list(gpu_fp8.runs(CPU, 100.0, (shape,), [(32, 16)], items=500, quick=True))
    assert [measured.get("failed") for _, measured in rows] == [None] * 3
    product, recall, decode = (measured for _, measured in rows)
    assert product["parity"] == "ok"
    assert 0.01 < product["error_of_rounding"] < 0.06
    assert set(recall["recall_10"]) == set(decode["ms"]) == {"bfloat16", "fp8"}
    assert 0.3 < decode["share_of_same_items"] <= 1
    monkeypatch.setattr(gpu_fp8.triton, "round_rows", lambda rows_ND: round_rows(rows_ND * 1.1, torch.float8_e4m3fn))
    (row, *_) = gpu_fp8.runs(CPU, 0.0, (), [(32, 16)])
    assert "relative errors" in row[1]["failed"]


def test_the_server_is_measured_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_server, "_SAMPLES", 2)
    monkeypatch.setattr(gpu_server, "_RATE_S", 1.0)
    rows = {parameters.get("part", "failed"): measured for parameters, measured in gpu_server.runs(CPU, TINY, 300.0, tmp_path)}
    assert list(rows) == ["start", "answers", "rate", "memory"]
    assert rows["answers"]["ms"]["p50"] > 0
    assert rows["rate"]["errors"] == 0


def test_no_part_takes_more_than_eight_minutes_and_all_are_listed() -> None:
    assert all(part.seconds + parts.GRACE <= 8 * 60 for part in parts.PARTS.values())
    kernels = [part.seconds + parts.GRACE for name, part in parts.PARTS.items() if name in parts.KERNELS]
    assert parts.COMPILING + sum(kernels) < 8 * 60
    listed = parts.table().splitlines()
    assert [line.split()[0] for line in listed[:-1]] == list(parts.PARTS)
    with pytest.raises(SystemExit):
        parts.main(["step", "nothing"])


def test_a_part_that_dies_leaves_a_row_that_says_so() -> None:
    rows = list(parts.lines("no such part", {}, 60))
    assert rows[-1][0] == {"what": "no such part"}
    assert "exit 1" in rows[-1][1]["failed"]


def test_rows_are_there_before_a_part_ends_and_one_that_hangs_is_stopped(tmp_path: Path) -> None:
    row = json.dumps({"parameters": {"what": "one"}, "measured": {"us": 1}})
    seen = tmp_path / "seen"  # the process goes on when the test has read its first row
    code = (
        f"import pathlib, time\nprint({row!r}, flush=True)\n"
        f"while not pathlib.Path({str(seen)!r}).exists(): time.sleep(0.01)\n"
        f"print({row!r}, flush=True); time.sleep(600)"
    )
    rows = iter(parts.printed_rows([sys.executable, "-c", code], "hangs", 10.0))
    assert next(rows) == ({"what": "one"}, {"us": 1})
    seen.touch()
    assert list(rows) == [({"what": "one"}, {"us": 1}), ({"what": "hangs"}, {"failed": "stopped after 10 s"})]


def test_parts_print_rows_that_can_be_read_and_need_no_more_than_torch_triton_and_the_core() -> None:
    code = (
        "import sys\n"
        "for name in ('typer', 'rich', 'matplotlib', 'threadpoolctl', 'duckdb', 'pyarrow', 'scipy', 'outlines_core', 'jax'):\n"
        "    sys.modules[name] = None\n"
        "import json, torch; from benchmarks.gpu import parts\n"
        "for parameters, measured in parts.part('ceilings', torch.device('cpu'), "
        "{'copy_bytes_a_second': 1.0, 'bf16_operations_a_second': 1.0}, 1):\n"
        "    print(json.dumps({'parameters': parameters, 'measured': measured}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["parameters"] == {"what": "ceilings"}
