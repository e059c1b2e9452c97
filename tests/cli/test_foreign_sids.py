"""Semantic IDs of other programs are read as what they are: offsets, transposed matrices, SIDs as keys; and it is said."""

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from leafbeam.cli.foreign_sids import read_sids
from leafbeam.errors import ArgumentError, CodesError, DataError, LeafbeamError
from leafbeam.semid import SidTable
from tests.fixtures.command_line import call

Writer = Callable[[Path, np.ndarray], Path]


def npy(folder: Path, codes: np.ndarray) -> Path:
    np.save(folder / "x.npy", codes.astype(np.int32))
    return folder / "x.npy"


def tensor(folder: Path, codes: np.ndarray) -> Path:
    torch.save(torch.tensor(codes), folder / "x.pt")
    return folder / "x.pt"


def tensors(folder: Path, codes: np.ndarray) -> Path:
    torch.save({item: torch.tensor(row) for item, row in enumerate(codes)}, folder / "x.pth")
    return folder / "x.pth"


def matrix(folder: Path, codes: np.ndarray) -> Path:
    (folder / "x.json").write_text(json.dumps(codes.tolist()))
    return folder / "x.json"


def by_item(folder: Path, codes: np.ndarray) -> Path:
    (folder / "items.json").write_text(json.dumps({str(item): row for item, row in enumerate(codes.tolist())}))
    return folder / "items.json"


def lines(folder: Path, codes: np.ndarray) -> Path:
    rows = [json.dumps({"item_id": item, "codes": row}) for item, row in enumerate(codes.tolist())]
    (folder / "x.jsonl").write_text("\n".join(rows))
    return folder / "x.jsonl"


def csv(folder: Path, codes: np.ndarray) -> Path:
    names = ",".join(f"c{level}" for level in range(codes.shape[1]))
    rows = [f"{item},{','.join(map(str, row))}" for item, row in enumerate(codes.tolist())]
    (folder / "x.csv").write_text("\n".join([f"item_id,{names}", *rows]))
    return folder / "x.csv"


def csv_of_lists(folder: Path, codes: np.ndarray) -> Path:
    rows = [f'{item};"{row}"' for item, row in enumerate(codes.tolist())]
    (folder / "X.CSV").write_text("\n".join(["item_id;codes", *rows]).replace(";", ","))
    return folder / "X.CSV"


def parts(folder: Path, codes: np.ndarray) -> Path:
    (folder / "x").mkdir()
    table = pa.table({"item_id": list(range(len(codes))), "codes": codes.tolist()})
    pq.write_table(table.slice(0, 3), folder / "x" / "part-00000.parquet")
    pq.write_table(table.slice(3), folder / "x" / "part-00001.parquet")
    return folder / "x"


def parquet(folder: Path, codes: np.ndarray) -> Path:
    pq.write_table(pa.table({"item_id": list(range(len(codes))), "codes": codes.tolist()}), folder / "x.parquet")
    return folder / "x.parquet"


FORMS = (npy, tensor, tensors, matrix, by_item, lines, csv, csv_of_lists, parts, parquet)


def codes_of(sizes: tuple[int, ...], count: int = 400, *, seed: int = 0) -> np.ndarray:
    codes = np.random.default_rng(seed).integers(0, sizes, (count, len(sizes)))
    codes[0], codes[1] = 0, np.array(sizes) - 1
    return codes


def imported(tmp_path: Path, path: Path, *words: str) -> tuple[SidTable, str]:
    result = call("import", "--sids", path, *words, "--run", tmp_path / "run")
    assert result.exit_code == 0, result.output
    return SidTable.load(tmp_path / "run" / "sids.parquet"), " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("form", "words"),
    [
        *((form, []) for form in FORMS),
        (npy, ["--codebook-sizes", "32"]),
        *((form, ["--codebook-sizes", "32,32,32,32"]) for form in (npy, csv)),
    ],
)
def test_offsets_of_levels_are_recognised_and_said(tmp_path: Path, form: Writer, words: list[str]) -> None:
    """S1: they made four codebooks of 32, 64, 96 and 128, or were refused."""
    codes = codes_of((32, 32, 32, 32))
    table, shown = imported(tmp_path, form(tmp_path, codes + 32 * np.arange(4)), *words)
    assert table.codes[np.argsort(table.item_ids.astype(np.int64))].tolist() == codes.tolist()
    assert table.codebook_sizes == (32, 32, 32, 32)
    assert "codes are read without the offsets of their levels: 0, 32, 64, 96" in shown


