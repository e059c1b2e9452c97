"""Text-level jump-forward: texts equal those of a search that runs the whole model on every prefix, for fewer calls."""

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from leafbeam.automata import Automaton
from leafbeam.errors import ArgumentError
from leafbeam.model import ModelConfig, TextSession, TextTokens, Transformer
from leafbeam.text import Choices, FreeText, JsonSchema, Regex, Sampling, Template, TextConstraint, TextGenerator, TextTokenizer
from tests.fixtures.texts import PROMPTS, SCHEMA

from .schemas import FAMILIES

CONSTRAINTS: dict[str, TextConstraint] = {
    "schema": JsonSchema(schema=SCHEMA),
    "regex": Regex(pattern="(naïve|nature): [a-c]{2} and so on(!|\\?) ü{3}"),
    "choices": Choices(texts=["red lamp", "red lantern", "tea cup"]),
    "template": Template(parts=["It is: ", FreeText(stop=".", max_length=5), " So ", Choices(texts=["lamp", "cup"]), "!"]),
    "joined": Template(parts=["It is a ", Choices(texts=["lamp", "cup"]), " and a ", Choices(texts=["lamp", "cup"]), "!"]),
    "one text": Choices(texts=["naïve and über"]),
}


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


def test_the_last_token_is_replaced_where_it_joins_what_follows(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    seen: dict[int, list[int]] = {}
    replaced: list[int] = []
    hidden_after = TextSession.hidden_after

    def watched(session: TextSession, texts: Sequence[list[int] | None]) -> torch.Tensor:
        for row, text in enumerate(texts):
            before = seen.get(row, [])
            if text is not None:
                replaced.append(len(before) - sum(old == new for old, new in zip(before, text, strict=False)))
                seen[row] = list(text)
        return hidden_after(session, texts)

    monkeypatch.setattr(TextSession, "hidden_after", watched)
    generator.generate(PROMPTS, CONSTRAINTS["joined"], max_tokens=60, retokenize=True)
    assert set(replaced) == {0, 1}


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


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=1.5)])
def test_each_prompt_has_its_constraint_and_is_as_alone_in_the_calls_of_the_longest(
    generator: TextGenerator, sampling: Sampling | None
):
    constraints = list(CONSTRAINTS.values())[:3]
    options: Any = {"max_tokens": 60, "retokenize": True, "sampling": sampling, "num_samples": 1 if sampling is None else 3}
    together = generator.generate(PROMPTS, constraints, **options)
    calls: list[int] = []
    for prompt, constraint, found in zip(PROMPTS, constraints, together.texts, strict=True):
        alone = generator.generate([prompt], constraint, **options)
        assert [one.tokens for one in alone.texts[0]] == [one.tokens for one in found]
        assert [one.score for one in found] == pytest.approx([one.score for one in alone.texts[0]], abs=1e-4)
        calls.append(alone.model_calls)
    assert together.model_calls == max(calls)


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


def test_requests_that_cannot_be_retokenized_are_named(generator: TextGenerator):
    wrong: list[dict[str, Any]] = [{"num_beams": 2}, {"scoring": "full"}]
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
