"""Engines beside leafbeam: whatever stops one of them is a row with a status, and the others are measured."""

import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.peers.vllm_cpu import (
    ENVIRONMENT,
    PeerFailure,
    VllmSettings,
    grammar_of,
    vllm_engine,
    write_tokenizer,
)
from benchmarks.serving import fastest, model_load, prefill, production, turns, vllm
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.turns import Case
from leafbeam.index import Trie
from leafbeam.model import Transformer, Vocabulary
from tests.fixtures.shops import small_model

pytestmark = pytest.mark.slow

SIZES = (12, 12, 12)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> LoadRun:
    rng = np.random.default_rng(3)
    codes = np.unique(np.stack([rng.integers(0, size, 400) for size in SIZES], 1), axis=0)
    model = small_model(Vocabulary(codebook_sizes=SIZES), hidden_size=32, head_dim=32)  # the least of vLLM on a CPU
    path = tmp_path_factory.mktemp("run")
    model.save_pretrained(path / "model")
    write_tokenizer(path / "model")
    return LoadRun(path=path, trie=Trie.build(codes, list(SIZES)), model=model, histories=[], item_ids=np.empty(0))


def environment(path: Path, script: str) -> Path:
    """A `.venv-peers` whose Python is a shell script."""
    python = path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return path


def failure_of(path: Path, run: LoadRun, limit_s: float) -> PeerFailure:
    with (
        vllm_engine(
            run.path / "model", settings=VllmSettings(threads=1), max_tokens=64, limit_s=limit_s, environment=path
        ) as engine,
        pytest.raises(PeerFailure) as raised,
    ):
        engine.run({"way": "beams"})
    return raised.value


def test_a_peer_that_is_not_installed_is_a_row_and_the_others_are_measured(run: LoadRun, tmp_path: Path):
    cases = [Case(items=2, beams=5, batch=1), Case(items=4, beams=8, batch=2)]
    with vllm_engine(
        run.path / "model", settings=VllmSettings(threads=1), max_tokens=64, limit_s=60, environment=tmp_path
    ) as engine:
        rows = list(turns.compare({"what": "offline"}, run, cases, production.offline_ways(run, engine), repeats=1))
    assert [(at["prompt_tokens"], at["K"], at["B"]) for at, _ in rows] == [(7, 5, 1), (13, 8, 2)]
    for _, measured in rows:
        engines = measured["engines"]
        for name in ("vllm_beams", "vllm_grammar_beams", "vllm_allowed_tokens"):
            assert engines[name]["status"] == "missing"
            assert "make peers" in engines[name]["reason"]
        for name in ("leafbeam", "leafbeam_all_beams", "hf_generate"):
            assert engines[name]["status"] == "ok"
            assert engines[name]["no_item"] == engines[name]["missing"] == 0
            assert engines[name]["exact"] == 1
        over = measured["over_leafbeam"]
        assert over["leafbeam"] == 1.0
        assert over["hf_generate"] > 0
        assert over["vllm_beams"] == "missing"


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ("echo no such instruction >&2; exit 3", "crashed", "exit status 3: no such instruction"),
        ("kill -9 $$", "out of memory", "exit status -9"),
        ("echo MemoryError: 4 GiB >&2; exit 1", "out of memory", "MemoryError"),
        ("""echo '{"version": "1"}'; read job; echo '{"error": "ValueError: no"}'""", "failed", "ValueError: no"),
        ("""echo '{"version": "1"}'; exec sleep 60""", "timed out", "within 0.3 s"),
    ],
)
def test_what_stops_a_peer_is_its_status(run: LoadRun, tmp_path: Path, script: str, status: str, reason: str):
    failure = failure_of(environment(tmp_path, script), run, 0.3 if status == "timed out" else 60.0)
    assert failure.row["status"] == status
    assert reason in failure.row["reason"]


def test_a_peer_that_is_ended_leaves_no_process(run: LoadRun, tmp_path: Path):
    worker = tmp_path / "worker"
    script = f'sleep 60 & echo $! >{worker}; echo \'{{"version": "1"}}\'; read job; sleep 60'
    assert failure_of(environment(tmp_path, script), run, 0.3).row["status"] == "timed out"
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(worker.read_text())).wait(10)


