"""One policy for all files: each format against each kind of value, through each command that reads items."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.catalog import Catalog
from leafbeam.errors import DataError
from leafbeam.ingest.attributes import table_of
from leafbeam.tables import SourceTable, read_rows, read_table
from leafbeam.tables.csv_rows import CsvFormat
from leafbeam.train import load_log

# Each column as CSV writes it; the type and the values that every reader has to give.
COLUMNS: dict[str, tuple[list[str], str, list[Any]]] = {
    "country": (["NA", "NULL", "null", ""], "string", ["NA", "NULL", "null", None]),  # D4
    "score": (["nan", "N/A", "1", ""], "string", ["nan", "N/A", "1", None]),  # D4
    "endless": (["inf", "1.5", "-inf", ""], "string", ["inf", "1.5", "-inf", None]),
    "zip": (["00501", "10001", "90210", ""], "string", ["00501", "10001", "90210", None]),  # D5
    "agent": (["007", "7", "70", "0"], "string", ["007", "7", "70", "0"]),  # D5
    "padded": (["01.50", "1.5", "2", ""], "string", ["01.50", "1.5", "2", None]),  # D5
    "ean": (["4006381333931000000001", "4006381333931000000002", "1", ""], "string",
            ["4006381333931000000001", "4006381333931000000002", "1", None]),  # D2
    "long": (["9223372036854775807", "-9223372036854775807", "0", ""], "int64", [2**63 - 1, -(2**63) + 1, 0, None]),
    "beyond": (["9223372036854775808", "1", "2", "3"], "string", ["9223372036854775808", "1", "2", "3"]),  # D2
    "mixed": (["9007199254740993", "0.5", "1", ""], "string", ["9007199254740993", "0.5", "1", None]),  # D2
    "hexadecimal": (["0x12", "1", "2", "3"], "string", ["0x12", "1", "2", "3"]),
    "stock": (["3", " 4 ", "-5", ""], "int64", [3, 4, -5, None]),
    "price": (["1.5", "2", "-.5", "1e3"], "double", [1.5, 2.0, -0.5, 1000.0]),
    "small": (["1e-05", "1E+20", "-1.0E10", "2."], "double", [1e-05, 1e20, -1e10, 2.0]),
    "phone": (["+491701234567", "+4930", "+49170", ""], "string", ["+491701234567", "+4930", "+49170", None]),  # D2
    "vanishing": (["1e-400", "1", "2", ""], "string", ["1e-400", "1", "2", None]),  # D2
    "enormous": (["1e400", "1", "2", ""], "string", ["1e400", "1", "2", None]),  # D2
    "digits": (["999999999999999.99", "1", "2", ""], "string", ["999999999999999.99", "1", "2", None]),  # D2
    "long_list": (["[12345678901234567.5]", "[1]", "[]", ""], "string", ["[12345678901234567.5]", "[1]", "[]", None]),  # D2
    "size": (["12E4", "34E5", "7E1", ""], "string", ["12E4", "34E5", "7E1", None]),  # D2
    "printed": (["['a' 'b']", "['c']", "[]", ""], "string", ["['a' 'b']", "['c']", "[]", None]),  # L3
    "codes": (["[0x12, 1_000]", "[1]", "[]", ""], "string", ["[0x12, 1_000]", "[1]", "[]", None]),  # L3
    "new": (["TRUE", "False", "true", ""], "bool", [True, False, True, None]),  # D12
    "answer": (["true", "yes", "no", ""], "string", ["true", "yes", "no", None]),
    "released": (["2026-11-22", "2026-02-28", "1999-01-01", ""], "date32[day]",
                 ["2026-11-22", "2026-02-28", "1999-01-01", None]),  # D12
    "impossible": (["2026-02-30", "2026-02-28", "2026-02-01", ""], "string", ["2026-02-30", "2026-02-28", "2026-02-01", None]),
    "seen": (["2026-11-22 10:00:00", "2026-11-22T10:00:00.5", "2026-11-23", ""], "timestamp[us]",
             ["2026-11-22T10:00:00", "2026-11-22T10:00:00.500000", "2026-11-23T00:00:00", None]),
    "zoned": (["2026-11-22 10:00:00Z", "2026-11-22T10:00:00+01:00", "2026-11-23 00:00:00Z", ""], "timestamp[us, tz=UTC]",
              ["2026-11-22T10:00:00+00:00", "2026-11-22T09:00:00+00:00", "2026-11-23T00:00:00+00:00", None]),
    "opens": (["10:00", "23:59:59.5", "00:00:00", ""], "time64[us]", ["10:00:00", "23:59:59.500000", "00:00:00", None]),
    "closes": (["10:00", "24:00", "1:00", ""], "string", ["10:00", "24:00", "1:00", None]),
    "tags": (["['Hammer', 'Drill']", '["a, b"]', "[]", ""], "list<item: string>",
             [["Hammer", "Drill"], ["a, b"], [], None]),  # L3
    "sizes": (["[1, 2]", "[3]", "[]", ""], "list<item: int64>", [[1, 2], [3], [], None]),
    "bracket": (["[sic]", "[1]", "x", ""], "string", ["[sic]", "[1]", "x", None]),
    "quoted": (['a "b" c', "a\nb", "a, b", " x "], "string", ['a "b" c', "a\nb", "a, b", " x "]),
    "empty": (["", "", "", ""], "string", [None, None, None, None]),
}  # fmt: skip
NAMES = [*COLUMNS]


def plain(table: pa.Table, name: str) -> list[Any]:
    """The values of a column, times as text."""
    return [value.isoformat() if hasattr(value, "isoformat") else value for value in table[name].to_pylist()]


def write_csv(path: Path) -> Path:
    text = path.with_suffix(".txt")
    with text.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["item_id", *NAMES])
        writer.writerows([f"i{row}", *(COLUMNS[name][0][row] for name in NAMES)] for row in range(4))
    path.write_bytes(gzip.compress(text.read_bytes()) if path.suffix == ".gz" else text.read_bytes())
    return path


def read_by_fit_sids(path: Path) -> pa.Table:
    log = path.with_name("log.csv")
    log.write_text("user_id,item_id,timestamp\nu,i0,1700000000\n")
    return load_log(interactions=log, items=path).items


def read_by_catalog(path: Path) -> pa.Table:
    Catalog.create(path.with_name("items.duckdb"), path, overwrite=True)
    with duckdb.connect(path.with_name("items.duckdb"), read_only=True) as connection:
        return connection.sql("SELECT * FROM items ORDER BY item_id").to_arrow_table()


def read_by_import(path: Path) -> pa.Table:
    return read_table(path, ids=("item_id",)).table


def put_by_items_import(path: Path) -> pa.Table:
    """The values that a catalog with the right columns would get."""
    schema = read_by_fit_sids(path).schema
    rows = [row for batch in read_rows(path, 3, types={f.name: str(f.type) for f in schema}) for row in batch.rows]
    table, problems = table_of(rows, schema, schema.names)
    assert problems == {}
    return table


@pytest.mark.parametrize("reader", [read_by_fit_sids, read_by_import, read_by_catalog, put_by_items_import])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_every_command_reads_the_same_values_of_csv(tmp_path: Path, reader: Callable[[Path], pa.Table], suffix: str) -> None:
    """D2, D4, D5, D12, L3: types as the policy says, whatever command reads the file."""
    table = reader(write_csv(tmp_path / f"items{suffix}"))
    for name, (_, kind, values) in COLUMNS.items():
        assert plain(table, name) == values, name
        if reader is not read_by_catalog:  # DuckDB has its own names of some types
            assert str(table.schema.field(name).type).replace("element", "item") == kind, name


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    columns = {name: plain(table, name) for name in table.column_names}
    return [{name: values[row] for name, values in columns.items() if values[row] is not None} for row in range(len(table))]


@pytest.mark.parametrize("form", ["parquet", "jsonl", "json"])
@pytest.mark.parametrize("reader", [read_by_fit_sids, read_by_catalog, put_by_items_import])
def test_every_format_gives_the_values_that_csv_gives(tmp_path: Path, form: str, reader: Callable[[Path], pa.Table]) -> None:
    """D12: dates of JSON are dates, as in CSV and Parquet."""
    table, path = read_by_fit_sids(write_csv(tmp_path / "items.csv")), tmp_path / f"items.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows_of(table))))
    else:
        path.write_text(json.dumps(rows_of(table)))
    again = reader(path)
    for name, (_, kind, values) in COLUMNS.items():
        if name == "empty" and form != "parquet":  # JSON has no field for it
            continue
        assert plain(again, name) == values, name
        if reader is read_by_fit_sids and name != "sizes":
            assert str(again.schema.field(name).type).replace("element", "item") == kind, name


BAD_ROWS: list[tuple[str, str, bytes, str]] = [
    ("D1 unclosed", "csv", b'item_id,title,n\na,x,1\nb,"open,2\nc,z,3\n', "line 3: a quote opens a cell and does not close"),
    ("D1 two stray", "csv", b'item_id,title,n\na,x,1\nb,"open,2\nc,z,3\nd,"y,4\n',
     "line 3: a quote opens a cell, and after it closes in line 5"),
    ("D1 swallowed", "csv", b'item_id,n,title\na,1,x\nb,2,"open\nc,3,z\nd,4,close"\ne,5,y\n',
     "line 3: a quote opens a cell that holds whole rows"),
    ("D1 after", "csv", b'item_id,title\na,"x"y\n', "line 2: a quote opens a cell, and after it closes in line 2"),
    ("D1 backslash", "csv", b'item_id,title\na,"say \\"hi\\""\n', 'double a quote that is part of the text (""), or remove it'),
    ("D1 spaced", "csv", b'"item_id", "title"\n"a", "x"\n', "line 1: a blank stands before the quotes of a cell"),
    ("D1 late", "csv", b"item_id,title\n" + b"a,x\n" * 50_000 + b'b, "x, y"\n', "line 50,002 has 3 cells"),
    ("D11 no name", "jsonl", b'{"item_id": "a", "": 1}', "has a column without a name, beside 'item_id', ''"),
    ("D3 Latin-1", "csv", "item_id,title\na,x\nb,café\n".encode("latin-1"),
     "line 3, column 'title': 'caf\u00e9' is not UTF-8 (byte 0xE9): pass --encoding latin-1"),
    ("D3 UTF-16", "csv", "item_id,title\na,café\n".encode("utf-16"), "it looks like UTF-16; pass --encoding utf-16"),
    ("D3 UTF-16 bare", "csv", "item_id,title\na,café\n".encode("utf-16-le"), "it looks like UTF-16"),
    ("D3 names", "csv", "item_id,caf\u00e9\na,x\n".encode("latin-1"), "is not UTF-8 (byte 0xE9)"),
    ("D3 JSON", "jsonl", b'{"item_id": "a"}\n{"item_id": "caf\xe9"}\n', "line 2 is not UTF-8 (byte 0xE9)"),
    ("D3 JSON list", "json", b'[{"item_id": "a"},\n {"item_id": "caf\xe9"}]', "line 2 is not UTF-8 (byte 0xE9)"),
    ("D8 line break", "csv", b'item_id,title\n"a\nb",x\n', "column 'item_id': control characters"),
    ("D8 NUL", "csv", b"item_id,title\na,x\nb\0c,y\n", "line 3 has a NUL character"),
    ("D8 NUL in a name", "jsonl", b'{"item_id": "a", "x\\u0000y": 1}', "has a NUL character in the name of the column 'x"),
    ("D8 JSON", "jsonl", b'{"item_id": "a\\u0007"}', "column 'item_id': control characters, such as line breaks, in line 1"),
    ("D10 JSON", "jsonl", b'{"item_id": "a", "n": 1, "n": 2}', "line 1 cannot be read as JSON: 'n' occurs twice"),
    ("D11 case", "csv", b"item_id,Price,price\na,1,2\n", "the columns 'Price' and 'price' (upper and lower case ignored)"),
    ("D11 JSON", "jsonl", b'{"item_id": "a", "Price": 1, "price": 2}', "the columns 'Price' and 'price'"),
    ("ragged", "csv", b"item_id,title\na,x\n\nb\n", "line 4 has 1 cell, but the first line names 2 columns"),
    ("types", "jsonl", b'{"item_id": "a", "n": 1}\n{"item_id": "b", "n": "1"}',
     "column 'n' has values of several types, a whole number in line 1 (1), text in line 2 ('1')"),
    ("D2 JSON", "jsonl", b'{"item_id": "a", "n": 9007199254740993}\n{"item_id": "b", "n": 0.5}', "a float64 would change"),
    ("NaN", "jsonl", b'{"item_id": "a", "n": NaN}', "NaN is not valid JSON: write null"),
    ("empty id", "csv", b"item_id,title\na,x\n,y\n", "column 'item_id': empty in line 3"),
    ("blank id", "csv", b"item_id,title\na,x\n  ,y\n", "column 'item_id': empty in line 3"),
    ("D2 infinite", "jsonl", b'{"item_id": "a"}\n{"item_id": "b", "n": 1e400}', "line 2 cannot be read as JSON: 1e400"),
    ("D2 vanishing", "json", b'[{"item_id": "a", "n": [-0.1e-400]}]', "-0.1e-400 is too large or too small for"),
    ("D12 nested", "jsonl", b'{"item_id": "a", "n": [1]}\n{"item_id": "b", "n": [2, 3]}\n{"item_id": "c", "n": ["4"]}',
     "of several types within its lists or objects"),
    ("D12 nested line", "jsonl",
     b'{"item_id": "a", "n": [1]}\n\n{"item_id": "b", "n": ["4"]}\n{"item_id": "c"}', "in line 3 (['4'])"),
    ("D1 Excel", "csv", b"sep=;\nitem_id;title\na;x\n", "line 1 is 'sep=;', which is for Excel: remove this line"),
    ("D1 Excel's tab", "csv", b"sep=\\t\nitem_id\ttitle\na\tx\n", "which is for Excel: remove this line"),
    ("D1 Excel's case", "csv", b"\xef\xbb\xbfSep=;\r\nitem_id;title\r\na;x\r\n", "line 1 is 'Sep=;', which is for Excel"),
    ("D1 Excel's quotes", "csv", b'"sep=;"\nitem_id;title\na;x\n', "and pass --delimiter ';'"),
    ("D1 long row", "csv", b"item_id,title\na,x\nb," + b"x" * (9 << 20) + b"\nc,y\n", "line 3: the row is longer than 4 MiB"),
    ("D1 long quoted row", "csv", b'item_id,title\na,"x\ny"\nb,"' + b"x\n" * (5 << 20) + b'"\nc,y\n',
     "line 4: the row is longer than 4 MiB"),
    ("D12 lines in .json", "json", b'{"item_id": "a"}\n{"item_id": "b"}\n', "let the file's name end in .jsonl"),
    ("D3 JSON in UTF-16", "json", '{"item_id": "a"}'.encode("utf-16"), "it looks like UTF-16: write JSON in UTF-8"),
    ("D3 lines in UTF-16", "jsonl", '{"item_id": "a"}\n{"item_id": "b"}'.encode("utf-16-le"), "it looks like UTF-16"),
    ("D2 nested bool", "jsonl", b'{"item_id": "a", "l": [1.5]}\n{"item_id": "b", "l": [true, false]}',
     "within its lists or objects, a number in line 1 ([1.5]), true or false in line 2 ([True, False])"),
    ("D2 bool in an object", "jsonl", b'{"item_id": "a", "l": {"x": [1]}}\n\n{"item_id": "b", "l": {"x": [true]}}',
     "within its lists or objects, a whole number in line 1"),
    ("D2 nested beyond", "jsonl", b'{"item_id": "a", "l": [99999999999999999999]}',
     "a whole number beyond 64 bits within its lists or objects in line 1 ([99999999999999999999])"),
    ("D2 object beyond", "json", b'[{"item_id": "a"}, {"item_id": "b", "l": {"x": -9223372036854775809}}]',
     "a whole number beyond 64 bits within its lists or objects in row 2"),
    ("D2 nested fraction", "jsonl", b'{"item_id": "a", "l": [1]}\n{"item_id": "b", "l": [9007199254740993]}\n'
     b'{"item_id": "c", "l": [2.5]}', "in line 3 ([2.5]), and whole numbers that a float64 would change, first in line 2"),
    ("D12 blank name", "csv", b"item_id, title\na,x\n", "blanks around the name of the column ' title'"),
    ("D12 two names", "jsonl", b'{"item_id": "a", "price": 1, "price ": 2}', "blanks around the name of the column 'price '"),
    ("D12 wide blank", "csv", "item_id,price\u00a0\na,2\n".encode(), "blanks around the name of the column"),
    ("D12 line break", "csv", b'item_id,"pri\nce"\na,2\nb,3\n', "a control character, such as a line break or tab, in"),
    ("D12 tab", "jsonl", b'{"item_id": "a", "pri\\tce": 1}', "a control character, such as a line break or tab, in"),
    ("D3 long cell", "csv", b"item_id,title\na," + b"x" * 200_000 + b"\nb,caf\xe9\n", "line 3 is not UTF-8 (byte 0xE9)"),
    ("gzip", "csv.gz", gzip.compress(b"item_id,title\na,x\n")[:-9], "cannot be read"),
    ("twice", "csv", b"item_id,title\na,x\nb,y\na,z\n", "'a' in line 2 and line 4: keep one row for each item"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "form", "data", "message"), BAD_ROWS, ids=[case[0] for case in BAD_ROWS])
def test_a_mistake_is_named_by_file_line_column_and_value(
    tmp_path: Path, name: str, form: str, data: bytes, message: str
) -> None:
    """D1, D3, D8, D10, D11: `fit-sids` and the catalog refuse the file, with the same words."""
    path = tmp_path / f"items.{form}"
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        read_by_fit_sids(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    if name not in ("twice",):
        with pytest.raises(DataError) as caught:
            read_by_catalog(path)
        assert message in str(caught.value)


@pytest.mark.parametrize(
    "case",
    [case for case in BAD_ROWS if case[0].split()[0] in ("D1", "D3", "D12", "ragged", "NaN") and "nested" not in case[0]],
    ids=lambda case: case[0],
)
def test_items_import_refuses_what_fit_sids_refuses(tmp_path: Path, case: tuple[str, str, bytes, str]) -> None:
    """D1, D3: `items import` and `fit-sids` agree."""
    _, form, data, message = case
    path = tmp_path / f"items.{form}"
    path.write_bytes(data)
    if form == "json":
        message = message.replace("row", "line")
    with pytest.raises(DataError) as caught:
        list(read_rows(path, 10, types={}))
    if not message.startswith("column 'n'"):
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("latin-1", "latin-1"),
        ("utf-16", "utf-16"),
        ("cp1252", "cp1252"),
        ("utf-8", "utf-8-sig"),
        ("utf-16-le", "utf-16-le"),
        ("shift_jis", "shift_jis"),
    ],
)
def test_a_named_encoding_is_read(tmp_path: Path, encoding: str, written: str) -> None:
    """D3: other encodings are read once they are named; lines are counted in them too."""
    word = "カフェ" if encoding == "shift_jis" else "café"
    (tmp_path / "items.csv").write_bytes(f'item_id,title\na,"{word}, ""x"""\nb,y\n'.encode(written))
    table = read_table(tmp_path / "items.csv", ids=("item_id",), form=CsvFormat(encoding=encoding))
    assert table.table["title"].to_pylist() == [f'{word}, "x"', "y"]
    assert table.where(1) == "line 3"
    (batch,) = read_rows(tmp_path / "items.csv", 10, types={}, form=CsvFormat(encoding=encoding))
    assert batch.rows[0] == {"item_id": "a", "title": f'{word}, "x"'}


