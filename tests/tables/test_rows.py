"""Rows of files, in batches: cells are read as their columns are, and names and forms are checked over the whole file."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.errors import DataError
from leafbeam.tables import read_rows, read_table


def test_cells_of_csv_are_read_as_their_columns_are(tmp_path: Path) -> None:
    kinds = {"item_id": "string", "zip": "string", "price": "double", "new": "bool", "tags": "list<element: string>"}
    text = '\ufeffitem_id,zip,price,new,tags\n007,01234,2,True,"[""a, b""]"\n8,,,,\n\n9,"x, y",1e2,false,\n'
    (tmp_path / "items.csv").write_text(text, encoding="utf-8")
    (batch,) = read_rows(tmp_path / "items.csv", 10, types=kinds)
    assert batch.rows == [
        {"item_id": "007", "zip": "01234", "price": 2, "new": True, "tags": ["a, b"]},
        {"item_id": "8"},
        {"item_id": "9", "zip": "x, y", "price": 1e2, "new": False},
    ]
    assert [batch.line_of(row) for row in range(3)] == [2, 3, 5]


NEW = [{"item_id": "7", "title": "green tea", "price": 1.5}, {"item_id": "8", "title": "boot"}]


FORMS_OF_JSON: dict[str, Any] = {
    "rows": NEW,
    "one object": {"item_id": "7", "title": "green tea", "price": 1.5},
    "objects by id": {"7": {"title": "green tea", "price": 1.5}, "8": {"title": "boot", "price": None}},
    "objects by row": {"0": NEW[0], "1": NEW[1]},
    "columns": {"item_id": ["7", "8"], "title": ["green tea", "boot"], "price": [1.5, None]},
    "columns by row": {"item_id": {"0": "7", "1": "8"}, "title": {"0": "green tea", "1": "boot"}, "price": {"0": 1.5}},
}


@pytest.mark.parametrize("name", FORMS_OF_JSON)
def test_every_form_of_json_that_a_log_may_have_is_imported(tmp_path: Path, name: str) -> None:
    """D6: `items import` and `read_table` read the same rows."""
    (tmp_path / "items.json").write_text(json.dumps(FORMS_OF_JSON[name]))
    batches = read_rows(tmp_path / "items.json", 1, types={"item_id": "string", "title": "string"}, ids=("item_id",))
    rows = [dict(row) for batch in batches for row in batch.rows]
    assert rows == (NEW[:1] if name == "one object" else NEW)
    table = read_table(tmp_path / "items.json", ids=("item_id",)).table
    found = [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]
    assert [{key: row[key] for key in sorted(row)} for row in found] == [{key: row[key] for key in sorted(row)} for row in rows]


def test_keys_of_json_are_whole_numbers_where_the_index_has_those(tmp_path: Path) -> None:
    """D6: JSON has text alone as keys."""
    (tmp_path / "items.json").write_text('{"7": {"title": "tea"}, "-8": {"title": "cup"}}')
    (batch,) = read_rows(tmp_path / "items.json", 9, types={"item_id": "int64"}, ids=("item_id",))
    assert [row["item_id"] for row in batch.rows] == [7, -8]


@pytest.mark.parametrize("form", ["json", "jsonl", "parquet", "csv"])
def test_whole_numbers_of_a_column_of_text_are_text(tmp_path: Path, form: str) -> None:
    """D2: numbers beyond 64 bits make their column text; the same file fits that column again, small numbers too."""
    eans, path = [4006381333931000000001, 7], tmp_path / f"items.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"item_id": ["a", "b"], "ean": pa.array([2**63, 7], pa.uint64())}), path)
        eans = [2**63, 7]
    elif form == "csv":
        path.write_text("item_id,ean\na,4006381333931000000001\nb,7\n")
    else:
        rows = [json.dumps({"item_id": item, "ean": ean}) for item, ean in zip("ab", eans, strict=True)]
        path.write_text("\n".join(rows) if form == "jsonl" else f"[{','.join(rows)}]")
    (batch,) = read_rows(path, 9, types={"item_id": "string", "ean": "string"})
    assert [row["ean"] for row in batch.rows] == list(map(str, eans))
    if form != "parquet":
        assert read_table(path, ids=("item_id",)).table["ean"].to_pylist() == list(map(str, eans))


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("jsonl", '{"item_id": "a", "Price": 1}\n{"item_id": "b", "price": 2}', "the columns 'Price' and 'price'"),
        ("json", '[{"item_id": "a", "Price": 1}, {"item_id": "b", "price": 2}]', "the columns 'Price' and 'price'"),
        ("json", '{"a": {"price": 1}, "b": {"PRICE": 1}}', "the columns 'price' and 'PRICE'"),
        ("jsonl", '{"item_id": "a", "": 1}', "has a column without a name"),
        ("json", '[{"item_id": "a", " ": 1}]', "has a column without a name"),
        ("csv", "item_id,Price,price\na,1,2\n", "the columns 'Price' and 'price'"),
        ("json", '{"a": {"price": 1}, "b": {"item_id": "c"}}', "the row 'a' has no 'item_id', but other rows have one"),
        ("json", '{"item_id": ["a", "b"], "price": [1]}', "has columns of different lengths: item_id 2, price 1"),
        ("json", "[1, 2]", "expected objects of fields"),
    ],
)
def test_names_and_forms_that_a_table_may_not_have_are_refused_on_import(
    tmp_path: Path, form: str, content: str, message: str
) -> None:
    """D11: over all rows of the file, as `read_table` refuses them."""
    (tmp_path / f"items.{form}").write_text(content)
    with pytest.raises(DataError) as caught:
        list(read_rows(tmp_path / f"items.{form}", 1, types={}, ids=("item_id",)))
    assert message in str(caught.value)
    with pytest.raises(DataError) as caught:
        read_table(tmp_path / f"items.{form}", ids=("item_id",))
    assert message in str(caught.value)
