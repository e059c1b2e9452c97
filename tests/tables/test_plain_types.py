"""Types that only some readers know: read as what they mean in a log, a catalog and JSON, or refused by column."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.catalog import Catalog
from leafbeam.errors import DataError
from leafbeam.index import Trie
from leafbeam.tables import read_table
from leafbeam.train import log_from_tables

HALF = np.float16(0.1)
COLUMNS: list[tuple[pa.Array, Any]] = [
    (pa.array([HALF, None], pa.float16()), [float(HALF), None]),
    (pa.array([[HALF, None], []], pa.list_(pa.float16())), [[float(HALF), None], []]),
    (pa.array([[HALF], [HALF]], pa.list_(pa.float16(), 1)), [[float(HALF)], [float(HALF)]]),
    (pa.array([{"x": HALF}, None], pa.struct([("x", pa.float16())])), [{"x": float(HALF)}, None]),
    (pa.array([Decimal("1.25"), None], pa.decimal256(50, 2)), [Decimal("1.25"), None]),
    (pa.array([Decimal(10**37), Decimal(-1)], pa.decimal256(76, 0)), [Decimal(10**37), Decimal(-1)]),
    (pa.array(["a", None], pa.string_view()), ["a", None]),
    (pa.array([b"a", None], pa.binary_view()), [b"a", None]),
    (pa.array([dt.timedelta(microseconds=5), None], pa.duration("ns")), None),
    (pa.array([[("k", HALF)], None], pa.map_(pa.string(), pa.float16())), [[("k", float(HALF))], None]),
    (pa.array([[("k", [HALF])], None], pa.map_(pa.string_view(), pa.list_(pa.float16()))), [[("k", [float(HALF)])], None]),
    (pa.array([[("k", Decimal(3))], None], pa.map_(pa.string(), pa.decimal256(50, 0))), [[("k", Decimal(3))], None]),
    (pa.DictionaryArray.from_arrays([0, None], pa.array([Decimal(3)], pa.decimal256(50, 0))), [Decimal(3), None]),
    (pa.DictionaryArray.from_arrays([0, None], pa.array([HALF], pa.float16())), [float(HALF), None]),
    (pa.array([["a"], None], pa.list_(pa.dictionary(pa.int8(), pa.string()))), [["a"], None]),
]
IN_MEMORY: list[tuple[pa.Array, list[Any]]] = [  # of types that Parquet does not have
    (pa.array([12300, None], pa.decimal128(19, 0)).cast(pa.decimal128(5, -2)), [Decimal(12300), None]),
    (pa.array([12300, None], pa.decimal256(19, 0)).cast(pa.decimal256(5, -2)), [Decimal(12300), None]),
    (pa.DictionaryArray.from_arrays([0, None], pa.array(["a"], pa.string_view())), ["a", None]),
    (pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None])), ["a", None]),
    (pa.DictionaryArray.from_arrays([1, 0], pa.array([None, "a"], pa.large_string())), ["a", None]),
]
SIMPLE_UNIONS = [
    pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]),
    pa.UnionArray.from_dense(pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["b"])]),
]
UNIONS = [
    *SIMPLE_UNIONS,
    pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), SIMPLE_UNIONS[0]),
    pa.StructArray.from_arrays([SIMPLE_UNIONS[0]], ["u"]),
]
WIDE: list[tuple[pa.Array, str]] = [
    (pa.array([Decimal(10**38), Decimal(1)], pa.decimal256(50, 0)), "column 'x' of the type decimal256(50, 0)"),
    (pa.array([[Decimal(10**38)], []], pa.list_(pa.decimal256(50, 0))), "column 'x' of the type list<"),
    (pa.array([Decimal("1e-39"), Decimal(1)], pa.decimal256(60, 39)), "write numbers of up to 38 digits, or write the column"),
    (pa.array([1, 2], pa.duration("ns")), "cannot be read as duration[us]"),
]  # fmt: skip


def in_memory(table: pa.Table, folder: Path) -> list[Any]:
    pq.write_table(table, folder / "items.parquet")
    return read_table(folder / "items.parquet", ids=("item_id",)).table["x"].to_pylist()


def in_a_catalog(table: pa.Table, folder: Path) -> list[Any]:
    pq.write_table(table, folder / "items.parquet")
    return looked_up(folder / "items.parquet")


def in_a_catalog_from_arrow(table: pa.Table, folder: Path) -> list[Any]:
    return looked_up(table)


def looked_up(source: Any) -> list[Any]:
    with Catalog.in_memory(source, Trie.build([[0], [1]], [2], item_ids=["a", "b"])) as catalog:
        return catalog.lookup(["a", "b"])["x"].to_pylist()


DOORS = pytest.mark.parametrize("door", [in_memory, in_a_catalog, in_a_catalog_from_arrow])


@DOORS
@pytest.mark.parametrize(("values", "expected"), COLUMNS, ids=[str(values.type) for values, _ in COLUMNS])
def test_types_that_few_readers_know_are_read_exactly(
    tmp_path: Path, door: Callable[[pa.Table, Path], list[Any]], values: pa.Array, expected: Any
) -> None:
    """D12: numbers of 16 bits, wide decimals and views, alone and nested."""
    found = door(pa.table({"item_id": ["a", "b"], "x": values}), tmp_path)
    if expected is not None:  # DuckDB's intervals have another type in Python
        assert found == expected
    assert found[1:] == [None] or expected is not None


@DOORS
@pytest.mark.parametrize(("values", "message"), WIDE, ids=[str(values.type) for values, _ in WIDE])
def test_values_that_would_change_are_refused_by_column(
    tmp_path: Path, door: Callable[[pa.Table, Path], list[Any]], values: pa.Array, message: str
) -> None:
    """D2: decimals beyond 38 digits, and what to do."""
    with pytest.raises(DataError) as caught:
        door(pa.table({"item_id": ["a", "b"], "x": values}), tmp_path)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def in_a_log(table: pa.Table, folder: Path) -> list[Any]:
    log = log_from_tables(pa.table({"user_id": [1, 1], "item_id": ["a", "b"], "timestamp": [1, 2]}), items=table)
    return log.items["x"].to_pylist()


MEMORY_DOORS = pytest.mark.parametrize("door", [in_a_catalog_from_arrow, in_a_log])


@MEMORY_DOORS
@pytest.mark.parametrize(("values", "expected"), IN_MEMORY, ids=[str(values.type) for values, _ in IN_MEMORY])
def test_types_that_only_arrow_has_are_read_exactly(
    tmp_path: Path, door: Callable[[pa.Table, Path], list[Any]], values: pa.Array, expected: list[Any]
) -> None:
    """D12: DuckDB answered with internal errors; nulls within a dictionary are nulls."""
    assert door(pa.table({"item_id": ["a", "b"], "x": values}), tmp_path) == expected


@MEMORY_DOORS
@pytest.mark.parametrize("values", UNIONS, ids=[str(values.type) for values in UNIONS])
def test_values_of_several_types_are_refused_by_column(
    tmp_path: Path, door: Callable[[pa.Table, Path], list[Any]], values: pa.Array
) -> None:
    """D12"""
    with pytest.raises(DataError, match=r"column 'x' holds values of several types .*: write them as one type"):
        door(pa.table({"item_id": ["a", "b"], "x": values}), tmp_path)