@pytest.mark.parametrize("encoding", ["hex", "rot13", "no such", "", "a\0"])
def test_a_name_that_is_not_an_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(ValueError, match="expected the name of an encoding"):
        CsvFormat(encoding=encoding)


def test_text_with_line_breaks_is_read_where_most_of_it_does_not_look_like_rows(tmp_path: Path) -> None:
    """D1: descriptions over several lines are not stray quotes."""
    text = 'item_id,title,text\na,x,"one\ntwo, three\nfour"\nb,y,"a, b\nc"\nc,z,"1\n2,3,4"\n'
    (tmp_path / "items.csv").write_text(text)
    table = read_table(tmp_path / "items.csv", ids=("item_id",))
    assert table.table["text"].to_pylist() == ["one\ntwo, three\nfour", "a, b\nc", "1\n2,3,4"]
    assert [table.where(row) for row in range(3)] == ["line 2", "line 5", "line 7"]


def test_rows_of_a_damaged_megabyte_are_named_too(tmp_path: Path) -> None:
    """D1: over 1 MiB, where pyarrow alone says "straddling object straddles two block boundaries"."""
    rows = [f"u{row},i{row},{1_700_000_000 + row},x" for row in range(200_000)]
    rows[100_000] += '"'
    rows[100_001] = rows[100_001][:-1] + '"open'
    (tmp_path / "log.csv").write_text("\n".join(["user_id,item_id,timestamp,label", *rows]))
    with pytest.raises(DataError, match="line 100,003: a quote opens a cell and does not close"):
        load_log(interactions=tmp_path / "log.csv")


