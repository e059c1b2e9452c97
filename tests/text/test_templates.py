"""Texts made of parts: each part obeys its own constraint, and an item ends the text."""

import json
import re
from typing import Any, cast

import jsonschema
import pytest

from leafbeam.errors import AutomatonError
from leafbeam.text import Choices, FreeText, JsonSchema, Regex, Sampling, Template, TextGenerator
from tests.fixtures.texts import SCHEMA

TITLES = ["red lamp", "red lantern", "tea cup"]
STORY = Template(
    parts=["Think: ", FreeText(stop="\n", max_length=30), "Product: ", JsonSchema(schema=SCHEMA), " -> ", Choices(texts=TITLES)]
)


def check(text: str) -> None:
    found = re.fullmatch(r"Think: ([^\n]{0,30})\nProduct: (.*?) -> ([^>]*)", text, re.DOTALL)
    assert found is not None, text
    jsonschema.validate(json.loads(found[2]), SCHEMA)
    assert found[3] in TITLES


@pytest.mark.parametrize("sampling", [None, Sampling()])
def test_every_part_obeys_its_own_constraint(generator: TextGenerator, sampling: Sampling | None):
    (texts,) = generator.generate(["A "], STORY, max_tokens=200, sampling=sampling, num_samples=4 if sampling else 1).texts
    assert all(text.finished for text in texts)
    for text in texts:
        check(text.text)


def test_beams_and_rows_with_other_constraints(generator: TextGenerator):
    rows = [STORY, Regex(pattern="[a-z]{3}"), Template(parts=["x", Choices(texts=TITLES)])]
    story, letters, item = generator.generate(["A "] * 3, rows, max_tokens=200, num_beams=3).texts
    assert all(re.fullmatch("[a-z]{3}", text.text) for text in letters)
    assert {text.text for text in item} <= {f"x{title}" for title in TITLES}
    for text in story:
        assert text.finished
        check(text.text)


def test_free_text_alone_is_any_text(generator: TextGenerator):
    (text,) = generator.generate(["A "], FreeText(), max_tokens=30, sampling=Sampling()).texts[0]
    assert text.text
    (line,) = generator.generate(["A "], FreeText(stop=".", max_length=12), max_tokens=100, sampling=Sampling()).texts[0]
    assert line.finished
    assert line.text.index(".") == len(line.text) - 1 <= 12


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([], "at least one"),
        ("abc", "expected a list"),
        (None, "expected a list"),
        (["a", 7], "a part of a template is 7"),
        ([FreeText(), "b"], "has no end"),
        (["a", Choices(texts=[])], "at least one text"),
        (["a", Choices(texts=cast(Any, None))], "at least one text"),
        ([FreeText(stop=cast(Any, 5)), "b"], "the stop is 5"),
        (["a", Regex(pattern="(")], "brackets"),
        (["a", JsonSchema(schema={"$ref": "#"})], "leads back to itself"),
        ([FreeText(stop="")], "the stop is empty"),
    ],
)
def test_mistakes_are_named(generator: TextGenerator, parts, says):
    with pytest.raises(AutomatonError, match=says):
        generator.compile(Template(parts=parts))


def test_a_constraint_of_another_kind_is_named(generator: TextGenerator):
    with pytest.raises(AutomatonError, match="expected Regex, JsonSchema"):
        generator.compile({"type": "object"})  # type: ignore[arg-type]
