"""Histories of one vector an item: every way to run them equals a plain computation in torch, code by code."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from leafbeam.decode import BeamSearch
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.model import AnyVocabulary, PromptStore, TokenTable, Transformer, Vocabulary, Workspace, load_model
from leafbeam.model.decoder import Layer, causal
from leafbeam.model.vocabulary import PromptTokens
from tests.fixtures.sessions import check_a_search

MakeModel = Callable[..., Transformer]
SIZES = (16, 12, 9, 5)
USERS = Vocabulary(codebook_sizes=SIZES, num_users=7)
CASES = [
    {"item_history": True},
    {"item_history": True, "tie_word_embeddings": True, "attention_bias": True},
    {"item_history": True, "num_hidden_layers": 1, "learned_positions": True, "embedding_scale": 3.0, "logit_cap": 2.0},
    {"item_history": True, "norm": "layer", "is_gated": False, "query_key_norm": "none"},
    {"item_history": True, "expert_layers": (1,), "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
]


def drawn(vocabulary: AnyVocabulary, rng: np.random.Generator, *counts: int) -> tuple[Tensor, Tensor]:
    """Prompts with so many random items."""
    histories = [np.stack([rng.integers(0, size, count) for size in SIZES], 1) for count in counts]
    tokens_BT, lengths_B = vocabulary.prompts(histories)
    return torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B)


def log_probabilities(model: Transformer, prompt: Tensor, codes: list[int]) -> list[Tensor]:
    """The next item's codes by the formulas alone: one causal pass over a vector an item and the codes before each."""
    before, levels = model.vocabulary.prompt_length(0), model.vocabulary.num_levels
    tokens = torch.tensor([int(model.vocabulary.tokens_at(torch.tensor(code), level)) for level, code in enumerate(codes)])
    embedded = model.embedding.weight * model.config.embedding_scale
    rows = [embedded[prompt[:before]].sum(0), *(embedded[item].sum(0) for item in prompt[before:].view(-1, levels))]

    def run() -> Tensor:
        body, positions, hidden = model.model, torch.arange(len(rows)), torch.stack(rows)[None]
        if body.embed_positions is not None:
            hidden = hidden + body.embed_positions.weight[: len(rows)]
        rotary = body.rotary(positions, torch.float32) if model.config.is_rotary else None
        for number, layer in enumerate(body.layers):
            assert isinstance(layer, Layer)
            hidden = layer(hidden, number, rotary, causal, lambda x: x)
        return cast(Tensor, body.norm(hidden))[0, -1]

    with torch.no_grad():
        found: list[Tensor] = []
        for level in range(levels):
            found.append(model.head(run(), level).log_softmax(-1))
            rows.append(embedded[tokens[level]])
    return found


@pytest.mark.parametrize("fields", CASES)
@pytest.mark.parametrize("vocabulary", [None, USERS], ids=["", "users"])
def test_the_model_equals_the_formulas(make_model: MakeModel, fields: dict[str, object], vocabulary: Vocabulary | None):
    model, rng = make_model(vocabulary, **fields), np.random.default_rng(0)
    for count in (0, 1, 5):
        tokens_1T, _ = drawn(model.vocabulary, rng, count)
        codes = [int(rng.integers(0, size)) for size in SIZES]
        expected = log_probabilities(model, tokens_1T[0], codes)
        new = model.vocabulary.tokens(torch.tensor([codes]))[:, :-1]
        with torch.no_grad():
            hidden = model(torch.cat((tokens_1T, new), 1))[0, -len(SIZES) :]
        for level, log_p in enumerate(expected):
            torch.testing.assert_close(model.head(hidden[level], level).log_softmax(-1), log_p, atol=1e-5, rtol=0)


@pytest.mark.parametrize("fields", CASES)
def test_all_items_of_a_history_are_predicted_in_one_pass(make_model: MakeModel, fields: dict[str, object]):
    model = make_model(USERS, **fields)
    tokens_1T, _ = drawn(USERS, np.random.default_rng(1), 6)
    with torch.no_grad():
        whole = model(tokens_1T)
        for length in range(2, tokens_1T.shape[1] + 1):
            torch.testing.assert_close(model(tokens_1T[:, :length])[0, -1], whole[0, length - 1], atol=1e-5, rtol=0)
    assert not whole[0, 0].any()  # nothing is predicted between the first token and the user's


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["CPU runner", "torch runner"])
@pytest.mark.parametrize("fields", CASES)
@pytest.mark.parametrize("widths", [(5, 5, 5), (3, 8, 2)])
def test_steps_equal_each_beam_run_alone(
    make_model: MakeModel,
    generator: torch.Generator,
    poisoned: None,
    dtype: torch.dtype,
    fields: dict[str, object],
    widths: tuple[int, ...],
):
    model = make_model(**fields).to(dtype)
    check_a_search(model, *drawn(model.vocabulary, np.random.default_rng(2), 3, 0, 6, 1), widths, generator)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_the_positions_of_a_prompt_are_its_items_and_what_is_before(make_model: MakeModel, count: int):
    for vocabulary in (Vocabulary(codebook_sizes=SIZES), USERS):
        model = make_model(vocabulary, **CASES[0])
        assert model.prompt_positions(vocabulary.prompt_length(count)) == 1 + count
        plain = make_model(vocabulary, item_history=False)
        assert plain.prompt_positions(vocabulary.prompt_length(count)) == vocabulary.prompt_length(count)


