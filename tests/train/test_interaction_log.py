"""Loading a log: files, order, rules for irregular rows, and errors that name file, column and row."""

import datetime as dt
import gzip
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from leafbeam.errors import ArgumentError, DataError
from leafbeam.tables import CsvFormat
from leafbeam.train import Columns, LogRules, load_log, log_from_tables

ROWS = {
    "user_id": ["b", "a", "b", "a", "b", "c"],
    "item_id": ["x", "x", "y", "z", "x", "y"],
    "timestamp": [30, 20, 10, 20, 20, 5],
}
ITEMS = {"item_id": ["z", "x", "y"], "title": ["zed", None, "why"], "price": [1.5, 2.0, None]}


def write(directory: Path, kind: str, interactions: dict[str, list], items: dict[str, list] | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, columns in (("interactions", interactions), ("items", items)):
        if columns is None:
            continue
        table = pa.table(columns)
        if kind == "parquet":
            pq.write_table(table, directory / f"{name}.parquet")
        else:
            pacsv.write_csv(table, directory / f"{name}.csv")
            if kind == "csv.gz":
                plain = directory / f"{name}.csv"
                (directory / f"{name}.csv.gz").write_bytes(gzip.compress(plain.read_bytes()))
                plain.unlink()
    return directory


def names(log, user: int) -> list:
    return log.item_ids[log.histories[user]].tolist()


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz"])
def test_each_kind_of_file_gives_the_same_log(tmp_path, kind):
    log = load_log(write(tmp_path / "data", kind, ROWS, ITEMS))
    assert log.user_ids.tolist() == ["b", "a", "c"]
    assert log.item_ids.tolist() == ["z", "x", "y"]
    assert [names(log, user) for user in range(3)] == [["y", "x", "x"], ["x", "z"], ["y"]]
    assert log.histories.times_E[:3].tolist() == [10 * 10**9, 20 * 10**9, 30 * 10**9]
    assert log.items.column_names == ["item_id", "title", "price"]
    assert log.items["title"].to_pylist() == ["zed", None, "why"]
    assert log.report.items_without_text == 1
    assert log.report.users_with_one_interaction == 1
    assert log.report.users_out_of_order == 1


def test_files_and_columns_can_have_any_name(tmp_path):
    table = pa.table({"who": [1, 1], "what": [7, 8], "when": [2, 1], "stars": [5, 5]})
    pq.write_table(table, tmp_path / "clicks.parquet")
    pq.write_table(pa.table({"sku": [7, 8], "name": ["a", "b"]}), tmp_path / "goods.parquet")
    log = load_log(
        interactions=tmp_path / "clicks.parquet",
        items=tmp_path / "goods.parquet",
        columns=Columns(user="who", item="what", timestamp="when", item_of_items="sku"),
    )
    assert log.item_ids.dtype == np.int64
    assert names(log, 0) == [8, 7]
    assert log.items.column_names == ["item_id", "name"]


def test_equal_times_keep_the_order_of_the_file():
    items = list(range(50))
    log = log_from_tables(pa.table({"user_id": [1] * 50, "item_id": items[::-1], "timestamp": [9] * 50}))
    assert names(log, 0) == items[::-1]


def test_order_file_keeps_the_files_order_where_times_disagree():
    table = pa.table({"user_id": [1, 2, 1], "item_id": [5, 6, 7], "timestamp": [9, 1, 3]})
    assert names(log_from_tables(table, rules=LogRules(order="file")), 0) == [5, 7]
    assert names(log_from_tables(table), 0) == [7, 5]


def test_a_row_given_twice_counts_once_and_a_repeat_at_another_time_stays():
    table = pa.table({"user_id": [1, 1, 1, 2], "item_id": [5, 5, 5, 5], "timestamp": [1, 1, 2, 1]})
    log = log_from_tables(table)
    assert [len(log.histories[user]) for user in range(2)] == [2, 1]
    assert log.report.duplicates_dropped == 1
    assert len(log_from_tables(table, rules=LogRules(duplicates="keep")).histories[0]) == 3


def test_an_item_that_is_not_listed_is_added_dropped_or_refused():
    clicks = pa.table({"user_id": [1, 1, 2], "item_id": ["a", "new", "new"], "timestamp": [1, 2, 3]})
    items = pa.table({"item_id": ["a"], "title": ["t"], "size": pa.array([3], pa.int8())})
    kept = log_from_tables(clicks, items)
    assert kept.item_ids.tolist() == ["a", "new"]
    assert kept.items["title"].to_pylist() == ["t", None]
    assert kept.report.unlisted_items == 1
    dropped = log_from_tables(clicks, items, rules=LogRules(unlisted="drop"))
    assert dropped.user_ids.tolist() == [1]
    assert dropped.report.unlisted_rows_dropped == 2
    with pytest.raises(DataError, match="'new'"):
        log_from_tables(clicks, items, rules=LogRules(unlisted="refuse"))


def test_an_item_without_interactions_stays_unless_unseen_is_drop():
    clicks = pa.table({"user_id": [1], "item_id": ["b"], "timestamp": [1]})
    items = pa.table({"item_id": ["a", "b"]})
    kept = log_from_tables(clicks, items)
    assert names(kept, 0) == ["b"]
    assert (kept.num_items, kept.report.unseen_items) == (2, 1)
    assert log_from_tables(clicks, items, rules=LogRules(unseen="drop")).item_ids.tolist() == ["b"]


def test_the_core_is_the_same_as_dropping_one_by_one():
    rng = np.random.default_rng(0)
    users, items = rng.integers(0, 60, 400), rng.integers(0, 60, 400)
    pairs = list(zip(users.tolist(), items.tolist(), range(400), strict=True))
    log = log_from_tables(pa.table({"user_id": users, "item_id": items, "timestamp": np.arange(400)}), rules=LogRules(k_core=5))
    while True:
        kept = [
            row
            for row in pairs
            if sum(other[0] == row[0] for other in pairs) >= 5 and sum(other[1] == row[1] for other in pairs) >= 5
        ]
        if len(kept) == len(pairs):
            break
        pairs = kept
    users_E = log.user_ids[log.histories.users_E]
    found = zip(users_E.tolist(), log.item_ids[log.histories.items_E].tolist(), log.histories.times_E // 10**9, strict=True)
    assert sorted(found) == sorted(pairs)
    assert log.report.core_rows_dropped == 400 - len(pairs) > 0
    assert log.num_items == len({row[1] for row in pairs})


def test_an_empty_core_is_an_error():
    with pytest.raises(DataError, match="none is in the 7-core of users and items"):
        log_from_tables(pa.table(ROWS), rules=LogRules(k_core=7))


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        (pa.array([1, 2], pa.int32()), "s"),
        (pa.array([1.0, 2.0]), "s"),
        (pa.array([10**12 + 1000, 10**12 + 2000]), "ms"),
        (pa.array([10**15 + 1_000_000, 10**15 + 2_000_000]), "us"),
        (pa.array([10**18 + 1_000_000_000, 10**18 + 2_000_000_000]), "ns"),
        (pa.array([1_000_000, 2_000_000], pa.timestamp("us")), "s"),
        (pa.array([1, 2], pa.timestamp("s", tz="UTC")), "s"),
        (pa.array(["1970-01-01 00:00:01", "1970-01-01T00:00:02"]), "s"),
        (pa.array(["1970-01-01T01:00:01+01:00", "1970-01-01T00:00:02Z"]), "s"),
        (pa.array(["1", "2"]), "s"),
        (pa.array(["1", "2"]).dictionary_encode(), "s"),
    ],
)
def test_times_of_every_kind_are_nanoseconds(times, unit):
    log = log_from_tables(pa.table({"user_id": [1, 1], "item_id": [1, 2], "timestamp": times}), rules=LogRules(time_unit=unit))
    assert (log.histories.times_E % 10**18).tolist() == [1_000_000_000, 2_000_000_000]


