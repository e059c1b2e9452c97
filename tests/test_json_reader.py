"""JSON with a key that occurs twice is refused by every reader, which says which key and where."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafbeam.automata import Automaton
from leafbeam.catalog.rule_config import read_rules
from leafbeam.cli.generate import constraint_of, prompts_and_constraints
from leafbeam.cli.run import Source
from leafbeam.errors import LeafbeamError
from leafbeam.feeds.batch import SourceColumns
from leafbeam.feeds.debezium import read_envelope
from leafbeam.feeds.position_file import load_position
from leafbeam.ingest import Lines
from leafbeam.json_reader import DoubledKeyError, check_keys, parse_json
from leafbeam.model import load_model
from leafbeam.ops.attention.costs import AttentionCosts
from leafbeam.serve.keys import read_keys
from tests.fixtures.texts import BYTES

_JSON = st.recursive(
    st.none() | st.integers(-9, 9) | st.sampled_from(["", "a", '":', " :", "a:b", '"', "\\"]),
    lambda value: st.lists(value, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", '":', " :"]), value, max_size=3),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ('{"rules": ["cheap"], "rules": []}', "rules", "'rules' occurs twice: keep one"),
        ('{"a": 1, "b": 2, "a": 1}', "a", "'a' occurs twice: keep one"),
        ('{"a": 1, "\\u0061": 1}', "a", "'a' occurs twice: keep one"),
        ('{"": 1, "": 2}', "", "'' occurs twice: keep one"),
        ('[1, {"x": {"y": [0, {"z": 1, "z": 2}]}}]', "[1].x.y[1].z", "(at [1].x.y[1].z)"),
        ('{"items": [{"price": 1}, {"price": 1, "price": 2}]}', "items[1].price", "(at items[1].price)"),
        ('{"a": {"b": 1, "b": 2}, "a": 3}', "a", "'a' occurs twice: keep one"),
    ],
)
def test_a_doubled_key_is_named_with_its_path(text: str, path: str, says: str) -> None:
    """D10"""
    for content in (text, text.encode()):
        with pytest.raises(DoubledKeyError) as caught:
            parse_json(content)
        assert (caught.value.path, says in str(caught.value)) == (path, True)
    with pytest.raises(DoubledKeyError):
        check_keys(text.encode(), 1)


@given(value=_JSON, separators=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t"), (",", "\n:")]))
def test_only_doubled_keys_are_refused(value: Any, separators: tuple[str, str]) -> None:
    """D10"""
    text = json.dumps(value, separators=separators)
    num_keys = len(value) if isinstance(value, dict) else 0
    assert parse_json(text) == value
    check_keys(text.encode(), num_keys)
    doubled = f'{{"k"{separators[1]}{text}{separators[0]}"k"{separators[1]}1}}'
    for around in ("{}", '[{{"k": 1}}, {}]'):
        with pytest.raises(DoubledKeyError):
            check_keys(around.format(doubled).encode(), 1 + around.count("k"))


def test_ten_thousand_doubled_keys_are_found_in_one_pass() -> None:
    """D10"""
    names = [f'"k{number}": 0' for number in range(100_000)]
    with pytest.raises(DoubledKeyError, match="'k99999' occurs twice"):
        parse_json(f'{{{", ".join(names)}, "k99999": 1}}')


def _lines(text: str) -> None:
    Lines.of_json_lines(text.encode()).raise_problems()


def _envelope(text: str) -> None:
    read_envelope(text.encode(), None, SourceColumns())


def _file(name: str, read: Callable[[Path], Any]) -> Callable[[Path, str], None]:
    def written(folder: Path, text: str) -> None:
        (folder / name).write_text(text)
        read(folder / name)

    return written


_SHA = "0" * 64
_DOORS: dict[str, tuple[Callable[[Path, str], Any], str, str]] = {
    "import, JSON": (lambda _, text: Lines.of_json(text.encode()), '[{"item_id": 1, "price": 2, "price": 3}]', "'price'"),
    "import, one object": (lambda _, text: Lines.of_json(text.encode()), '{"item_id": 1, "item_id": 2}', "'item_id'"),
    "import, nested": (lambda _, text: Lines.of_json(text.encode()), '[{"item_id": 1, "a": {"b": 1, "b": 2}}]', r"\[0\].a.b"),
    "import, lines": (lambda _, text: _lines(text), '{"item_id": 1}\n{"item_id": 2, "a": 1, "a": 1}', "line 2: .*'a'"),
    "debezium": (lambda _, text: _envelope(text), '{"op": "c", "after": {"item_id": 1, "item_id": 2}}', "after.item_id"),
    "debezium, operation": (lambda _, text: _envelope(text), '{"op": "c", "op": "d", "after": {"item_id": 1}}', "'op'"),
    "rules": (_file("rules.json", read_rules), '{"rules": {"a": "x < 1", "a": "x < 2"}}', "rules.a"),
    "rules, table": (_file("rules.json", read_rules), '{"rules": {}, "rules": {"a": "x < 2"}}', "'rules'"),
    "keys": (
        _file("keys.json", read_keys),
        f'{{"keys": [{{"name": "a", "scope": "read", "scope": "admin", "sha256": "{_SHA}"}}]}}',
        r"keys\[0\].scope",
    ),
    "sources": (_file("source.json", Source.load), '{"path": "a.csv", "path": "b.csv"}', "'path'"),
    "position of a feed": (
        _file("position.json", lambda path: load_position(path, "a table")),
        '{"format": 1, "row": 1, "row": 2}',
        "'row'",
    ),
    "config of a model": (_file("config.json", lambda path: load_model(path.parent)), '{"a": 1, "a": 2}', "'a'"),
    "costs": (_file("costs.json", AttentionCosts.load), '{"format": 1, "format": 2}', "'format'"),
    "schema": (lambda _, text: Automaton.from_json_schema(text, BYTES), '{"type": "object", "type": "string"}', "'type'"),
    "template": (
        _file("parts.json", lambda path: constraint_of(None, None, None, path)),
        '[{"regex": "a", "regex": "b"}]',
        r"\[0\].regex",
    ),
    "prompts": (
        _file("prompts.jsonl", prompts_and_constraints),
        '{"prompt": "a", "prompt": "b", "regex": "c"}',
        "line 1: 'prompt'",
    ),
}


@pytest.mark.parametrize("door", _DOORS)
def test_every_reader_refuses_a_doubled_key(tmp_path: Path, door: str) -> None:
    """D10"""
    read, text, says = _DOORS[door]
    with pytest.raises(LeafbeamError, match=f"{says}.*occurs twice|occurs twice.*{says}"):
        read(tmp_path, text)
