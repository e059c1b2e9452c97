"""The CPU runner: exact for every chunk size, no allocations once warm, memory as `search_bytes` says."""

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from leafbeam.decode import BeamSearch
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, TokenTable, Transformer, Vocabulary, Workspace, search_bytes
from leafbeam.model.cpu import kernels, pointwise
from leafbeam.model.cpu import layers as cpu_layers
from leafbeam.model.cpu.kernels import score_bound
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.model.cpu.workspace import Chunk
from leafbeam.model.decoder import Attention
from leafbeam.ops.linear import blas
from tests.fixtures.sessions import check_a_search, prompts

MakeModel = Callable[..., Transformer]


@pytest.fixture(params=["fused", "by torch"])
def layers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models run in one call or by torch's products."""
    if request.param == "by torch":
        monkeypatch.setattr(blas, "_IS_AVAILABLE", False)
    elif not blas.is_available():
        pytest.skip("torch exports no sgemm here")


def allocations(run: Callable[[], Any]) -> list[int]:
    """Bytes of every allocation (positive) and release (negative) of torch's CPU allocator, in order."""
    gc.collect()  # what earlier tests left would be released within the run
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    return [event.nbytes() for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize(("rows", "scores"), [(1, 1), (1, 500), (2, 500), (3, 1), (7, 500), (64, 1)])
def test_logits_do_not_depend_on_the_chunk_size(
    make_model: MakeModel, generator: torch.Generator, poisoned: None, rows: int, scores: int, monkeypatch: pytest.MonkeyPatch
):
    model = make_model(initializer_range=0.1)
    lent = Workspace(rows=rows, scores=scores)
    start = model.start
    monkeypatch.setattr(model, "start", lambda *prompt: start(*prompt, workspace=lent), raising=False)
    for widths in ((4, 5, 3), (6, 2, 4)):
        check_a_search(model, *prompts(model, generator), widths, generator)


@pytest.mark.usefixtures("layers")
def test_prompts_longer_than_a_tile_are_exact(make_model: MakeModel, generator: torch.Generator):
    model = make_model(max_position_embeddings=400)
    check_a_search(model, *prompts(model, generator, size=3, length=300), (4, 3), generator)


@pytest.mark.usefixtures("layers")
def test_suffixes_equal_single_steps_for_every_chunk_size(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens_BT, lengths_B = prompts(model, generator)
    sizes = model.vocabulary.codebook_sizes
    first = torch.randint(0, sizes[0], (4, 5), generator=generator)
    codes_BKT = torch.stack([torch.randint(0, size, (4, 5), generator=generator) for size in sizes[1:3]], 2)
    own = torch.arange(5).expand(4, 5)
    truth = model.start(tokens_BT, lengths_B)
    truth.step_fn(first, torch.zeros_like(first))
    expected = [truth.step_fn(codes_BKT[:, :, t], own) for t in range(2)]
    for rows in (1, 3, 16):
        session = model.start(tokens_BT, lengths_B, workspace=Workspace(rows=rows))
        session.step_fn(first, torch.zeros_like(first))
        for mine, other in zip(session.suffix_fn(codes_BKT, own), expected, strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize(("rows", "threads"), [(5, 2), (512, 3), pytest.param(5, 8, marks=pytest.mark.slow)])
def test_threads_do_not_change_a_search(
    make_model: MakeModel, generator: torch.Generator, poisoned: None, monkeypatch: pytest.MonkeyPatch, rows: int, threads: int
):
    model, texts = make_model(num_hidden_layers=3), [[3, 7, 1, 2, 9, 4], [5], [8, 8]]
    lent = Workspace(rows=rows, scores=1)
    start: Callable[..., Any] = model.start
    alone_RD = model.start_texts(torch.arange(6)[None], num_texts=3, max_tokens=9).hidden_after(texts)
    monkeypatch.setattr(cpu_layers, "_MIN_PRODUCTS", 0)
    with torch_threads(threads):
        together_RD = model.start_texts(torch.arange(6)[None], num_texts=3, max_tokens=9).hidden_after(texts)
        test_suffixes_equal_single_steps_for_every_chunk_size(make_model, generator)
        monkeypatch.setattr(model, "start", lambda *prompt: start(*prompt, workspace=lent), raising=False)
        check_a_search(model, *prompts(model, generator), (4, 5, 3), generator)
    torch.testing.assert_close(together_RD, alone_RD, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("layers")
@pytest.mark.parametrize("lent", [False, True])
def test_beams_that_continue_alike_run_once_and_have_the_same_logits(
    make_model: MakeModel, generator: torch.Generator, poisoned: None, monkeypatch: pytest.MonkeyPatch, lent: bool
):
    model = make_model()
    tokens_BT, lengths_B = prompts(model, generator)
    requests, sizes = len(tokens_BT), model.vocabulary.codebook_sizes
    codes = [torch.randint(0, size, (requests, 6), generator=generator) for size in sizes[:3]]
    parents = [torch.randint(0, width, (requests, 6), generator=generator) for width in (1, 6, 6)]
    for codes_BK, parents_BK in zip(codes, parents, strict=True):
        codes_BK[0, 2:], parents_BK[0, 2:] = codes_BK[0, 5], parents_BK[0, 5]  # dead beams of a search
        codes_BK[1], parents_BK[1] = 0, 0  # a request without beams
        codes_BK[2, 1], parents_BK[2, 1] = codes_BK[2, 5], parents_BK[2, 5]  # in between others
    rows: list[int] = []
    load = Chunk.load
    monkeypatch.setattr(
        Chunk, "load", lambda self, embedding, tokens, at: rows.append(len(tokens)) or load(self, embedding, tokens, at)
    )
    session = model.start(tokens_BT, lengths_B, **({"workspace": Workspace(rows=4)} if lent else {}))
    rows.clear()
    found = [session.step_fn(*step).clone() for step in zip(codes, parents, strict=True)]
    like_last = [(c == c[:, -1:]) & (p == p[:, -1:]) for c, p in zip(codes, parents, strict=True)]
    assert sum(rows) == sum(int((~alike_BK).sum()) + requests for alike_BK in like_last) <= 3 * (6 * requests - 3 - 5 - 1)
    for b in range(requests):
        alone = model.start(tokens_BT[[b]], lengths_B[[b]])
        for k in range(6):
            beams = [k]
            for step in reversed(range(1, 3)):
                beams.insert(0, int(parents[step][b, beams[0]]))
            alone.step_fn(None, None)
            for step, beam in enumerate(beams):
                logits_11V = alone.step_fn(codes[step][b : b + 1, beam : beam + 1], torch.zeros(1, 1, dtype=torch.int64))
                torch.testing.assert_close(found[step][b, beam], logits_11V[0, 0], atol=1e-5, rtol=0)


def test_a_workspace_is_reused_and_logits_without_one_stay_valid(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    one, other = prompts(model, generator), prompts(model, generator)
    kept = model.start(*one).step_fn(None, None)
    copy = kept.clone()
    lent = Workspace()
    first = model.start(*one, workspace=lent).step_fn(None, None)
    assert torch.equal(first, kept)
    second = model.start(*other, workspace=lent).step_fn(None, None)
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(kept, copy)


@pytest.fixture
def searched() -> tuple[Transformer, BeamSearch, Callable[[int, int, Workspace], Any]]:
    rng = np.random.default_rng(3)
    sizes = (64, 64, 64, 8)
    trie = Trie.build(np.stack([rng.integers(0, size, 3000) for size in sizes], 1), list(sizes))
    vocabulary = Vocabulary(codebook_sizes=sizes)
    config = ModelConfig(vocab_size=vocabulary.size, num_hidden_layers=2, hidden_size=64, intermediate_size=96)
    model = Transformer(config, vocabulary).eval()
    search = BeamSearch(trie, 40)

    def run(requests: int, tokens: int, workspace: Workspace) -> Any:
        prompt = torch.from_numpy(rng.integers(0, vocabulary.size, (requests, tokens)))
        return search.run(model.start(prompt, workspace=workspace).step_fn, batch_size=requests)

    return model, search, run


@pytest.mark.usefixtures("layers")
def test_a_warm_search_allocates_no_keys_scores_or_activations(searched: Any):
    _, search, run = searched
    workspace = Workspace()
    run(6, 90, workspace)
    grown = workspace.growths
    for requests, tokens in ((6, 90), (2, 90), (6, 17), (1, 1)):
        taken = [size for size in allocations(lambda r=requests, t=tokens: run(r, t, workspace)) if size > 0]
        rows = requests * search.config.num_beams[0]
        # What is left is integers of the beams: tokens, parents. Each is smaller than one row of floats a beam.
        assert max(taken, default=0) <= 8 * max(rows, requests * tokens), taken
        assert sum(taken) <= 8 * 8 * max(rows, requests * tokens) * 4
    assert workspace.growths == grown
    assert grown > 10


def test_a_search_without_a_workspace_allocates_measurably(searched: Any):
    _, _, run = searched
    run(6, 90, Workspace())
    assert max(allocations(lambda: run(6, 90, Workspace()))) > 8 * 6 * 90


@pytest.mark.usefixtures("layers")
def test_peak_memory_is_what_the_formula_says(searched: Any):
    model, _, run = searched
    for requests, tokens in ((1, 500), (8, 300)):
        expected = search_bytes(model.config, prompt_tokens=tokens, beams=40, rounds=3, inflight=requests)
        events = np.cumsum(allocations(lambda r=requests, t=tokens: run(r, t, Workspace(rows=32, scores=1 << 14))))
        activations = (32 * (5 * 128 + 2 * 64 + 2 * 96) + (1 << 14) + 4 * 564) * 4
        logits = requests * 40 * 64 * 4
        rotations, integers = 600 * 32 * 4, 8 * requests * (3 * tokens + 40 * 16)
        assert expected <= events.max() <= 1.02 * expected + activations + logits + rotations + integers


def test_search_bytes_counts_each_prompt_once_and_beams_times_steps():
    config = ModelConfig(vocab_size=100)
    token = 2 * 4 * 2 * 32 * 4
    assert search_bytes(config, prompt_tokens=1000, beams=512, rounds=3) == (1000 + 512 * 3) * token
    assert search_bytes(config, prompt_tokens=7, beams=2, rounds=1, inflight=5, itemsize=2) == 5 * 9 * token // 2


def test_a_workspace_on_another_dtype_is_refused(make_model: MakeModel, generator: torch.Generator):
    model = make_model().double()
    with pytest.raises(ArgumentError, match="float32 on a CPU"):
        model.start(*prompts(model, generator), workspace=Workspace())
    with pytest.raises(ArgumentError, match="at least 1"):
        Workspace(rows=0)


def test_gathered_head_rows_follow_the_weights(make_model: MakeModel, generator: torch.Generator):
    table = TokenTable(tokens_per_level=((90, 4, 51, 17, 88), (33, 4, 70), (9, 8, 7, 60)), size=100, pad=0, bos=1, eos=2)
    model = make_model(table, tie_word_embeddings=True)
    prompt = prompts(model, generator)
    workspace = Workspace()
    before = model.start(*prompt, workspace=workspace).step_fn(None, None).clone()
    with torch.no_grad():
        model.head_weight[90] += 1
    after = model.start(*prompt, workspace=workspace).step_fn(None, None)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, model.start(*prompt).step_fn(None, None))


def test_softmax_weights_are_accurate_and_zero_for_hidden_tokens():
    rng = np.random.default_rng(0)
    scores = rng.uniform(-60, 20, (2, 6, 50)).astype(np.float32)
    flat = scores.reshape(-1).copy()
    top, total = np.zeros((2, 8), np.float32), np.zeros((2, 8), np.float32)
    position_N = np.arange(9, 13)
    kernels.softmax_weights(
        flat, kernels.ScoreTile(2, 6, 50, 10, 1, 2, 0.0, 0), position_N, np.float32(np.inf), top, total, 1, 1
    )
    found = flat.reshape(scores.shape)
    for row in range(6):
        seen = scores[:, row, : 10 + row // 2].astype(np.float64)
        expected = np.exp(seen - seen.max(-1, keepdims=True))
        np.testing.assert_allclose(found[:, row, : 10 + row // 2], expected, rtol=4e-6)
        np.testing.assert_allclose(total[:, 1 + row], expected.sum(-1), rtol=1e-6)
        np.testing.assert_array_equal(top[:, 1 + row], seen.max(-1).astype(np.float32))
        assert (found[:, row, 10 + row // 2 :] == 0).all()


def test_softmax_weights_relative_to_a_bound_are_accurate():
    rng = np.random.default_rng(1)
    bound = np.float32(40)
    scores = rng.uniform(-40, 40, (1, 4, 30)).astype(np.float32)
    scores[0, 0], scores[0, 1] = -40, 40
    flat = scores.reshape(-1).copy()
    top, total = np.full((1, 4), np.nan, np.float32), np.full((1, 4), np.nan, np.float32)
    kernels.softmax_weights(flat, kernels.ScoreTile(1, 4, 30, 30, 0, 1, 0.0, 0), np.arange(4), bound, top, total, 0, 1)
    truth = np.exp(scores.astype(np.float64) - 40)
    np.testing.assert_allclose(flat.reshape(scores.shape), truth, rtol=4e-6)
    np.testing.assert_allclose(total, truth.sum(-1), rtol=1e-6)
    assert (top == bound).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from((8, 32, 128)), st.floats(0.01, 12))
def test_no_score_exceeds_its_bound(seed: int, size: int, spread: float):
    rng = np.random.default_rng(seed)
    query_norm, key_norm = (rng.normal(0, spread, size).astype(np.float32) for _ in range(2))
    bound = score_bound(query_norm, key_norm, size**-0.5, 0.0)
    assert bound <= 30.1 or np.isinf(bound)
    vector = np.zeros((4, size))  # all of it in one place, where the norms are largest: nothing comes nearer
    vector[:2, np.abs(query_norm * key_norm).argmax()] = 1e3
    vector[2:] = rng.normal(size=(2, size))
    normed = vector / np.sqrt((vector**2).mean(-1, keepdims=True))
    scores = (normed * query_norm) @ (normed * key_norm).T * size**-0.5
    assert np.abs(scores).max() <= bound


@pytest.mark.usefixtures("layers")
def test_norms_that_allow_large_scores_give_no_bound(make_model: MakeModel, generator: torch.Generator):
    assert np.isinf(score_bound(np.full(32, 9, np.float32), np.ones(32, np.float32), 32**-0.5, 0.0))
    assert np.isinf(score_bound(np.full(32, np.nan, np.float32), np.ones(32, np.float32), 32**-0.5, 0.0))
    model = make_model(Vocabulary(codebook_sizes=(8, 8)))
    prompt = prompts(model, generator)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, Attention):
                assert module.q_norm is not None
                module.q_norm.weight.fill_(30.0)
    tokens_BT, lengths_B = prompt
    hidden_BTD = model(tokens_BT, lengths_B)
    last = hidden_BTD[torch.arange(len(lengths_B)), lengths_B - 1]
    torch.testing.assert_close(model.start(*prompt).step_fn(None, None), model.head(last, 0), rtol=1e-4, atol=1e-4)


def test_the_gate_is_silu_for_every_float():
    gate = np.array([[-200, -80, -5, -0.0, 0, 1e-8, 3, 90, 3e4, 7]], np.float32)
    up = np.full_like(gate, 2)
    truth = torch.nn.functional.silu(torch.from_numpy(gate)).numpy() * up
    pointwise.gate(gate, 1, up, pointwise.SILU, 1)
    np.testing.assert_allclose(gate, truth, rtol=2e-6, atol=1e-30)