def test_dates_are_times_and_fractions_of_seconds_order_rows():
    dates = pa.array([dt.date(1970, 1, 3), dt.date(1970, 1, 2)])
    log = log_from_tables(pa.table({"user_id": [1, 1], "item_id": [1, 2], "timestamp": dates}))
    assert log.histories.times_E.tolist() == [86_400 * 10**9, 172_800 * 10**9]
    log = log_from_tables(pa.table({"user_id": [1, 1], "item_id": [1, 2], "timestamp": [0.75, 0.25]}))
    assert (names(log, 0), log.histories.times_E.tolist()) == ([2, 1], [250_000_000, 750_000_000])


def test_ids_with_leading_zeros_stay_text_in_csv(tmp_path):
    (tmp_path / "interactions.csv").write_text("user_id,item_id,timestamp\n01,007,1\n1,7,2\n")
    log = load_log(tmp_path)
    assert log.item_ids.tolist() == ["007", "7"]
    assert log.user_ids.tolist() == ["01", "1"]


def test_plain_numbers_of_csv_agree_with_parquet(tmp_path):
    pq.write_table(pa.table({"item_id": [7, 8], "title": ["a", "b"]}), tmp_path / "items.parquet")
    (tmp_path / "interactions.csv").write_text("user_id,item_id,timestamp\n1,8,1\n")
    log = load_log(tmp_path)
    assert (log.item_ids.tolist(), names(log, 0)) == ([7, 8], [8])


