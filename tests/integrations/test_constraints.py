"""`ConstraintLogitsProcessor` and `custom_generate` in transformers write what leafbeam's own search does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM, T5Config, T5ForConditionalGeneration

from leafbeam import BeamSearch, Trie
from leafbeam.automata import Automaton
from leafbeam.decode import SequenceSearch
from leafbeam.errors import ArgumentError, AutomatonError, CheckpointError, LogitsError
from leafbeam.integrations import CUSTOM_GENERATE, ConstraintLogitsProcessor, ItemConstraint
from leafbeam.integrations.served_items import ServedItems
from leafbeam.text import Choices, FreeText, JsonSchema, Regex, Template, TextGenerator, TextTokenizer
from tests.text.conftest import save_model

from .tiny import Model, step_fn_of

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["red lamp", "tea cup"]}, "price": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "price"],
    "additionalProperties": False,
}
WORDS = Choices(texts=["lamp", "lamps", "cup"])
PARTS = Template(parts=[FreeText(stop=".", max_length=6), JsonSchema(schema=SCHEMA), " ", WORDS])
TEXTS = ["A lamp", "As JSON: a red lamp", "In one word ", "naïve"]
TEXT_CONSTRAINTS = [Regex(pattern="[a-z]{2,5}"), JsonSchema(schema=SCHEMA), WORDS, PARTS]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("hf") / "model")


@pytest.fixture(scope="module")
def generator(directory: Path) -> TextGenerator:
    return TextGenerator.load(directory)


@pytest.fixture(scope="module")
def model(directory: Path) -> Model:
    loaded = Qwen3ForCausalLM.from_pretrained(directory).eval()
    loaded.generation_config.eos_token_id = 0  # the checkpoint also ends texts at token 3, which spells text
    return loaded


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Any:
    return PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"), eos_token="<|end|>", padding_side="left")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_a_legal_score_that_is_not_finite_is_an_error_that_names_its_row(
    scoring: Any, value: float, dtype: torch.dtype
) -> None:
    """A13: through the processor of texts; a score that is not legal may be anything."""
    automaton = Automaton.from_sequences([[1, 2], [3]], vocabulary_size=6)
    legal = ConstraintLogitsProcessor(automaton, eos_token_id=5, prompt_length=1, scoring=scoring)
    prompts, scores = torch.zeros(2, 1, dtype=torch.int64), torch.zeros(2, 6, dtype=dtype)
    scores[1, 2] = value
    assert legal(prompts, scores).isfinite().tolist() == [[False, True, False, True, False, False]] * 2
    scores[1, 3] = value
    with pytest.raises(LogitsError, match=r"row 1 hold NaN or \+inf among its legal tokens"):
        legal(prompts, scores)


@pytest.fixture(autouse=True)
def modules_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers copies the code of `custom_generate` to."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


def inputs_of(tokenizer: Any, texts: list[str]) -> dict[str, torch.Tensor]:
    tokenizer.pad_token = tokenizer.eos_token
    found = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    return {name: found[name] for name in ("input_ids", "attention_mask")}


@pytest.fixture(scope="module")
def items() -> ServedItems:
    """Sequences of tokens with filters; token 0 is the end."""
    rng = np.random.default_rng(3)
    index = Trie.from_sequences([rng.integers(1, 300, rng.integers(1, 4)).tolist() for _ in range(60)], vocabulary_size=340)
    return ServedItems(index=index, eos_token_id=0, filters={"even": index.filter(np.arange(60) % 2 == 0)})


def test_greedy_rows_with_a_constraint_each_equal_our_own_search(
    model: Model, generator: TextGenerator, tokenizer: Any, items: ServedItems
) -> None:
    sequences = Automaton.from_sequences([[5, 6, 7], [5, 9]], 340)
    one_of = ItemConstraint(items=items, rules=["even"], deny=[0, 2])
    texts = [*TEXTS, "A sequence", "An item"]
    inputs = inputs_of(tokenizer, texts)
    legal = ConstraintLogitsProcessor(
        [*TEXT_CONSTRAINTS, sequences, one_of], tokenizer, prompt_length=inputs["input_ids"].shape[1]
    )
    for _ in range(2):  # one object serves one call after the other
        written = model.generate(**inputs, logits_processor=[legal], max_new_tokens=60, do_sample=False)
        rows = legal.results(written)
        wanted = generator.generate(texts[:5], [*TEXT_CONSTRAINTS, sequences], max_tokens=60, scoring="full").texts
        assert [row.tokens for row in rows[:5]] == [found.tokens for (found,) in wanted]
        assert [row.text for row in rows[:5]] == [found.text for (found,) in wanted]
        assert all(row.finished for row in rows)
        assert set(json.loads(rows[1].text or "")) == {"name", "price"}
        assert [row.item_ids for row in rows[:5]] == [()] * 5
        assert rows[5].item_ids
        assert all(item % 2 == 0 and item not in (0, 2) for item in rows[5].item_ids)


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_beams_and_samples_stay_legal(model: Model, tokenizer: Any, scoring: Any) -> None:
    inputs = inputs_of(tokenizer, TEXTS[:3])
    width = inputs["input_ids"].shape[1]
    legal = ConstraintLogitsProcessor(TEXT_CONSTRAINTS[:3], tokenizer, prompt_length=width, scoring=scoring)
    patterns = ["[a-z]{2,5}", r'\{"name": ?"(red lamp|tea cup)", ?"price": ?\d{1,2}\}', "lamp|lamps|cup"]
    torch.manual_seed(0)
    for options in ({"num_beams": 4, "do_sample": False, "length_penalty": 0.0}, {"do_sample": True}):
        written = model.generate(**inputs, logits_processor=[legal], max_new_tokens=50, num_return_sequences=4, **options)
        rows = legal.results(written)
        assert any(row.finished for row in rows)
        for number, row in enumerate(rows):
            assert not row.finished or re.fullmatch(patterns[number // 4], row.text or ""), row


def test_a_text_that_is_cut_off_is_not_finished(model: Model, tokenizer: Any) -> None:
    inputs = inputs_of(tokenizer, ["A"])
    legal = ConstraintLogitsProcessor(
        JsonSchema(schema=SCHEMA), TextTokenizer.of(tokenizer), prompt_length=inputs["input_ids"].shape[1]
    )
    (row,) = legal.results(model.generate(**inputs, logits_processor=[legal], max_new_tokens=2, do_sample=False))
    assert not row.finished
    assert len(row.tokens) == 2


def test_allowed_scores_are_a_distribution_over_the_legal_tokens(model: Model, tokenizer: Any) -> None:
    legal = ConstraintLogitsProcessor(Regex(pattern="[ab]"), tokenizer, prompt_length=1, scoring="allowed")
    scores = torch.randn(2, 400)
    out = legal(torch.ones(2, 1, dtype=torch.int64), scores)
    allowed = torch.isfinite(out)
    assert allowed.sum(1).tolist() == [2, 2]
    torch.testing.assert_close(out[allowed], scores[allowed].view(2, 2).log_softmax(1).flatten())
    everything_excluded = legal(torch.ones(1, 1, dtype=torch.int64), torch.full((1, 400), -torch.inf))
    assert everything_excluded[0].isfinite().nonzero().flatten().tolist() == [tokenizer.eos_token_id]


# custom_generate.


def exact(model: Model, inputs: dict[str, torch.Tensor], **options: Any) -> Any:
    return model.generate(
        **inputs, custom_generate=CUSTOM_GENERATE, trust_remote_code=True, return_dict_in_generate=True, **options
    )


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("beams", [1, 4])
def test_custom_generate_is_our_own_search(
    model: Model, generator: TextGenerator, tokenizer: Any, beams: int, scoring: Any
) -> None:
    inputs = inputs_of(tokenizer, TEXTS)
    found = exact(
        model, inputs, constraint=TEXT_CONSTRAINTS, tokenizer=tokenizer, num_beams=beams, num_return_sequences=beams,
        max_new_tokens=60, scoring=scoring,
    )  # fmt: skip
    wanted = generator.generate(TEXTS, TEXT_CONSTRAINTS, max_tokens=60, num_beams=beams, scoring=scoring)
    width = inputs["input_ids"].shape[1]
    assert found.sequences.shape[0] == len(TEXTS) * beams
    for b, texts in enumerate(wanted.texts):
        for k, text in enumerate(texts):
            row = found.sequences[b * beams + k, width:].tolist()
            assert tuple(row[: len(text.tokens)]) == text.tokens
            assert set(row[len(text.tokens) :]) <= {tokenizer.eos_token_id}
            assert found.sequences_scores[b * beams + k] == pytest.approx(text.score, abs=1e-3)
    # The generator's greedy texts skip forced tokens each by itself; the rows of a batch of transformers jump together.
    assert found.result.rounds + found.result.rounds_saved == wanted.model_calls + wanted.calls_saved
    assert found.result.rounds >= wanted.model_calls
    assert torch.isneginf(found.sequences_scores).sum() == sum(beams - len(texts) for texts in wanted.texts)


@pytest.mark.parametrize("scoring", [pytest.param("full", marks=pytest.mark.slow), "allowed"])
def test_custom_generate_gives_the_same_texts_where_automata_are_on_a_gpu(
    model: Model, tokenizer: Any, scoring: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under Triton's interpreter, which takes what a search on a CUDA device takes."""
    options: dict[str, Any] = {
        "constraint": TEXT_CONSTRAINTS, "tokenizer": tokenizer, "num_beams": 2, "max_new_tokens": 6, "scoring": scoring
    }  # fmt: skip
    inputs = inputs_of(tokenizer, TEXTS)
    expected = exact(model, inputs, **options)
    devices: list[Any] = []

    def on_device(*arguments: Any, device: Any, **settings: Any) -> SequenceSearch:
        devices.append(device)
        return SequenceSearch(*arguments, **settings, backend="triton", device="cpu")

    monkeypatch.setattr("leafbeam.integrations.custom_generate.SequenceSearch", on_device)
    found = exact(model, inputs, **options)
    assert devices == [inputs["input_ids"].device]
    assert found.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(found.sequences_scores, expected.sequences_scores)


