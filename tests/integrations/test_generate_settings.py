"""Every setting of `generate` beside a processor of ours is applied, harmless, refused, or named in one warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from leafbeam import BeamSearch, Trie
from leafbeam.errors import ArgumentError, GenerationSettingsWarning
from leafbeam.integrations import CUSTOM_GENERATE, ConstraintLogitsProcessor, ItemConstraint
from leafbeam.integrations.served_items import ServedItems
from leafbeam.integrations.transformers import TrieLogitsProcessor, prefix_allowed_tokens_fn
from leafbeam.model.generation_settings import changing_settings

from .tiny import EOS, PAD, WORDS, Model, Shop, beams, prompts, step_fn_of, tiny_qwen3

CODE = int(Shop().tokens[1][0])  # the token of a code
WORD = next(token for token in range(3, WORDS) if all(token not in level for level in Shop().tokens))  # of none
TITLES = Trie.from_sequences([[5, 6], [5, 6, 7], [11]], vocabulary_size=WORDS)


@pytest.fixture
def inherited(model: Model) -> Iterator[Callable[..., None]]:
    """Set fields of the model's generation config, as its generation_config.json would."""
    before = model.generation_config
    model.generation_config = GenerationConfig(pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS)
    yield partial(_set, model)
    model.generation_config = before


def _set(model: Model, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(model.generation_config, name, value)


def bart(**fields: Any) -> Model:
    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=WORDS, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=16, decoder_ffn_dim=16, pad_token_id=PAD, bos_token_id=1, eos_token_id=EOS, decoder_start_token_id=EOS,
        init_std=0.3,
    )  # fmt: skip
    model = BartForConditionalGeneration(config).eval()
    _set(model, **fields)
    return model


def t5(**fields: Any) -> Model:
    torch.manual_seed(0)
    config = T5Config(vocab_size=WORDS, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    model = T5ForConditionalGeneration(config).eval()
    model.generation_config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD, **fields)
    return model


def gpt2(**fields: Any) -> Model:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=WORDS,
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=1,
        eos_token_id=EOS,
        initializer_range=0.3,
    )
    model = GPT2LMHeadModel(config).eval()
    model.generation_config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, **fields)
    return model


def encoder_decoder_processor(shop: Shop, prompt_length: int = 1) -> TrieLogitsProcessor:
    return TrieLogitsProcessor(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=prompt_length)


@pytest.mark.parametrize("make", [bart, lambda: t5(forced_eos_token_id=EOS), lambda: t5(forced_eos_token_id=[EOS, 1])])
def test_a_forced_end_token_is_refused_by_name_where_it_would_cut_items(make: Callable[[], Model]) -> None:
    """G1: BART forces the last of `max_new_tokens` tokens to be the end token."""
    shop, inputs, model = Shop(), prompts([6, 6]), make()
    legal = encoder_decoder_processor(shop)
    with pytest.raises(ArgumentError, match=r"forced_eos_token_id=.* an item has up to 3.* max_new_tokens=4"):
        beams(model, inputs, legal, 4)
    one_more = beams(model, inputs, legal, 4, steps=4)
    without = beams(model, inputs, legal, 4, forced_eos_token_id=None)
    for output in (one_more, without):
        result = legal.results(output.sequences, output.sequences_scores, num_return_sequences=4)
        assert result.num_valid.tolist() == [4, 4]
    torch.testing.assert_close(one_more.sequences_scores, without.sequences_scores)


def test_a_forced_end_token_of_a_decoder_only_model_is_refused(inherited: Any, model: Model) -> None:
    """G1: also from a checkpoint's file, greedily, for sequences, through the callback, and where it is not our end token."""
    shop, inputs = Shop(), prompts([6, 6])
    inherited(forced_eos_token_id=EOS)
    legal = shop.processor(inputs)
    titles = TrieLogitsProcessor(TITLES, eos_token_id=EOS, prompt_length=6)
    allowed = prefix_allowed_tokens_fn(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=6)
    for options in ({"logits_processor": [legal]}, {"prefix_allowed_tokens_fn": allowed}):
        with pytest.raises(ArgumentError, match="forced_eos_token_id=2"):
            model.generate(**inputs, max_new_tokens=3, **options)
    with pytest.raises(ArgumentError, match="forced_eos_token_id=2"):
        model.generate(**inputs, max_new_tokens=titles.num_tokens, logits_processor=[titles])
    with pytest.raises(ArgumentError, match=r"forced_eos_token_id=2 with max_new_tokens=4"):
        model.generate(**inputs, max_new_tokens=9, forced_eos_token_id=WORD, logits_processor=[legal])


