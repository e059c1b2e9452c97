"""The peers of the serving study answer what the engine answers."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.peers import per_beam_engine
from benchmarks.peers.hf_generate import HfGenerate
from leafbeam.decode import BeamSearch
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, Transformer, Vocabulary, Workspace, search_bytes

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


@pytest.mark.parametrize("rows", [5, 256])
def test_copies_of_the_prompt_for_each_beam_give_the_same_answers(shop: tuple[Trie, Transformer, np.ndarray], rows: int):
    trie, model, codes = shop
    search = BeamSearch(trie, [8, 20, 16, 16])
    tokens_BT, lengths_B = (torch.from_numpy(one) for one in model.vocabulary.prompts(histories(codes, (4, 0, 11))))
    shared = search.run(model.start(tokens_BT, lengths_B).step_fn, batch_size=3)
    rounds = per_beam_engine.start(model, tokens_BT, lengths_B, Workspace(rows=rows))
    copied = search.run(rounds.step_fn, batch_size=3, suffix_fn=rounds.suffix_fn)
    np.testing.assert_allclose(copied.scores, shared.scores, atol=1e-4)
    for mine, theirs in zip(copied.item_ids, shared.item_ids, strict=True):
        assert set(mine.tolist()) == set(theirs.tolist())
    token = search_bytes(model.config, prompt_tokens=1, beams=0, rounds=0)
    assert rounds.prompt.nbytes == 16 * int(lengths_B.sum()) * token
