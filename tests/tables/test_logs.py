"""Logs as people have them: histories in cells, rows by number, ids with blanks, times to the nanosecond."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.errors import ArgumentError, DataError
from leafbeam.tables import TimeUnit
from leafbeam.train import Columns, InteractionLog, LogRules, load_log, log_from_tables
from tests.fixtures.logs import histories

HISTORIES = {"anna": ["A7", "B1", "A7"], "ben": ["C2"]}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def list_files(folder: Path) -> dict[str, Path]:
    """One log in each form that has a user's items in one place."""
    users, items = list(HISTORIES), list(HISTORIES.values())
    rows = [{"user_id": user, "item_id": HISTORIES[user]} for user in users]
    python = "".join(f'{user},"{HISTORIES[user]}"\n' for user in users)
    as_json = "".join(f"""{user},"{json.dumps(HISTORIES[user]).replace('"', '""')}"\n""" for user in users)
    pq.write_table(pa.table({"user_id": users, "item_id": items}), folder / "lists.parquet")
    pq.write_table(pa.table({"user_id": users, "item_id": [str(row) for row in items]}), folder / "text.parquet")
    large = pa.array(items, pa.large_list(pa.string()))
    pq.write_table(pa.table({"user_id": users, "item_id": large}), folder / "large.parquet")
    return {
        "users to items": write(folder / "by_user.json", HISTORIES),
        "lines": write(folder / "lines.jsonl", "\n".join(map(json.dumps, rows))),
        "list": write(folder / "list.json", rows),
        "pandas": write(folder / "orient.json", {"user_id": users, "item_id": items}),
        "Python's lists in CSV": write(folder / "python.csv", "user_id,item_id\n" + python),
        "JSON's lists in CSV": write(folder / "json.csv", "user_id,item_id\n" + as_json),
        **{path.stem: path for path in folder.glob("*.parquet")},
    }


def test_a_history_in_a_cell_is_read_in_its_order(tmp_path: Path) -> None:
    """L1, L2: an object of users to items; lists in a column, of every format."""
    files = list_files(tmp_path)
    assert len(files) == 9
    for name, path in files.items():
        assert histories(load_log(interactions=path, rules=LogRules(order="file"))) == HISTORIES, name
        with pytest.raises(DataError, match=r"--order file|has no column 'timestamp'"):
            load_log(interactions=path)


def test_a_column_of_histories_may_have_any_name(tmp_path: Path) -> None:
    """L2: read once it is named; without a name the error tells how."""
    path = write(tmp_path / "log.csv", 'user_id,history\n1,"[3, 4]"\n2,"[5]"\n3,[]\n')
    log = load_log(interactions=path, columns=Columns(item="history"), rules=LogRules(order="file"))
    assert histories(log) == {1: [3, 4], 2: [5]}
    with pytest.raises(DataError, match=r"no column 'item_id'; it has 'user_id', 'history': .*it may hold lists"):
        load_log(interactions=path, rules=LogRules(order="file"))


def test_lists_of_times_order_lists_of_items(tmp_path: Path) -> None:
    """L2: a time for each item of the list."""
    rows = [{"user_id": 1, "item_id": [7, 8, 9], "timestamp": [30, 10, 20]}, {"user_id": 2, "item_id": [7], "timestamp": [5]}]
    path = write(tmp_path / "log.jsonl", "\n".join(map(json.dumps, rows)))
    assert histories(load_log(interactions=path)) == {1: [8, 9, 7], 2: [7]}
    for empty in (None, []):
        write(path, "\n".join(map(json.dumps, [*rows, {"user_id": 3, "item_id": [7], "timestamp": empty}])))
        with pytest.raises(DataError, match=r"column 'timestamp': not as many times as 'item_id' has items in line 3"):
            load_log(interactions=path)
    write(path, json.dumps({"user_id": 1, "item_id": [7, 8], "timestamp": [1]}))
    with pytest.raises(DataError, match=r"column 'timestamp': not as many times as 'item_id' has items in line 1"):
        load_log(interactions=path)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('user_id,item_id\n1,"[1, 2]"\n2,\n', "column 'item_id': empty in line 3"),
        ('user_id,item_id\n1,"[1, 2]"\n2,"[3, None]"\n', "column 'item_id': empty in line 3"),
        ('user_id,item_id\n1,"[1.5, 2]"\n', "of the type number: ids are whole numbers or text"),
    ],
)
def test_a_bad_list_is_named_by_its_line(tmp_path: Path, text: str, where: str) -> None:
    """L2: mistakes in lists have the line of their cell."""
    with pytest.raises(DataError, match=where):
        load_log(interactions=write(tmp_path / "log.csv", text), rules=LogRules(order="file"))