@pytest.mark.parametrize("make", [bart, t5])
@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"do_sample": True}])
def test_a_forced_first_token_is_refused_and_may_be_part_of_the_prompt(make: Any, options: dict[str, Any]) -> None:
    """G1"""
    shop, inputs, model = Shop(), prompts([6, 6]), make(forced_bos_token_id=WORD)
    options = {"max_new_tokens": 4, "do_sample": False} | options
    legal, allowed = (
        encoder_decoder_processor(shop),
        prefix_allowed_tokens_fn(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=1),
    )
    for own in ({"logits_processor": [legal]}, {"prefix_allowed_tokens_fn": allowed}):
        with pytest.raises(ArgumentError, match=rf"forced_bos_token_id={WORD}.*prompt_length=2"):
            model.generate(**inputs, **own, **options)
    legal = encoder_decoder_processor(shop, prompt_length=2)
    start = torch.tensor([[model.generation_config.decoder_start_token_id, WORD]] * 2)
    output = model.generate(**inputs, decoder_input_ids=start, logits_processor=[legal], **options)
    assert legal.results(output).num_valid.tolist() == [1, 1]


def test_a_prompt_of_more_tokens_has_no_forced_first_token(model: Model) -> None:
    """G1: `generate` forces it only where one token came before."""
    shop, inputs = Shop(), prompts([6, 6])
    legal = shop.processor(inputs)
    output = model.generate(**inputs, forced_bos_token_id=WORD, max_new_tokens=3, logits_processor=[legal])
    assert legal.results(output).num_valid.tolist() == [1, 1]
    short = prompts([1, 1])
    with pytest.raises(ArgumentError, match="forced_bos_token_id"):
        model.generate(**short, forced_bos_token_id=WORD, max_new_tokens=3, logits_processor=[shop.processor(short)])


# What each setting of the model's generation config does, with a value other than its default.
WARNED: dict[str, Any] = {
    "repetition_penalty": 1.8,
    "encoder_repetition_penalty": 1.5,
    "no_repeat_ngram_size": 2,
    "encoder_no_repeat_ngram_size": 2,
    "bad_words_ids": [[CODE]],
    "sequence_bias": {(CODE,): -5.0},
    "suppress_tokens": [CODE],
    "begin_suppress_tokens": [int(Shop().tokens[0][0])],
    "remove_invalid_values": True,
    "renormalize_logits": True,
    "watermarking_config": {"bias": 2.5, "seeding_scheme": "selfhash"},
    "max_time": 1000.0,
    "do_sample": True,
    "length_penalty": 2.0,
}
SAMPLED: dict[str, Any] = {
    "temperature": 0.3,
    "top_k": 2,
    "top_p": 0.5,
    "min_p": 0.3,
    "top_h": 0.4,
    "typical_p": 0.5,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
}
OF_TEXTS: dict[str, Any] = {
    "min_length": 4,
    "min_new_tokens": 2,
    "exponential_decay_length_penalty": (0, 2.0),
    "early_stopping": True,
}
NEEDS_MORE: dict[str, Any] = {
    "guidance_scale": 2.0,
    "token_healing": True,
    "stop_strings": ["a"],
    "assistant_ensemble_weight": 0.5,
}
REFUSED = {"forced_bos_token_id", "forced_eos_token_id", "eos_token_id"}
BY_TRANSFORMERS = {"penalty_alpha", "dola_layers", "diversity_penalty", "num_beam_groups", "constraints", "force_words_ids"}
APPLIED = {"max_length", "max_new_tokens", "num_beams", "num_return_sequences", "decoder_start_token_id", "bos_token_id"}
HARMLESS = {
    # speed and memory, without a change beyond rounding; assisted decoding keeps the distribution
    "use_cache", "cache_implementation", "cache_config", "max_cache_len", "low_memory", "compile_config", "disable_compile",
    "prefill_chunk_size", "use_mtp", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "speculation_type", "continuous_batching_config",
    # outputs; padding follows an end token
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "pad_token_id",
    "transformers_version",
}  # fmt: skip


