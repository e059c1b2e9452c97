"""Items of an index in texts: only allowed ones, ranked as the model ranks them, and their ids back."""

import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from leafbeam import Trie
from leafbeam.errors import ArgumentError, AutomatonError, ForeignFilterError
from leafbeam.index import Segment, Version
from leafbeam.text import Choices, FreeText, Items, JsonSchema, Sampling, Template, TextGenerator
from tests.fixtures.texts import SCHEMA

SIZES = (16, 16, 16)
TOKENS = [np.arange(340 + 16 * level, 356 + 16 * level) for level in range(3)]  # of no text
RNG = np.random.default_rng(3)
CODES = RNG.integers(0, 16, (60, 3))
CODES[50:] = CODES[:10]  # items that share a SID
INDEX = Trie.build(CODES, SIZES, item_ids=[f"item-{number}" for number in range(60)])
FRESH = INDEX.filter(np.arange(60) % 3 == 0)
PROMPT = "A red lamp: "


def score(generator: TextGenerator, prompt: list[int], codes: np.ndarray, allowed: np.ndarray) -> float:
    """The log-probability of a SID over the legal tokens of each level, by whole passes of the model."""
    tokens, total = list(prompt), 0.0
    for level in range(3):
        same = (allowed[:, :level] == codes[:level]).all(axis=1)
        legal = TOKENS[level][np.unique(allowed[same, level])]
        with torch.inference_mode():
            logits_V = generator.model.logits(generator.model(torch.tensor([tokens]))[0, -1])
        token = int(TOKENS[level][codes[level]])
        total += float(torch.log_softmax(logits_V[legal], 0)[legal.tolist().index(token)])
        tokens.append(token)
    return total


@pytest.mark.parametrize("thinks", [False, True])
def test_beams_rank_the_allowed_items_as_the_model_does(generator: TextGenerator, thinks: bool):
    """thinks: behind a text that the model generated in a call before."""
    prompt = generator.tokenizer.encode(PROMPT)
    if thinks:
        (thought,) = generator.generate([prompt], FreeText(stop="\n", max_length=20), max_tokens=40).texts[0]
        assert thought.finished
        prompt += thought.tokens
    items = Items(index=INDEX, code_tokens=TOKENS, item_filter=FRESH)
    allowed = np.unique(CODES[::3], axis=0)
    found = generator.generate([prompt], items, max_tokens=8, num_beams=len(allowed)).texts[0]
    assert all(text.finished for text in found)
    expected = sorted((score(generator, prompt, codes, allowed), tuple(codes)) for codes in allowed)[::-1]
    assert [text.score for text in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
    by_sid = {tuple(codes): {f"item-{n}" for n in range(0, 60, 3) if tuple(CODES[n]) == tuple(codes)} for codes in allowed}
    for text, (_, codes) in zip(found, expected, strict=True):
        assert {str(one) for one in items.item_ids(text.tokens)} == by_sid[codes]


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"sampling": Sampling(), "num_samples": 4}, {"retokenize": True}])
def test_a_model_thinks_writes_json_and_names_an_item(generator: TextGenerator, options: dict[str, Any]):
    items = Items(index=INDEX, code_tokens=TOKENS, item_filter=FRESH)
    template = Template(parts=[FreeText(stop="\n", max_length=20), Template(parts=[JsonSchema(schema=SCHEMA), " -> "]), items])
    both = generator.generate([PROMPT, "tea"], [template, Choices(texts=["cup", "lamp"])], max_tokens=200, **options).texts
    for text in both[0]:
        assert text.finished
        found = re.fullmatch(r"[^\n]{0,20}\n(.*) -> ", text.text, re.DOTALL)
        assert found is not None, text.text
        jsonschema.validate(json.loads(found[1]), SCHEMA)
        named = items.item_ids(text.tokens)
        assert len(named)
        assert all(str(one) in FRESH for one in named)
    assert {text.text for text in both[1]} <= {"cup", "lamp"}


def test_changed_items_follow_their_version(generator: TextGenerator):
    delta = Trie.build([[1, 2, 3]], SIZES, item_ids=["new"])
    base = Segment(trie=INDEX, live=~INDEX.filter(item_ids=[f"item-{number}" for number in range(59)]))
    items = Items(index=Version(segments=(base, Segment(trie=delta))), code_tokens=TOKENS)
    found = generator.generate([PROMPT], items, max_tokens=8, num_beams=4).texts[0]
    assert {str(one) for text in found for one in items.item_ids(text.tokens)} == {"item-59", "new"}


def test_items_of_sequences_of_tokens(generator: TextGenerator):
    titles = ["red lamp", "red lantern", "cup"]
    rows = [generator.tokenizer.encode(title) for title in titles]
    index = Trie.from_sequences(rows, generator.num_tokens, max_length=max(map(len, rows)), item_ids=titles)
    items = Items(index=index)
    found = generator.generate([PROMPT], items, max_tokens=20, num_beams=3).texts[0]
    assert {text.text for text in found if text.finished} == set(titles)
    for text in found:
        assert [str(one) for one in items.item_ids(text.tokens)] == [text.text]
    story = generator.generate([PROMPT], Template(parts=["One: ", items]), max_tokens=30).texts[0][0]
    assert story.text.removeprefix("One: ") == str(items.item_ids(story.tokens)[0])
    assert not len(items.item_ids(story.tokens[:-1]))


def test_mistakes_are_named(generator: TextGenerator):
    for error, call, message in (
        (
            AutomatonError,
            lambda: generator.generate([PROMPT], Items(index=INDEX, code_tokens=TOKENS, item_filter=FRESH & ~FRESH)),
            "no item is allowed",
        ),
        (ArgumentError, lambda: Items(index=INDEX), "code_tokens is missing"),
        (ArgumentError, lambda: Items(index=INDEX, code_tokens=TOKENS[:2]), "code_tokens names"),
    ):
        with pytest.raises(error, match=message):
            call()
    with pytest.raises(ForeignFilterError):
        Items(index=Trie.build(CODES[:5], SIZES), code_tokens=TOKENS, item_filter=FRESH)
    items = Items(index=INDEX, code_tokens=TOKENS)
    with pytest.raises(AutomatonError, match="expected them as the last part"):
        generator.compile(Template(parts=[Template(parts=["a", items]), "b"]))
    with pytest.raises(AutomatonError, match="has no end"):
        generator.compile(Template(parts=[Template(parts=["a", FreeText()]), items]))
    letters = [[generator.tokenizer.encode(letter)[0] for letter in "abcdefghijklmnop"]] * 3
    with pytest.raises(AutomatonError, match="may go on with the text"):
        generator.compile(Template(parts=[FreeText(max_length=5), Items(index=INDEX, code_tokens=letters)]))
    high = [np.arange(390 + 16 * level, 406 + 16 * level) for level in range(3)]
    with pytest.raises(Exception, match="vocabulary"):
        generator.compile(Items(index=INDEX, code_tokens=high))