@pytest.mark.parametrize("ends", [[0, 3], [0, 1, 2], [68, 0, 93]])
def test_custom_generate_ends_on_each_end_token_and_fits_the_model(
    model: Model, generator: TextGenerator, tokenizer: Any, ends: list[int]
) -> None:
    """T5, T10: as our own generator with the same end tokens, and without a number of tokens."""
    spelled = TextTokenizer(tokenizer.backend_tokenizer, end=ends)
    constraint, words = Regex(pattern="[a-c!#{}]*"), "z? " * 150
    own = TextGenerator(generator.model, spelled)
    expected = own.default_max_tokens([own.tokens_of(words)])
    assert expected < 256
    for prompt, options in (("A lamp", {"max_new_tokens": 20}), (words, {})):
        found = exact(model, inputs_of(tokenizer, [prompt]), constraint=constraint, tokenizer=spelled, num_beams=2, **options)
        wanted = own.generate([prompt], constraint, max_tokens=options.get("max_new_tokens"), num_beams=2, scoring="full")
        assert found.result.tokens[0][0].tolist() == list(wanted.texts[0][0].tokens)
        assert found.result.finished[0, 0] == wanted.texts[0][0].finished


def test_custom_generate_runs_the_prompts_once(model: Model, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[tuple[int, ...]] = []
    forward = model.forward

    def counted(
        input_ids: Any, attention_mask: Any, past_key_values: Any, use_cache: Any, position_ids: Any, logits_to_keep: int = 0
    ) -> Any:
        widths.append(tuple(input_ids.shape))
        return forward(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=past_key_values, use_cache=use_cache,
            position_ids=position_ids, logits_to_keep=logits_to_keep,
        )  # fmt: skip

    monkeypatch.setattr(model, "forward", counted)
    inputs = inputs_of(tokenizer, TEXTS[:2])
    found = exact(model, inputs, constraint=TEXT_CONSTRAINTS[:2], tokenizer=tokenizer, num_beams=3, max_new_tokens=40)
    assert widths[0] == tuple(inputs["input_ids"].shape)
    assert all(rows == 6 for rows, _ in widths[1:])
    assert len(widths) == found.result.rounds


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
def test_custom_generate_finds_items_under_rules_of_each_request(model: Model, tokenizer: Any, scoring: Any) -> None:
    rng = np.random.default_rng(0)
    tokens = [np.arange(100, 112), np.arange(200, 209), np.arange(300, 314)]
    index = Trie.build(rng.integers(0, [12, 9, 14], (300, 3)), [12, 9, 14])
    fresh = index.filter(rng.random(300) < 0.3)
    items = ServedItems(index=index, eos_token_id=tokenizer.eos_token_id, code_tokens=tokens, filters={"fresh": fresh})
    inputs = inputs_of(tokenizer, TEXTS[:3])
    constraint = [
        ItemConstraint(items=items), ItemConstraint(items=items, rules=["fresh"]), ItemConstraint(items=items, deny=[1, 2])
    ]  # fmt: skip
    found = exact(model, inputs, constraint=constraint, num_beams=8, num_return_sequences=8, scoring=scoring)
    step_fn = step_fn_of(model, inputs, tokens, scoring)
    wanted = BeamSearch(index, num_beams=8, scoring=scoring).run(step_fn, 3, [None, fresh, None], [None, None, [1, 2]])
    for mine, own in zip(found.result.item_ids, wanted.item_ids, strict=True):
        np.testing.assert_array_equal(mine, own)
    np.testing.assert_allclose(found.sequences_scores.numpy().reshape(3, 8), wanted.scores[:, :8], atol=1e-4)
    first = [int(tokens[level][code]) for level, code in enumerate(wanted.codes[1, 0])]
    assert found.sequences[8, -3:].tolist() == first


@pytest.mark.parametrize("scoring", ["full", "allowed", "vocabulary"])
def test_custom_generate_proves_the_best_items_without_a_number_of_beams(model: Model, tokenizer: Any, scoring: Any) -> None:
    tokens = [np.arange(100, 112), np.arange(200, 209), np.arange(300, 314)]
    index = Trie.build(np.random.default_rng(0).integers(0, [12, 9, 14], (300, 3)), [12, 9, 14])
    fresh = index.filter(np.arange(300) % 7 == 0)
    items = ServedItems(index=index, eos_token_id=tokenizer.eos_token_id, code_tokens=tokens, filters={"fresh": fresh})
    inputs = inputs_of(tokenizer, TEXTS[:2])
    constraint = [ItemConstraint(items=items), ItemConstraint(items=items, rules=["fresh"])]
    found = exact(model, inputs, constraint=constraint, num_return_sequences=5, scoring=scoring)
    assert found.result.is_proved.all()
    step_fn = step_fn_of(model, inputs, tokens, scoring)
    wanted = BeamSearch(index, num_beams=300, scoring=scoring).run(step_fn, 2, [None, fresh])
    np.testing.assert_allclose(found.sequences_scores.numpy().reshape(2, 5), wanted.scores[:, :5], atol=1e-4)


def test_custom_generate_starts_a_second_pass_from_the_prompts(
    model: Model, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [np.arange(100, 112), np.arange(200, 209), np.arange(300, 314)]
    index = Trie.build(np.random.default_rng(0).integers(0, [12, 9, 14], (300, 3)), [12, 9, 14])
    items = ItemConstraint(items=ServedItems(index=index, eos_token_id=tokenizer.eos_token_id, code_tokens=tokens))
    inputs = inputs_of(tokenizer, TEXTS[:2])
    one_pass = exact(model, inputs, constraint=[items] * 2, num_return_sequences=5)
    monkeypatch.setattr("leafbeam.decode.beam_search.first_width", lambda share, num_items, scoring: 1)
    found = exact(model, inputs, constraint=[items] * 2, num_return_sequences=5)
    assert found.result.passes > 1
    assert found.result.is_proved.all()
    np.testing.assert_allclose(found.sequences_scores, one_pass.sequences_scores, atol=1e-4)


def test_custom_generate_finds_sequences_of_different_lengths(model: Model, tokenizer: Any, items: ServedItems) -> None:
    inputs = inputs_of(tokenizer, TEXTS[:2])
    found = exact(
        model, inputs, constraint=ItemConstraint(items=items, rules=["even"]), num_beams=40, num_return_sequences=40,
        eos_token_id=0, pad_token_id=399,
    )  # fmt: skip
    assert found.result.num_valid.tolist() == [30, 30]  # a short answer
    assert sorted(found.result.item_ids[0].tolist()) == list(range(0, 60, 2))
    width = inputs["input_ids"].shape[1]
    best = [token for token in found.sequences[0, width:].tolist() if token not in (0, 399)]
    assert items.item_ids(best).tolist().count(found.result.item_ids[0][0]) == 1
    assert found.sequences[39, width:].tolist() == [399] * (found.sequences.shape[1] - width)


# Bad input.


def test_constraints_that_do_not_fit_are_named(model: Model, tokenizer: Any, items: ServedItems) -> None:
    for constraint, error, message in [
        (Choices(texts=[]), AutomatonError, "choice"),
        (Regex(pattern="("), AutomatonError, "pattern"),
        (JsonSchema(schema={"type": "nothing"}), AutomatonError, "type"),
        ([], ArgumentError, "no constraints"),
        (ItemConstraint(items=items, rules=["absent"]), ArgumentError, "absent"),
    ]:
        with pytest.raises(error, match=message):
            ConstraintLogitsProcessor(constraint, tokenizer, prompt_length=1)
    for call, says in (
        (lambda: ConstraintLogitsProcessor(Regex(pattern="a"), eos_token_id=0, prompt_length=1), "tokenizer is missing"),
        (lambda: ConstraintLogitsProcessor(Automaton.from_sequences([[1]], 9), prompt_length=1), "eos_token_id is missing"),
        (lambda: ConstraintLogitsProcessor(ItemConstraint(items=items), eos_token_id=1, prompt_length=1), "end with token 0"),
        (lambda: ConstraintLogitsProcessor(Regex(pattern="a"), object(), prompt_length=1), "fast tokenizer"),
        (
            lambda: ConstraintLogitsProcessor(Regex(pattern="a"), TextTokenizer.of(tokenizer), eos_token_id=7, prompt_length=1),
            "expected the same",
        ),
    ):
        with pytest.raises(ArgumentError, match=says):
            call()


def test_calls_that_do_not_fit_are_named(model: Model, tokenizer: Any) -> None:
    legal = ConstraintLogitsProcessor([WORDS, WORDS], tokenizer, prompt_length=2)
    rows = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ArgumentError, match="tokenizer of the model"):
        legal(rows, torch.zeros(2, 100))
    with pytest.raises(ArgumentError, match="3 rows for 2 constraints"):
        legal(torch.ones(3, 2, dtype=torch.int64), torch.zeros(3, 400))
    with pytest.raises(ArgumentError, match="prompt_length=2"):
        legal(rows, torch.zeros(2, 400))  # token 1 begins none of the words
    with pytest.raises(ArgumentError, match="prompt_length"):
        legal(rows[:, :1], torch.zeros(2, 400))


def test_custom_generate_refuses_what_it_would_not_read(model: Model, tokenizer: Any, items: ServedItems) -> None:
    inputs = inputs_of(tokenizer, TEXTS[:2])
    words = {"constraint": WORDS, "tokenizer": tokenizer}
    for options, message in [
        ({**words, "do_sample": True}, "do_sample"),
        ({**words, "temperature": 0.3}, "temperature"),
        ({**words, "num_return_sequences": 2}, "num_return_sequences"),
        ({"tokenizer": tokenizer}, "constraint is missing"),
        ({"constraint": WORDS}, "tokenizer is missing"),
        ({"constraint": [WORDS], "tokenizer": tokenizer}, "1 constraint for 2 prompts"),
        ({"constraint": [WORDS, ItemConstraint(items=items)], "tokenizer": tokenizer}, "ServedItems"),
        ({"constraint": Automaton.from_sequences([[1]], 9)}, "eos_token_id is missing"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            exact(model, inputs, **options)
    for error, call, says in (
        (
            ArgumentError,
            lambda: exact(model, {**inputs, "attention_mask": inputs["attention_mask"].flip(1)}, **words),
            "padding on the left",
        ),
        (AutomatonError, lambda: exact(model, inputs, constraint=Choices(texts=[]), tokenizer=tokenizer), "choice"),
        (
            ValueError,
            lambda: model.generate(**inputs, custom_generate=CUSTOM_GENERATE, trust_remote_code=False, **words),
            "trust_remote_code",
        ),
    ):
        with pytest.raises(error, match=says):
            call()


def test_custom_generate_refuses_models_of_another_kind(model: Model, tokenizer: Any) -> None:
    config = T5Config(
        vocab_size=340, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    with pytest.raises(ArgumentError, match="encoder-decoder"):
        exact(T5ForConditionalGeneration(config), inputs_of(tokenizer, ["A"]), constraint=WORDS, tokenizer=tokenizer)
    small = Qwen3ForCausalLM(type(model.config)(**{**model.config.to_dict(), "vocab_size": 300}))
    with pytest.raises((ArgumentError, CheckpointError), match="tokens"):
        exact(small, {"input_ids": torch.ones(1, 2, dtype=torch.int64)}, constraint=WORDS, tokenizer=tokenizer)
