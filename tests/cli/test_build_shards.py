"""`leafbeam build TABLE --shards N`, and `leafbeam inspect` of what it writes."""

import json
from dataclasses import replace
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
        (["--scratch", tmp_path, "--force"], "--scratch does not work with --shards"),
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


def test_inspect_shows_the_shards_and_names_those_that_are_missing(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 30, (500, 2))
    pq.write_table(pa.table({"item_id": np.arange(500), "c0": codes[:, 0], "c1": codes[:, 1]}), tmp_path / "x.parquet")
    built = succeed("build", tmp_path / "x.parquet", "--codebook-sizes", "30", "--shards", "3")
    directory = tmp_path / "x.shards"
    assert f"leafbeam inspect {directory}" in flat(built)
    manifest = ShardManifest.load(directory)
    shown = flat(succeed("inspect", directory).replace("│", " "))
    assert "500 items in 3 shards" in shown
    found = json.loads(succeed("inspect", directory, "--json"))
    assert found["num_items"] == 500
    for shard, row in zip(manifest.shards, found["shards"], strict=True):
        nbytes = (directory / shard.file).stat().st_size
        assert f"{shard.begin} to {shard.end - 1} {shard.num_items} {nbytes:,}" in shown
        assert (row["version"], row["file_bytes"]) == (shard.version, nbytes)
    assert "level 1" in succeed("inspect", directory / manifest.shards[1].file)
    replace(manifest, shards=(*manifest.shards[:2], replace(manifest.shards[2], version=""))).write(directory)
    unfinished = flat(succeed("inspect", directory))
    assert "not built yet" in unfinished
    assert "run the same command again to finish it" in unfinished
    (directory / manifest.shards[0].file).unlink()
    for words in ((), ("--json",)):
        refused = call("inspect", directory, *words)
        assert refused.exit_code == 2
        assert f"{manifest.shards[0].file} cannot be read" in flat(refused.stderr)
        assert "shards.json names it as a shard: copy it there" in flat(refused.stderr)
