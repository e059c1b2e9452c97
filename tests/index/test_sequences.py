"""Sequences of different lengths: padded with the end code, as exact as a table, refused where they are none."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.errors import ArgumentError, CodesError, IndexFileError, ItemIdError
from leafbeam.index import Segment, Version
from leafbeam.index.sequences import SequenceTable

FIXTURE = Path(__file__).parent.parent / "fixtures" / "index-v2.pleach"


def fixture_trie() -> Trie:
    """What the committed file holds: sequences of 0 to 6 tokens, beginnings of each other, equal ones, string ids."""
    rng = np.random.default_rng(7)
    sequences = [rng.integers(0, 40 if row % 2 else 3, rng.integers(0, 7)).tolist() for row in range(120)]
    return Trie.from_sequences(sequences, 40, [f"name-{row}-ñ" for row in range(120)])


def padded(sequences: list[list[int]], size: int, levels: int) -> np.ndarray:
    return np.array([[*one, *[size] * (levels - len(one))] for one in sequences], np.int64).reshape(len(sequences), levels)


@settings(max_examples=150)
@given(st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=40), st.integers(0, 3), st.booleans(), st.booleans())
def test_an_index_of_sequences_is_that_of_the_padded_table(
    sequences: list[list[int]], more: int, as_arrays: bool, packed: bool
) -> None:
    longest = max((len(one) for one in sequences), default=0)
    given_ = [np.array(one, np.uint16) for one in sequences] if as_arrays else sequences
    trie = Trie.from_sequences(given_, 5, max_length=longest + more, packed=packed)
    table = padded(sequences, 5, longest + more + 1)
    assert trie.version == Trie.build(table, [6] * table.shape[1], end_code=5, packed=packed).version
    assert trie.version != Trie.build(table, [6] * table.shape[1], packed=packed).version
    assert np.array_equal(trie.codes_of(range(len(sequences))), table)
    assert [one.tolist() for one in trie.sequences_of(range(len(sequences)))] == sequences
    assert trie.end_code == 5
    for one in [*sequences, [], [0], [4, 4, 4], [0, 1, 2, 3, 4], [5]]:
        assert (one in trie) == (one in sequences or (one == [5] and [] in sequences))


def test_the_longest_sequences_in_a_large_vocabulary() -> None:
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 151_936, length) for length in rng.integers(0, 65, 300)]
    sequences += [sequences[0][:20], sequences[1], np.concatenate([sequences[2][:63], [7]])[:64]]
    trie = Trie.from_sequences(sequences, 151_936)
    assert trie.num_levels == 65
    table = padded([one.tolist() for one in sequences], 151_936, 65)
    assert np.array_equal(trie.codes_of(range(len(sequences))), table)
    assert np.array_equal(trie.items.order_N, np.lexsort(table.T[::-1]))
    assert trie.packed().codes_of([301]).tolist() == table[[301]].tolist()


def test_no_sequences_and_empty_ones() -> None:
    assert Trie.from_sequences([], 9).codebook_sizes == (10,)
    empty = Trie.from_sequences([[], []], 9, ["a", "b"])
    assert empty.codes_of(["b"]).tolist() == [[9]]
    assert [] in empty
    assert [0] not in empty


def test_blocks_of_the_padded_table_are_its_rows() -> None:
    rng = np.random.default_rng(1)
    sequences = [rng.integers(0, 9, rng.integers(0, 6)).tolist() for _ in range(50)]
    table = SequenceTable.of(sequences, 9)
    whole = padded(sequences, 9, table.num_levels)
    assert table.shape == whole.shape
    for begin, end in [(0, 50), (0, 0), (13, 14), (49, 50), (20, 45)]:
        assert np.array_equal(table[begin:end], whole[begin:end])


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([[1], [2, 10]], "sequence 1 has token 10 at index 1: expected 0 <= token < 10"),
        ([[1], [], [-1]], "sequence 2 has token -1 at index 0"),
        ([np.array([2**63 + 1], np.uint64), np.array([1])], "sequence 0 has token"),
        ([[0] * 65], "sequence 0 has 65 tokens: expected at most 64"),
        ([[0.5]], "float64"),
        ([np.array([0.5]), np.array([1])], "float64"),
        ([["a"]], "whole numbers"),
        (["abc"], "whole numbers"),
        ([[[1, 2]], [[3]]], "whole numbers"),
        ([[2**80]], "object"),
        ([[1], 5], "sequence 1 is 5: expected a list"),
        ([None], "sequence 0 is None"),
        ([np.zeros((2, 2), np.int64)], "whole numbers"),
    ],
)
def test_sequences_that_are_none_are_refused(sequences: list[object], message: str) -> None:
    with pytest.raises(CodesError, match=message):
        Trie.from_sequences(sequences, 10)  # type: ignore[arg-type]


def test_a_bad_token_far_down_is_named() -> None:
    sequences = [[row % 7] * (row % 5) for row in range(70_000)]
    sequences[69_994] = [1, 2, 3, 77]
    with pytest.raises(CodesError, match="sequence 69,994 has token 77 at index 3"):
        Trie.from_sequences(sequences, 10)


def test_other_arguments_out_of_range_are_refused() -> None:
    for error, call, says in (
        (ArgumentError, lambda: Trie.from_sequences([[]], 0), "vocabulary_size is 0"),
        (ArgumentError, lambda: Trie.from_sequences([[]], 2**31), "2\\^31 - 1"),
        (ArgumentError, lambda: Trie.from_sequences([[]], 5, max_length=65), "max_length is 65"),
        (CodesError, lambda: Trie.from_sequences([[1, 2, 3]], 5, max_length=2), "sequence 0 has 3 tokens: expected at most 2"),
        (ItemIdError, lambda: Trie.from_sequences([[1], [2]], 5, ["a", "a"]), "occurs more than once"),
    ):
        with pytest.raises(error, match=says):
            call()


@pytest.mark.parametrize(
    ("codes", "sizes", "end_code", "message"),
    [
        ([[1, 5], [5, 1]], [6, 6], 5, "row 1 is \\[5, 1\\]: expected codes below 5, then the end code 5"),
        ([[1, 5], [1, 1]], [6, 6], 5, "row 1 is \\[1, 1\\]"),
        ([[1, 5]], [6, 7], 5, "codebooks have \\[6, 7\\]"),
        ([[1, 5]], [6, 6], 4, "expected 5 each"),
    ],
)
def test_a_table_that_does_not_end_is_refused(codes: object, sizes: list[int], end_code: int, message: str) -> None:
    with pytest.raises(CodesError, match=message):
        Trie.build(np.array(codes), sizes, end_code=end_code)


def test_segments_end_their_sequences_alike() -> None:
    ended, plain = Trie.from_sequences([[1], []], 3), Trie.build([[1, 3], [3, 3]], [4, 4])
    Version(segments=(Segment(trie=ended), Segment(trie=Trie.build([[2, 3]], [4, 4], end_code=3))))
    with pytest.raises(ArgumentError, match="different codebooks or end codes"):
        Version(segments=(Segment(trie=ended), Segment(trie=plain)))


def test_sequences_of_format_version_2_load_forever() -> None:
    loaded, expected = Trie.load(FIXTURE), fixture_trie()
    loaded.verify()
    assert loaded.version == expected.version
    assert loaded.end_code == 40
    assert loaded.item_ids.tolist() == expected.item_ids.tolist()
    assert np.array_equal(loaded.codes_of(expected.item_ids), expected.codes_of(expected.item_ids))


def test_the_end_code_is_saved_and_older_readers_refuse_only_files_that_have_one(tmp_path: Path) -> None:
    fixture_trie().save(tmp_path / "ended")
    Trie.build([[1]], [3]).save(tmp_path / "plain")
    assert Trie.load(tmp_path / "ended").end_code == 40
    assert Trie.load(tmp_path / "plain").end_code is None
    assert rb"\"format_version\": 2" in (tmp_path / "ended").read_bytes()
    assert rb"\"format_version\": 1" in (tmp_path / "plain").read_bytes()


@pytest.mark.parametrize("other", ["41", "-1", "0", '\\"a\\"', "[]", "4e400"])
def test_an_end_code_that_cannot_be_is_refused(tmp_path: Path, other: str) -> None:
    raw = FIXTURE.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].replace(rb"\"end_code\": 40", rb"\"end_code\": " + other.encode())
    assert header != raw[8 : 8 + length]
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    with pytest.raises(IndexFileError):
        Trie.load(tmp_path / "x")
