"""Tables of other libraries become the same log: RecBole, Hugging Face datasets, cornac, RecTools, JSON."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.cli.run import Source
from leafbeam.errors import DataError
from leafbeam.tables import CsvFormat, SourceTable, TimeUnit
from leafbeam.tables.foreign import joined_features, read_atomic, read_dataset, read_ratings
from leafbeam.train import Columns, InteractionLog, LogRules, load_log

ROWS = [(7, 1, 5.0, 1_000_000_300), (7, 3, 3.5, 1_000_000_100), (9, 1, 1.0, 1_000_000_200)]
TITLES = {1: "red lamp", 2: "desk", 3: 'a "sofa'}


def save_dataset(folder: Path, *tables: pa.Table, names: Any = None) -> Path:
    """The files of datasets' `save_to_disk`: Arrow streams, and state.json that names them."""
    folder.mkdir(parents=True)
    files = [f"data-{number:05}-of-{len(tables):05}.arrow" for number in range(len(tables))]
    for file, table in zip(files, tables, strict=True):
        with pa.OSFile(str(folder / file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    named = [{"filename": file} for file in files] if names is None else names
    state = {"_data_files": named, "_fingerprint": "0", "_format_type": None, "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def recbole(folder: Path) -> InteractionLog:
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float"
    lines = ["\t".join(map(str, row)) for row in ROWS]
    (folder / "shop.inter").write_text("\n".join([header, *lines]) + "\n")
    items = [f"{item}\t{title}\t{item / 2}" for item, title in TITLES.items()]
    (folder / "shop.item").write_text("\n".join(["item_id:token\ttitle:token_seq\tprice:float", *items]))
    return load_log(folder)


def hugging_face(folder: Path) -> InteractionLog:
    names = ("user_id", "item_id", "rating", "timestamp")
    tables = [pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))) for rows in (ROWS[:2], ROWS[2:])]
    save_dataset(folder / "clicks", *tables)
    items = save_dataset(folder / "goods" / "train", pa.table({"item_id": list(TITLES), "title": list(TITLES.values())}))
    (folder / "goods" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    return load_log(folder / "clicks", items=items.parent)


def cornac(folder: Path) -> InteractionLog:
    (folder / "uirt.txt").write_text("\n".join("::".join(map(str, row)) for row in ROWS) + "\n\n")
    (folder / "goods.json").write_text(json.dumps({str(item): {"title": title} for item, title in TITLES.items()}))
    return Source(path=folder / "uirt.txt", kind="cornac", items=folder / "goods.json").read()


def rectools(folder: Path) -> InteractionLog:
    columns = dict(zip(("user_id", "item_id", "weight"), map(list, zip(*(row[:3] for row in ROWS), strict=True)), strict=True))
    times = pa.array([row[3] for row in ROWS]).cast(pa.timestamp("s"))
    pq.write_table(pa.table({**columns, "datetime": times}), folder / "interactions.parquet")
    words = [(item, "title", word) for item, title in TITLES.items() for word in title.split()]
    features = dict(zip(("id", "feature", "value"), map(list, zip(*words, strict=True)), strict=True))
    pq.write_table(pa.table(features), folder / "items.parquet")
    return load_log(folder, columns=Columns(timestamp="datetime", item_of_items="id"))


@pytest.mark.parametrize("make", [recbole, hugging_face, cornac, rectools])
def test_every_library_s_files_are_the_same_log(tmp_path: Path, make: Any):
    log = make(tmp_path)
    assert log.user_ids.tolist() == [7, 9]
    assert log.item_ids.tolist() == [1, 2, 3]
    assert [log.item_ids[log.histories[user]].tolist() for user in range(2)] == [[3, 1], [1]]
    assert log.histories.times_E.tolist() == [1_000_000_100 * 10**9, 1_000_000_300 * 10**9, 1_000_000_200 * 10**9]
    assert log.items["title"].to_pylist() == list(TITLES.values())


def test_lines_without_times_keep_their_order(tmp_path: Path):
    (tmp_path / "uir.csv").write_text("ann,b,1\nann,a,2\n")
    log = load_log(interactions=tmp_path / "uir.csv", headerless=True, rules=LogRules(order="file"))
    assert log.item_ids[log.histories[0]].tolist() == ["b", "a"]
    with pytest.raises(DataError, match="--order file"):
        load_log(interactions=tmp_path / "uir.csv", headerless=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has the type ''"),
        ("user_id\titem_id\n1\t2\n", "'user_id' has the type ''"),
        ("user_id:word\n1\n", "'user_id' has the type 'word'"),
        (":token\n1\n", "the column '' has the type 'token'"),
        ("a:token\tb:float\n1\tx\n", r"column 'b': not a number in line 2 \('x'\)"),
        ("a:token\tb:float\n\n1\t2\n1\tNA\n", r"column 'b': not a number in line 4 \('NA'\)"),
        ("a:token\tb:float\n1\n", "line 2 has 1 cell, but the first line names 2 columns"),
        ("a:token\tb:float\n1\t2\n\n1\t2\t3\n", "line 4 has 3 cells"),
        ("a:token\t b:float\n1\t2\n", "blanks around the name of the column ' b'"),
    ],
)
def test_a_file_that_is_none_of_recbole_is_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "x.inter").write_text(text)
    with pytest.raises(DataError, match=message):
        read_atomic(tmp_path / "x.inter")
    with pytest.raises(DataError):
        load_log(interactions=tmp_path / "x.inter")


