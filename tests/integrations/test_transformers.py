"""`generate` under a TrieLogitsProcessor is leafbeam's own search, whatever the beams do, and never leaves the index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import NoBadWordsLogitsProcessor
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

from benchmarks.peers.python_trie import PythonTrie
from leafbeam import BeamSearch, Trie
from leafbeam.integrations.transformers import TrieLogitsProcessor, prefix_allowed_tokens_fn
from leafbeam.model import Vocabulary

from .tiny import EOS, SIZES, WORDS, Kind, Model, Shop, beams, prompts, step_fn_of, tiny_qwen3


@pytest.mark.parametrize("extra", [0, 1, 4])
@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("kind", ["trie", "version"])
def test_generate_with_beams_is_the_beam_search(model: Model, kind: Kind, scoring: Any, extra: int) -> None:
    """Left padding, a filter for each request, one with fewer items than beams; room behind the item changes nothing."""
    shop, inputs = Shop(kind), prompts([5, 9, 7, 9])
    filters = [shop.filter(0.5), None, shop.filter(0.02), shop.filter(0.1)]
    deny = [None, [0, 1, 299], None, [7]]
    step_fn = step_fn_of(model, inputs, shop.tokens)
    wanted = BeamSearch(shop.index, num_beams=8, scoring=scoring).run(step_fn, 4, filters, deny)
    legal = shop.processor(inputs, filters=filters, deny=deny, scoring=scoring)
    found = beams(model, inputs, legal, 8, 3 + extra)
    result = legal.results(found.sequences, found.sequences_scores, num_return_sequences=8)
    assert result.num_valid.tolist() == wanted.num_valid.tolist()
    assert 0 < wanted.num_valid[2] < 8
    np.testing.assert_array_equal(result.codes, wanted.codes)
    np.testing.assert_allclose(result.scores, wanted.scores, atol=1e-5)
    for mine, its in zip(result.item_ids, wanted.item_ids, strict=True):
        np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("steps", [3, 5])
def test_vocabulary_scoring_equals_prefix_allowed_tokens_fn(model: Model, steps: int, in_place: bool) -> None:
    shop, inputs = Shop(), prompts([4, 6])
    assert isinstance(shop.index, Trie)
    width = inputs["input_ids"].shape[1]
    rows = np.stack([table[codes] for table, codes in zip(shop.tokens, shop.index.codes_of(range(300)).T, strict=True)], axis=1)
    functions = [
        PythonTrie(rows.tolist()).allowed_tokens(width, EOS),
        prefix_allowed_tokens_fn(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=width),
    ]
    mine = beams(model, inputs, shop.processor(inputs, scoring="vocabulary", in_place=in_place), 6, steps)
    for function in functions:
        its = beams(model, inputs, PrefixConstrainedLogitsProcessor(function, 6), 6, steps)
        assert torch.equal(mine.sequences, its.sequences)
        torch.testing.assert_close(mine.sequences_scores, its.sequences_scores)


def test_one_object_serves_any_number_of_generations(model: Model) -> None:
    """Also of another batch size, after one that was broken off, and from the middle of an item."""
    shop = Shop()
    first, second = prompts([6, 6], seed=1), prompts([6, 3, 5], seed=2)
    legal = shop.processor(first)
    wanted = [beams(model, inputs, shop.processor(inputs), 4).sequences for inputs in (first, second)]
    for _ in range(2):
        legal(first["input_ids"], torch.zeros(2, WORDS))  # begun, not finished
        assert torch.equal(beams(model, first, legal, 4).sequences, wanted[0])
        assert torch.equal(beams(model, second, legal, 4).sequences, wanted[1])
    begun = wanted[0][:1, :8]  # a prompt of six and two codes of an item
    inputs = {"input_ids": begun, "attention_mask": torch.ones_like(begun)}
    rest = beams(model, inputs, legal, 4, steps=1)
    result = legal.results(rest.sequences, num_return_sequences=4)
    assert result.num_valid[0] >= 1
    codes = [int(np.flatnonzero(table == token)[0]) for table, token in zip(shop.tokens, begun[0, 6:].tolist(), strict=False)]
    assert (result.codes[0, : result.num_valid[0], :2] == codes).all()


def test_greedy_and_sampling_stay_inside_and_come_out_the_same_under_every_scoring(model: Model) -> None:
    shop, inputs = Shop(), prompts([6, 4, 6])
    filters = [shop.filter(0.1), None, shop.filter(0.5)]
    sampled: list[torch.Tensor] = []
    greedy: list[torch.Tensor] = []
    for scoring in ("full", "allowed", "vocabulary"):
        legal = shop.processor(inputs, filters=filters, scoring=scoring)
        torch.manual_seed(3)
        options: dict[str, Any] = {"do_sample": True, "num_return_sequences": 6, "temperature": 0.7, "top_k": 5}
        sampled.append(model.generate(**inputs, logits_processor=[legal], max_new_tokens=5, **options))
        greedy.append(model.generate(**inputs, logits_processor=[legal], max_new_tokens=5, do_sample=False))
        result = legal.results(sampled[-1], num_return_sequences=6)
        assert (result.num_valid > 0).all()
        assert np.isnan(result.scores[0, 0])
        for found, one in zip(result.item_ids, filters, strict=True):
            assert one is None or all(int(item) in one for item in found)
        assert (legal.results(greedy[-1]).num_valid >= 1).all()
    assert all(torch.equal(one, sampled[0]) for one in sampled)
    assert all(torch.equal(one, greedy[0]) for one in greedy)
    assert (greedy[0][:, -2:] != EOS).sum() <= len(greedy[0])  # an end token, then padding


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True}, {"num_beams": 4, "num_return_sequences": 4}])
def test_a_request_with_nothing_allowed_ends_at_once(model: Model, options: dict[str, Any]) -> None:
    shop, inputs = Shop("version"), prompts([6, 6])
    filters = [shop.filter(0.0), shop.filter(0.2)]
    legal = shop.processor(inputs, filters=filters)
    found = model.generate(**inputs, logits_processor=[legal], max_new_tokens=4, **({"do_sample": False} | options))
    result = legal.results(found, num_return_sequences=options.get("num_return_sequences", 1))
    assert result.num_valid[0] == 0
    assert result.num_valid[1] >= 1


def test_an_empty_index_gives_empty_results(model: Model) -> None:
    inputs = prompts([6, 6])
    legal = TrieLogitsProcessor(
        Trie.build([], SIZES), code_tokens=Vocabulary(codebook_sizes=SIZES), eos_token_id=EOS, prompt_length=6
    )
    found = beams(model, inputs, legal, 3)
    assert legal.results(found.sequences, num_return_sequences=3).num_valid.tolist() == [0, 0]


def test_tokens_excluded_by_other_processors_give_a_short_answer_and_never_nan(model: Model) -> None:
    shop, inputs = Shop(), prompts([6, 6])
    legal = shop.processor(inputs, scoring="allowed")
    forbidden = NoBadWordsLogitsProcessor([[int(token)] for token in shop.tokens[1]], eos_token_id=EOS)
    for sample in (True, False):
        found = model.generate(
            **inputs, logits_processor=[forbidden, legal], max_new_tokens=4, do_sample=sample, num_return_sequences=1
        )
        assert legal.results(found).num_valid.tolist() == [0, 0]
    found = model.generate(**inputs, logits_processor=[forbidden, legal], max_new_tokens=3, num_beams=4, do_sample=False)
    assert legal.results(found).num_valid.tolist() == [0, 0]
    some = NoBadWordsLogitsProcessor([[int(token)] for token in shop.tokens[1][:5]], eos_token_id=EOS)
    found = beams(model, inputs, legal, 4)
    fewer = model.generate(**inputs, logits_processor=[some, legal], max_new_tokens=3, num_beams=4, do_sample=False)
    assert not np.isin(fewer[:, 7].numpy(), shop.tokens[1][:5]).any()
    assert legal.results(fewer).num_valid.tolist() == [1, 1]


def test_prompts_given_as_embeddings_have_length_zero(model: Model) -> None:
    shop, inputs = Shop(), prompts([6, 6])
    legal = TrieLogitsProcessor(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=0)
    embedded = {
        "inputs_embeds": model.get_input_embeddings()(inputs["input_ids"]).detach(),
        "attention_mask": inputs["attention_mask"],
    }
    found = beams(model, embedded, legal, 4)
    result = legal.results(found.sequences, found.sequences_scores, num_return_sequences=4)
    plain = shop.processor(inputs)
    its = beams(model, inputs, plain, 4)
    wanted = plain.results(its.sequences, its.sequences_scores, num_return_sequences=4)
    np.testing.assert_array_equal(result.codes, wanted.codes)


def test_assisted_generation_goes_back_and_forth(model: Model) -> None:
    """The assistant model runs ahead under the same processor, and the big one rejects some of its tokens."""
    shop, inputs = Shop(), prompts([6])
    helper = tiny_qwen3(hidden=16, layers=1, seed=8)
    wanted = model.generate(**inputs, logits_processor=[shop.processor(inputs)], max_new_tokens=3, do_sample=False)
    found = model.generate(
        **inputs, logits_processor=[shop.processor(inputs)], max_new_tokens=3, do_sample=False, assistant_model=helper
    )
    assert torch.equal(found, wanted)


def test_a_closed_set_of_sequences_comes_out_whole_and_scored(model: Model) -> None:
    """Titles as token sequences: as many beams as titles find all of them, with the model's own log-probabilities."""
    titles = [[5, 6], [5, 6, 7], [5, 9, 9, 9], [11], [40, 41]]
    index = Trie.from_sequences(titles, vocabulary_size=WORDS, item_ids=["a", "b", "c", "d", "e"])
    inputs = prompts([6])
    legal = TrieLogitsProcessor(index, eos_token_id=EOS, prompt_length=6, scoring="vocabulary")
    assert legal.num_tokens == 5
    found = beams(model, inputs, legal, 5, steps=5, early_stopping="never")
    result = legal.results(found.sequences, found.sequences_scores, num_return_sequences=5)
    assert sorted(result.item_ids[0].tolist()) == ["a", "b", "c", "d", "e"]
    for item, score in zip(result.item_ids[0].tolist(), result.scores[0], strict=True):
        title = [*titles["abcde".index(item)], EOS]
        sequence = torch.cat([inputs["input_ids"], torch.tensor([title])], 1)
        with torch.no_grad():
            log_p = model(input_ids=sequence).logits.log_softmax(-1)[0, 5:-1]
        assert float(log_p[range(len(title)), title].sum()) == pytest.approx(float(score), abs=1e-4)
    for options in ({"do_sample": True, "num_return_sequences": 8}, {"do_sample": False}):
        drawn = model.generate(**inputs, logits_processor=[legal], max_new_tokens=8, **options)
        result = legal.results(drawn, num_return_sequences=options.get("num_return_sequences", 1))
        assert 1 <= result.num_valid[0] <= 5
