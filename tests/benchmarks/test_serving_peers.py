"""The peers of the serving study answer what the engine answers."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.micro.attention import Shape, drawn
from benchmarks.peers import paged_attention, paged_encoder_decoder, paged_engine, per_beam_engine
from benchmarks.peers.compared_models import SESSIONS, ComparedModel, paged_session
from benchmarks.peers.hf_generate import HfGenerate
from benchmarks.peers.paged_beams import PagedBeams
from benchmarks.xgr.figures_13_14 import onerec
from leafbeam.decode import BeamSearch
from leafbeam.engine import Engine, Request, Settings
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, Transformer, Vocabulary, Workspace, search_bytes
from leafbeam.ops.attention.reference import merge, prefix_attention, suffix_attention

pytestmark = pytest.mark.slow

SIZES = (48, 32, 32, 6)


@pytest.fixture(scope="module")
def shop() -> tuple[Trie, Transformer, np.ndarray]:
    rng = np.random.default_rng(11)
    codes = np.unique(np.stack([rng.integers(0, size, 2000) for size in SIZES], 1), axis=0)
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    config = ModelConfig(
        vocab_size=vocabulary.size, hidden_size=64, intermediate_size=96, num_hidden_layers=2, initializer_range=0.2
    )
    return Trie.build(codes, list(SIZES)), Transformer(config, vocabulary).eval(), codes


def histories(codes: np.ndarray, lengths: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [codes[rng.integers(0, len(codes), length)] for length in lengths]


def test_generate_of_transformers_finds_the_same_items(shop: tuple[Trie, Transformer, np.ndarray], tmp_path: Path):
    trie, model, codes = shop
    model.save_pretrained(tmp_path)
    peer = HfGenerate.of(tmp_path, trie, model.vocabulary)
    search = BeamSearch(trie, 16, scoring="allowed")
    for lengths in ((3,), (5, 1, 0, 9)):
        prompts = histories(codes, lengths)
        leaves_BK, scores_BK = peer.recommend(prompts, 16)
        tokens_BT, lengths_B = model.vocabulary.prompts(prompts)
        rounds = model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B))
        mine = search.run(rounds.step_fn, batch_size=len(prompts))
        np.testing.assert_allclose(mine.scores, scores_BK, atol=1e-4)
        for row in range(len(prompts)):
            sids = {tuple(sid) for sid in trie.codes_at(leaves_BK[row]).tolist()}
            assert sids == {tuple(sid) for sid in mine.codes[row].tolist()}


def prompts_of(model: Transformer, codes: np.ndarray, lengths: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    tokens_BT, lengths_B = model.vocabulary.prompts(histories(codes, lengths))
    return torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B)


def same_answers(model: Any, trie: Trie, prompts: tuple[torch.Tensor, torch.Tensor], num_beams: list[int], start: Any) -> Any:
    """The rounds of a peer, which give the engine's answers; the second search restarts on the same pages."""
    search = BeamSearch(trie, num_beams)
    shared = search.run(model.start(*prompts).step_fn, batch_size=3)
    rounds = start(model, *prompts)
    for suffix_fn in (None, rounds.suffix_fn):
        found = search.run(rounds.step_fn, batch_size=3, suffix_fn=suffix_fn)
        np.testing.assert_allclose(found.scores, shared.scores, atol=1e-4)
        for mine, theirs in zip(found.item_ids, shared.item_ids, strict=True):
            assert set(mine.tolist()) == set(theirs.tolist())
    return rounds


@pytest.mark.parametrize("rows", [5, 256])
def test_copies_of_the_prompt_for_each_beam_give_the_same_answers(shop: tuple[Trie, Transformer, np.ndarray], rows: int):
    trie, model, codes = shop
    prompts = prompts_of(model, codes, (4, 0, 11))
    start = partial(per_beam_engine.start, workspace=Workspace(rows=rows))
    rounds = same_answers(model, trie, prompts, [8, 20, 16, 16], start)
    token = search_bytes(model.config, prompt_tokens=1, beams=0, rounds=0)
    assert rounds.prompt.nbytes == 16 * int(prompts[1].sum()) * token


@pytest.mark.parametrize("rows", [5, 256])
@pytest.mark.parametrize("num_beams", [[8, 20, 16, 16], [40, 3, 30, 30]])
def test_paged_attention_gives_the_same_answers(shop: tuple[Trie, Transformer, np.ndarray], rows: int, num_beams: list[int]):
    trie, model, codes = shop
    # Prompts whose last page is partial, full, and about to be.
    prompts = prompts_of(model, codes, (4, 0, 11))[0], torch.tensor([16, 1, 45])
    same_answers(model, trie, prompts, num_beams, partial(paged_engine.start, workspace=Workspace(rows=rows)))


def test_an_encoder_decoder_reads_its_prompt_through_pages_with_the_same_answers(shop: tuple[Trie, Transformer, np.ndarray]):
    trie, _, codes = shop
    model = onerec(SIZES, small=True)
    same_answers(model, trie, prompts_of(model, codes, (4, 1, 11)), [8, 20, 16, 16], paged_encoder_decoder.start)


@pytest.mark.parametrize("architecture", ["Qwen3", "OneRec"])
def test_an_engine_answers_the_same_as_each_compared_system(shop: tuple[Trie, Transformer, np.ndarray], architecture: str):
    trie, own, _ = shop
    model = own if architecture == "Qwen3" else onerec(SIZES, small=True)
    rows = [np.arange(first, first + 5) for first in (0, 40, 90)]
    requests = [Request(history=tuple(one.tolist()), num_items=8, scoring="allowed") for one in rows]
    settings = Settings(num_beams=12, predict=False)
    with Engine(model, trie, settings=settings) as engine:
        expected = engine.recommend(requests)
    for session in SESSIONS.values():
        with Engine(ComparedModel(model=model, session=session), trie, settings=settings) as peer:
            for mine, theirs in zip(expected, peer.recommend(requests), strict=True):
                assert set(mine.item_ids) == set(theirs.item_ids)
                np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-4)
    with pytest.raises(ArgumentError, match=r"float32 on a CPU, the model is torch\.bfloat16"):
        ComparedModel(model=model.to(torch.bfloat16), session=paged_session)
    model.to(torch.float32)


@pytest.mark.parametrize(("heads", "groups", "size"), [(4, 4, 32), (8, 2, 16)])
def test_paged_kernels_equal_the_reference_attention(heads: int, groups: int, size: int):
    for tokens, codes in ((15, 2), (16, 1), (1, 3), (47, 3)):
        shape = Shape(requests=2, beams=5, tokens=tokens, codes=codes, heads=heads, groups=groups, size=size)
        query, key, value, slots = drawn(shape)
        expected = merge(*prefix_attention(query, key, value), *suffix_attention(query, *slots))
        pages = PagedBeams.of(key, value, *slots)
        torch.testing.assert_close(pages.attend(query, pages.transposed()), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(paged_attention.attend(pages, query), expected, rtol=1e-4, atol=1e-5)