NS = 1_769_000_001_123_456_788


@pytest.mark.parametrize(
    ("first", "second", "unit"),
    [
        (str(NS), str(NS + 1), "ns"),
        ("1769000001.123456788", "1769000001.123456789", "s"),
        ("1.769000001123456788e9", "1.769000001123456789E+09", "s"),
        ("1769000001123456.788", "1.769000001123456789e15", "us"),
        ("1769000001123456788", "1769000001123456789.0", "ns"),
    ],
)
@pytest.mark.parametrize("form", ["float", "token", "cornac", "csv"])
def test_digits_of_times_are_kept_in_files_of_text(tmp_path: Path, first: str, second: str, unit: TimeUnit, form: str):
    """D7: RecBole declares every time as a float, which a float64 would change."""
    rows = [("u", "b", second), ("u", "a", first)]
    if form == "cornac":
        path = tmp_path / "uirt.txt"
        path.write_text("".join(f"{user}\t{item}\t1\t{time}\n" for user, item, time in rows))
    elif form == "csv":
        path = tmp_path / "log.csv"
        path.write_text("user_id,item_id,timestamp\n" + "".join(f"{','.join(row)}\n" for row in rows))
    else:
        path = tmp_path / "x.inter"
        path.write_text(f"user_id:token\titem_id:token\ttimestamp:{form}\n" + "".join("\t".join(row) + "\n" for row in rows))
    log = load_log(interactions=path, headerless=form == "cornac", rules=LogRules(time_unit=unit))
    assert log.item_ids[log.histories[0]].tolist() == ["a", "b"]
    assert log.histories.times_E.tolist() == [NS, NS + 1]


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["nan", "1"], "string", ["nan", "1"]),
        (["1", "1e400"], "string", ["1", "1e400"]),
        (["-inf", "2.5"], "string", ["-inf", "2.5"]),
        (["0.5", "9007199254740993"], "string", ["0.5", "9007199254740993"]),
        (["7", "9007199254740993"], "int64", [7, 9007199254740993]),
        (["7", ""], "double", [7.0, None]),
        (["7.5", "1e3"], "double", [7.5, 1000.0]),
    ],
)
def test_numbers_of_recbole_follow_the_policy_of_csv(tmp_path: Path, cells: list[str], kind: str, values: list[Any]):
    """D2: no number is changed or made infinite; its column stays text."""
    rows = "".join(f"i{row}\t{cell}\n" for row, cell in enumerate(cells))
    (tmp_path / "x.item").write_text("item_id:token\tp:float\n" + rows)
    column = read_atomic(tmp_path / "x.item", ids=("item_id",)).table["p"]
    assert (str(column.type), column.to_pylist()) == (kind, values)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "latin-1", "utf-16", "cp1252"])
def test_recbole_in_other_encodings_is_read(tmp_path: Path, encoding: str):
    """D3: the message for a file that is not UTF-8 names an option, which counts."""
    text = "user_id:token\titem_id:token\ttimestamp:float\nzoé\tcafé\t1769000001\n"
    (tmp_path / "x.inter").write_bytes(text.encode(encoding))
    named = "utf-8" if encoding == "utf-8-sig" else encoding
    log = load_log(interactions=tmp_path / "x.inter", form=CsvFormat(encoding=named))
    assert (log.user_ids.tolist(), log.item_ids.tolist()) == (["zoé"], ["café"])
    if named != "utf-8":
        with pytest.raises(DataError, match=r"pass --encoding (latin-1|utf-16)"):
            load_log(interactions=tmp_path / "x.inter")


def test_names_like_nulls_are_items_of_recbole(tmp_path: Path):
    (tmp_path / "x.item").write_text("item_id:token\ttitle:token\nNA\tnull\nnan\t\n")
    assert read_atomic(tmp_path / "x.item").table.to_pydict() == {"item_id": ["NA", "nan"], "title": ["null", None]}


def test_a_dataset_that_is_none_is_refused(tmp_path: Path):
    table = pa.table({"item_id": [1]})
    for number, (names, message) in enumerate(
        ((7, "names no data files"), ([{"filename": "../x.arrow"}], "names no data files"), ([], "without files"),
         ([{"filename": "x.arrow"}], "x.arrow is missing"))
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            read_dataset(save_dataset(tmp_path / str(number), table, names=names))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match="has the splits train, test: name one"):
        read_dataset(tmp_path)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["../train"]}')
    with pytest.raises(DataError, match="names no splits"):
        read_dataset(tmp_path)
    damaged = save_dataset(tmp_path / "damaged", table)
    file = next(damaged.glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match="cannot be read"):
        load_log(damaged)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 fields"),
        ("1 2\n", "has 2 fields"),
        ("1 2 3\n1 2\n", "line 2 has 2 fields, but the first has 3"),
        ("user,item,rating\n1,2,3\n", "line 1: the rating 'rating' is not a number"),
        ("1,2,3,now\n", "line 1: the timestamp 'now' is not a number"),
    ],
)
def test_lines_that_are_no_ratings_are_refused(tmp_path: Path, text: str, message: str):
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        read_ratings(tmp_path / "x.txt")


def test_another_table_with_these_names_is_left_alone():
    table = SourceTable(table=pa.table({"id": [1], "feature": ["a"], "value": ["b"], "more": [1]}))
    assert joined_features(table) is table
