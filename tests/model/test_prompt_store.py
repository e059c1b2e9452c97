"""Prompts that extend stored ones get the logits of a full prefill, and the store stays within its bytes."""

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.model import PromptStore, Transformer, Workspace, token_bytes

MakeModel = Callable[..., Transformer]


def drawn(model: Transformer, generator: torch.Generator, size: int, length: int) -> Tensor:
    return torch.randint(0, model.vocabulary.size, (size, length), generator=generator)


def answers(model: Transformer, tokens_BT: Tensor, lengths_B: Tensor, **memory: object) -> list[Tensor]:
    session = model.start(tokens_BT, lengths_B, **memory)  # type: ignore[arg-type]
    codes = torch.tensor([[1, 0, 3]]).expand(len(tokens_BT), 3)
    asked = (None, None), (codes, torch.zeros_like(codes)), (codes, codes % 2)
    return [session.step_fn(*one).clone() for one in asked]


def same(one: list[Tensor], other: list[Tensor]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [3, 64])
def test_a_prompt_that_extends_a_stored_one_gets_the_same_logits(
    make_model: MakeModel, generator: torch.Generator, poisoned: None, rows: int
):
    model = make_model()
    tokens = drawn(model, generator, 4, 30)
    store, lent = PromptStore(1 << 20), Workspace(rows=rows)
    first, second = torch.tensor([9, 1, 30, 12]), torch.tensor([13, 30, 30, 12])
    same(answers(model, tokens, first, workspace=lent, store=store), answers(model, tokens, first))
    assert (store.hits, store.misses, len(store)) == (0, 4, 4)
    same(answers(model, tokens, second, workspace=lent, store=store), answers(model, tokens, second))
    assert (store.hits, store.tokens_saved, len(store)) == (4, 9 + 1 + 29 + 11, 4)


sequences = st.lists(st.integers(0, 2), min_size=1, max_size=9)


@given(st.lists(sequences, max_size=60), st.lists(sequences, max_size=30))
def test_the_longest_stored_prefix_is_that_of_a_search_of_all(prompts: list[list[int]], asked: list[list[int]]) -> None:
    """The store has room for ten prompts, so that most are dropped again."""
    store = PromptStore(10)
    for prompt in prompts:
        store.put(np.array(prompt), torch.zeros(1, dtype=torch.uint8))
        stored = [np.frombuffer(key, np.int64).tolist() for key in store._slots]  # pyright: ignore[reportPrivateUsage]
        for tokens in [*asked, prompt]:
            known = min(max((len(one) for one in stored if tokens[: len(one)] == one), default=0), len(tokens) - 1)
            found = store.find(np.array(tokens))
            assert (found.num_tokens if found else 0) == known


def test_stored_prompts_are_found_in_a_mixed_batch(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens, others = drawn(model, generator, 3, 20), drawn(model, generator, 3, 20)
    store = PromptStore(1 << 20)
    answers(model, tokens[:, :12], torch.tensor([12, 7, 3]), store=store)
    mixed = torch.stack([others[0], tokens[1], others[2], tokens[0]])
    lengths = torch.tensor([20, 15, 2, 20])
    same(answers(model, mixed, lengths, store=store), answers(model, mixed, lengths))
    assert store.hits == 2


def test_a_prompt_that_differs_in_one_token_is_a_miss(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    tokens = drawn(model, generator, 1, 20)
    store = PromptStore(1 << 20)
    answers(model, tokens, torch.tensor([19]), store=store)
    tokens[0, 3] = (tokens[0, 3] + 1) % model.vocabulary.size
    same(answers(model, tokens, torch.tensor([20]), store=store), answers(model, tokens, torch.tensor([20])))
    assert store.hits == 0


def test_the_store_drops_the_least_recently_used_prompt(make_model: MakeModel, generator: torch.Generator):
    model = make_model()
    token = token_bytes(model.config)
    tokens = drawn(model, generator, 5, 10)
    store = PromptStore(3 * 10 * token)
    whole = torch.tensor([10])
    for row in (0, 1, 2, 0, 3):
        answers(model, tokens[row : row + 1], whole, store=store)
        assert store.nbytes <= store.max_bytes
    held = [store.find(tokens[row].numpy()) is not None for row in range(5)]
    assert held == [True, False, True, True, False]
    assert store.nbytes == len(store) * 10 * token


def test_a_prompt_larger_than_the_store_is_not_stored():
    store = PromptStore(100)
    store.put(np.arange(5), torch.zeros(2, 2, 1, 5, 8))
    assert (len(store), store.nbytes, store.find(np.arange(5))) == (0, 0, None)
    with pytest.raises(ArgumentError, match="max_bytes"):
        PromptStore(0)


def test_one_token_alone_is_always_run():
    store = PromptStore(1000)
    store.put(np.arange(1), torch.zeros(1, 2, 1, 1, 4))
    assert store.find(np.arange(1)) is None


def calls_of(function: Callable[[], object]) -> int:
    """Calls of Python and C functions that a call makes, steps of generators included."""
    events: list[str] = []
    sys.setprofile(lambda frame, event, value: events.append(event))
    try:
        function()
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in events)


@pytest.mark.parametrize("kind", ["a miss at the first token", "a miss at the last token", "a hit", "a hit of a short one"])
def test_a_look_up_does_the_same_work_for_2048_stored_lengths_as_for_three(kind: str):
    """M9: a miss looked once for each stored length."""
    stored = np.zeros(4096, np.int64)
    asked = {
        "a miss at the first token": np.ones(4096, np.int64),
        "a miss at the last token": np.r_[stored[:4], 1, 1],
        "a hit": np.r_[stored, 1],
        "a hit of a short one": np.r_[stored[:5], 1, 1],
    }[kind]
    calls: list[int] = []
    for lengths in ((5, 2049, 4096), (5, *range(2049, 4097))):
        store = PromptStore(1 << 30)
        for number, length in enumerate(lengths):  # of other prompts, which share nothing but the first token
            prompt = stored[:length] if length in (5, 4096) else np.r_[0, number + 2, stored[: length - 2]]
            store.put(prompt, torch.zeros(1, 2, 1, 1, 4))
        assert len(store) == len(lengths)
        calls.append(calls_of(partial(store.find, asked)))
        assert store.hits == ("hit" in kind)
    assert calls[0] == calls[1] < 100


def test_a_long_prompt_of_which_every_prefix_is_stored_gets_the_longest():
    """M9: prefixes of each other, of which some were dropped."""
    store, tokens = PromptStore(64 * 32), np.arange(100)
    for length in range(1, 101):
        store.put(tokens[:length], torch.zeros(1, 2, 1, 1, 4))
    assert len(store) == 64
    for length, found in ((100, 99), (99, 98), (37, 36), (36, None), (20, None)):
        cached = store.find(tokens[:length])
        assert (cached and cached.num_tokens) == found
    cached = store.find(np.r_[tokens[:50], 1, 2])
    assert cached is not None
    assert cached.num_tokens == 50
