"""Building an index in shards: how first codes are divided, and builds that were ended."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam import Trie
from leafbeam.errors import ArgumentError, IndexFileError, ItemIdError
from leafbeam.index.shards import MANIFEST, ShardManifest, build_shards, split_first_codes

SIZES = [40, 8, 8]


def table(num_items: int = 4_000) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.stack([np.minimum(rng.geometric(0.1, num_items) - 1, 39), *rng.integers(0, 8, (2, num_items))], 1)


@pytest.mark.parametrize("seed", range(30))
def test_ranges_cover_all_first_codes_and_differ_by_one_code_at_most(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 100, 64) * (rng.random(64) < 0.7)
    num_shards = int(rng.integers(1, (counts > 0).sum() + 1))
    ranges = split_first_codes(counts, num_shards)
    assert len(ranges) == num_shards
    assert [begin for begin, _ in ranges] == [0, *(end for _, end in ranges[:-1])]
    assert ranges[-1][1] == 64
    sizes = [int(counts[begin:end].sum()) for begin, end in ranges]
    assert min(sizes) > 0
    if num_shards <= 4:
        assert max(abs(size - counts.sum() / num_shards) for size in sizes) <= counts.max()


def test_too_many_shards_and_no_items_are_refused(tmp_path: Path) -> None:
    codes = table()
    with pytest.raises(ArgumentError, match=r"41 shards: expected 1 to \d+, the number of first codes"):
        build_shards(lambda: [(codes, None)], SIZES, 41, tmp_path)
    with pytest.raises(ArgumentError, match="0 shards"):
        build_shards(lambda: [(codes, None)], SIZES, 0, tmp_path)
    with pytest.raises(ArgumentError, match="no items"):
        build_shards(lambda: [(codes[:0], None)], SIZES, 1, tmp_path)


def test_a_shard_is_the_index_of_its_items(tmp_path: Path) -> None:
    codes = table()
    manifest = build_shards(lambda: [(codes[:1000], None), (codes[1000:], None)], SIZES, 3, tmp_path)
    assert ShardManifest.load(tmp_path) == manifest
    for shard in manifest.shards:
        rows = np.flatnonzero((codes[:, 0] >= shard.begin) & (codes[:, 0] < shard.end))
        assert shard.version == Trie.build(codes[rows], SIZES, rows).version
        assert Trie.load(tmp_path / shard.file).version == shard.version


def test_a_build_that_was_ended_goes_on_and_keeps_what_is_there(tmp_path: Path) -> None:
    codes = table()
    passes = [0]

    def chunks(last: int) -> Iterator[Any]:
        passes[0] += 1
        for begin in range(0, 4_000, 500):
            if passes[0] == last and begin == 3_000:
                raise KeyboardInterrupt
            yield codes[begin : begin + 500], np.arange(begin, begin + 500)

    def build(last: int, key: str = "table") -> ShardManifest:
        return build_shards(lambda: chunks(last), SIZES, 3, tmp_path, memory_limit=20_000, key=key)

    with pytest.raises(KeyboardInterrupt):
        build(3)  # the first pass counts, the second builds shard 0, the third shard 1
    with pytest.raises(IndexFileError, match=r"lacks shard-0001.leafbeam, of 3 shards: .*run the same command again"):
        ShardManifest.load(tmp_path)
    first = (tmp_path / "shard-0000.leafbeam").stat().st_mtime_ns
    assert (tmp_path / ".shard-0001.leafbeam.runs").exists()
    passes[0] = 0
    manifest = build(0)
    assert passes[0] == 2  # one pass for each shard that was missing
    assert (tmp_path / "shard-0000.leafbeam").stat().st_mtime_ns == first
    rows = [np.flatnonzero((codes[:, 0] >= shard.begin) & (codes[:, 0] < shard.end)) for shard in manifest.shards]
    expected = [Trie.build(codes[own], SIZES, own).version for own in rows]
    assert [shard.version for shard in manifest.shards] == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(f"shard-000{n}.leafbeam" for n in range(3)), MANIFEST]
    passes[0] = 0
    build(0, key="another table")
    assert passes[0] == 4
    passes[0] = 0
    with pytest.raises(KeyboardInterrupt):
        build(4, key="a third table")
    build_shards(lambda: [(codes, None)], SIZES, 2, tmp_path)  # no sorted rows of the third shard stay
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(f"shard-000{n}.leafbeam" for n in range(2)), MANIFEST]


@pytest.mark.parametrize("ids", [["a", "b", "c", "b"], ["a", "b", "a long id", "b"], [3, 9, 4, 9]])
def test_an_id_in_two_shards_is_refused_and_the_index_stays_incomplete(ids: list[Any], tmp_path: Path) -> None:
    chunks = [(np.array([[0, 0], [1, 1]]), ids[:2]), (np.array([[2, 0], [3, 0]]), ids[2:])]
    for _ in range(2):  # a second build does not take the shards for complete either
        with pytest.raises(ItemIdError, match=rf"1 item id occurs more than once, {ids[1]!r} among them"):
            build_shards(lambda: chunks, [4, 2], 2, tmp_path, key="table")
    with pytest.raises(IndexFileError, match=r"lacks shard-0001.leafbeam"):
        ShardManifest.load(tmp_path)
    mixed = [(np.array([[0, 0]]), ["7"]), (np.array([[3, 0]]), [7])]
    with pytest.raises(ItemIdError, match="integers and those of others are text"):
        build_shards(lambda: mixed, [4, 2], 2, tmp_path)


def test_rows_that_change_between_the_passes_are_refused(tmp_path: Path) -> None:
    rows = iter([(table(), None)])
    with pytest.raises(ArgumentError, match=r"returned 0 rows of shard-0000.leafbeam, and [\d,]+ when they were counted"):
        build_shards(lambda: rows, SIZES, 2, tmp_path)


def test_a_directory_without_a_manifest_or_with_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match=r"has no shards.json: .* --shards N"):
        ShardManifest.load(tmp_path)
    for text in ("", "{}", '{"format": 1, "key": "", "shards": [{"file": "x"}]}'):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(IndexFileError, match=r"shards.json cannot be read"):
            ShardManifest.load(tmp_path)
    outside = tmp_path / "outside.leafbeam"
    outside.write_text("kept")
    directory = tmp_path / "shards"
    directory.mkdir()
    shard = '{"file": "../outside.leafbeam", "begin": 0, "end": 4, "num_items": 9, "version": "v"}'
    (directory / MANIFEST).write_text(f'{{"format": 1, "key": "", "shards": [{shard}]}}')
    with pytest.raises(IndexFileError, match="is not a shard"):
        build_shards(lambda: [(table(), None)], SIZES, 2, directory)
    assert outside.read_text() == "kept"
    (tmp_path / MANIFEST).write_text('{"format": 1, "key": "", "shards": []}')
    with pytest.raises(IndexFileError, match="expected format 1 and a shard"):
        ShardManifest.load(tmp_path)
    (tmp_path / MANIFEST).write_text('{"format": 2}')
    with pytest.raises(IndexFileError, match="format 2"):
        ShardManifest.load(tmp_path)
