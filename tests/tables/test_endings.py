"""Files by their names: endings in any case, directories of part files, and content of another format than the name says."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.catalog import Catalog
from leafbeam.catalog.sources import CsvOptions
from leafbeam.errors import ArgumentError, DataError
from leafbeam.index import Trie
from leafbeam.semid.vectors import load_vectors
from leafbeam.tables import CsvFormat, read_rows, read_table
from leafbeam.train import load_log
from tests.fixtures.logs import histories

ROWS = [{"item_id": "a", "title": "tea, green", "price": 3}, {"item_id": "b", "title": "cup", "price": 4}]
CSV = b'item_id,title,price\na,"tea, green",3\nb,cup,4\n'
TSV = b"item_id\ttitle\tprice\na\ttea, green\t3\nb\tcup\t4\n"
LINES = "\n".join(map(json.dumps, ROWS)).encode()
LIST = json.dumps(ROWS).encode()


def read_in_memory(path: Path) -> list[dict[str, Any]]:
    return read_table(path, ids=("item_id",)).table.to_pylist()


def read_in_batches(path: Path) -> list[dict[str, Any]]:
    types = {"item_id": "string", "title": "string", "price": "int64"}
    return [dict(row) for batch in read_rows(path, 1, types=types, ids=("item_id",)) for row in batch.rows]


def read_by_catalog(path: Path) -> list[dict[str, Any]]:
    with Catalog.in_memory(path, Trie.build([[0], [1]], [2], item_ids=["a", "b"])) as catalog:
        return catalog.lookup(["a", "b"]).to_pylist()


@pytest.mark.parametrize("door", [read_in_memory, read_in_batches, read_by_catalog])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("ITEMS.CSV", CSV),
        ("items.Csv.GZ", gzip.compress(CSV, mtime=0)),
        ("items.tsv", TSV),
        ("items.TSV.gz", gzip.compress(TSV, mtime=0)),
        ("items.JSONL", LINES),
        ("items.jsonl.gz", gzip.compress(LINES, mtime=0)),
        ("items.NDJson.gz", gzip.compress(LINES, mtime=0)),
        ("items.Json", LIST),
        ("items.json.gz", gzip.compress(LIST, mtime=0)),
    ],
)
def test_endings_are_read_in_any_case_and_compressed(
    tmp_path: Path, door: Callable[[Path], list[dict[str, Any]]], name: str, data: bytes
) -> None:
    """D12: by every reader of tables."""
    (tmp_path / name).write_bytes(data)
    assert door(tmp_path / name) == ROWS


@pytest.mark.parametrize("door", [read_in_memory, read_in_batches, read_by_catalog])
@pytest.mark.parametrize("name", ["items.PARQUET", "items.parquet/part-00000.snappy.parquet"])
def test_parquet_is_read_in_any_case_and_from_a_directory(
    tmp_path: Path, door: Callable[[Path], list[dict[str, Any]]], name: str
) -> None:
    """D12: Spark writes a directory with a mark of success and hidden checksums."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    if path.parent != tmp_path:
        (path.parent / "_SUCCESS").touch()
        (path.parent / f".{path.name}.crc").write_bytes(b"crc")
        path = path.parent
    assert door(path) == ROWS