ROWS = [
    {"user_id": "anna", "item_id": "A7", "timestamp": 1769000001},
    {"user_id": "anna", "item_id": "B1", "timestamp": 1769000002},
    {"user_id": "ben", "item_id": "A7", "timestamp": 1769000003},
]


@pytest.mark.parametrize(
    "content",
    [
        {str(row): fields for row, fields in enumerate(ROWS)},
        {name: {str(row): fields[name] for row, fields in enumerate(ROWS)} for name in ROWS[0]},
        {name: [fields[name] for fields in ROWS] for name in ROWS[0]},
        ROWS,
    ],
    ids=["rows by number", "columns by number", "columns", "list"],
)
def test_rows_by_number_keep_their_fields(tmp_path: Path, content: Any) -> None:
    """D6: the number of a row is not its id if the row has one; pandas' other forms are read too."""
    log = load_log(interactions=write(tmp_path / "log.json", content))
    assert histories(log) == {"anna": ["A7", "B1"], "ben": ["A7"]}


def test_keys_are_ids_where_rows_have_none_and_mixtures_are_refused(tmp_path: Path) -> None:
    """D6: LC-Rec's items by id; some rows with an id and some without are a mistake."""
    items = write(tmp_path / "items.json", {"7": {"title": "tea"}, "8": {"title": "cup"}})
    path = write(tmp_path / "log.csv", "user_id,item_id,timestamp\n1,8,1700000000\n")
    assert load_log(interactions=path, items=items).items.to_pylist()[1] == {"item_id": 8, "title": "cup"}
    write(items, {"7": {"title": "tea", "item_id": "7"}, "8": {"title": "cup"}})
    with pytest.raises(DataError, match="the row '8' has no 'item_id', but other rows have one"):
        load_log(interactions=path, items=items)
    write(items, {"item_id": [1, 2], "title": ["tea"]})
    with pytest.raises(DataError, match="columns of different lengths: item_id 2, title 1"):
        load_log(interactions=path, items=items)


NS = 1_769_000_001_000_000_001


@pytest.mark.parametrize(
    "times",
    [
        pa.array([NS + 1, NS]),
        pa.array([NS + 1, NS], pa.timestamp("ns")),
        pa.array([NS + 1, NS], pa.timestamp("ns", tz="Asia/Tokyo")),
        pa.array(["2026-01-21T12:53:21.000000002", "2026-01-21T12:53:21.000000001"]),
        pa.array([NS + 1, NS], pa.uint64()),
    ],
    ids=["numbers", "times", "times with a zone", "text", "without sign"],
)
def test_times_of_nanoseconds_keep_their_order(tmp_path: Path, times: pa.Array) -> None:
    """D7: rows 1 ns apart are two rows, in order, from Parquet, CSV and JSON lines."""
    table = pa.table({"user_id": ["u", "u"], "item_id": ["b", "a"], "timestamp": times})
    log = log_from_tables(table, rules=LogRules(time_unit="ns"))
    assert histories(log) == {"u": ["a", "b"]}
    assert log.histories.times_E.tolist() == [NS, NS + 1]
    pq.write_table(table, tmp_path / "log.parquet")
    words = [value.value if hasattr(value, "value") else value.as_py() for value in times]
    write(
        tmp_path / "log.csv", "user_id,item_id,timestamp\n" + "".join(f"u,{i},{t}\n" for i, t in zip("ba", words, strict=True))
    )
    lines = [{"user_id": "u", "item_id": item, "timestamp": word} for item, word in zip("ba", words, strict=True)]
    write(tmp_path / "log.jsonl", "\n".join(map(json.dumps, lines)))
    for name in ("log.parquet", "log.csv", "log.jsonl"):
        assert histories(load_log(interactions=tmp_path / name, rules=LogRules(time_unit="ns"))) == {"u": ["a", "b"]}, name


