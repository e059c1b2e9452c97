"""Any of a model's end tokens ends a text, and an end token that is text is text where it may be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.automata import Automaton
from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.text import Choices, FreeText, JsonSchema, Regex, Sampling, TextConstraint, TextGenerator, TextTokenizer
from tests.fixtures.texts import PROMPTS, SCHEMA
from tests.text.conftest import save_model

CONSTRAINTS: dict[str, TextConstraint] = {
    "regex": Regex(pattern="[a-z]{2,6}( [a-z]{1,4})?"),
    "marks": Regex(pattern='[a-c"!#]{1,12}'),
    "braces": Regex(pattern=r"(\{[ab]{0,3}\}?\}?){1,3}"),
    "schema": JsonSchema(schema=SCHEMA),
    "choices": Choices(texts=["red lamp", "red", "tea cup", "tea"]),
    "free": FreeText(),
}


def generator_with(directory: Path, ends: Any, file: str = "generation_config.json") -> TextGenerator:
    model_dir = save_model(directory / "model")
    (model_dir / "generation_config.json").unlink()
    path = model_dir / file
    config = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**config, "eos_token_id": ends}))
    return TextGenerator.load(model_dir)


def greedy(generator: TextGenerator, prompt: str, automaton: Automaton, max_tokens: int) -> tuple[list[int], float, bool]:
    """Runs the model on prompt and text for each token, and takes the likeliest token of text, or the end by any end token."""
    model, ends = generator.model, generator.tokenizer.ends
    tokens, state, score = generator.tokenizer.encode(prompt), 0, 0.0
    first = len(tokens)
    while len(tokens) < first + max_tokens:
        with torch.inference_mode():
            logits_V = model.logits(model(torch.tensor([tokens]))[0, -1]).double().numpy()
        text = automaton.allowed(state).tolist()
        pure = [end for end in ends if end not in text] if automaton.accepts(state) else []
        legal = [*text, *pure]
        lse = np.logaddexp.reduce(logits_V[legal])
        end_score = np.logaddexp.reduce(logits_V[pure]) if pure else -np.inf
        best = max(text, key=lambda token: logits_V[token]) if text else None
        if best is None or end_score > logits_V[best]:
            return tokens[first:], score + end_score - lse, True
        score += logits_V[best] - lse
        tokens.append(best)
        state = automaton.next(state, best)
        if best in ends and automaton.accepts(state):
            return tokens[first:], score, True
    return tokens[first:], score, False


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        *((name, ends) for name in CONSTRAINTS for ends in ([0, 93, 68], [65, 66, 67, 68, 69])),
        *((next(iter(CONSTRAINTS)), ends) for ends in ([0], [0, 1, 2], [2, 1])),
    ],
)
def test_greedy_texts_end_on_any_end_token(tmp_path_factory: pytest.TempPathFactory, name: str, ends: list[int]) -> None:
    """T5: as whole passes of the model do, in both ways of running, with the end tokens' mass together."""
    generator = generator_with(tmp_path_factory.mktemp("ends"), ends)
    assert generator.tokenizer.ends == tuple(ends)
    automaton = generator.compile(CONSTRAINTS[name])
    result = generator.generate(PROMPTS, CONSTRAINTS[name], max_tokens=24)
    full = generator.generate(PROMPTS, CONSTRAINTS[name], max_tokens=24, scoring="full")
    for prompt, (found,), (other,) in zip(PROMPTS, result.texts, full.texts, strict=True):
        tokens, score, finished = greedy(generator, prompt, automaton, 24)
        assert list(found.tokens) == list(other.tokens) == tokens
        assert found.finished == other.finished == finished
        assert found.score == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_a_text_ends_on_the_end_token_that_the_model_prefers(tmp_path: Path, file: str) -> None:
    """T5: the third of a list in either file, alone, drawn and with beams; a beam's text comes once, whatever ends it."""
    generator = generator_with(tmp_path, [0, 1, 2], file)
    weight = generator.model.head_weight
    with torch.no_grad():
        weight[:] = 0
        weight[2] = 5 * torch.sign(generator.model(torch.tensor([[5]]))[0, -1])
    for constraint in (FreeText(), Regex(pattern="[a-z]*"), Choices(texts=["", "a", "b"])):
        ((text,),) = generator.generate(["A "], constraint, max_tokens=20).texts
        assert text.finished
        assert text.text in ("", '"')
        for options in ({"num_beams": 3}, {"num_beams": 3, "scoring": "full"}, {"sampling": Sampling(), "num_samples": 3}):
            (texts,) = generator.generate(["A "], constraint, max_tokens=20, **options).texts
            assert texts[0].finished
            assert "sampling" in options or len({one.tokens for one in texts}) == len(texts)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"sampling": Sampling(), "seed": 3}, {"retokenize": True}])