@pytest.mark.parametrize(
    ("sizes", "offsets", "words", "expected"),
    [
        ((256, 256, 256), (1, 257, 513), (), (256, 256, 256)),  # behind a padding token
        ((256, 128, 64), (0, 256, 384), (), (256, 128, 64)),
        ((32, 32, 3), (0, 32, 0), (), (32, 32, 3)),  # a last level that numbers collisions
        ((32, 32, 3), (0, 32, 64), (), (32, 32, 32)),
        ((256, 256, 256), (32100, 32356, 32612), ("--codebook-sizes", "256"), (256, 256, 256)),
        ((256, 128), (0, 256), ("--codebook-sizes", "256,128"), (256, 128)),
    ],
)
def test_other_offsets_are_recognised(
    tmp_path: Path, sizes: tuple[int, ...], offsets: tuple[int, ...], words: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    """S1"""
    codes = codes_of(sizes, 3000)
    table, shown = imported(tmp_path, npy(tmp_path, codes + np.array(offsets)), *words)
    assert table.codes.tolist() == codes.tolist()
    assert table.codebook_sizes == expected
    assert "without the offsets of their levels" in shown


def test_few_items_with_offsets_need_the_codebook_sizes(tmp_path: Path) -> None:
    """S1: without them the codes stay, and the hint says what they may be."""
    path = npy(tmp_path, np.array([[3, 256 + 7], [5, 256 + 9]]))
    found = read_sids(path).without_offsets(None)
    assert found.numbers_NL.tolist() == [[3, 263], [5, 265]]
    assert found.notes == (
        "codes of each level are above those of the level before: if these are offsets, pass --codebook-sizes",
    )
    assert read_sids(path).without_offsets((256, 256)).numbers_NL.tolist() == [[3, 7], [5, 9]]


@pytest.mark.parametrize("sizes", [(32, 32, 32), (8, 256), (1, 300, 4), (500,)])
def test_plain_codes_stay(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """S1: with the codebook sizes and without."""
    codes = codes_of(sizes)
    path = npy(tmp_path, codes)
    for passed in (None, sizes):
        found = read_sids(path).without_offsets(passed)
        assert found.numbers_NL.tolist() == codes.tolist()
        assert found.notes == ()


def test_codes_that_fit_no_codebook_are_refused_as_before(tmp_path: Path) -> None:
    """S1"""
    codes = codes_of((32, 32)) + np.array([0, 20])
    result = call("import", "--sids", npy(tmp_path, codes), "--codebook-sizes", "32", "--run", tmp_path / "run")
    assert "at level 1, whose codebook has 32 codes" in " ".join(result.stderr.split())


TURNED = [[0, 1, 3, 2], [0, 1, 1, 2], [1, 2, 2, 3]]


@pytest.mark.parametrize("form", [npy, tensor, matrix])
def test_a_matrix_is_turned_only_if_told(tmp_path: Path, form: Writer) -> None:
    """S2: three items of four levels became four of three."""
    path = form(tmp_path, np.array(TURNED))
    table, shown = imported(tmp_path, path)
    assert table.codes.tolist() == TURNED
    assert "read as 3 items of 4 levels; --transposed reads 4 items of 3 levels" in shown
    turned = read_sids(path, transposed=True)
    assert turned.numbers_NL.tolist() == np.array(TURNED).T.tolist()
    assert turned.notes == ()


@pytest.mark.parametrize("form", [npy, tensor, matrix])
def test_more_levels_than_possible_are_refused_with_the_option(tmp_path: Path, form: Writer) -> None:
    """S2: a matrix of levels and many items, and one of items that is turned."""
    codes = codes_of((32, 32, 32), 100)
    path = form(tmp_path, codes.T)
    with pytest.raises(
        DataError, match=r"3 items of 100 levels, but at most 65 levels are possible: read it with --transposed"
    ):
        read_sids(path)
    assert read_sids(path, transposed=True).numbers_NL.tolist() == codes.tolist()
    with pytest.raises(DataError, match=r"read it without --transposed"):
        read_sids(form(tmp_path, codes), transposed=True)


@pytest.mark.parametrize("form", [tensors, by_item, lines, csv, parquet])
def test_only_a_matrix_can_be_turned(tmp_path: Path, form: Writer) -> None:
    """S2"""
    with pytest.raises(ArgumentError, match="--transposed is only for matrices"):
        read_sids(form(tmp_path, codes_of((4, 4), 5)), transposed=True)


@pytest.mark.parametrize(
    "content",
    [
        {"<a_1><b_2>": [7], "<a_0><b_3>": [8, 9]},
        {"<a_1><b_2>": 7, "<a_0><b_3>": ["8", 9]},
        {"<a_1> <b_2>": ["7"], "<a_0>, <b_3>": ["8", "9"]},
        {"['<a_1>', '<b_2>']": ["7"], "('<a_0>', '<b_3>')": ["8", "9"]},
        {"7": "<a_1><b_2>", "8": "<a_0><b_3>", "9": "<a_0> <b_3>"},
        {"7": ["<a_1>", "<b_2>"], "8": ["<a_0>", "<b_3>"], "9": "<a_0><b_3>"},
    ],
)
def test_objects_from_sids_to_items_and_tokens_in_one_text_are_read(tmp_path: Path, content: dict[str, Any]) -> None:
    """S3: the SID became the id, and the item its code."""
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content))
    if any(isinstance(item, int) for items in content.values() for item in (items if isinstance(items, list) else [items])):
        path.write_text(json.dumps(content).replace('"8"', "8"))
    found = read_sids(path)
    assert sorted(zip(map(str, found.item_ids.tolist()), found.numbers_NL.tolist(), strict=True)) == [
        ("7", [1, 2]),
        ("8", [0, 3]),
        ("9", [0, 3]),
    ]
    assert found.names == ("<a_*>", "<b_*>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"<a_1><b_2>": [7], "<a_0><b_3>": [7]}, "item 7 is in <a_0><b_3> and in an earlier one"),
        ({"<a_1><b_2>": [None]}, "has the item None"),
        ({"<a_1><b_2>": [[7]]}, "has the item"),
        ({"<a_1><b_2>": [7], "other": [8]}, "has Semantic IDs as keys, but also 'other'"),
        ({"<a_1><b_2>": [7], "<a_1>": [8]}, "has Semantic IDs as keys, but also '<a_1>'"),
        ({"<a_1><b_2>": [7], "<a_1><c_2>": [8]}, "has '<c_2>' at level 1"),
        ({"<a_1><b_2>": [7], "<a_1><b_2><c_3>": [8]}, "has 3 codes, other items have 2"),
        ({"7": "<a_1>lamp<b_2>"}, "expected a list of tokens"),
        ([[1, 2], [3]], "equally many whole numbers"),
        ([[1, 2.5]], "equally many whole numbers"),
        ([[1, True]], "equally many whole numbers"),
        ([[], []], "holds no codes"),
    ],
)
def test_what_is_wrong_with_such_objects_is_said(tmp_path: Path, content: Any, message: str) -> None:
    """S3"""
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(LeafbeamError) as caught:
        read_sids(tmp_path / "x.json")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ('a,"[1, 2]"\nb,[3]\n', "line 3 has 1 code: expected 2"),
        ('a,"[1, 2]"\nb,\n', "line 3 has no codes: expected 2"),
        ('a,"[1, 2.5]"\n', "expected lists of whole numbers"),
        ('a,"[1, null]"\n', "line 2 has no number in codes"),
        ("a,1 2\n", "has codes of type string: expected lists of whole numbers"),
        ("a,[]\n", "expected lists of whole numbers"),
    ],
)
def test_lists_of_codes_in_csv_are_read_or_named(tmp_path: Path, rows: str, message: str) -> None:
    """L2: a list in a cell; its numbers may be refused, its line is named."""
    (tmp_path / "x.csv").write_text("item_id,codes\n" + rows)
    with pytest.raises(LeafbeamError) as caught:
        read_sids(tmp_path / "x.csv")
    assert message in str(caught.value)
    assert str(tmp_path / "x.csv") in str(caught.value)