@pytest.mark.parametrize(
    ("first", "second", "unit"),
    [
        ("1769000001.000000001", "1769000001.000000002", "s"),
        ("1769000001", "1769000001.000000001", "s"),
        ("-1.5", "-1.499999999", "s"),
        ("1769000001000.000001", "1769000001000.000002", "ms"),
        ("1769000001000000.001", "1769000001000000.002", "us"),
    ],
)
def test_fractions_of_a_second_keep_all_their_digits(tmp_path: Path, first: str, second: str, unit: TimeUnit) -> None:
    """D7: a float64 has none below a quarter of a microsecond."""
    rows = [("b", second), ("a", first), ("c", " " + second)]
    write(tmp_path / "log.csv", "user_id,item_id,timestamp\n" + "".join(f"u,{item},{time}\n" for item, time in rows))
    lines = [{"user_id": "u", "item_id": item, "timestamp": time} for item, time in rows]
    write(tmp_path / "log.jsonl", "\n".join(map(json.dumps, lines)))
    for name in ("log.csv", "log.jsonl"):
        log = load_log(interactions=tmp_path / name, rules=LogRules(time_unit=unit))
        assert histories(log) == {"u": ["a", "b", "c"]}, name
        assert np.diff(log.histories.times_E).tolist() == [1, 0], name


def test_fractions_in_other_forms_are_read_too(tmp_path: Path) -> None:
    """D7: an exponent, and digits beyond the nanosecond."""
    for times in (["1.5e3", "2e3"], ["1500.0000000001", "2000."]):
        write(tmp_path / "log.csv", "user_id,item_id,timestamp\n" + "".join(f"u,i,{time}\n" for time in times))
        log = load_log(interactions=tmp_path / "log.csv")
        assert log.histories.times_E.tolist() == [1500 * 10**9, 2000 * 10**9]
    write(tmp_path / "log.csv", "user_id,item_id,timestamp\nu,i,1.5\nu,j,nan\n")
    with pytest.raises(DataError, match=r"column 'timestamp': not a finite number in line 3"):
        load_log(interactions=tmp_path / "log.csv")
    write(tmp_path / "log.csv", "user_id,item_id,timestamp\nu,i,1769000001000.5\n")
    with pytest.raises(DataError, match=r"beyond the year 2262 as time_unit='s': pass time_unit='ms'"):
        load_log(interactions=tmp_path / "log.csv")


@pytest.mark.parametrize(
    "times",
    [
        [20261122, 20261123],
        [20261122100000, 20261123235959],
        [20261122.0, 20261123.0],
        [202611221000, 202611232359],
        [22112026, 1122026],
        [11222026, 12312026],
        [261122, 261123],
    ],
)
@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "text"])
def test_dates_in_digits_are_not_seconds(tmp_path: Path, times: list[float], form: str) -> None:
    """D7, D12: 20261122 would be a day of 1970."""
    path = tmp_path / f"log.{form.replace('text', 'jsonl')}"
    rows = [{"user_id": 1, "item_id": 7, "timestamp": f"{time:.0f}" if form == "text" else time} for time in times]
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif form == "csv":
        write(path, "user_id,item_id,timestamp\n" + "".join("{user_id},{item_id},{timestamp}\n".format(**row) for row in rows))
    else:
        write(path, "\n".join(map(json.dumps, rows)))
    with pytest.raises(DataError, match=rf"looks like dates in digits, such as {times[0]:.0f}, .*: write them as 2026-11-22"):
        load_log(interactions=path)


def test_numbers_that_only_begin_like_dates_are_seconds(tmp_path: Path) -> None:
    """D7: a single one that is no date decides."""
    write(tmp_path / "log.csv", "user_id,item_id,timestamp\n" + "u,i,20261122\n" * 40 + "u,i,20261199\n")
    assert load_log(interactions=tmp_path / "log.csv").report.rows_before_1980 == 41


@pytest.mark.parametrize("cell", ["['A7' 'B1']", "['A7'\n 'B1']", "[1 2 3]", "['a' ... 'z']"])
def test_arrays_as_numpy_prints_them_are_not_ids(tmp_path: Path, cell: str) -> None:
    """L2: pandas writes such cells for columns of arrays."""
    path = tmp_path / "log.csv"
    write(path, f'user_id,item_id\nu,"{cell}"\nv,"{cell}"\n')
    with pytest.raises(DataError, match=r"holds arrays as NumPy prints them \(line 2: .*write lists with commas"):
        load_log(interactions=path, rules=LogRules(order="file"))


