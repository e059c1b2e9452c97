"""Generated texts equal those of a search that runs the whole model on every prefix, and obey their constraints."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

import leafbeam
from leafbeam.automata import Automaton
from leafbeam.decode import SequenceSearch
from leafbeam.errors import ArgumentError, AutomatonError, LogitsError
from leafbeam.model import Transformer
from leafbeam.text import Choices, JsonSchema, Regex, Sampling, TextConstraint, TextGenerator
from tests.fixtures.texts import CONSTRAINTS, PROMPTS, check


def greedy(generator: TextGenerator, prompt: str, automaton: Automaton, max_tokens: int) -> tuple[list[int], float, bool]:
    """Runs the model on prompt and text for each token, in float64, and takes the likeliest legal one."""
    model, end = generator.model.double(), generator.tokenizer.end
    tokens, state, score = generator.tokenizer.encode(prompt), 0, 0.0
    first = len(tokens)
    try:
        while len(tokens) < first + max_tokens:
            with torch.inference_mode():
                logits_V = model.logits(model(torch.tensor([tokens]))[0, -1])
            legal = [*automaton.allowed(state).tolist(), *([end] if automaton.accepts(state) else [])]
            log_p = torch.log_softmax(logits_V[legal], 0)
            best = int(log_p.argmax())
            score += float(log_p[best])
            if legal[best] == end:
                return tokens[first:], score, True
            tokens.append(legal[best])
            state = automaton.next(state, legal[best])
        return tokens[first:], score, False
    finally:
        model.float()


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_greedy_texts_equal_those_of_whole_passes_of_the_model(generator: TextGenerator, name: str):
    automaton = generator.compile(CONSTRAINTS[name])
    result = generator.generate(PROMPTS, CONSTRAINTS[name], max_tokens=60)
    for prompt, (found,) in zip(PROMPTS, result.texts, strict=True):
        tokens, score, finished = greedy(generator, prompt, automaton, 60)
        assert list(found.tokens) == tokens
        assert found.score == pytest.approx(score, abs=1e-3)
        assert found.finished == finished
        check(name, found.text)


@pytest.fixture(scope="module")
def capped(generator: TextGenerator) -> TextGenerator:
    """The same weights with a soft cap of the logits, as Gemma 2 has."""
    plain = generator.model
    model = Transformer(replace(plain.config, logit_cap=0.5), plain.vocabulary)
    model.load_state_dict(plain.state_dict())
    return TextGenerator(model, generator.tokenizer)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_greedy_texts_of_capped_logits_equal_those_of_whole_passes_of_the_model(
    generator: TextGenerator, capped: TextGenerator, name: str
):
    automaton = capped.compile(CONSTRAINTS[name])
    result = capped.generate(PROMPTS, CONSTRAINTS[name], max_tokens=60)
    for prompt, (found,) in zip(PROMPTS, result.texts, strict=True):
        tokens, score, finished = greedy(capped, prompt, automaton, 60)
        assert (list(found.tokens), found.finished) == (tokens, finished)
        assert found.score == pytest.approx(score, abs=1e-3)
    plain = generator.generate(PROMPTS, CONSTRAINTS[name], max_tokens=60)
    assert [one.score for (one,) in plain.texts] != pytest.approx([one.score for (one,) in result.texts], abs=1e-3)


def test_beams_over_all_tokens_of_capped_logits_have_the_scores_of_whole_passes_of_the_model(capped: TextGenerator):
    (found,) = capped.generate(["A "], Choices(texts=["red lamp", "tea cup"]), num_beams=2, scoring="full").texts
    assert {one.text for one in found} == {"red lamp", "tea cup"}
    prompt, end = capped.tokenizer.encode("A "), capped.tokenizer.end
    for one in found:
        tokens = torch.tensor([[*prompt, *one.tokens, end]])
        with torch.inference_mode():
            log_p = capped.model.logits(capped.model(tokens[:, :-1]))[0, len(prompt) - 1 :].double().log_softmax(-1)
        expected = log_p.gather(1, tokens[0, len(prompt) :, None]).sum()
        assert one.score == pytest.approx(float(expected), abs=1e-3)


def test_a_text_of_more_than_a_hundred_tokens_equals_whole_passes_of_the_model(generator: TextGenerator):
    constraint = Regex(pattern="([a-z]{9}, ){16}(and so on for ever and ever, |x)[0-9]{4}")
    (found,) = generator.generate(["A "], constraint, max_tokens=160).texts[0]
    tokens, score, finished = greedy(generator, "A ", generator.compile(constraint), 160)
    assert len(tokens) > 100
    assert (list(found.tokens), found.finished) == (tokens, finished)
    assert found.score == pytest.approx(score, abs=1e-2)


def test_each_prompt_of_a_batch_may_have_a_constraint_of_its_own(generator: TextGenerator):
    together = generator.generate(PROMPTS, list(CONSTRAINTS.values()), max_tokens=60)
    for prompt, (name, constraint), found in zip(PROMPTS, CONSTRAINTS.items(), together.texts, strict=True):
        check(name, found[0].text)
        assert found[0].tokens == generator.generate([prompt], constraint, max_tokens=60).texts[0][0].tokens


def test_both_scorings_of_one_beam_choose_alike(generator: TextGenerator):
    """They run in two ways: token by token together, and each as far as it has no choice."""
    for constraints in (list(CONSTRAINTS.values()), [CONSTRAINTS["schema"]] * 3):
        one, other = (
            generator.generate(PROMPTS, constraints, max_tokens=60, scoring=scoring) for scoring in ("full", "allowed")
        )
        assert [text.tokens for (text,) in one.texts] == [text.tokens for (text,) in other.texts]
        assert [text.finished for (text,) in one.texts] == [text.finished for (text,) in other.texts]
        assert other.model_calls <= one.model_calls


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_beams_are_ranked_and_distinct_and_the_best_is_no_worse_than_greedy(generator: TextGenerator, scoring):
    choices = Choices(texts=[f"{colour} {thing}" for colour in ("red", "blue") for thing in ("lamp", "cup", "tea")])
    (found,) = generator.generate(["A "], choices, num_beams=12, scoring=scoring, max_tokens=20).texts
    assert {one.text for one in found} <= set(choices.texts)
    assert len({one.tokens for one in found}) == 12
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    (alone,) = generator.generate(["A "], choices, scoring=scoring, max_tokens=20).texts
    assert scores[0] >= alone[0].score - 1e-4


def test_forced_tokens_are_appended_in_one_pass_and_the_search_goes_on(generator: TextGenerator):
    texts = [f"{first} because the tea cup is naïve{second}" for first in ("x", "y") for second in ("!", "?")]
    jumped = generator.generate(["A "], Choices(texts=texts), max_tokens=60)
    assert jumped.texts[0][0].text in texts
    assert jumped.calls_saved > 1
    automaton = Automaton.from_choices(texts, generator.tokenizer.trie(generator.num_tokens), compress=False)
    slow = generator.generate(["A "], automaton, max_tokens=60)
    assert slow.calls_saved == 1  # for the end, which is certain
    assert slow.model_calls > jumped.model_calls
    assert slow.texts[0][0].tokens == jumped.texts[0][0].tokens
    assert slow.texts[0][0].score == pytest.approx(jumped.texts[0][0].score, abs=1e-3)


@pytest.mark.parametrize("options", [{}, {"sampling": Sampling(), "num_samples": 2, "seed": 3}])
def test_forced_tokens_of_some_texts_run_while_others_choose(generator: TextGenerator, options):
    middle = list(range(20, 38))
    sequences = [[first, *middle, last, 50, 51] for first in (5, 6) for last in (7, 8)]
    forced, slow = (Automaton.from_sequences(sequences, generator.num_tokens, compress=compress) for compress in (True, False))
    letters = generator.compile(Regex(pattern="[a-c]{4}"))
    batch = generator.generate(PROMPTS, [letters, forced, forced], max_tokens=60, **options)
    calls: list[int] = []
    for prompt, automaton, texts in zip(PROMPTS, [letters, forced, forced], batch.texts, strict=True):
        alone = generator.generate([prompt], automaton, max_tokens=60, **options)
        assert [text.tokens for text in texts] == [text.tokens for text in alone.texts[0]]
        assert [text.score for text in texts] == pytest.approx([text.score for text in alone.texts[0]], abs=1e-4)
        assert all(text.finished for text in texts)
        calls.append(alone.model_calls)
    assert calls[1:] == [2, 2]  # a call for each choice; those of `letters` do not keep the others from going on
    assert batch.model_calls == max(calls) <= 4
    assert batch.calls_saved == 23 - batch.model_calls  # 22 tokens and the end
    token_by_token = generator.generate(PROMPTS, [letters, slow, slow], max_tokens=60, **options)
    assert token_by_token.model_calls == 22
    if not options:  # a number is drawn for each choice
        assert [text[0].tokens for text in token_by_token.texts] == [text[0].tokens for text in batch.texts]


def test_a_text_that_is_cut_off_says_so(generator: TextGenerator):
    (found,) = generator.generate(["A "], Regex(pattern="[a-z]{30}"), max_tokens=3).texts
    assert not found[0].finished
    assert re.fullmatch("[a-z]{3,29}", found[0].text)


MISTAKES: list[tuple[Sequence[str] | str, TextConstraint | list[TextConstraint], type[Exception], str]] = [
    ([], CONSTRAINTS["regex"], ArgumentError, "at least one text"),
    ("A ", CONSTRAINTS["regex"], ArgumentError, "expected a list"),
    (["A", ""], CONSTRAINTS["regex"], ArgumentError, "has no tokens"),
    ([[]], CONSTRAINTS["regex"], ArgumentError, "has no tokens"),
    ([[399, 400]], CONSTRAINTS["regex"], ArgumentError, "got one outside"),
    (["A"], Choices(texts=[]), AutomatonError, "choice"),
    (["A"], Regex(pattern="(a"), AutomatonError, "brackets"),
    (["A"], Regex(pattern="[^\\s\\S]"), AutomatonError, "refuses the pattern"),
    (["A"], JsonSchema(schema="{"), AutomatonError, "not JSON"),
    (["A"], JsonSchema(schema={"$ref": "#"}), AutomatonError, "leads back to itself"),
    (["A", "B"], [CONSTRAINTS["regex"]] * 3, ArgumentError, "one for each"),
    (["A " * 600], CONSTRAINTS["regex"], ArgumentError, "positions"),
]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_samples": 2}, "without sampling"),
        ({"sampling": Sampling(), "num_beams": 2}, "with sampling"),
        ({"sampling": Sampling(), "scoring": "full"}, "legal tokens"),
        ({"sampling": Sampling(), "seed": [1, 2]}, "2 seeds for 1 prompt"),
        ({"num_beams": 2, "stop": ["a"]}, "one beam, or sampling"),
        ({"stop": [""]}, "a stop is empty"),
        ({"stop": ["é" * 501]}, "a stop has 1,002 bytes: expected at most 1,000"),
        ({"stop": ["\ud800"]}, "not Unicode"),
    ],
)
def test_options_that_do_not_go_together_are_named(generator: TextGenerator, options, says):
    with pytest.raises(ArgumentError, match=says):
        generator.generate(["A"], CONSTRAINTS["choices"], **options)


@pytest.mark.parametrize(("prompts", "constraint", "error", "says"), MISTAKES)
def test_mistakes_are_named(generator: TextGenerator, prompts, constraint, error, says):
    with pytest.raises(error, match=says):
        generator.generate(prompts, constraint, max_tokens=10)


def test_the_head_is_multiplied_for_legal_tokens_alone(generator: TextGenerator, monkeypatch: pytest.MonkeyPatch):
    from leafbeam.ops.head import cpu

    legal = []
    original = cpu.head

    def watched(hidden_RD, weight_VD, codes, *rest, **costs):
        legal.append(codes.count)
        return original(hidden_RD, weight_VD, codes, *rest, **costs)

    monkeypatch.setattr(cpu, "head", watched)
    generator.generate(["A "], CONSTRAINTS["choices"], max_tokens=20)
    assert legal
    assert max(legal) < 20 < generator.num_tokens
    assert np.sum(legal) > 0


@pytest.mark.parametrize("options", [{}, {"num_beams": 2, "scoring": "full"}])
def test_texts_are_the_same_where_automata_are_on_a_gpu(
    generator: TextGenerator, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
):
    """Under Triton's interpreter, which takes what a search on a CUDA device takes; the model stays on the CPU."""
    chosen: list[TextConstraint] = [Regex(pattern="[a-z]{2,4}(and so on|x)"), Choices(texts=["lamp", "tea cup"])]
    expected = generator.generate(PROMPTS[:2], chosen, max_tokens=9, **options)
    devices: list[torch.device] = []

    def on_device(*arguments: Any, device: torch.device, **settings: Any) -> SequenceSearch:
        devices.append(device)
        return SequenceSearch(*arguments, **settings, backend="triton", device="cpu")

    monkeypatch.setattr("leafbeam.text.generator.SequenceSearch", on_device)
    found = generator.generate(PROMPTS[:2], chosen, max_tokens=9, **options)
    assert devices == [generator.model.device]
    for texts, others in zip(found.texts, expected.texts, strict=True):
        assert [text.tokens for text in texts] == [text.tokens for text in others]
        assert [text.score for text in texts] == pytest.approx([text.score for text in others], abs=1e-4)
    assert (found.model_calls, found.calls_saved) == (expected.model_calls, expected.calls_saved)