def test_numbers_in_one_csv_and_text_in_the_other_agree_as_text(tmp_path):
    (tmp_path / "interactions.csv").write_text("user_id,item_id,timestamp\n1,8,1\n")
    (tmp_path / "items.csv").write_text("item_id,title\n8,a\nA9,b\n")
    assert load_log(tmp_path).item_ids.tolist() == ["8", "A9"]


def test_text_ids_make_every_id_text_whatever_the_files_hold(tmp_path):
    (tmp_path / "interactions.csv").write_text("user_id,item_id,timestamp\n1,0,1\n1,7,2\n")
    pq.write_table(pa.table({"item_id": [0, 7], "title": ["a", "b"]}), tmp_path / "items.parquet")
    numbers, text = load_log(tmp_path), load_log(tmp_path, rules=LogRules(text_ids=True))
    assert (numbers.item_ids.tolist(), numbers.user_ids.tolist()) == ([0, 7], [1])
    assert (text.item_ids.tolist(), text.user_ids.tolist()) == (["0", "7"], ["1"])
    assert names(text, 0) == ["0", "7"]
    table = pa.table({"user_id": pa.array([1], pa.int32()), "item_id": pa.array([2**63], pa.uint64()), "timestamp": [1]})
    assert log_from_tables(table, rules=LogRules(text_ids=True)).item_ids.tolist() == [str(2**63)]


def test_a_log_in_order_needs_no_times(tmp_path):
    (tmp_path / "interactions.csv").write_text("user_id,item_id\nb,x\na,x\nb,y\nb,x\nb,x\n")
    log = load_log(tmp_path, rules=LogRules(order="file"))
    assert [names(log, user) for user in range(2)] == [["x", "y", "x", "x"], ["x"]]
    with pytest.raises(DataError, match=r"'timestamp'.*--time-column.*--order file"):
        load_log(tmp_path)


def test_csv_may_have_another_delimiter(tmp_path):
    (tmp_path / "interactions.csv").write_text("user_id;item_id;timestamp\n1;8;1\n")
    assert load_log(tmp_path, form=CsvFormat(delimiter=";")).item_ids.tolist() == [8]
    with pytest.raises(DataError, match="separated by ';': pass it as --delimiter"):
        load_log(tmp_path)
    (tmp_path / "items.csv").write_text("item_id,name\n8,tea\n")
    with pytest.raises(DataError, match=r"items.csv .* separated by ',': pass it as --items-delimiter"):
        load_log(tmp_path, form=CsvFormat(delimiter=";"))
    assert load_log(tmp_path, form=CsvFormat(delimiter=";"), items_form=CsvFormat(delimiter=",")).items["name"].to_pylist() == [
        "tea"
    ]
    with pytest.raises(ArgumentError, match="delimiter='ab': expected one character"):
        load_log(tmp_path, items_form=CsvFormat(delimiter="ab"))
    with pytest.raises(ArgumentError, match="one character"):
        load_log(tmp_path, form=CsvFormat(delimiter=""))


@pytest.mark.parametrize(
    ("columns", "option"),
    [
        (Columns(user="who"), "--user-column"),
        (Columns(item="what"), "--item-column"),
        (Columns(timestamp="when"), "--time-column"),
        (Columns(item_of_items="sku"), "--id-column"),
    ],
)
def test_a_missing_column_names_the_file_its_columns_and_the_option(tmp_path, columns, option):
    write(tmp_path, "csv", ROWS, ITEMS)
    with pytest.raises(DataError) as caught:
        load_log(tmp_path, columns=columns)
    name = "items.csv" if option == "--id-column" else "interactions.csv"
    assert all(part in str(caught.value) for part in (name, "it has ", "'item_id'", option))