def test_lists_in_messages_are_capped() -> None:
    """D1, L1: the first ten of many."""
    table = SourceTable(table=pa.table({"item_id": pa.array([None] * 24_000, pa.string())}), source="x")
    with pytest.raises(DataError) as caught:
        table.refuse("item_id", "empty", table.table["item_id"].is_null(), "fix")
    assert "row 10 and 23,990 more" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_types_and_quotes_are_those_of_the_whole_file(tmp_path: Path) -> None:
    """D1, D5: as others report of readers that look at the first rows alone, the last row decides too."""
    rows = "".join(f"i{row},{row},10.5,x\n" for row in range(30_000))
    (tmp_path / "items.csv").write_text(f'item_id,n,version,title\n{rows}last,D1000263,11.0.1,"a, ""b"""\n')
    table = read_table(tmp_path / "items.csv", ids=("item_id",)).table
    assert table.slice(30_000).to_pylist() == [{"item_id": "last", "n": "D1000263", "version": "11.0.1", "title": 'a, "b"'}]
    assert table["n"][7].as_py() == "7"


def test_a_column_without_a_name_gets_one(tmp_path: Path) -> None:
    """D11: pandas writes its index so; `build` refused what `fit-sids` had read."""
    path = tmp_path / "items.csv"
    path.write_text(",item_id,title,\n0,a,x,\n1,b,y,z\n")
    names = ["unnamed_0", "item_id", "title", "unnamed_3"]
    assert read_by_fit_sids(path).column_names == ["item_id", "unnamed_0", "title", "unnamed_3"]
    assert read_by_catalog(path).column_names == names
    (batch,) = read_rows(path, 10, types={})
    assert batch.rows[1] == dict(zip(names, [1, "b", "y", "z"], strict=True))


