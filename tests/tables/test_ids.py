"""Ids: one check for every format and every door through which they come."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.catalog import Catalog
from leafbeam.cli.codes import CodesTable
from leafbeam.errors import DataError
from leafbeam.index import Trie
from leafbeam.ingest.lines import problem_of_new_id
from leafbeam.tables import SourceTable, nanoseconds, read_rows, read_table
from leafbeam.tables.columns import TimeUnit
from leafbeam.train import LogRules, load_log, log_from_tables

BAD_IDS: list[tuple[str, pa.Array, str]] = [
    ("D8 line break", pa.array(["a", "b\nc"]), "control characters, such as line breaks, in row 2 ('b\\nc')"),
    ("D8 NUL", pa.array(["a\0", "b"]), "control characters, such as line breaks, in row 1"),
    ("D8 dictionary", pa.array(["a", "b\x7f"]).dictionary_encode(), "in row 2 ('b\\x7f')"),
    ("D8 view", pa.array(["a", "b\t"], pa.string_view()), "control characters, such as line breaks, in row 2"),
    ("D8 empty", pa.array(["a", ""]), "empty in row 2"),
    ("D8 line separator", pa.array(["a", "b\u2028"]), "control characters, such as line breaks, in row 2"),
    ("D8 null", pa.array([None, 2]), "empty in row 1"),
    ("D8 blank without width", pa.array(["a", "A7\u200b"]), "without width, in row 2 ('A7\\u200b')"),
    ("D8 mark of the byte order", pa.array(["\ufeffA7", "A7"], pa.large_string()), "cannot be seen"),
    ("D8 soft hyphen", pa.array(["tea", "t\u00adea"]), "cannot be seen"),
    ("D8 direction", pa.array(["tea", "tea\u200e"]), "cannot be seen"),
    ("D8 joiner at an end", pa.array(["tea", "tea\u200d"]), "cannot be seen"),
    ("D2 unsigned", pa.array([2**63, 1], pa.uint64()), "numbers beyond 64 bits including the sign in row 1"),
    ("D2 decimal", pa.array([Decimal(1), Decimal(2**63)], pa.decimal128(20, 0)), "beyond 64 bits including the sign in row 2"),
    ("D2 fraction", pa.array([Decimal("7.5"), Decimal(1)], pa.decimal128(10, 2)), "numbers with a fraction in row 1"),
    ("D8 float", pa.array([1.0, 2.0]), "of the type number: ids are whole numbers or text"),
    ("D8 half", pa.array([1.0, 2.0], pa.float16()), "of the type number: ids are whole numbers or text"),
    ("D8 time", pa.array([1, 2], pa.timestamp("us")), "of the type time: ids are whole numbers or text"),
    ("D8 list", pa.array([["a"], ["b"]]), "ids are whole numbers or text"),
    ("D8 bytes", pa.array([b"a", b"b"]), "ids are whole numbers or text"),
]  # fmt: skip


def create_from_parquet(ids: pa.Array, folder: Path) -> None:
    pq.write_table(pa.table({"item_id": ids}), folder / "items.parquet")
    Catalog.create(folder / "items.duckdb", folder / "items.parquet")


def create_from_parts(ids: pa.Array, folder: Path) -> None:
    (folder / "items").mkdir()
    pq.write_table(pa.table({"item_id": ids}), folder / "items" / "part-00000.parquet")
    Catalog.create(folder / "items.duckdb", folder / "items")


def create_from_arrow(ids: pa.Array, folder: Path) -> None:
    Catalog.create(folder / "items.duckdb", pa.table({"item_id": ids}))


def create_from_stream(ids: pa.Array, folder: Path) -> None:
    table = pa.table({"item_id": ids})
    Catalog.in_memory(
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=1)), Trie.build([[0]], [1])
    )


def read_as_items(ids: pa.Array, folder: Path) -> None:
    pq.write_table(pa.table({"item_id": ids}), folder / "items.parquet")
    pq.write_table(pa.table({"user_id": [1], "item_id": ["a"], "timestamp": [1]}), folder / "log.parquet")
    load_log(interactions=folder / "log.parquet", items=folder / "items.parquet")


def read_codes(ids: pa.Array, folder: Path) -> None:
    pq.write_table(pa.table({"item_id": ids, "c0": [0, 1]}), folder / "sids.parquet")
    list(CodesTable.open(folder / "sids.parquet", [2]).batches())


@pytest.mark.parametrize(
    "door", [create_from_parquet, create_from_parts, create_from_arrow, create_from_stream, read_as_items, read_codes]
)
@pytest.mark.parametrize(("name", "ids", "message"), BAD_IDS, ids=[case[0] for case in BAD_IDS])
def test_every_door_refuses_the_same_ids_with_their_rows(
    tmp_path: Path, door: Callable[[pa.Array, Path], None], name: str, ids: pa.Array, message: str
) -> None:
    """D2, D8: one check for files, Arrow tables and streams, in a catalog, a log and a table of codes."""
    with pytest.raises(DataError) as caught:
        door(ids, tmp_path)
    assert "column 'item_id'" in str(caught.value)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("text", ["a\u00adb", "a\u200b", "\ufeffa", "\u2066a", "a\u200c"])
def test_http_refuses_new_ids_with_characters_that_nobody_sees(text: str) -> None:
    """D8: as files do."""
    assert "characters that cannot be seen" in str(problem_of_new_id(text))


@pytest.mark.parametrize("text", ["👩‍🚀", "می‌خواهم", "❤️", "a b", "café", "東京", "a\u00a0b"])
def test_joiners_inside_words_and_emoji_are_part_of_an_id(tmp_path: Path, text: str) -> None:
    """D8: such ids are legitimate."""
    assert problem_of_new_id(text) is None
    create_from_arrow(pa.array([text]), tmp_path)
    with duckdb.connect(tmp_path / "items.duckdb", read_only=True) as connection:
        assert connection.sql("SELECT item_id FROM items").fetchall() == [(text,)]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (pa.array([Decimal(7), Decimal(8)], pa.decimal128(20, 0)), [7, 8]),  # as Spark and DuckDB write
        (pa.array([Decimal("7.00"), Decimal("-8.00")], pa.decimal128(10, 2)), [7, -8]),
        (pa.array([Decimal(2**63 - 1), Decimal(-(2**63))], pa.decimal256(40, 0)), [2**63 - 1, -(2**63)]),
        (pa.array([7, 2**63 - 1], pa.uint64()), [7, 2**63 - 1]),
        (pa.array([7, 8], pa.int8()).dictionary_encode(), [7, 8]),
        (pa.array(["7", "008"], pa.string_view()), ["7", "008"]),
        (pa.array(["7", "8 "]).dictionary_encode(), ["7", "8 "]),
    ],
)
def test_whole_numbers_of_any_type_are_ids(tmp_path: Path, ids: pa.Array, expected: list[Any]) -> None:
    """D2: decimals without a fraction are whole numbers; text of typed formats stays as it is."""
    create_from_parquet(ids, tmp_path)
    with duckdb.connect(tmp_path / "items.duckdb", read_only=True) as connection:
        assert [row[0] for row in connection.sql("SELECT item_id FROM items").fetchall()] == expected
    log = log_from_tables(pa.table({"user_id": [1, 1], "item_id": ids, "timestamp": [1, 2]}))
    assert log.item_ids.tolist() == expected
    as_text = log_from_tables(pa.table({"user_id": [1, 1], "item_id": ids, "timestamp": [1, 2]}), rules=LogRules(text_ids=True))
    assert as_text.item_ids.tolist() == list(map(str, expected))


def test_decimals_beyond_64_bits_are_ids_once_they_are_read_as_text() -> None:
    """D2: as `--text-ids` admits."""
    ids = pa.array([Decimal(2**64), Decimal(7)], pa.decimal128(38, 0))
    log = log_from_tables(pa.table({"user_id": [1, 1], "item_id": ids, "timestamp": [1, 2]}), rules=LogRules(text_ids=True))
    assert log.item_ids.tolist() == [str(2**64), "7"]


def test_rows_are_counted_over_the_batches_of_a_stream(tmp_path: Path) -> None:
    """D8: the row is that of the file, whatever the size of its row groups; memory stays that of a batch."""
    ids = [f"i{row}" for row in range(150_000)]
    ids[140_000] = "a\nb"
    pq.write_table(pa.table({"item_id": ids}), tmp_path / "items.parquet", row_group_size=50_000)
    with pytest.raises(DataError, match=r"items\.parquet, column 'item_id': control .* in row 140,001 \('a\\nb'\)"):
        Catalog.create(tmp_path / "items.duckdb", tmp_path / "items.parquet")


def test_items_that_leafbeam_saved_are_restored_with_the_ids_they_have(tmp_path: Path) -> None:
    """D8: ids that are older than the check stay, so that a snapshot can be restored."""
    trie = Trie.build([[0], [1]], [2], item_ids=["a", "b\u200b"])
    pq.write_table(pa.table({"item_id": ["a", "b\u200b"], "price": [1, 2]}), tmp_path / "items.parquet")
    with Catalog.in_memory(pa.table({"item_id": ["a"], "price": [3]}), trie, {"cheap": "price < 3"}) as catalog:
        catalog.restore(trie, tmp_path / "items.parquet")
        assert catalog.rules.filters["cheap"].item_ids().tolist() == ["a", "b\u200b"]


@pytest.mark.parametrize(
    ("times", "unit", "expected"),
    [
        (pa.array([Decimal(1769000001)], pa.decimal128(20, 0)), "s", 1_769_000_001 * 10**9),
        (pa.array([Decimal("1769000001.123456789")], pa.decimal128(38, 9)), "s", 1_769_000_001_123_456_789),
        (pa.array([Decimal("1769000001123.5")], pa.decimal128(20, 1)), "ms", 1_769_000_001_123_500_000),
        (pa.array([Decimal(1_769_000_001_123_456_789)], pa.decimal256(40, 0)), "ns", 1_769_000_001_123_456_789),
    ],
)
def test_decimal_times_are_exact_to_the_nanosecond(times: pa.Array, unit: TimeUnit, expected: int) -> None:
    """D7: as DuckDB's HUGEINT and Spark's decimal(20, 0) come."""
    assert nanoseconds(SourceTable(table=pa.table({"t": times})), "t", unit).tolist() == [expected]


@pytest.mark.parametrize("times", ["0.0000000001", "9300000000", "99999999999999999999"])
def test_decimal_times_that_would_change_are_refused(times: str) -> None:
    """D7: finer than nanoseconds, or beyond the year 2262."""
    table = SourceTable(table=pa.table({"t": pa.array([Decimal(times)], pa.decimal256(50, 12))}), source="log.parquet")
    with pytest.raises(
        DataError, match=r"log\.parquet, column 't' (has times finer than nanoseconds|reaches [0-9]+,) .*beyond the year 2262"
    ):
        nanoseconds(table, "t", "s")


@pytest.mark.parametrize("name", ["\u200bitem_id", "item_id\ufeff", "\u200etitle", "tit\u00adle"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "json", "parquet"])
def test_a_name_of_a_column_with_characters_that_nobody_sees_is_refused(tmp_path: Path, form: str, name: str) -> None:
    """D11: pasted headers had such characters elsewhere, and no rule found the column."""
    path, row = tmp_path / f"items.{form}", {"item_id": "a", name: "b"}
    if form == "csv":
        path.write_text(f"item_id,{name}\na,b\n", encoding="utf-8")
    elif form == "parquet":
        pq.write_table(pa.table({key: [value] for key, value in row.items()}), path)
    else:
        path.write_text(json.dumps(row), encoding="utf-8")
    for read in (lambda: read_table(path, ids=("item_id",)), lambda: list(read_rows(path, 9, types={}))):
        with pytest.raises(DataError, match="a character that cannot be seen in the name of the column"):
            read()


@pytest.mark.parametrize("text", ["72057594038135102", "9999999999999999", "10000000000000001", "1344800117571260417"])
@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "keys"])
def test_long_ids_keep_their_last_digits(tmp_path: Path, form: str, text: str) -> None:
    """D2: other readers of JSON make a float64 of such text, and two ids become one."""
    path = tmp_path / ("items.csv" if form == "csv" else "items.jsonl" if form == "jsonl" else "items.json")
    content = {"csv": f"item_id,twin\n{text},{text}\n", "keys": json.dumps({text: {"twin": text}})}
    path.write_text(content.get(form, json.dumps({"item_id": text, "twin": text})))
    table = read_table(path, ids=("item_id",)).table
    assert str(table["twin"][0]) == text
    assert table["item_id"].to_pylist() == [text]
    (batch,) = read_rows(path, 9, types={"item_id": "string", "twin": "string"}, ids=("item_id",))
    assert batch.rows == [{"item_id": text, "twin": text}]


@pytest.mark.parametrize("scale", [0, 2])
@pytest.mark.parametrize("kind", ["int64", "string"])
def test_decimal_ids_and_numbers_are_imported_as_their_columns_are(tmp_path: Path, scale: int, kind: str) -> None:
    """D2: `items import` of what Spark and DuckDB write gives the ids that `fit-sids` and the catalog have."""
    table = pa.table(
        {
            "item_id": pa.array([Decimal(3), Decimal(99)], pa.decimal128(20, scale)),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
            "stock": pa.array([Decimal(7), Decimal(2**60)], pa.decimal128(20, 0)),
            "exact": pa.array([Decimal("1.50"), Decimal("0.10")], pa.decimal128(10, 2)),
        }
    )
    pq.write_table(table, tmp_path / "items.parquet")
    types = {"item_id": kind, "price": "double", "stock": "int64", "exact": "decimal128(10, 2)"}
    (batch,) = read_rows(tmp_path / "items.parquet", 9, types=types, ids=("item_id",))
    ids = [3, 99] if kind == "int64" else ["3", "99"]
    assert batch.rows == [
        {"item_id": ids[0], "price": 1.5, "stock": 7, "exact": "1.50"},
        {"item_id": ids[1], "stock": 2**60, "exact": "0.10"},
    ]


def write_dataset(table: pa.Table, folder: Path) -> Path:
    with pa.OSFile(str(folder / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return folder


@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize("name", ["user_id", "item_id"])
@pytest.mark.parametrize(
    "values", [pa.array(["a", None, "b"]), pa.array([1, None, 2]), pa.array([None, "a", "b"], pa.large_string())]
)
def test_a_null_within_a_dictionary_is_an_empty_id(tmp_path: Path, values: pa.Array, name: str, as_dataset: bool) -> None:
    """D8: such a null was the id "" of Hugging Face's datasets and Arrow tables."""
    ids = pa.DictionaryArray.from_arrays(pa.array([2, 1, 0], pa.int8()), values)
    table = pa.table({"user_id": [1, 1, 2], "item_id": [1, 2, 3], "timestamp": [1, 2, 3]})
    table = table.set_column(table.column_names.index(name), name, ids)
    row = 3 - values.to_pylist().index(None)
    with pytest.raises(DataError, match=rf"column '{name}': empty in row {row}: fill or remove these rows"):
        load_log(interactions=write_dataset(table, tmp_path)) if as_dataset else log_from_tables(table)
    if name == "item_id":
        with pytest.raises(DataError, match=rf"empty in row {row}"):
            create_from_arrow(ids, tmp_path)


