"""Texts of a small model under schemas of many families are valid instances; other schemas are refused by name."""

import json
from pathlib import Path

import jsonschema
import pytest
import torch

from leafbeam.automata import Automaton
from leafbeam.errors import AutomatonError
from leafbeam.text import JsonSchema, Sampling, Template, TextGenerator
from tests.text.conftest import CORPUS, save_model
from tests.text.schemas import FAMILIES, UNSUPPORTED, Schema


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> TextGenerator:
    """A model that has seen some JSON, so that its strings and numbers come to an end."""
    generator = TextGenerator.load(save_model(tmp_path_factory.mktemp("schemas") / "model"))
    model, tokens = generator.model, torch.tensor(generator.tokenizer.encode(" ".join(CORPUS[:3] * 3)))
    rows_BT = tokens.unfold(0, 33, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        logits_BTV = model.logits(model(rows_BT[:, :-1]))
        loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), rows_BT[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return generator


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if number % 2 else ()) for number, name in enumerate(FAMILIES)],
)
def family(request: pytest.FixtureRequest, writer: TextGenerator) -> list[tuple[Schema, Automaton]]:
    """The schemas of a family, each compiled once."""
    return [(schema, writer.compile(JsonSchema(schema=schema))) for schema in FAMILIES[request.param]]


def written(writer: TextGenerator, constraints: list[Automaton]) -> list[str | None]:
    """A whole text for each constraint; None where three attempts were cut off."""
    found: list[str | None] = [None] * len(constraints)
    for attempt in range(3):
        left = [index for index, text in enumerate(found) if text is None]
        for begin in range(0, len(left), 32):
            batch = left[begin : begin + 32]
            result = writer.generate(
                ["As JSON: "] * len(batch),
                [constraints[index] for index in batch],
                max_tokens=250,
                sampling=Sampling(),
                seed=[1000 * attempt + index for index in batch],
            )
            for index, (text,) in zip(batch, result.texts, strict=True):
                found[index] = text.text if text.finished else None
    return found


def assert_instance(schema: Schema, text: str) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))


def test_drawn_texts_are_instances(writer: TextGenerator, family: list[tuple[Schema, Automaton]]):
    texts = written(writer, [automaton for _, automaton in family])
    for (schema, _), text in zip(family, texts, strict=True):
        assert text is not None, schema
        assert_instance(schema, text)


def test_greedy_texts_are_instances_or_can_be_completed(writer: TextGenerator, family: list[tuple[Schema, Automaton]]):
    """The most likely text may repeat itself without end: then it is cut off, and says so."""
    automata = [automaton for _, automaton in family]
    texts = [text for (text,) in writer.generate(["As JSON: "] * len(family), automata, max_tokens=150).texts]
    for (schema, automaton), text in zip(family, texts, strict=True):
        if text.finished:
            assert_instance(schema, text.text)
            continue
        state = 0
        for token in text.tokens:
            state = automaton.next(state, token)  # raises for an illegal one
        assert len(text.tokens) == 150
        assert len(automaton.allowed(state)) or automaton.accepts(state), schema
    assert sum(text.finished for text in texts) >= 0.7 * len(texts)


def test_there_are_more_than_two_hundred_different_schemas():
    schemas = {json.dumps(schema) for family in FAMILIES.values() for schema in family}
    assert len(schemas) > 200
    for text in schemas:
        jsonschema.Draft202012Validator.check_schema(json.loads(text))


@pytest.mark.parametrize("number", range(len(UNSUPPORTED)))
def test_other_schemas_are_refused_by_name(writer: TextGenerator, number: int):
    schema, says = UNSUPPORTED[number]
    with pytest.raises(AutomatonError) as refused:
        writer.compile(JsonSchema(schema=schema))
    assert says in str(refused.value)


def test_a_schema_that_cannot_be_written_with_the_tokens_is_refused(tmp_path: Path):
    from leafbeam.automata import Automaton, TokenTrie

    letters = TokenTrie.of([None, *(bytes([byte]) for byte in b"abc{}")])
    with pytest.raises(AutomatonError, match="can be written with this vocabulary"):
        Automaton.from_json_schema(FAMILIES["flat"][0], letters)


def test_what_a_schema_does_not_hold_to_is_in_the_answer(writer: TextGenerator):
    schema = {"type": "object", "properties": {"a": {"type": "boolean", "x-order": 1}}, "required": ["a"]}
    result = writer.generate(["A ", "B "], [JsonSchema(schema=schema), JsonSchema(schema={"type": "null"})])
    assert [[note.as_json() for note in notes] for notes in result.notes] == [
        [{"treatment": "ignored", "keyword": "x-order", "pointer": "#/properties/a"}],
        [],
    ]


def test_the_schemas_of_a_template_are_in_the_notes_of_the_whole(writer: TextGenerator):
    schema = JsonSchema(schema={"type": "boolean", "x-order": 1})
    template = Template(parts=["a: ", schema, ", b: ", schema])
    ((note,),) = writer.generate(["A "], template).notes
    assert note.as_json() == {"treatment": "ignored", "keyword": "x-order", "pointer": "#"}