def test_a_folder_s_name_makes_no_column(tmp_path: Path) -> None:
    folder = tmp_path / "day=3"
    folder.mkdir()
    pq.write_table(pa.table({"item_id": ["a"]}), folder / "items.parquet")
    assert read_table(folder / "items.parquet", ids=("item_id",)).table.column_names == ["item_id"]


def test_views_of_text_are_text(tmp_path: Path) -> None:
    """D12: Parquet that Arrow's newer writers make; ids and attributes."""
    views = {name: pa.array(["a", "b"], pa.string_view()) for name in ("item_id", "title")}
    pq.write_table(pa.table(views), tmp_path / "items.parquet")
    assert read_by_fit_sids(tmp_path / "items.parquet")["title"].to_pylist()[:2] == ["a", "b"]
    assert read_by_catalog(tmp_path / "items.parquet")["title"].to_pylist() == ["a", "b"]


def test_a_damaged_gzip_is_a_named_error(tmp_path: Path) -> None:
    """D3: zlib's own error is neither one of the system's nor one of pyarrow's."""
    data = bytearray(gzip.compress(b"item_id,title\n" + b"".join(b"i%d,tea %d\n" % (n, n * n) for n in range(300))))
    data[20] ^= 0xFF
    (tmp_path / "items.csv.gz").write_bytes(bytes(data))
    with pytest.raises(DataError, match="cannot be read"):
        read_by_fit_sids(tmp_path / "items.csv.gz")


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "tsv", "inter"])
@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_file_of_names_alone_has_no_rows(tmp_path: Path, suffix: str, end: str) -> None:
    """D1: without a line break too, where pyarrow alone says "straddling object straddles two block boundaries"."""
    mark = "," if suffix.startswith("csv") else "\t"
    names = [name + ":token" * (suffix == "inter") for name in ("user_id", "item_id", "timestamp")]
    data = (mark.join(names) + end).encode()
    path = tmp_path / f"log.{suffix}"
    path.write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    with pytest.raises(DataError, match="has no rows"):
        load_log(interactions=path)
    if suffix != "inter":
        assert list(read_rows(path, 10, types={})) == []
        assert read_table(path, ids=("item_id",)).table.column_names == ["user_id", "item_id", "timestamp"]