@pytest.mark.parametrize("as_dataset", [False, True])
@pytest.mark.parametrize(("values", "expected"), [(["a", "a", "b"], ["a", "b"]), ([7, 7, 8], [7, 8])])
def test_a_value_twice_in_a_dictionary_is_one_id(
    tmp_path: Path, values: list[Any], expected: list[Any], as_dataset: bool
) -> None:
    """D8: the user's history was split in two."""
    ids = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), pa.array(values))
    table = pa.table({"user_id": ids, "item_id": ids, "timestamp": [1, 2, 3]})
    log = load_log(interactions=write_dataset(table, tmp_path)) if as_dataset else log_from_tables(table)
    assert log.user_ids.tolist() == log.item_ids.tolist() == expected
    assert [history.tolist() for history in log.histories] == [[0, 0], [1]]


@pytest.mark.parametrize("text", ["a\n", "\x1ca", "a\x85", "\x0ba", "a\u2028", "\ra", "a\x1f\n"])
def test_control_characters_around_an_id_of_csv_are_not_trimmed(tmp_path: Path, text: str) -> None:
    """A8, D8: they made `a` of it before they were checked."""
    path = tmp_path / "log.csv"
    path.write_bytes(f'user_id,item_id,timestamp\nu,"{text}",1\n'.encode())
    with pytest.raises(DataError, match="column 'item_id': control characters, such as line breaks, in line 2"):
        load_log(interactions=path)
    (batch,) = read_rows(path, 9, types={"item_id": "string"}, ids=("item_id",))
    assert batch.rows[0]["item_id"] == text  # refused by the server, with its line
    assert problem_of_new_id(text) is not None


