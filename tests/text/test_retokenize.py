"""Text-level jump-forward: texts equal those of a search that runs the whole model on every prefix, for fewer calls."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from leafbeam.automata import Automaton
from leafbeam.errors import ArgumentError
from leafbeam.model import ModelConfig, TextTokens, Transformer
from leafbeam.text import Choices, FreeText, JsonSchema, Regex, Sampling, Template, TextConstraint, TextGenerator, TextTokenizer

from .schemas import FAMILIES

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["red lamp", "tea cup"]},
        "price": {"type": "integer", "minimum": 1, "maximum": 99},
        "in_stock": {"type": "boolean"},
    },
    "required": ["name", "price", "in_stock"],
}
CONSTRAINTS: dict[str, TextConstraint] = {
    "schema": JsonSchema(schema=SCHEMA),
    "regex": Regex(pattern="(naïve|nature): [a-c]{2} and so on(!|\\?) ü{3}"),
    "choices": Choices(texts=["red lamp", "red lantern", "tea cup"]),
    "template": Template(parts=["It is: ", FreeText(stop=".", max_length=5), " So ", Choices(texts=["lamp", "cup"]), "!"]),
    "one text": Choices(texts=["naïve and über"]),
}
PROMPTS = ["A red lamp: ", "tea", "naïve über lamp and "]


def reference(generator: TextGenerator, prompt: str, automaton: Automaton, max_tokens: int) -> tuple[list[int], float, bool]:
    """The definition, with a whole pass of the model in float64 for each choice and no cache."""
    tokenizer, model = generator.tokenizer, generator.model.double()
    start, tokens, score, seen = tokenizer.encode(prompt), list[int](), 0.0, 0

    def state_of(ids: list[int]) -> int:
        state = 0
        for token in ids:
            state = automaton.next(state, token)
        return state

    def jump() -> bool:
        """Replace the last token that the model has read and those after it, with the forced text behind them."""
        forced = automaton.forced_bytes(state_of(tokens))
        while forced and forced[-1] >= 0x80 and forced.decode("utf-8", "ignore").encode() != forced:
            forced = forced[:-1]
        for first in sorted({max(0, seen - 1), seen, len(tokens)}) if forced else ():
            text = b"".join(tokenizer.token_bytes[token] or b"" for token in tokens[first:]) + forced
            try:
                again = tokenizer.encode(text.decode(), add_special=False)
            except UnicodeDecodeError:
                continue
            if first == len(tokens) or first + len(again) <= max_tokens:
                tokens[first:] = again[: max_tokens - first]
                return True
        return False

    try:
        jump()
        while len(tokens) < max_tokens:
            state = state_of(tokens)
            if automaton.is_final(state) and tokens:
                return tokens, score, True
            with torch.inference_mode():
                logits_V = model.logits(model(torch.tensor([[*start, *tokens]]))[0, -1])
            seen = len(tokens)
            legal = [*automaton.allowed(state).tolist(), *([tokenizer.end] if automaton.accepts(state) else [])]
            log_p = torch.log_softmax(logits_V[legal], 0)
            best = int(log_p.argmax())
            score += float(log_p[best])
            if legal[best] == tokenizer.end:
                return tokens, score, True
            tokens.append(legal[best])
            if len(tokens) < max_tokens:
                jump()
        return tokens, score, False
    finally:
        model.float()


@pytest.mark.parametrize("max_tokens", [60, 9])
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_texts_equal_those_of_whole_passes_under_the_same_tokens(generator: TextGenerator, name: str, max_tokens: int):
    automaton = generator.compile(CONSTRAINTS[name])
    result = generator.generate(PROMPTS, CONSTRAINTS[name], max_tokens=max_tokens, retokenize=True)
    for prompt, (found,) in zip(PROMPTS, result.texts, strict=True):
        tokens, score, finished = reference(generator, prompt, automaton, max_tokens)
        assert list(found.tokens) == tokens
        assert found.score == pytest.approx(score, abs=1e-3)
        assert found.finished == finished
        assert found.text == generator.tokenizer.decode(tokens)


def test_forced_text_has_the_tokens_of_the_tokenizer(generator: TextGenerator):
    (found,) = generator.generate(["A "], CONSTRAINTS["one text"], retokenize=True).texts[0]
    assert list(found.tokens) == generator.tokenizer.encode("naïve and über", add_special=False)
    assert found.finished
    assert found.score == 0


def test_the_last_token_is_rolled_back_where_it_joins_what_follows(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    from leafbeam.model import DecodeSession

    dropped: list[int] = []
    roll_back = DecodeSession.roll_back
    monkeypatch.setattr(
        DecodeSession, "roll_back", lambda session, count: (dropped.append(count), roll_back(session, count))[1]
    )
    for name in ("schema", "regex", "choices", "template"):
        generator.generate(PROMPTS, CONSTRAINTS[name], max_tokens=60, retokenize=True)
    assert set(dropped) == {1}


def test_calls_of_the_model_are_halved_on_schemas_with_fixed_keys(generator: TextGenerator):
    fixed = {
        "type": "object",
        "properties": {f"a_rather_long_key_{n}": {"enum": ["yes", "no"]} for n in range(4)},
        "required": [f"a_rather_long_key_{n}" for n in range(4)],
    }
    for schema in (SCHEMA, fixed):
        plain = generator.generate(PROMPTS[:1], JsonSchema(schema=schema), max_tokens=200)
        jumped = generator.generate(PROMPTS[:1], JsonSchema(schema=schema), max_tokens=200, retokenize=True)
        jsonschema.validate(json.loads(jumped.texts[0][0].text), schema)
        assert jumped.texts[0][0].finished
        assert jumped.model_calls < plain.model_calls
        assert 2 * jumped.model_calls <= plain.model_calls + plain.calls_saved
        assert schema is fixed or 2 * jumped.model_calls <= plain.model_calls  # its keys are single letters to this tokenizer
        assert jumped.calls_saved == len(jumped.texts[0][0].tokens) + 1 - jumped.model_calls


def test_public_style_schemas_hold(generator: TextGenerator):
    for schema in [one for family in FAMILIES.values() for one in family][::20]:
        (found,) = generator.generate(["As JSON: "], JsonSchema(schema=schema), max_tokens=220, retokenize=True).texts[0]
        if found.finished:
            jsonschema.validate(json.loads(found.text), schema)


def test_each_prompt_has_its_constraint_and_is_as_alone(generator: TextGenerator):
    constraints = list(CONSTRAINTS.values())[:3]
    together = generator.generate(PROMPTS, constraints, max_tokens=60, retokenize=True)
    for prompt, constraint, (found,) in zip(PROMPTS, constraints, together.texts, strict=True):
        alone = generator.generate([prompt], constraint, max_tokens=60, retokenize=True)
        assert alone.texts[0][0] == found


def test_streams_and_stops_are_those_of_generate(generator: TextGenerator):
    stops: list[tuple[str, ...]] = [(), ("price",), ('":',)]
    for stop in stops:
        (whole,) = generator.generate(["A "], CONSTRAINTS["schema"], retokenize=True, stop=stop).texts[0]
        stream = generator.stream("A ", CONSTRAINTS["schema"], retokenize=True, stop=stop)
        assert "".join(stream) == whole.text
        assert stream.generation == whole
        assert whole.stop == (stop[0] if stop else None)


def test_draws_obey_and_depend_on_their_seed(generator: TextGenerator):
    warm = Sampling(temperature=2.0)
    found = [
        generator.generate(["A "], CONSTRAINTS["schema"], sampling=warm, seed=seed, retokenize=True).texts[0][0]
        for seed in (0, 1, 2, 0)
    ]
    assert found[0] == found[3]
    assert len({one.text for one in found}) > 1
    for one in found:
        jsonschema.validate(json.loads(one.text), SCHEMA)


def test_an_automaton_of_sequences_has_no_text_to_jump_over(generator: TextGenerator):
    sequences = Automaton.from_sequences([[5, 6, 7], [5, 9, 7]], generator.num_tokens)
    plain = generator.generate(["A "], sequences)
    jumped = generator.generate(["A "], sequences, retokenize=True)
    assert jumped.texts[0][0].tokens == plain.texts[0][0].tokens


@pytest.mark.parametrize("device_runner", [False, True])
def test_a_session_goes_on_from_where_it_was_rolled_back_to(generator: TextGenerator, device_runner: bool):
    model: Any = generator.model
    prompt, codes = torch.tensor([[5, 6, 7], [8, 9, 10]]), np.random.default_rng(0).integers(0, 300, (2, 2, 6))
    parents = np.zeros((2, 2), np.int64)
    own = np.tile(np.arange(2), (2, 1))
    if device_runner:
        model = Transformer(model.config, TextTokens(size=400, num_tokens=1)).double()
    sessions = [model.start(prompt, vocabulary=TextTokens(size=400, num_tokens=20)) for _ in range(2)]
    sessions[0].suffix_fn(codes[:, :, :5], parents)
    sessions[0].roll_back(3)
    there = sessions[0].suffix_fn(codes[:, :, 3:], own)
    wanted = sessions[1].suffix_fn(np.concatenate([codes[:, :, :2], codes[:, :, 3:]], 2), parents)[2:]
    for mine, its in zip(there, wanted, strict=True):
        torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-4)
    sessions[0].roll_back(5)  # to the prompt
    sessions[1].step_fn()
    torch.testing.assert_close(
        sessions[0].step_fn(codes[:, :, 0], own), sessions[1].step_fn(codes[:, :, 0], parents), atol=1e-4, rtol=1e-4
    )
    for count in (-1, 2):
        with pytest.raises(ArgumentError, match="num_codes"):
            sessions[0].roll_back(count)


def test_requests_that_cannot_be_retokenized_are_named(generator: TextGenerator):
    wrong: list[dict[str, Any]] = [{"num_beams": 2}, {"scoring": "full"}, {"sampling": Sampling(), "num_samples": 2}]
    for options in wrong:
        with pytest.raises(ArgumentError, match="retokenize"):
            generator.generate(["A "], CONSTRAINTS["schema"], retokenize=True, **options)


def test_a_tokenizer_that_adds_a_space_is_named():
    words = Tokenizer(models.BPE({"<end>": 0, "a": 1, "Ġ": 2, "Ġa": 3}, [("Ġ", "a")]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    words.decoder = decoders.ByteLevel()
    config = ModelConfig(vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
    generator = TextGenerator(Transformer(config, TextTokens(size=4, num_tokens=1)), TextTokenizer(words, end=0))
    with pytest.raises(ArgumentError, match="space"):
        generator.generate(["a"], Regex(pattern="aa"), retokenize=True)
