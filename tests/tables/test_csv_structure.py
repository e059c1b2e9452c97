"""The pass over CSV's bytes agrees with Python's own strict reader, wherever the chunks are cut."""

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.tables.csv_structure import read_structure

TEXT = st.text(alphabet='ab,;"\n\r', max_size=40)


def lines_of_records(text: str) -> list[int] | None:
    """The lines where records begin, by Python's reader; None if it refuses the text."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    begins, line = [], 0
    try:
        for row in reader:
            if row:
                begins.append(line + 1)
            line = reader.line_num
    except csv.Error:
        return None
    return begins


@given(TEXT, st.integers(1, 7))
@settings(max_examples=1000, deadline=None)
def test_records_and_mistakes_are_those_of_python(text: str, size: int) -> None:
    data = text.replace("\r", "\n").encode()  # Python counts lines of a text of mixed line ends in its own way
    chunks = [data[begin : begin + size] for begin in range(0, len(data), size)]
    expected = lines_of_records(data.decode())
    structure = read_structure(chunks, delimiter=",", num_columns=2)
    assert (structure.is_open or structure.bad_line > 0) == (expected is None)
    if expected is None:
        return
    assert structure.records == len(expected)
    for record, line in enumerate(expected):
        assert read_structure(chunks, delimiter=",", num_columns=2, sought=record).sought_line == line


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end_counts_once(end: str) -> None:
    data = end.join(["a,b", "1,2", "", '3,"x', 'y"', "4,5"]).encode()
    for size in (1, 2, 3, 100):
        chunks = [data[begin : begin + size] for begin in range(0, len(data), size)]
        structure = read_structure(chunks, delimiter=",", num_columns=2, sought=3)
        assert (structure.records, structure.spanning, structure.sought_line, structure.ragged_line) == (4, 1, 6, 0)