def test_lists_of_views_of_text_are_histories(tmp_path: Path) -> None:
    """L2: as Polars and Arrow write them."""
    kind = pa.list_(pa.string_view())
    table = pa.table({"user_id": ["u", "v"], "item_id": pa.array([["b", "a"], ["c"]], kind)})
    pq.write_table(table, tmp_path / "log.parquet")
    assert histories(load_log(interactions=tmp_path / "log.parquet", rules=LogRules(order="file"))) == {
        "u": ["b", "a"],
        "v": ["c"],
    }


@pytest.mark.parametrize(
    ("header", "user"),
    [(",item_id,timestamp", "unnamed_0"), ("unnamed_1,,item_id,timestamp", "unnamed_1"), (",,item_id,timestamp", "unnamed_1")],
)
def test_a_column_without_a_name_can_be_the_users(tmp_path: Path, header: str, user: str) -> None:
    """D11: pandas writes its index without a name."""
    cells = ["x"] * (header.count(",") - 1)
    cells[int(header.startswith(",,"))] = "anna"
    write(tmp_path / "log.csv", f"\n{header}\n" + ",".join(cells[: header.count(",") - 1]) + ",7,1\n")
    log = load_log(interactions=tmp_path / "log.csv", columns=Columns(user=user))
    assert histories(log) == {"anna": [7]}


def test_tied_times_are_counted(tmp_path: Path) -> None:
    """D7: times in float32 have no seconds left, which the report says."""
    seconds = np.array([1_769_000_001, 1_769_000_002, 1_769_000_300], np.float32)
    table = pa.table({"user_id": [1, 1, 1], "item_id": [1, 2, 3], "timestamp": seconds})
    pq.write_table(table, tmp_path / "log.parquet")
    assert load_log(interactions=tmp_path / "log.parquet").report.tied_times == 1
    assert load_log(interactions=tmp_path / "log.parquet", rules=LogRules(order="file")).report.tied_times == 0


@pytest.mark.parametrize("times", [pa.array([2**62]), pa.array([-(2**62)], pa.timestamp("us")), pa.array(["9999-12-31"])])
def test_times_that_nanoseconds_cannot_hold_are_refused(times: pa.Array) -> None:
    """D7: no time is cut to fit."""
    with pytest.raises(DataError, match="2262"):
        log_from_tables(pa.table({"user_id": [1], "item_id": [1], "timestamp": times}))


def test_blanks_around_ids_of_csv_do_not_split_a_user(tmp_path: Path) -> None:
    """D8: one blank among whole numbers."""
    text = "user_id,item_id,timestamp\n3423,1,1700000001\n3423 ,2,1700000002\n\t3423, 1,1700000003\n"
    log = load_log(interactions=write(tmp_path / "log.csv", text))
    assert histories(log) == {3423: [1, 2, 1]}
    table = pa.table({"user_id": ["a ", "a"], "item_id": ["x", "x"], "timestamp": [1, 2]})
    assert log_from_tables(table).num_users == 2, "Parquet's text is exactly what was written"


@pytest.mark.parametrize("bad", ["a\nb", "a\0", "\x1b[31m", "a\x85"])
def test_control_characters_in_ids_are_refused_with_their_row(bad: str) -> None:
    """D8: as HTTP refuses them, for users and items."""
    for column in ("user_id", "item_id"):
        table = pa.table({"user_id": ["u", "v"], "item_id": ["i", "j"], "timestamp": [1, 2], column: ["x", bad]})
        with pytest.raises(DataError, match=rf"column '{column}': control characters, such as line breaks, in row 2"):
            log_from_tables(table)


def test_ids_that_never_match_are_noted_with_an_example_of_each(tmp_path: Path) -> None:
    """D9: 1001 in the log, 01001 in the items."""
    log = write(tmp_path / "log.csv", "user_id,item_id,timestamp\n1,1001,1700000000\n1,1002,1700000001\n")
    items = write(tmp_path / "items.csv", "item_id,title\n01001,tea\n01002,cup\n")
    (note,) = load_log(interactions=log, items=items).report.notes
    assert "no item of the log, such as '1001', is in " in note
    assert "which has '01001': write the ids in one way" in note
    write(items, "item_id,title\n1001,tea\n01002,cup\n")
    assert load_log(interactions=log, items=items).report.notes == ()


