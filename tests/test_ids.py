"""The rule of ids, and that every door reads ids from text by it."""

import numpy as np
import pyarrow as pa
import pytest

from leafbeam import Trie
from leafbeam.cli.output import parse_ids
from leafbeam.errors import ItemIdError
from leafbeam.ids import first_of_other_kind, is_id, parse_id
from leafbeam.tables.cells import as_whole_numbers

NUMBERS = {"0": 0, "-1": -1, "12": 12, str(2**63 - 1): 2**63 - 1, str(-(2**63)): -(2**63)}
NOT_NUMBERS = ["", "-0", "012", "+1", " 1", "1 ", "1_000", "1.0", "1e3", "٣", "A7", "1\n", str(2**63), "9" * 30]


@pytest.mark.parametrize("text", NUMBERS)
def test_a_number_is_read_the_same_by_every_door(text: str) -> None:
    assert parse_id(text, "i") == NUMBERS[text]
    assert parse_id(text, "S") == parse_id(text, None) == text
    assert as_whole_numbers(pa.array([text])).to_pylist() == [NUMBERS[text]]
    assert parse_ids(text, Trie.build([[0]], [1], [7])) == [NUMBERS[text]]


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_another_spelling_is_no_number_at_any_door(text: str) -> None:
    assert parse_id(text, "i") is None
    assert as_whole_numbers(pa.array([text])) is None
    if text and text == text.strip():  # the list of a command loses blanks
        with pytest.raises(ItemIdError, match="whole numbers, such as 7"):
            parse_ids(text, Trie.build([[0]], [1], [7]))


def test_booleans_fractions_and_bytes_are_no_ids() -> None:
    assert [value for value in ("7", 7, True, 7.0, None, b"7", np.bool_(True), [7]) if is_id(value)] == ["7", 7]


def test_an_index_without_a_kind_takes_either() -> None:
    assert first_of_other_kind([1, "a"], None) is None
    assert first_of_other_kind([1, "a"], "i") == "a"
    assert first_of_other_kind(["a", "b"], "S") is None
