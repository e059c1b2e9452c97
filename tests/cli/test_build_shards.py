"""`leafbeam build TABLE --shards N`."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.index.shards import ShardManifest
from leafbeam.integrations.shards import ShardedIndex
from tests.fixtures.command_line import call, flat, succeed


def test_a_table_becomes_shards_that_have_all_its_items(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 30, (500, 3))
    ids = [f"item é{row}" for row in range(500)]
    columns = {f"c{level}": codes[:, level] for level in range(3)}
    pq.write_table(pa.table({"item_id": ids, **columns}), tmp_path / "x.parquet")
    words = ["build", tmp_path / "x.parquet", "--codebook-sizes", "30", "--shards", "4"]
    assert "500 items in 4 shards of" in flat(succeed(*words))
    manifest = ShardManifest.load(tmp_path / "x.shards")
    assert all(abs(shard.num_items - 125) < 25 for shard in manifest.shards)
    with ShardedIndex.load(tmp_path / "x.shards") as index:
        np.testing.assert_array_equal(index.codes_of(ids), codes)
    for more, message in (
        ([], "has an index in shards: pass --force"),
        (["--scratch", tmp_path, "--force"], "--scratch does not go with --shards"),
        (["--out", tmp_path / "x.parquet"], "is a file: name another --out"),
        (["--out", tmp_path / "y", "--shards", "31"], "expected 1 to 30"),
        (["--out", tmp_path / "y", "--shards", "0"], "--shards must be an integer of at least 1, not 0"),
    ):
        result = call(*words, *more)
        assert result.exit_code == 2
        assert message in flat(result.stderr)
    pq.write_table(pa.table({"item_id": ids, "title": ids}), tmp_path / "other.parquet")
    other = call("build", tmp_path / "other.parquet", "--shards", "4", "--out", tmp_path / "x.shards", "--force")
    assert other.exit_code == 2
    assert ShardManifest.load(tmp_path / "x.shards") == manifest  # a table that cannot be built replaces nothing
    pq.write_table(
        pa.table({"item_id": ids[:400], **{name: column[:400] for name, column in columns.items()}}), tmp_path / "x.parquet"
    )
    succeed(*words, "--force")
    assert sum(shard.num_items for shard in ShardManifest.load(tmp_path / "x.shards").shards) == 400