def test_logits_that_are_not_numbers_are_named_where_automata_are_on_a_gpu(model_dir: Path, monkeypatch: pytest.MonkeyPatch):
    generator = TextGenerator.load(model_dir)
    monkeypatch.setattr(
        "leafbeam.text.generator.SequenceSearch",
        lambda *arguments, device, **settings: SequenceSearch(*arguments, **settings, backend="triton", device="cpu"),
    )
    with torch.no_grad():
        generator.model.head_weight[:] = torch.nan
    with pytest.raises(LogitsError, match="NaN or \\+inf"):
        generator.generate(["A "], Regex(pattern="[a-z]{2,4}"), max_tokens=3)


def test_one_call_gives_the_texts_of_a_generator(generator: TextGenerator, model_dir: Path):
    constraint = CONSTRAINTS["schema"]
    wanted = generator.generate(PROMPTS, constraint, max_tokens=60, num_beams=2)
    fast = PreTrainedTokenizerFast(tokenizer_file=str(model_dir / "tokenizer.json"), eos_token="<|end|>")
    for model, tokenizer in ((model_dir, None), (str(model_dir), fast), (generator.model, generator.tokenizer)):
        assert leafbeam.generate(model, tokenizer, constraint, PROMPTS, max_tokens=60, num_beams=2) == wanted
    with pytest.raises(ArgumentError, match="ConstraintLogitsProcessor"):
        leafbeam.generate(torch.nn.Linear(1, 1), None, constraint, PROMPTS)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="NoneType"):
        leafbeam.generate(generator.model, None, constraint, PROMPTS)


@pytest.mark.parametrize("num_positions", [40, 300])
def test_the_default_of_max_tokens_fits_the_model(model_dir: Path, tmp_path: Path, num_positions: int) -> None:
    """T10: 256, or as many as the model has positions for behind the longest prompt."""
    directory = tmp_path / "model"
    shutil.copytree(model_dir, directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "max_position_embeddings": num_positions}))
    generator = TextGenerator.load(directory)
    letters, prompts = Regex(pattern="[a-z]*[0-9]{400}"), [(60,) * 30, (60,)]
    expected = min(256, num_positions - 30 + 1)
    for options in ({}, {"num_beams": 2}, {"sampling": Sampling()}, {"scoring": "full"}):
        result = generator.generate(prompts, letters, **options)
        assert {len(texts[0].tokens) for texts in result.texts} == {expected}
    stream = generator.stream(prompts[1], letters)
    assert "".join(stream)
    assert len(stream.generation.tokens) == min(256, num_positions)
    with pytest.raises(ArgumentError, match="exceed the model's"):
        generator.generate(prompts, letters, max_tokens=num_positions + 1)
    with pytest.raises(ArgumentError, match="exceed the model's"):
        generator.generate([(60,) * (num_positions + 1)], letters)