def test_a_column_has_one_role() -> None:
    """D11: `--user-column item_id` would count items as users."""
    with pytest.raises(ArgumentError, match="expected a column for each"):
        Columns(user="item_id")
    with pytest.raises(ArgumentError, match="expected a column for each"):
        Columns(user="a", item="b", timestamp="a")


def test_ids_that_look_like_dates_are_text(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", {"user_id": "2026-01-01", "item_id": "2026-01-02", "timestamp": 1769000001})
    assert histories(load_log(interactions=path)) == {"2026-01-01": ["2026-01-02"]}


def test_users_come_in_the_order_of_their_first_row(tmp_path: Path) -> None:
    table = pa.table(
        {"user_id": pa.array(["c", "a", "c", "b"]).dictionary_encode(), "item_id": [1, 2, 3, 4], "timestamp": [4, 3, 2, 1]}
    )
    backwards = pa.DictionaryArray.from_arrays(pa.array([2, 0, 2, 1], pa.int32()), pa.array(["a", "b", "c", "unused"]))
    for column in (table["user_id"], backwards):
        log = log_from_tables(table.set_column(0, "user_id", column))
        assert log.user_ids.tolist() == ["c", "a", "b"]
        assert histories(log)["c"] == [3, 1]


def load_times(tmp_path: Path, times: list[Any], form: str, unit: TimeUnit = "s") -> InteractionLog:
    """The log of a user's items a, b, ... at these times, from a file of this form."""
    rows = [{"user_id": "u", "item_id": chr(97 + row), "timestamp": time} for row, time in enumerate(times)]
    path = tmp_path / f"log.{form}"
    if form == "csv":
        write(path, "user_id,item_id,timestamp\n" + "".join("{user_id},{item_id},{timestamp}\n".format(**row) for row in rows))
    elif form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        write(path, "\n".join(map(json.dumps, rows)))
    return load_log(interactions=path, rules=LogRules(time_unit=unit))


@pytest.mark.parametrize(
    "kind", [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.float16(), pa.float32()]
)
def test_times_of_few_bits_are_read(kind: pa.DataType) -> None:
    """D7: as Parquet of small relative times has them."""
    times = pa.array(np.array([2, 1, 120], kind.to_pandas_dtype()), kind)
    log = log_from_tables(pa.table({"user_id": ["u"] * 3, "item_id": ["b", "a", "c"], "timestamp": times}))
    assert log.histories.times_E.tolist() == [10**9, 2 * 10**9, 120 * 10**9]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("word", ["0x10", "0X1F", "1_000", "1769000001s", "1,5", "+5", "1e", "."])
def test_words_that_are_not_numbers_are_not_times(tmp_path: Path, word: str, form: str) -> None:
    """D7: pyarrow alone reads 0x10 as 16."""
    with pytest.raises(DataError, match=r"column 'timestamp': not a time in (line [23]|row 2)"):
        load_times(tmp_path, ["1769000001", f'"{word}"' if form == "csv" else word], form)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("times", "unit"),
    [
        ([1769000001, 1769000001000], "s"),
        ([1769000001.5, 1769000002000.5], "s"),
        ([1769000001000, 1769000002000000], "ms"),
        (["1.769e9", "1.769e12"], "s"),
        ([1769000001000, 1769000002], "ms"),
        (["1769000001000.5", "1769000002.5"], "ms"),
        ([1769000001000000000, 1769000002000], "ns"),
    ],
)
def test_times_in_two_units_are_refused(tmp_path: Path, times: list[Any], unit: TimeUnit, form: str) -> None:
    """D7: no unit fits both, so that none is advised."""
    with pytest.raises(
        DataError, match=r"mixes units: .*(line [12]|row 1) .* is a usual time, but 1 of 2 rows .*first in (line [23]|row 2)"
    ):
        load_times(tmp_path, times, form, unit)
    with pytest.raises(DataError, match=r"pass (time_unit=|another \(--time-unit)"):
        load_times(tmp_path, [times[1], times[1]], form, unit)