def test_an_engine_that_was_slow_is_left_out_of_larger_cases_alone(run: LoadRun, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(turns, "SLOW_S", 0.0)
    monkeypatch.setattr(turns, "ONCE_S", 0.0)
    answered: list[Case] = []

    def ways_of(case: Case) -> dict[str, Any]:
        def peer(prompts: Any) -> Any:
            answered.append(case)
            return [[[1, 2, 3]] for _ in prompts]

        return {"leafbeam": peer}

    cases = [Case(items=2, beams=8, batch=1), Case(items=2, beams=9, batch=1), Case(items=1, beams=9, batch=1)]
    rows = turns.compare({}, run, cases[:1], ways_of, repeats=3)
    (_, first), *_ = list(rows)
    assert first["engines"]["leafbeam"]["repeats"] == 1
    slow: dict[str, list[Case]] = {"peer": [cases[0]]}
    for case, status in ((cases[1], "left out"), (cases[2], "ok")):
        engines = turns.timed_case(run, case, {"peer": ways_of(case)["leafbeam"]}, 1, slow)
        assert engines["peer"]["status"] == status


def test_answers_that_are_no_items_and_answers_that_are_missing_are_counted(run: LoadRun):
    first, second, third = run.model.vocabulary.tokens(run.trie.codes_at(np.arange(3))).tolist()
    case, answers = Case(items=1, beams=4, batch=1), {1: [[first, second, second, [0, 0, 0]]]}
    assert turns.shares_of(run, case, answers, {0: [[first]]}) == {"no_item": 0.25, "missing": 0.5}
    assert turns.shares_of(run, case, answers, {0: [[second]], 1: [[first, third]]})["exact"] == 0.5


def test_a_way_that_runs_once_is_compared_with_leafbeam_on_the_same_prompts(run: LoadRun, monkeypatch: pytest.MonkeyPatch):
    items = run.model.vocabulary.tokens(run.trie.codes_at(np.arange(run.trie.num_leaves))).tolist()

    def answer(prompts: Any) -> Any:
        return [[items[leaf] for leaf in leaves] for leaves in prompts]

    def slow(prompts: Any) -> Any:
        time.sleep(0.2)
        return answer(prompts)

    for limit in ("SLOW_S", "ONCE_S"):  # its turn that warms up counts, or its first one alone
        monkeypatch.setattr(turns, limit, 0.1)
        engines = turns.timed_case(run, Case(items=3, beams=3, batch=2), {"leafbeam": answer, "peer": slow}, 3, {})
        assert (engines["peer"]["repeats"], engines["leafbeam"]["repeats"]) == (1, 3)
        assert engines["peer"]["exact"] == engines["leafbeam"]["exact"] == 1


def test_a_prompt_alone_is_the_likeliest_first_token_of_both(run: LoadRun, tmp_path: Path):
    case = Case(items=3, beams=1, batch=2)
    with vllm_engine(
        run.path / "model", settings=VllmSettings(threads=1), max_tokens=64, limit_s=60, environment=tmp_path
    ) as engine:
        ways = prefill.prefill_ways(run, engine)(case)
        prompts = [np.arange(3), np.arange(3, 6)]
        found = ways["leafbeam"](prompts)
        both = prefill.prefill_ways(run, engine, "bfloat16")(case)
        assert both["float32"](prompts) == found
        assert len(both["leafbeam"](prompts)) == 2
        assert list(both) == ["leafbeam", "float32", "vllm"]
        with pytest.raises(PeerFailure, match="make peers"):
            ways["vllm"](prompts)
    session = run.model.start(*map(torch.from_numpy, run.model.vocabulary.prompts([run.trie.codes_at(one) for one in prompts])))
    best_B = session.step_fn(None, None).argmax(-1).flatten()
    assert found == [[[token]] for token in run.model.vocabulary.level_tokens(0)[best_B.numpy()].tolist()]
    assert prefill.equal_tokens(run, case, {0: found, 1: []}, {0: found}) == {"exact": 1.0}
    assert prefill.equal_tokens(run, case, {0: [[[0]], found[1]]}, {0: found}) == {"exact": 0.5}


def test_a_case_gets_the_settings_that_answer_it_fastest(run: LoadRun):
    eager, compiled, broken = (VllmSettings(threads=n) for n in (1, 2, 3))
    small, large = Case(items=2, beams=5, batch=1), Case(items=4, beams=8, batch=1)
    fast = {(eager, small): 0.0, (eager, large): 0.02, (compiled, small): 0.02, (compiled, large): 0.0}

    @contextmanager
    def opened(settings: VllmSettings) -> Generator[Any]:
        if settings == broken:
            raise PeerFailure("crashed", "no such threads")
        yield lambda case: lambda prompts: time.sleep(fast[settings, case]) or [[[1, 2, 3]] for _ in prompts]

    found = fastest.fastest_of(run, [small, large], [broken, eager, compiled], opened)
    assert {case: one.settings for case, one in found.items()} == {small: eager, large: compiled}
    assert fastest.grouped(found) == {eager: [small], compiled: [large]}
    assert found[small].row()["vllm_settings"] == "eager, threads 1"
    assert found[small].ms[str(broken)] == "crashed"
    assert 0 <= found[small].ms[str(eager)] < found[small].ms[str(compiled)]
    for settings in ([broken], [broken, broken]):  # nothing answers: the row of the first says why
        assert fastest.fastest_of(run, [small], settings, opened)[small].settings == broken


def test_a_grammar_lists_the_items_behind_their_first_tokens():
    found = grammar_of([[5, 8], [4, 9], [5, 7]])
    assert found.splitlines() == [
        'root ::= "<4>" after_4 | "<5>" after_5',
        'after_4 ::= "<9>"',
        'after_5 ::= "<7>" | "<8>"',
    ]


@pytest.mark.skipif(not ENVIRONMENT.exists(), reason=".venv-peers is not there: `make peers` creates it")
def test_vllm_answers_on_our_checkpoint_and_under_a_grammar_with_items_alone(run: LoadRun):
    case = Case(items=3, beams=8, batch=2)
    with vllm_engine(run.path / "model", settings=VllmSettings(threads=1), max_tokens=64, limit_s=600) as engine:
        ((_, measured),) = turns.compare({}, run, [case], production.offline_ways(run, engine), repeats=1)
    engines = measured["engines"]
    assert {name: one["status"] for name, one in engines.items()} == dict.fromkeys(engines, "ok")
    assert engines["vllm_grammar_beams"]["no_item"] == 0
    assert engines["vllm_grammar_beams"]["exact"] == 1
    with vllm_engine(run.path / "model", settings=VllmSettings(threads=1), max_tokens=64, limit_s=600) as engine:
        ways_of = prefill.prefill_ways(run, engine)
        ((_, measured),) = turns.compare({}, run, [case], ways_of, 2, prefill.equal_tokens)
    assert measured["engines"]["vllm"]["exact"] == 1


@pytest.mark.skipif(not ENVIRONMENT.exists(), reason=".venv-peers is not there: `make peers` creates it")
def test_exact_beams_over_vllm_are_items_and_are_measured_beside_its_own(run: LoadRun):
    run.trie.save(str(run.path / "index.leafbeam"))
    case = Case(items=3, beams=8, batch=2)
    with vllm_engine(run.path / "model", settings=VllmSettings(threads=1), max_tokens=64, limit_s=600) as engine:
        measured = vllm.measure(run, engine, case, repeats=1)
    assert {one["status"] for one in measured["engines"].values()} == {"ok"}
    assert measured["engines"]["exact_beams"]["no_item"] == measured["engines"]["exact_beams"]["missing"] == 0
    assert measured["ratio"] > 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError("8 GiB"), "out of memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (ModuleNotFoundError("No module named 'transformers'"), "missing"),
        (IndexError("no room for the beams"), "failed"),
    ],
)
def test_a_peer_that_raises_is_a_row_and_the_others_are_measured(run: LoadRun, error: Exception, status: str):
    def peer(prompts: Any) -> Any:
        raise error

    case = Case(items=2, beams=8, batch=1)
    ways = {"leafbeam": lambda prompts: [[[1, 2, 3]] for _ in prompts], "peer": peer}
    engines = turns.timed_case(run, case, ways, 1, {})
    assert engines["peer"]["status"] == status
    assert str(error) in engines["peer"]["reason"]
    assert engines["leafbeam"]["status"] == "ok"
    with pytest.raises(type(error)):
        turns.timed_case(run, case, {"leafbeam": peer}, 1, {})


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_models_of_other_architectures_are_the_same_to_all_and_loads_are_measured(architecture: Any, tmp_path: Path):
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    production.write_model(tmp_path, architecture, vocabulary, sizes | {"num_key_value_heads": 2})
    prompt = torch.tensor([list(range(1, 9))])
    with torch.inference_mode():
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert theirs.config.model_type == architecture
        ours = Transformer.from_pretrained(tmp_path)
        torch.testing.assert_close(ours.logits(ours(prompt)), theirs(prompt).logits, atol=1e-4, rtol=1e-4)
    found = model_load.loads(tmp_path, repeats=1)
    assert min(found["leafbeam"].values()) > 0
    assert set(found["over_leafbeam"]) == {"load_s", "first_s", "bytes", "peak_bytes"}