@pytest.mark.parametrize("bad", ["a\0", "\0a", "e\n", "\x1ca\x85", "\u200ba", "", "a\u2028", "\ud800"])
@pytest.mark.parametrize("form", ["keys", "rows", "sids", "tensors"])
def test_ids_of_json_and_tensors_are_checked_as_those_of_tables(tmp_path: Path, form: str, bad: str) -> None:
    """A8, D8: NUL at an end was dropped, so that two items had one id."""
    contents = {
        "keys": {"x": [0, 1], bad: [1, 1]},
        "rows": [{"item_id": "x", "codes": [0, 1]}, {"item_id": bad, "codes": [1, 1]}],
        "sids": {"<a_1><b_2>": ["x"], "<a_1><b_3>": [bad]},
    }
    path = tmp_path / ("x.pt" if form == "tensors" else "x.json")
    if form == "tensors":
        torch.save({"x": torch.tensor([0, 1]), bad: torch.tensor([1, 1])}, path)
    else:
        path.write_text(json.dumps(contents[form]))
    with pytest.raises(DataError) as caught:
        read_sids(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("other", ["a ", "\ta", "a\u00a0"])
def test_keys_of_json_that_differ_in_blanks_alone_are_one_item(tmp_path: Path, other: str) -> None:
    """D8: as in CSV."""
    (tmp_path / "x.json").write_text(json.dumps({"a": [0, 1], other: [1, 1]}))
    with pytest.raises(DataError, match="occurs twice, with different blanks around it: keep one"):
        read_sids(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(json.dumps({other: [1, 1]}))
    assert read_sids(tmp_path / "x.json").item_ids.tolist() == ["a"]


@pytest.mark.parametrize(
    "token",
    [
        "0.5",
        "-1",
        "+1",
        "1e5",
        "<a_01>",
        "<a_1.5>",
        "<a_\u0663>",
        "<-1>",
        "<a_-1>",
        "<\u00e4_1>",
        "a 1",
        "1",
        "2026-11-29",
        "<a_\u00b2>",
        "5%",
    ],
)
@pytest.mark.parametrize("form", ["json", "pt"])
def test_texts_that_are_not_tokens_are_refused_with_their_item(tmp_path: Path, form: str, token: str) -> None:
    """D8: 0.5 was the code 5, -1 was 1, and <a_01> and <a_1> were one code."""
    path, content = tmp_path / f"x.{form}", {"x": ["<a_1>", "<b_1>"], "y": [token, "<b_2>"]}
    if form == "pt":
        torch.save(content, path)
    else:
        path.write_text(json.dumps(content))
    with pytest.raises(CodesError, match=r"item 'y' has the code .*: expected a token of ASCII such as <a_12>") as caught:
        read_sids(path)
    assert repr(token) in str(caught.value) or ascii(token) in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (["<a_0>", "<a_12>"], "<a_*>"),
        (["a_1_0", "a_1_12"], "a_1_*"),
        (["<|sid_0_0|>", "<|sid_0_12|>"], "<|sid_0_*|>"),
        (["[SID-0]", "[SID-12]"], "[SID-*]"),
        (["<0>", "<12>"], "<*>"),
        (["C0", "C12"], "C*"),
        (["<s0_end>", "<s12_end>"], "<s*_end>"),
    ],
)
def test_tokens_of_many_spellings_are_read(tmp_path: Path, tokens: list[str], name: str) -> None:
    """L2"""
    (tmp_path / "x.json").write_text(json.dumps({"x": tokens[:1], "y": tokens[1:]}))
    found = read_sids(tmp_path / "x.json")
    assert (found.numbers_NL.tolist(), found.names) == ([[0], [12]], (name,))


@pytest.mark.parametrize("kind", [pa.decimal128(20, 0), pa.decimal128(10, 2), pa.decimal256(50, 0)])
@pytest.mark.parametrize("as_lists", [False, True])
def test_codes_as_decimals_are_read_where_they_are_whole(tmp_path: Path, kind: Any, as_lists: bool) -> None:
    """D8, D12: Spark and DuckDB write whole numbers so; ids may be such decimals too."""

    def table(*codes: str) -> Any:
        column = pa.array([Decimal(code) for code in codes], kind)
        lists = pa.ListArray.from_arrays(pa.array(range(len(codes) + 1), pa.int32()), column)
        return pa.table({"item_id": list(range(len(codes))), "codes" if as_lists else "c0": lists if as_lists else column})

    pq.write_table(table("7", "8", "0"), tmp_path / "x.parquet")
    assert read_sids(tmp_path / "x.parquet").numbers_NL.tolist() == [[7], [8], [0]]
    if kind.scale:
        pq.write_table(table("7", "8.50"), tmp_path / "x.parquet")
        with pytest.raises(CodesError, match=r"row 2 has 8\.50 in (codes|c0): expected a whole number of up to 64 bits"):
            read_sids(tmp_path / "x.parquet")