def test_every_field_of_a_generation_config_is_known() -> None:
    """G2: a new field of transformers has to be put into one of these groups."""
    known = {*WARNED, *SAMPLED, *OF_TEXTS, *NEEDS_MORE} | REFUSED | BY_TRANSFORMERS | APPLIED | HARMLESS
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields - known == set()
    settings = {**WARNED, **SAMPLED, **OF_TEXTS, **NEEDS_MORE, "num_beams": 4}
    found = changing_settings(settings, lambda token: True, same_length=False)
    assert set(found) == {*WARNED, *SAMPLED, *OF_TEXTS, *NEEDS_MORE}
    defaults = GenerationConfig._get_default_generation_params()  # pyright: ignore[reportPrivateUsage]
    neutral: dict[str, Any] = dict.fromkeys(fields) | defaults | {"num_beams": 4}
    assert changing_settings(neutral, lambda token: True, same_length=False) == {}


@pytest.mark.parametrize(("name", "value"), WARNED.items())
@pytest.mark.parametrize("scoring", ["full", "vocabulary"])
def test_a_setting_of_the_checkpoint_is_named_in_one_warning(
    inherited: Any, model: Model, name: str, value: Any, scoring: Any
) -> None:
    """G2: with the value that turns it off, after which answers are those of leafbeam's search."""
    shop, inputs = Shop(), prompts([6, 6])
    plain = shop.processor(inputs, scoring=scoring)
    wanted = plain.results(beams(model, inputs, plain, 4).sequences, num_return_sequences=4)
    inherited(**{name: GenerationConfig(**{name: value}).__dict__[name]})
    legal = shop.processor(inputs, scoring=scoring)
    options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 3}
    if name.startswith("encoder_"):
        model.generation_config.length_penalty = 0.0  # these also need an encoder's prompt, which `generate` says by itself
    with pytest.warns(GenerationSettingsWarning, match=f"sets {name}=") as caught:
        model.generate(**inputs, logits_processor=[legal], **options)
    assert len([one for one in caught if one.category is GenerationSettingsWarning]) == 1
    off = changing_settings({name: value, "num_beams": 4}, lambda token: True, same_length=True)[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", GenerationSettingsWarning)
        output = model.generate(**inputs, logits_processor=[legal], **options, **{name: off})
    result = legal.results(output, num_return_sequences=4)
    assert [ids.tolist() for ids in result.item_ids] == [ids.tolist() for ids in wanted.item_ids]


@pytest.mark.parametrize("make", [gpt2, bart, t5])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_sampling_settings_are_named_where_the_checkpoint_samples(make: Any, num_beams: int) -> None:
    """G2: not where `generate` is told not to sample."""
    shop, inputs, model = Shop(), prompts([6, 6]), make()
    for name, value in {"do_sample": True, "temperature": 0.5, "top_k": 3}.items():
        setattr(model.generation_config, name, value)
    model.generation_config.forced_eos_token_id = None
    length = 1 if model.config.is_encoder_decoder else 6
    legal = encoder_decoder_processor(shop, prompt_length=length)
    options: dict[str, Any] = {"logits_processor": [legal], "num_beams": num_beams, "max_new_tokens": 3}
    with pytest.warns(GenerationSettingsWarning, match=r"do_sample=True, temperature=0.5, top_k=3"):
        model.generate(**inputs, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GenerationSettingsWarning)
        model.generate(**inputs, **options, do_sample=False)
        model.generate(**inputs, **options, do_sample=True, temperature=0.7, top_k=4)  # the caller's own


@pytest.mark.parametrize(("name", "value"), OF_TEXTS.items())
def test_settings_of_the_end_token_are_named_for_sequences_alone(inherited: Any, model: Model, name: str, value: Any) -> None:
    """G2: items of one length end where they end."""
    shop, inputs = Shop(), prompts([6, 6])
    plain = shop.processor(inputs)
    wanted = beams(model, inputs, plain, 4)
    inherited(**{name: value})
    titles = TrieLogitsProcessor(TITLES, eos_token_id=EOS, prompt_length=6)
    with pytest.warns(GenerationSettingsWarning, match=f"sets {name}="):
        model.generate(**inputs, logits_processor=[titles], max_new_tokens=4, num_beams=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GenerationSettingsWarning)
        output = beams(model, inputs, plain, 4)
    assert torch.equal(output.sequences, wanted.sequences)
    torch.testing.assert_close(output.sequences_scores, wanted.sequences_scores)


@pytest.mark.parametrize(("name", "value"), [("bad_words_ids", [[WORD], [CODE, PAD]]), ("suppress_tokens", [WORD, PAD, 1])])
def test_excluded_tokens_that_no_item_has_are_harmless(inherited: Any, model: Model, name: str, value: Any) -> None:
    """G2: as of Marian, whose generation config excludes its padding."""
    shop, inputs = Shop(), prompts([6, 6])
    legal = shop.processor(inputs)
    wanted = beams(model, inputs, legal, 4)
    inherited(**{name: value})
    with warnings.catch_warnings():
        warnings.simplefilter("error", GenerationSettingsWarning)
        output = beams(model, inputs, legal, 4)
    assert torch.equal(output.sequences, wanted.sequences)


def test_the_checkpoints_number_of_sequences_is_the_one_of_results(inherited: Any, model: Model) -> None:
    """G2, G4"""
    shop, inputs = Shop(), prompts([6, 6])
    inherited(num_beams=4, num_return_sequences=3)
    legal = shop.processor(inputs)
    output = model.generate(**inputs, logits_processor=[legal], max_new_tokens=3)
    with pytest.raises(ArgumentError, match="returned 3 sequences for each request"):
        legal.results(output)
    assert legal.results(output, num_return_sequences=3).num_valid.tolist() == [3, 3]


def test_a_shortest_length_beyond_an_item_is_refused(inherited: Any, model: Model) -> None:
    """G2: nothing could end."""
    inputs = prompts([6, 6])
    titles = TrieLogitsProcessor(TITLES, eos_token_id=EOS, prompt_length=6)
    for fields in ({"min_new_tokens": 8}, {"min_length": 20}):
        with pytest.raises(ArgumentError, match="allows no end token before min_new_tokens"):
            model.generate(**inputs, logits_processor=[titles], max_new_tokens=20, **fields)


@pytest.mark.parametrize("eos", [WORD, CODE, [WORD, CODE], [CODE, EOS]])
@pytest.mark.parametrize("steps", [3, 5])
def test_another_end_token_is_refused(model: Model, eos: Any, steps: int) -> None:
    """G3: by keyword, for beams, greedily, through the callback and from a generation config."""
    shop, inputs = Shop(), prompts([6, 6])
    legal = shop.processor(inputs)
    allowed = prefix_allowed_tokens_fn(shop.index, code_tokens=shop.tokens, eos_token_id=EOS, prompt_length=6)
    with pytest.raises(ArgumentError, match="eos_token_id="):
        beams(model, inputs, legal, 4, steps=steps, eos_token_id=eos)
    for own in ({"logits_processor": [legal]}, {"prefix_allowed_tokens_fn": allowed}):
        with pytest.raises(ArgumentError, match="eos_token_id="):
            model.generate(**inputs, max_new_tokens=steps, eos_token_id=eos, **own)
        with pytest.raises(ArgumentError, match="eos_token_id="):
            model.generate(**inputs, generation_config=GenerationConfig(max_new_tokens=steps, eos_token_id=eos), **own)


def test_further_end_tokens_that_no_item_has_are_harmless(model: Model) -> None:
    """G3: as Qwen3 and Llama 3 have them; for sequences too, whose codes may be any token."""
    shop, inputs = Shop(), prompts([6, 6])
    for legal in (shop.processor(inputs), TrieLogitsProcessor(TITLES, eos_token_id=EOS, prompt_length=6)):
        wanted = model.generate(**inputs, logits_processor=[legal], max_new_tokens=5, do_sample=False)
        output = model.generate(**inputs, logits_processor=[legal], max_new_tokens=5, eos_token_id=[WORD, EOS])
        assert torch.equal(output, wanted)
    legal = TrieLogitsProcessor(TITLES, eos_token_id=EOS, prompt_length=6)
    with pytest.raises(ArgumentError, match="ends a sequence at token 6"):
        model.generate(**inputs, logits_processor=[legal], max_new_tokens=5, eos_token_id=[6, EOS])


def test_no_end_token_is_refused_where_one_is_needed(model: Model, inherited: Any) -> None:
    """G3: a model that has none gives whole items of one length."""
    shop, inputs = Shop(), prompts([6, 6])
    legal = shop.processor(inputs)
    inherited(eos_token_id=None)
    output = beams(model, inputs, legal, 4)
    assert legal.results(output.sequences, output.sequences_scores, num_return_sequences=4).num_valid.tolist() == [4, 4]
    with pytest.raises(ArgumentError, match="eos_token_id=None"):
        beams(model, inputs, legal, 4, steps=4)


def test_a_constraint_of_texts_needs_the_models_end_token(model: Model) -> None:
    """G3, G1, G2: as for items."""
    shop, inputs = Shop(), prompts([6, 6])
    items = ItemConstraint(items=ServedItems(index=shop.index, eos_token_id=EOS, code_tokens=shop.tokens))
    legal = ConstraintLogitsProcessor(items, eos_token_id=EOS, prompt_length=6)
    for eos in (WORD, [CODE, EOS]):
        with pytest.raises(ArgumentError, match="eos_token_id="):
            model.generate(**inputs, logits_processor=[legal], max_new_tokens=5, eos_token_id=eos)
    model.generation_config.repetition_penalty = 1.3
    try:
        with pytest.warns(GenerationSettingsWarning, match=r"repetition_penalty=1.3"):
            model.generate(**inputs, logits_processor=[legal], max_new_tokens=5)
    finally:
        model.generation_config.repetition_penalty = None
    assert all(row.finished for row in legal.results(model.generate(**inputs, logits_processor=[legal], max_new_tokens=5)))


@pytest.mark.parametrize(("requests", "each", "passed"), [(2, 4, 8), (2, 4, 2), (2, 4, 1), (3, 2, 6), (4, 1, 2), (1, 4, 2)])
@pytest.mark.parametrize("sample", [False, True])
def test_another_number_of_sequences_is_refused(model: Model, requests: int, each: int, passed: int, sample: bool) -> None:
    """G4: whatever the number of beams; several requests may have the same prompt."""
    shop, inputs = Shop(), prompts([6] * requests)
    inputs = {name: values[:1].expand(requests, -1) for name, values in inputs.items()}
    legal = shop.processor(inputs)
    options = {"do_sample": True} if sample else {"num_beams": 4, "do_sample": False}
    output = model.generate(**inputs, logits_processor=[legal], max_new_tokens=3, num_return_sequences=each, **options)
    with pytest.raises(ArgumentError, match=f"num_return_sequences is {passed}, but `generate` returned {each} sequences?"):
        legal.results(output, num_return_sequences=passed)
    assert (legal.results(output, num_return_sequences=each).num_valid >= 1).all()


def test_rows_of_different_prompts_are_not_one_request(model: Model) -> None:
    """G4: where a processor did not see `generate` itself, such as another object of the same settings."""
    shop, inputs = Shop(), prompts([6, 6])
    output = beams(model, inputs, shop.processor(inputs), 4)
    with pytest.raises(ArgumentError, match="returned fewer sequences for each request"):
        shop.processor(inputs).results(output.sequences, num_return_sequences=8)
    earlier = shop.processor(inputs)  # the results of an earlier call, after one with other numbers
    first = beams(model, inputs, earlier, 4)
    beams(model, inputs, earlier, 2)
    assert earlier.results(first.sequences, num_return_sequences=4).num_valid.tolist() == [4, 4]


def test_a_time_limit_that_ends_items_is_named_instead_of_max_new_tokens(model: Model) -> None:
    """G5: which was passed."""
    shop, inputs = Shop(), prompts([6, 6])
    legal = shop.processor(inputs)
    output = model.generate(**inputs, logits_processor=[legal], max_new_tokens=3, max_time=1e-9)
    with pytest.raises(ArgumentError, match=r"stopped after 1 token.* no stopping criterion or time limit"):
        legal.results(output)


def test_exact_beams_refuse_the_callers_settings_and_name_the_checkpoints(
    model: Model, inherited: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2, G1: `custom_generate` does not apply them; its answers are those of leafbeam's search."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    shop, inputs = Shop(), prompts([6, 6])
    items = ItemConstraint(items=ServedItems(index=shop.index, eos_token_id=EOS, code_tokens=shop.tokens))
    options = {"custom_generate": CUSTOM_GENERATE, "trust_remote_code": True, "constraint": items, "num_beams": 4}
    with pytest.raises(ArgumentError, match=r"generation_config sets repetition_penalty=1.5"):
        model.generate(**inputs, **options, generation_config=GenerationConfig(repetition_penalty=1.5))
    for own in ({"generation_config": GenerationConfig(eos_token_id=9)}, {"eos_token_id": 9}):
        with pytest.raises(ArgumentError, match=r"eos_token_id is 9, and the constraint ends with 2"):  # G3
            model.generate(**inputs, **options, **own)
    inherited(repetition_penalty=1.5, forced_eos_token_id=EOS, do_sample=True, top_k=2)
    with pytest.warns(
        GenerationSettingsWarning, match=r"repetition_penalty=1.5, do_sample=True, top_k=2, forced_eos_token_id=2"
    ):
        output = model.generate(**inputs, **options, num_return_sequences=4, return_dict_in_generate=True)
    wanted = BeamSearch(shop.index, num_beams=4).run(step_fn_of(model, inputs, shop.tokens), 2)
    np.testing.assert_array_equal(output.result.codes, wanted.codes)


@pytest.mark.parametrize("temperature", [1.0, 0.01, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_beam_samples_at_small_temperatures_are_allowed_items(temperature: float, dtype: torch.dtype) -> None:
    """Public reports say that transformers' beam samples become NaN there, or where fewer items are legal than beams."""
    shop, inputs, model = Shop(), prompts([6, 6, 6]), tiny_qwen3().to(dtype)
    one, none = shop.index.filter(item_ids=[17]), shop.index.filter(item_ids=[])
    legal = shop.processor(inputs, filters=[one, None, none])
    output = model.generate(
        **inputs, logits_processor=[legal], num_beams=4, num_return_sequences=4, do_sample=True, temperature=temperature,
        max_new_tokens=3, length_penalty=0.0, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    result = legal.results(output.sequences, output.sequences_scores, num_return_sequences=4)
    assert result.num_valid[[0, 2]].tolist() == [1, 0]
    assert result.num_valid[1] >= 1  # sampled beams may repeat
    assert result.item_ids[0].tolist() == [17]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_checkpoint_that_excludes_its_padding_and_renormalises_is_named_for_the_second_alone(num_beams: int) -> None:
    """G2: a public report: Marian's padding is in bad_words_ids, and its configs were given renormalize_logits."""
    shop, inputs, model = Shop(), prompts([6, 6]), t5(bad_words_ids=[[PAD]], renormalize_logits=True)
    legal = encoder_decoder_processor(shop)
    with pytest.warns(GenerationSettingsWarning, match=r"sets renormalize_logits=True, and"):
        model.generate(**inputs, logits_processor=[legal], num_beams=num_beams, max_new_tokens=3)