@pytest.mark.parametrize("door", [read_in_memory, read_in_batches, read_by_catalog])
@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("items.csv", gzip.compress(CSV, mtime=0), "is compressed with gzip: add .gz to its name"),
        ("items.jsonl", gzip.compress(LINES, mtime=0), "is compressed with gzip: add .gz to its name"),
        ("items.csv", b"PAR1....PAR1", "is Parquet: rename it, so that its name ends in .parquet"),
        ("items.json", b"PAR1....PAR1", "is Parquet: rename it, so that its name ends in .parquet"),
        ("items.tsv", b"\x28\xb5\x2f\xfd....", "is compressed with zstd"),
        ("items.csv", b"\xd0\xcf\x11\xe0....", "is an Excel workbook: save the table as CSV"),
        ("items.csv.gz", CSV, "cannot be read"),
        ("items.jsonl.gz", LINES, "cannot be read"),
        ("items.json.gz", gzip.compress(LIST, mtime=0)[:-9], "cannot be read"),
        ("items.parquet", CSV, "cannot be read as Parquet"),
        ("items.txt", CSV, "expected a file that ends in .parquet, .csv, .csv.gz, .tsv"),
        ("items", CSV, "expected a file that ends in"),
        ("items.xlsx", b"PK\x03\x04", "expected a file that ends in"),
        ("items.csv", b"", "is empty (0 bytes)"),
        ("items.parquet", b"", "is empty (0 bytes)"),
    ],
)
def test_content_of_another_format_than_the_name_says_is_named(
    tmp_path: Path, door: Callable[[Path], list[dict[str, Any]]], name: str, data: bytes, message: str
) -> None:
    """D3: not as text that is not UTF-8."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError) as caught:
        door(tmp_path / name)
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)


def test_a_workbook_with_the_ending_of_csv_is_named(tmp_path: Path) -> None:
    """D3: a workbook is a ZIP file."""
    with zipfile.ZipFile(tmp_path / "items.csv", "w") as file:
        file.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(DataError, match="is a ZIP file or an Excel workbook: save the table as CSV"):
        read_in_memory(tmp_path / "items.csv")


@pytest.mark.parametrize("door", [read_in_memory, read_in_batches, read_by_catalog])
def test_a_file_that_is_missing_is_named(tmp_path: Path, door: Callable[[Path], list[dict[str, Any]]]) -> None:
    for name in ("items.csv", "items.parquet", "items.jsonl"):
        with pytest.raises(DataError, match="there is no file"):
            door(tmp_path / name)


def test_a_delimiter_that_is_named_holds_for_tsv_too(tmp_path: Path) -> None:
    """D12: such as a .tsv of semicolons."""
    (tmp_path / "items.tsv").write_bytes(CSV.replace(b",", b";"))
    table = read_table(tmp_path / "items.tsv", ids=("item_id",), form=CsvFormat(delimiter=";"))
    assert table.table["price"].to_pylist() == [3, 4]


def write_parts(folder: Path, *tables: pa.Table) -> Path:
    folder.mkdir(parents=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"part-{number:05}-c000.snappy.parquet")
    (folder / "_SUCCESS").touch()
    return folder


def test_a_log_of_part_files_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    """D12: as files of its own, in a directory of data, and as the directory that is named."""
    first = pa.table({"user_id": ["u", "u"], "item_id": ["a", "b"], "timestamp": [1_700_000_001, 1_700_000_002]})
    second = pa.table({"user_id": ["u"], "item_id": ["c"], "timestamp": [1_700_000_003]})
    items = pa.table({"item_id": ["c"], "title": ["tea"]})
    write_parts(tmp_path / "interactions.parquet", first, second, first.slice(0, 0))
    write_parts(tmp_path / "items.parquet", items)
    for log in (load_log(tmp_path), load_log(tmp_path / "interactions.parquet", items=tmp_path / "items.parquet")):
        assert histories(log) == {"u": ["a", "b", "c"]}
        assert dict(zip(log.items["item_id"].to_pylist(), log.items["title"].to_pylist(), strict=True))["c"] == "tea"


def test_a_mistake_in_a_part_is_named_by_its_file_and_row(tmp_path: Path) -> None:
    """D12: rows are counted within each file."""
    folder = write_parts(tmp_path / "items", pa.table({"item_id": ["a", "b"]}), pa.table({"item_id": ["c", None]}))
    (tmp_path / "log.csv").write_text("user_id,item_id,timestamp\nu,a,1700000000\n")
    with pytest.raises(DataError, match=r"empty in row 2 of part-00001-c000\.snappy\.parquet"):
        load_log(interactions=tmp_path / "log.csv", items=folder)


@pytest.mark.parametrize("door", [read_in_memory, read_in_batches, read_by_catalog])
def test_directories_that_are_not_one_table_are_refused(tmp_path: Path, door: Callable[[Path], list[dict[str, Any]]]) -> None:
    """D12: folders by value, parts of two schemas, no parts at all."""
    other = write_parts(tmp_path / "other", pa.table({"item_id": ["a"]}), pa.table({"item_id": [1]}))
    with pytest.raises(DataError, match="expected the same names and types in all files"):
        door(other)
    split = write_parts(tmp_path / "split" / "day=3", pa.table({"item_id": ["a"]})).parent
    with pytest.raises(DataError, match=r"is split into folders by the values of a column \(day=3\)"):
        door(split)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"has no \*\.parquet files"):
        door(tmp_path / "none")


@pytest.mark.parametrize("door", [read_in_memory, read_in_batches, read_by_catalog])
@pytest.mark.parametrize("name", ["part-1", "part-1.csv", "part-1.parquet.gz", "more/part-1.parquet", "_delta_log/0.json"])
def test_entries_of_a_directory_that_are_not_read_are_named(
    tmp_path: Path, door: Callable[[Path], list[dict[str, Any]]], name: str
) -> None:
    """D12: their rows were silently missing."""
    folder = write_parts(tmp_path / "items", pa.Table.from_pylist(ROWS))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"{}")
    entry = f"{name.split('/')[0]}/" if "/" in name else name
    with pytest.raises(DataError, match=rf"items has {entry} beside \*\.parquet files, which would not be read: move them"):
        door(folder)


@pytest.mark.parametrize("door", [read_in_memory, read_in_batches, read_by_catalog])
def test_parts_are_read_in_any_case_of_their_ending_beside_marks_and_checksums(
    tmp_path: Path, door: Callable[[Path], list[dict[str, Any]]]
) -> None:
    """D12: `part-1.PARQUET` was left out."""
    folder = write_parts(tmp_path / "items", pa.Table.from_pylist(ROWS[:1]))
    pq.write_table(pa.Table.from_pylist(ROWS[1:]), folder / "part-1.PARQUET")
    for name in ("_metadata", "_common_metadata", "part-1.parquet.crc", ".part-1.crc", ".DS_Store"):
        (folder / name).write_bytes(b"no rows")
    (folder / ".hidden").mkdir()
    assert door(folder) == ROWS


@pytest.mark.parametrize(
    ("csv", "data"),
    [
        ({"encoding": "latin-1"}, "item_id,title\na,café\n".encode("latin-1")),
        ({"encoding": "utf-16"}, "item_id,title\na,café\n".encode("utf-16")),
        ({"delimiter": ";"}, "item_id;title\na;café\n".encode()),
        ({"delimiter": "|", "encoding": "cp1252"}, "item_id|title\na|café\n".encode("cp1252")),
    ],
)
def test_a_catalog_is_made_of_csv_in_any_form(tmp_path: Path, csv: CsvOptions, data: bytes) -> None:
    """D3: `Catalog.create`, `in_memory` and `reload` take the encoding that their errors advise."""
    path, trie = tmp_path / "items.csv", Trie.build([[0]], [1], item_ids=["a"])
    path.write_bytes(data)
    Catalog.create(tmp_path / "items.duckdb", path, **csv)
    with Catalog.open(tmp_path / "items.duckdb", trie) as catalog:
        assert catalog.lookup(["a"])["title"].to_pylist() == ["café"]
        report = catalog.reload(path)
        assert report.error is not None
        assert ("pass --encoding" in report.error) == ("encoding" in csv)
        assert catalog.reload(path, **csv).error is None
    with Catalog.in_memory(path, trie, **csv) as catalog:
        assert catalog.lookup(["a"])["title"].to_pylist() == ["café"]


def test_a_form_of_csv_that_cannot_be_is_named(tmp_path: Path) -> None:
    """D3: before anything is written."""
    for csv, message in (
        (CsvOptions(encoding="hex"), "the name of an encoding"),
        (CsvOptions(delimiter=";;"), "one character"),
    ):
        with pytest.raises(ArgumentError, match=message):
            Catalog.create(tmp_path / "items.duckdb", tmp_path / "items.csv", **csv)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["vectors.parquet/part-0.parquet", "VECTORS.PARQUET", "vectors.NPY"])
def test_own_vectors_are_read_from_every_ending_too(tmp_path: Path, name: str) -> None:
    """D12: as tables are; numbers of 16 bits, as engines of embeddings write."""
    vectors, path = np.array([[1.5, 2.0], [0.25, 1.0]], np.float16), tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if name.endswith("NPY"):
        with path.open("wb") as file:
            np.save(file, vectors)
    else:
        column = pa.array([list(vector) for vector in vectors], pa.list_(pa.float16()))
        pq.write_table(pa.table({"item_id": ["a", "b"], "vector": column}), path)
    found = load_vectors(path if path.parent == tmp_path else path.parent, np.array([b"a", b"b"]).astype(str))
    assert found.tolist() == vectors.astype(np.float32).tolist()