@pytest.mark.parametrize("text", ["a ", "\ta", "a\u00a0", "\u3000a", " \u2009a\t "])
def test_blanks_and_tabs_around_an_id_of_csv_are_trimmed(tmp_path: Path, text: str) -> None:
    """D8: otherwise one item is two."""
    path = tmp_path / "log.csv"
    path.write_text(f"user_id,item_id,timestamp\nu,{text},1\nu,a,2\n", encoding="utf-8")
    assert load_log(interactions=path).item_ids.tolist() == ["a"]
    (batch,) = read_rows(path, 9, types={"item_id": "string"}, ids=("item_id",))
    assert [row["item_id"] for row in batch.rows] == ["a", "a"]


@pytest.mark.parametrize("names", [["item_id", "price", "price"], ["item_id", "Price", "price"], ["item_id", "ITEM_ID"]])
def test_a_column_twice_in_parquet_is_named(tmp_path: Path, names: list[str]) -> None:
    """D11: pyarrow's own message advised to restore the file from a copy."""
    path = tmp_path / "items.parquet"
    pq.write_table(pa.table([pa.array(["a"])] * len(names), names=names), path)
    for read in (
        lambda: read_table(path, ids=("item_id",)),
        lambda: list(read_rows(path, 9, types={})),
        lambda: Catalog.create(tmp_path / "items.duckdb", path),
        lambda: CodesTable.open(path, [2]),
    ):
        with pytest.raises(DataError, match=r"items\.parquet has the columns? .*: rename one of them") as caught:
            read()
        assert "restore" not in str(caught.value)
