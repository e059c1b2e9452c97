"""The table of SIDs: what it holds, on disk and in memory, and what it refuses."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam.errors import CheckpointError, CodesError, ItemIdError, LeafbeamError
from leafbeam.semid import SidTable

CODES = np.array([[0, 1, 9], [3, 0, 2]])


@pytest.mark.parametrize("item_ids", [np.array(["B01", "ü"]), np.array([5, -3]), np.array([1, 2], np.uint8)])
def test_save_and_load_are_equal(tmp_path, item_ids):
    table = SidTable(item_ids=item_ids, codes=CODES.astype(np.uint16), codebook_sizes=(4, 2, 300))
    table.save(tmp_path / "run" / "sids.parquet")
    loaded = SidTable.load(tmp_path / "run" / "sids.parquet")
    assert (loaded.item_ids == item_ids).all()
    assert loaded.item_ids.dtype.kind == ("U" if item_ids.dtype.kind == "U" else "i")
    assert (loaded.codes == CODES).all()
    assert loaded.codes.dtype == np.int64
    assert loaded.codebook_sizes == (4, 2, 300)
    assert (len(loaded), loaded.num_levels) == (2, 3)


def test_an_empty_table_is_a_table(tmp_path):
    SidTable(item_ids=np.empty(0, np.int64), codes=np.empty((0, 2), np.int64), codebook_sizes=(3, 3)).save(
        tmp_path / "s.parquet"
    )
    assert SidTable.load(tmp_path / "s.parquet").codes.shape == (0, 2)


def test_any_reader_of_parquet_sees_plain_columns(tmp_path):
    SidTable(item_ids=np.array(["a", "b"]), codes=CODES, codebook_sizes=(4, 2, 10)).save(tmp_path / "s.parquet")
    table = pq.read_table(tmp_path / "s.parquet")
    assert table.column_names == ["item_id", "code_0", "code_1", "code_2"]
    assert table["code_2"].to_pylist() == [9, 2]


@pytest.mark.parametrize(
    ("item_ids", "codes", "sizes", "error", "message"),
    [
        (["a", "b"], CODES, (4, 2, 9), CodesError, "row 0 has code 9 at level 2, whose codebook has 9 codes"),
        (["a", "b"], -CODES, (4, 2, 10), CodesError, "expected 0 <= code < 2"),
        (["a", "b"], CODES, (4, 2), CodesError, "shape \\(2, 3\\): expected \\(N, 2\\)"),
        (["a", "b"], CODES / 2, (4, 2, 10), CodesError, "expected integers"),
        (["a", "b"], CODES[0], (4, 2, 10), CodesError, "shape"),
        (["a", "b"], np.empty((2, 0), np.int64), (), CodesError, "levels"),
        (["a"], CODES, (4, 2, 10), ItemIdError, "one id for each row of codes"),
        (["a", "a"], CODES, (4, 2, 10), ItemIdError, "more than once, 'a' among them"),
        ([1.0, 2.0], CODES, (4, 2, 10), ItemIdError, "expected integers or strings"),
    ],
)
def test_invalid_sid_tables_are_named(item_ids, codes, sizes, error, message):
    with pytest.raises(error, match=message):
        SidTable(item_ids=np.array(item_ids), codes=codes, codebook_sizes=sizes)


def test_files_that_are_not_tables_of_sids_are_named(tmp_path):
    path = tmp_path / "s.parquet"
    with pytest.raises(CheckpointError, match="fit-sids"):
        SidTable.load(path)
    path.write_bytes(b"PAR1 no more")
    with pytest.raises(CheckpointError, match="fit-sids"):
        SidTable.load(path)
    pq.write_table(pa.table({"item_id": ["a"]}), path)
    with pytest.raises(CheckpointError, match="not one that"):
        SidTable.load(path)
    for sizes in ("[3, 3]", "[]", "3", "{"):
        table = pa.table({"item_id": ["a"], "code_0": [1]}).replace_schema_metadata({"leafbeam.codebook_sizes": sizes})
        pq.write_table(table, path)
        with pytest.raises(CheckpointError, match="does not hold"):
            SidTable.load(path)
    table = pa.table({"item_id": ["a"], "code_0": [7]}).replace_schema_metadata({"leafbeam.codebook_sizes": "[3]"})
    pq.write_table(table, path)
    with pytest.raises(CodesError, match="expected 0 <= code < 3"):
        SidTable.load(path)


def test_a_changed_file_is_refused_or_equal_and_one_without_a_digest_loads(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "s.parquet"
    saved = SidTable(
        item_ids=np.array([f"é{row}" for row in range(50)]), codes=rng.integers(0, 99, (50, 2)), codebook_sizes=(99, 99)
    )
    saved.save(path)
    raw, refused = path.read_bytes(), 0
    offsets = range(0, len(raw), 5)
    for offset in offsets:
        changed = bytearray(raw)
        changed[offset] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        try:
            loaded = SidTable.load(path)
        except LeafbeamError:
            refused += 1
        else:
            assert loaded.digest == saved.digest
    assert refused > len(offsets) // 2
    path.write_bytes(raw)
    table = pq.read_table(path).replace_schema_metadata({"leafbeam.codebook_sizes": "[99, 99]"})
    pq.write_table(table, path)
    assert SidTable.load(path).digest == saved.digest


@pytest.mark.parametrize(
    ("ids", "codes", "sizes"),
    [
        (pa.array(["a"]), [0], "[" * 5000),
        (pa.array(["a"]), [0], "[1e400]"),
        (pa.array(["a"]), [0], "[-2147483648]"),
        (pa.array(["a"]), ["x"], "[3]"),
        (pa.array(["a"]), [None], "[3]"),
        (pa.array(["a"]), [0.5], "[3]"),
        (pa.array(["a"]), [[0]], "[3]"),
        (pa.array([["a"]]), [0], "[3]"),
        (pa.array([None], pa.string()), [0], "[3]"),
        (pa.array([2**64 - 1], pa.uint64()), [0], "[3]"),
        (pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")), [0], "[3]"),
    ],
)
def test_hostile_columns_are_refused_by_name(tmp_path, ids, codes, sizes):
    table = pa.table({"item_id": ids, "code_0": codes}).replace_schema_metadata({"leafbeam.codebook_sizes": sizes})
    pq.write_table(table, tmp_path / "s.parquet")
    with pytest.raises(LeafbeamError):
        SidTable.load(tmp_path / "s.parquet")
