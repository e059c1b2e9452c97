"""`generate` under a TrieLogitsProcessor is leafbeam's own search, whatever the beams do, and never leaves the index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import NoBadWordsLogitsProcessor, T5Config, T5ForConditionalGeneration
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor

from benchmarks.peers.python_trie import PythonTrie
from leafbeam import BeamSearch, Trie
from leafbeam.errors import ArgumentError
from leafbeam.index import Segment, Version
from leafbeam.integrations.transformers import TrieLogitsProcessor, prefix_allowed_tokens_fn
from leafbeam.model import Vocabulary

from .tiny import EOS, PAD, SIZES, WORDS, Kind, Model, Shop, beams, prompts, step_fn_of, tiny_qwen3


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


@pytest.mark.parametrize("kind", ["trie", "version"])
def test_a_batch_of_different_filters_is_one_request_after_the_other(model: Model, kind: Kind) -> None:
    shop, inputs = Shop(kind), prompts([6, 6, 6])
    filters = [shop.filter(0.3), shop.filter(0.05), None]
    legal = shop.processor(inputs, filters=filters)
    together = beams(model, inputs, legal, 5)
    for request, one in enumerate(filters):
        alone = {name: value[request : request + 1] for name, value in inputs.items()}
        by_itself = shop.processor(alone, filters=one)
        found = beams(model, alone, by_itself, 5)
        mine = slice(5 * request, 5 * request + 5)
        assert torch.equal(found.sequences, together.sequences[mine])
        torch.testing.assert_close(found.sequences_scores, together.sequences_scores[mine])


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


def test_the_models_own_logits_stay_as_they_are(model: Model) -> None:
    shop, inputs = Shop(), prompts([6])
    legal = shop.processor(inputs)
    options: dict[str, Any] = {"max_new_tokens": 3, "return_dict_in_generate": True, "output_logits": True, "do_sample": False}
    masked = model.generate(**inputs, logits_processor=[legal], **options)
    free = model.generate(**inputs, **options)
    assert torch.equal(masked.logits[0], free.logits[0])


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True}, {"num_beams": 4, "num_return_sequences": 4}])
def test_a_request_with_nothing_allowed_ends_at_once(model: Model, options: dict[str, Any]) -> None:
    shop, inputs = Shop("version"), prompts([6, 6])
    filters = [shop.filter(0.0), shop.filter(0.2)]
    legal = shop.processor(inputs, filters=filters)
    found = model.generate(**inputs, logits_processor=[legal], max_new_tokens=4, **({"do_sample": False} | options))
    result = legal.results(found, num_return_sequences=options.get("num_return_sequences", 1))
    assert result.num_valid[0] == 0
    assert result.num_valid[1] >= 1


def test_too_few_new_tokens_are_refused_by_name(model: Model) -> None:
    shop, inputs = Shop(), prompts([6, 6])
    legal = shop.processor(inputs)
    found = beams(model, inputs, legal, 4, steps=2)
    with pytest.raises(ArgumentError, match=r"stopped after 2 tokens inside 8 items.* pass max_new_tokens=3"):
        legal.results(found.sequences, num_return_sequences=4)


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


def test_an_encoder_decoder_model_has_a_prompt_of_one() -> None:
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=PAD, eos_token_id=EOS
    )
    shop, inputs = Shop(), prompts([6, 6])
    legal = TrieLogitsProcessor(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=1)
    found = beams(T5ForConditionalGeneration(config).eval(), inputs, legal, 4)
    assert legal.results(found.sequences, num_return_sequences=4).num_valid.tolist() == [4, 4]


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


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.data())
def test_generate_never_returns_an_item_that_is_not_allowed(small_model: Model, data: st.DataObject) -> None:
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    num_items, batch = draw(st.integers(0, 40)), draw(st.integers(1, 3))
    codes = rng.integers(0, sizes, (num_items, len(sizes)))
    if draw(st.booleans()):  # levels share their tokens, or do not
        tokens = [rng.permutation(np.arange(3, 3 + size)) for size in sizes]
    else:
        tokens = np.split(rng.permutation(np.arange(3, 40))[: sum(sizes)], np.cumsum(sizes)[:-1])
    packed = draw(st.booleans())
    index: Trie | Version = Trie.build(codes, sizes, packed=packed)
    if num_items and draw(st.booleans()):
        cut = int(rng.integers(0, num_items))
        base = Trie.build(codes[:cut], sizes, packed=packed)
        delta = Trie.build(codes[cut:], sizes, item_ids=np.arange(cut, num_items))
        index = Version(segments=(Segment(trie=base, live=base.filter(rng.random(cut) < 0.8)), Segment(trie=delta)))
    version = Version.of(index)
    alive = version.filter_of([None] * len(version.segments)).item_ids()
    filters = [version.filter(item_ids=alive[rng.random(len(alive)) < share]) for share in rng.choice([0.1, 0.5, 1.0], batch)]
    shared = draw(st.booleans())
    deny = None if draw(st.booleans()) else [rng.integers(0, 50, 5) for _ in range(batch)]
    width = draw(st.integers(1, 6))
    options: dict[str, Any] = {"do_sample": draw(st.booleans()), "max_new_tokens": len(sizes) + draw(st.integers(0, 2))}
    with_beams = draw(st.booleans()) and width > 1
    if with_beams:
        options |= {"num_beams": width, "length_penalty": 0.0}
    returned = width if with_beams or options["do_sample"] else 1
    inputs = prompts(rng.integers(1, 5, batch).tolist(), words=40)
    legal = TrieLogitsProcessor(
        version,
        code_tokens=tokens,
        eos_token_id=EOS,
        prompt_length=inputs["input_ids"].shape[1],
        filters=filters[0] if shared else filters,
        deny=deny,
        scoring=draw(st.sampled_from(["full", "allowed", "vocabulary"])),
        in_place=draw(st.booleans()),
    )
    torch.manual_seed(1)
    found = small_model.generate(**inputs, logits_processor=[legal], num_return_sequences=returned, **options)
    result = legal.results(found, num_return_sequences=returned)
    for request in range(batch):
        allowed = set((filters[0] if shared else filters[request]).item_ids().tolist())
        allowed -= set() if deny is None else set(deny[request].tolist())
        shown = result.item_ids[request].tolist()
        assert set(shown) <= allowed
        assert len(set(shown)) == len(shown)
        assert bool(shown) == bool(allowed)
        if (
            with_beams and not options["do_sample"]
        ):  # nothing is missing either: K beams give K items, where so many may be shown
            kinds = {tuple(row) for row in codes[sorted(allowed)]}
            assert len({tuple(row) for row in result.codes[request, : len(shown)]}) <= min(width, len(kinds))
            assert len(shown) == min(width, len(allowed)) or len(kinds) > len(shown) > 0
            assert len(shown) >= min(width, len(kinds))


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