BAD_TABLES = {
    "no such column": ({"user_id": [1], "item_id": [1]}, "no column 'timestamp'"),
    "null user": ({**ROWS, "user_id": ["a", None, "b", "b", "b", "b"]}, "column 'user_id': empty in row 2:"),
    "null item": ({**ROWS, "item_id": [None] * 6}, "empty in row 1, row 2, row 3, row 4, row 5, row 6:"),
    "empty text": ({**ROWS, "item_id": ["", "x", "y", "z", "x", "y"]}, "column 'item_id': empty in row 1:"),
    "null time": ({**ROWS, "timestamp": [1, 2, None, 4, 5, 6]}, "column 'timestamp': empty in row 3:"),
    "no rows": ({"user_id": pa.array([], pa.int64()), "item_id": pa.array([], pa.int64()), "timestamp": []}, "no rows"),
    "float ids": ({**ROWS, "item_id": [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]}, "of the type number: ids are whole numbers or text"),
    "huge ids": ({**ROWS, "item_id": pa.array([2**63] * 6, pa.uint64())}, "beyond 64 bits"),
    "words for times": ({**ROWS, "timestamp": ["1", "2", "tomorrow", "4", "5", "6"]}, "not a time in row 3 \\('tomorrow'\\)"),
    "NaN times": ({**ROWS, "timestamp": [1, 2, 3, float("nan"), 5, 6]}, "not a finite number in row 4 \\(nan\\)"),
    "times in milliseconds": ({**ROWS, "timestamp": [1_400_000_000_000] * 6}, "time_unit='ms'"),
    "logical times": ({**ROWS, "timestamp": [True] * 6}, "of the type true/false"),
    "two kinds of offset": ({**ROWS, "timestamp": ["1970-01-01T00:00:01Z", *["1970-01-01"] * 5]}, "one way"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_a_named_error(case):
    columns, message = BAD_TABLES[case]
    with pytest.raises(DataError, match=message):
        log_from_tables(pa.table(columns))


GAPS = {
    "nulls": {"user_id": ["a", None, "a", "b", "b"], "item_id": ["x", "y", "z", None, "y"], "timestamp": [1, 2, 3, 4, 5]},
    "blank text": {"user_id": ["a", " ", "a", "b", "b"], "item_id": ["x", "y", "z", "", "y"], "timestamp": [1, 2, 3, 4, 5]},
    "times": {"user_id": ["a", "a", "a", "b", "b"], "item_id": ["x", "y", "z", "x", "y"], "timestamp": [1, None, 3, None, 5]},
    "dictionaries": {
        "user_id": pa.array(["a", None, "a", "b", "b"]).dictionary_encode(),
        "item_id": pa.array(["x", "y", "z", "", "y"]).dictionary_encode(),
        "timestamp": ["1", "2", "3", "4", "5"],
    },
}


@pytest.mark.parametrize("case", GAPS)
def test_rows_without_a_user_an_item_or_a_time_are_left_out_and_counted(case):
    table = pa.table(GAPS[case])
    with pytest.raises(DataError, match=r"row 2.*--incomplete drop"):
        log_from_tables(pa.table(GAPS["nulls"]))
    log = log_from_tables(table, rules=LogRules(incomplete="drop"))
    whole = log_from_tables(table.take([0, 2, 4]))
    assert log.items.equals(whole.items)
    assert log.user_ids.tolist() == whole.user_ids.tolist()
    assert log.histories.items_E.tolist() == whole.histories.items_E.tolist()
    assert log.histories.times_E.tolist() == whole.histories.times_E.tolist()
    assert (log.report.rows_read, log.report.incomplete_rows_dropped, log.report.interactions) == (5, 2, 3)
    assert whole.report.incomplete_rows_dropped == 0


def test_gaps_in_lists_and_lists_that_are_missing_are_left_out():
    table = pa.table({"user_id": ["a", "b", None, "c"], "item_id": [["x", None, "y"], None, ["x"], ["y"]]})
    log = log_from_tables(table, rules=LogRules(order="file", incomplete="drop"))
    assert [log.history_of(user) for user in ("a", "c")] == [["x", "y"], ["y"]]
    assert (log.report.incomplete_rows_dropped, log.report.interactions) == (3, 3)


def test_a_row_that_is_wrong_after_one_that_is_left_out_is_named_by_its_own_line(tmp_path):
    (tmp_path / "interactions.csv").write_text("user_id,item_id,timestamp\na,x,1\n,y,2\nb,z,tomorrow\n")
    with pytest.raises(DataError, match="not a time in line 4"):
        load_log(tmp_path, rules=LogRules(incomplete="drop"))


def test_a_table_of_incomplete_rows_alone_is_an_error():
    with pytest.raises(DataError, match="no row has a value in each of the columns 'user_id', 'item_id', 'timestamp'"):
        log_from_tables(pa.table({**ROWS, "item_id": [None] * 6}), rules=LogRules(incomplete="drop"))


def test_an_item_listed_twice_is_an_error_that_names_both_rows():
    items = pa.table({"item_id": ["x", "y", "x"]})
    with pytest.raises(DataError, match="'x' in row 1 and row 3"):
        log_from_tables(pa.table(ROWS), items)


def test_ids_of_two_types_are_an_error():
    with pytest.raises(DataError, match="in one type"):
        log_from_tables(pa.table(ROWS), pa.table({"item_id": [1, 2]}))


BAD_FILES = {
    "empty": ("interactions.csv", b"", "empty"),
    "header alone": ("interactions.csv", b"user_id,item_id,timestamp\n", "no rows"),
    "ragged": (
        "interactions.csv",
        b"user_id,item_id,timestamp\n1,2,3\n1,2\n",
        "line 3 has 2 cells, but the first line names 3 columns",
    ),
    "not parquet": ("interactions.parquet", b"user_id,item_id,timestamp\n1,2,3\n", "cannot be read"),
    "not gzip": ("interactions.csv.gz", b"user_id,item_id,timestamp\n1,2,3\n", "cannot be read"),
    "column twice": ("interactions.csv", b"user_id,item_id,item_id,timestamp\n1,2,2,3\n", "has the column 'item_id' twice"),
    "bytes": ("interactions.csv", bytes(range(128, 256)) * 4, "column"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_a_named_error(tmp_path, case):
    name, content, message = BAD_FILES[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_log(tmp_path)


def test_missing_and_ambiguous_files_are_named(tmp_path):
    for call, says in (
        (lambda: load_log(tmp_path / "nowhere"), "no directory"),
        (lambda: load_log(tmp_path), r"holds no interactions\.parquet"),
        (lambda: load_log(interactions=tmp_path / "clicks.csv"), "there is no file"),
    ):
        with pytest.raises(DataError, match=says):
            call()
    (tmp_path / "clicks.txt").write_text("{}")
    with pytest.raises(DataError, match=r"expected a file that ends in \.parquet"):
        load_log(interactions=tmp_path / "clicks.txt")
    write(tmp_path, "csv", ROWS)
    write(tmp_path, "parquet", ROWS)
    with pytest.raises(DataError, match="keep one"):
        load_log(tmp_path)


def test_wrong_options_are_named():
    for call, says in (
        (lambda: log_from_tables(pa.table(ROWS), rules=LogRules(time_unit="minutes")), "time_unit is 'minutes'"),
        (lambda: log_from_tables(pa.table(ROWS), rules=LogRules(k_core=-1)), "k_core=-1"),
        (lambda: load_log(), "directory"),
    ):
        with pytest.raises(ArgumentError, match=says):
            call()


def test_selected_histories_are_those_of_the_users():
    histories = log_from_tables(pa.table(ROWS), pa.table(ITEMS)).histories
    chosen = histories.select(np.array([2, 0, 2]))
    assert [chosen[user].tolist() for user in range(3)] == [histories[user].tolist() for user in (2, 0, 2)]
    with pytest.raises(IndexError):
        histories[3]


def test_future_times_are_counted_and_a_log_of_only_future_times_is_refused():
    soon = int(time.time()) + 10**6
    rows = {"user_id": [1, 1, 1], "item_id": ["a", "b", "c"], "timestamp": [soon, 5, 7]}
    log = log_from_tables(pa.table(rows))
    assert log.report.rows_in_the_future == 1
    assert log.item_ids[log.histories[0]].tolist() == ["b", "c", "a"]
    with pytest.raises(DataError, match="every time lies in the future as time_unit='s'"):
        log_from_tables(pa.table({**rows, "timestamp": [soon, soon, soon]}))


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_seconds_read_in_a_smaller_unit_are_refused_and_ordinals_are_counted(unit):
    rows = {"user_id": [1, 1], "item_id": ["a", "b"], "timestamp": [1_700_000_000, 1_700_000_001]}
    assert log_from_tables(pa.table(rows)).report.rows_before_1980 == 0
    with pytest.raises(DataError, match=f"every time lies before 1980 as time_unit='{unit}': pass another"):
        log_from_tables(pa.table(rows), rules=LogRules(time_unit=unit))
    assert log_from_tables(pa.table({**rows, "timestamp": [1, 2]})).report.rows_before_1980 == 2
    assert (
        log_from_tables(pa.table({"user_id": [1], "item_id": ["a"]}), rules=LogRules(order="file")).report.rows_before_1980 == 0
    )