def test_a_token_table_with_more_tokens_before_the_history_than_levels(make_model: MakeModel, generator: torch.Generator):
    levels = tuple(tuple(range(begin, begin + size)) for begin, size in zip((10, 30, 50, 70), SIZES, strict=True))
    table = TokenTable(tokens_per_level=levels, size=100, pad=0, bos=1, eos=2, prompt=PromptTokens(before=(1, 3, 4, 5, 6, 7)))
    model = make_model(table, **CASES[0])
    assert [model.prompt_positions(table.prompt_length(count)) for count in (0, 3)] == [2, 5]
    check_a_search(model, *drawn(table, np.random.default_rng(3), 2, 0, 4), (4, 6, 3), generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["CPU runner", "torch runner"])
def test_a_search_with_dropped_prefixes_finds_the_exact_best(make_model: MakeModel, dtype: torch.dtype):
    model, rng = make_model(**CASES[0]).to(dtype), np.random.default_rng(4)
    codes = np.stack([rng.integers(0, size, 400) for size in SIZES], 1)
    trie = Trie.build(codes, SIZES, np.arange(400))
    tokens, lengths = drawn(model.vocabulary, rng, 4, 2)
    session = model.start(tokens, lengths)
    search = BeamSearch(trie, num_items=10)
    result = search.run(session.step_fn, 2, suffix_fn=session.suffix_fn, more_fn=session.more_fn, widths=np.full((2, 3), 2))
    assert result.is_proved.all()
    for request in range(2):
        prompt = tokens[request, : lengths[request]]
        scores = [
            sum(float(log_p[code]) for log_p, code in zip(log_probabilities(model, prompt, item), item, strict=True))
            for item in codes.tolist()
        ]
        best = np.sort(scores)[::-1][:10]
        np.testing.assert_allclose(result.scores[request], best, atol=1e-4)


def test_a_longer_history_runs_its_new_items_alone(make_model: MakeModel, poisoned: None):
    model, rng = make_model(USERS, **CASES[0]), np.random.default_rng(5)
    tokens, lengths = drawn(USERS, rng, 7, 7, 7)
    short, (store, space) = torch.tensor([2 + 4 * 3, 2, 2 + 4 * 6]), (PromptStore(1 << 20), Workspace(rows=3))
    for asked in (short, lengths):
        stored = model.start(tokens, asked, store=store, workspace=space).step_fn().clone()
        torch.testing.assert_close(stored, model.start(tokens, asked).step_fn(), atol=1e-5, rtol=0)
    assert (store.hits, store.misses, store.tokens_saved) == (3, 3, 4 + 1 + 7)
    assert store.nbytes == 3 * 8 * 2 * 2 * 2 * 16 * 4  # prompts, positions, layers, keys and values, heads, values, bytes


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_narrow_products_stay_near(make_model: MakeModel, precision: str):
    model, rng = make_model(**CASES[0]), np.random.default_rng(6)
    try:
        model.check_precision(precision)  # pyright: ignore[reportArgumentType]
    except ArgumentError as error:
        pytest.skip(str(error))
    rounded = model.with_precision(precision)  # pyright: ignore[reportArgumentType]
    prompts = drawn(model.vocabulary, rng, 5, 3)
    exact, near = (one.start(*prompts).step_fn().log_softmax(-1) for one in (model, rounded))
    assert 0 < (exact - near).abs().max() < 0.5


def test_a_checkpoint_gives_the_same_model(make_model: MakeModel, tmp_path: Path):
    model = make_model(**CASES[1])
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert isinstance(loaded, Transformer)
    assert loaded.config == model.config
    prompts = drawn(model.vocabulary, np.random.default_rng(7), 3)
    assert torch.equal(loaded.start(*prompts).step_fn(), model.start(*prompts).step_fn())


def test_what_does_not_fit_is_refused(make_model: MakeModel):
    model = make_model(**CASES[0])
    tokens, _ = drawn(model.vocabulary, np.random.default_rng(8), 3)
    with pytest.raises(ArgumentError, match="1 token and then whole items of 4"):
        model.start(tokens[:, :-1])
    with pytest.raises(ArgumentError, match="writes no texts"):
        model.start_texts(tokens)
    with pytest.raises(ArgumentError, match="item_history is implemented without"):
        dataclasses.replace(model.config, local_layers=(0,), sliding_window=3)
    levels = tuple(tuple(range(begin, begin + size)) for begin, size in zip((10, 30, 50, 70), SIZES, strict=True))
    table = TokenTable(tokens_per_level=levels, size=100, pad=0, bos=1, eos=2, prompt=PromptTokens(before=(1,), after=(2,)))
    with pytest.raises(ArgumentError, match="prompts of whole items"):
        make_model(table, **CASES[0])