@pytest.mark.parametrize("time", [0, -1, 86_400_000, 400_000_000_000, 5_000_000_000_000])
def test_a_few_early_or_future_times_are_in_the_same_unit(tmp_path: Path, time: int) -> None:
    """D7: the report counts them."""
    report = load_times(tmp_path, [1769000001000, time], "csv", "ms").report
    assert report.rows_before_1980 + report.rows_in_the_future == (time != 400_000_000_000)


def test_a_mixture_of_numbers_and_texts_names_a_line_of_each(tmp_path: Path) -> None:
    """D7: with and without an offset from UTC too."""
    times = ["2026-01-01 10:00:00", "2026-01-01", "2026-01-01T10:00:00+02:00", "2026-01-01T10:00:00Z", "1769000001"]
    with pytest.raises(DataError) as caught:
        load_times(tmp_path, times, "csv")
    assert "without an offset from UTC in line 2 ('2026-01-01 10:00:00'), a time with an offset from UTC in line 4" in str(
        caught.value
    )
    assert "a number in line 6 ('1769000001'): write all of them one way" in str(caught.value)


def test_decimals_in_two_units_are_refused() -> None:
    """D7: as Spark and DuckDB write numbers."""
    times = pa.array([1769000001, 1769000001000]).cast(pa.decimal128(20, 0))
    table = pa.table({"user_id": [1, 1], "item_id": [1, 2], "timestamp": times})
    with pytest.raises(DataError, match=r"mixes units: .*row 1 .*first in row 2"):
        log_from_tables(table)
    with pytest.raises(DataError, match="pass time_unit='ms'"):
        log_from_tables(table.slice(1))


def test_one_exponent_changes_no_other_row(tmp_path: Path) -> None:
    """D7: a single 1e3 made float64 of all rows."""
    for form in ("csv", "jsonl", "parquet"):
        log = load_times(tmp_path, ["1769000001.123456789", "1e3", "1769000001.123456788", "17.69e-1", "5"], form)
        assert log.histories.times_E.tolist() == [
            1_769_000_000, 5 * 10**9, 1000 * 10**9, 1_769_000_001_123_456_788, 1_769_000_001_123_456_789,
        ], form  # fmt: skip
    with pytest.raises(DataError, match="2262"):
        load_times(tmp_path, ["1e300", "1"], "csv")
    with pytest.raises(DataError, match="not a finite number in line 2"):
        load_times(tmp_path, ["1e999", "1"], "csv")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("times", "unit"),
    [
        ("[1769000001.123456789, 1769000001.123456788]", "s"),
        ("[1769000001123456789, 1.769000001123456788e18]", "ns"),
        ("[1769000001123456.789, 1769000001123456.788]", "us"),
        ('["2026-01-21T12:53:21.123456789", "2026-01-21T12:53:21.123456788"]', "s"),
    ],
)
def test_lists_of_times_keep_their_digits(tmp_path: Path, times: str, unit: TimeUnit, form: str) -> None:
    """D7, L2: numbers in a cell's list are text that no float64 need hold."""
    table = pa.table({"user_id": ["u"], "item_id": ['["b", "a"]'], "timestamp": [times]})
    path = tmp_path / f"log.{form}"
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "jsonl":
        write(path, table.to_pylist()[0])
    else:
        cells = ",".join('"' + column[0].as_py().replace('"', '""') + '"' for column in table.columns)
        write(path, f"user_id,item_id,timestamp\n{cells}\n")
    log = load_log(interactions=path, rules=LogRules(time_unit=unit))
    assert histories(log) == {"u": ["a", "b"]}
    assert log.histories.times_E.tolist() == [1_769_000_001_123_456_788, 1_769_000_001_123_456_789]
    if form == "csv":
        write(path, path.read_text() + 'v,"[""b""]",\n')
        with pytest.raises(DataError, match=r"not as many times as 'item_id' has items in line 3"):
            load_log(interactions=path, rules=LogRules(time_unit=unit))


@pytest.mark.parametrize("times", [[101], [31], [1, 2, 3], [261300], [261122, 7], [22112026, 41112026], [86399]])
def test_small_times_are_not_dates(tmp_path: Path, times: list[int]) -> None:
    """D12: seconds since the start of a study, unless all of them are written as dates."""
    assert load_times(tmp_path, times, "csv").report.interactions == len(times)