@pytest.mark.parametrize("scoring", ["allowed", "full"])
def test_an_end_token_may_close_an_object(tmp_path: Path, options: dict[str, Any], scoring: str) -> None:
    """T5: `}` is text within nested objects, and ends the text where the last object closes."""
    generator = generator_with(tmp_path, [0, 1])
    brace = generator.tokenizer.encode("}")[-1]
    if scoring == "full" and ("sampling" in options or "retokenize" in options):
        return
    ends = TextTokenizer(generator.tokenizer._tokenizer, end=[brace])
    generator = TextGenerator(generator.model, ends)
    inner = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]}
    schema = {"type": "object", "properties": {"a": inner, "b": inner}, "required": ["a", "b"]}
    kwargs = {"scoring": scoring, **options} if scoring == "full" else options
    (texts,) = generator.generate(["A "], JsonSchema(schema=schema), max_tokens=60, **kwargs).texts
    for text in texts:
        assert text.finished
        assert set(json.loads(text.text)) == {"a", "b"}
    pieces = generator.stream("A ", Regex(pattern=r"\{\}(\}[a-z])*"), max_tokens=30)
    assert "".join(pieces) == "{}"
    assert pieces.generation.finished


@pytest.mark.parametrize("special", [True, False])
def test_an_added_token_that_ends_a_text_is_never_text_in_it(tmp_path: Path, special: bool) -> None:
    """T5: a model that ends its turn within a JSON string is not taken at its word, whatever the file calls the token.

    As in reports of other servers, whose constraint knew the first end token alone and was cut off within a string.
    """
    model_dir = save_model(tmp_path / "model")
    settings = json.loads((model_dir / "tokenizer.json").read_text())
    end = 1 + max(settings["model"]["vocab"].values())
    turn = {**settings["added_tokens"][0], "id": end, "content": "<|im_end|>", "special": special}
    settings["added_tokens"].append(turn)
    (model_dir / "tokenizer.json").write_text(json.dumps(settings))
    (model_dir / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, end]}))
    generator = TextGenerator.load(model_dir)
    assert generator.tokenizer.token_bytes[end] is None
    with torch.no_grad():
        weight = generator.model.head_weight
        weight[:] = 0
        weight[end] = 5 * torch.sign(generator.model(torch.tensor([[5]]))[0, -1])
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}, "required": ["a"]}
    for options in ({}, {"num_beams": 2}, {"sampling": Sampling(), "seed": 1}):
        (texts,) = generator.generate(["A "], JsonSchema(schema=schema), max_tokens=60, **options).texts
        assert "a" in json.loads(texts[0].text)
        assert "im_end" not in texts[0].text
    ((text,),) = generator.generate(["A "], FreeText(), max_tokens=60).texts
    assert (text.text, text.finished) == ("", True)


def test_wrong_end_tokens_are_named(tmp_path: Path) -> None:
    """T5: each of a list is checked."""
    for ends, says in (
        ([0, "a"], "expected a token or a list"),
        ([0, True], "expected a token or a list"),
        ([], "expected a token or a list"),
        ([0, 99_999], "the end token 99999 is not one of"),
        ([0, -1], "the end token -1 is not one of"),
    ):
        with pytest.raises(CheckpointError, match=says):
            generator_with(tmp_path, ends)
    tokenizer = generator_with(tmp_path, [0, 1, 0]).tokenizer
    assert tokenizer.ends == (0, 1)
    assert TextTokenizer.of(tokenizer, end=1) is tokenizer
    with pytest.raises(ArgumentError, match="the end token is 5, and the tokenizer's"):
        TextTokenizer.of(tokenizer, end=5)
