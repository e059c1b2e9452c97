"""A build that was ended goes on from its sorted runs, and its index is that of one build, whatever happened to its files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.errors import IndexFileError, ItemIdError
from leafbeam.index.build_estimate import BuildEstimate
from leafbeam.index.builder import TrieBuilder
from leafbeam.index.saved_runs import SavedRuns
from tests.index.tries import same

SIZES = [60, 5, 300]
LIMIT = 4000  # 125 rows a run
Rows = tuple[np.ndarray, list[int] | list[str] | None]


def rows(num_items: int, kind: str, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, size, num_items) for size in SIZES], axis=1)
    numbers = rng.permutation(num_items) * 7 - 50
    return codes, {"rows": None, "integers": numbers.tolist(), "strings": [f"é{number}" for number in numbers]}[kind]


def pieces(num_rows: int, begin: int, size: int) -> Iterator[slice]:
    while begin < num_rows:
        end = min(num_rows, (begin // size + 1) * size)
        yield slice(begin, end)
        begin = end


def parts_of(num_rows: int, size: int = 100, names: str = "a") -> list[tuple[str, int]]:
    return [(f"{names}{part.start}", part.stop - part.start) for part in pieces(num_rows, 0, size)]


def build(
    table: Rows, saved: SavedRuns, *, stop: int | None = None, chunk: int = 70, limit: int = LIMIT
) -> tuple[int, Trie | None]:
    """Go on with a build, up to row `stop`; return how many rows were there already, and the index of all."""
    codes, ids = table
    builder = TrieBuilder(SIZES, memory_limit=limit, saved=saved)
    there = builder.num_items
    for part in pieces(len(codes), there, chunk):
        if stop is not None and part.start >= stop:
            break
        builder.add(codes[part], None if ids is None else ids[part])
    trie = builder.finish() if stop is None else None
    if builder._file is not None:
        builder._file.close()  # as the end of a process does: the rows in memory are lost, and nothing else is written
    return there, trie


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(["rows", "integers", "strings"]),
    st.lists(st.integers(0, 1000), max_size=4),
    st.sampled_from([1, 70, 1000]),
    st.sampled_from(
        ["nothing", "a byte of the rows", "a byte of the list", "the list's end", "the rows' end", "no rows", "no list"]
    ),
)
def test_a_build_that_was_ended_goes_on_to_the_index_of_one_build(
    tmp_path_factory: pytest.TempPathFactory, seed: int, kind: str, stops: list[int], chunk: int, damage: str
) -> None:
    rng = np.random.default_rng(seed)
    table = rows(1000, kind, seed)
    path = tmp_path_factory.mktemp("runs") / "x.runs"
    for stop in stops:
        saved = SavedRuns(path, parts_of(1000))
        there, _ = build(table, saved, stop=stop, chunk=chunk)
        assert there % 125 == 0
    whole = sum(there_runs(path))
    spoil(path, path.with_name("x.runs.list"), damage, rng)
    saved = SavedRuns(path, parts_of(1000))
    there, trie = build(table, saved, chunk=chunk)
    assert trie is not None
    same(trie, Trie.build(table[0], SIZES, table[1]))
    assert there <= 125 * whole
    if damage == "nothing":
        assert there == 125 * whole
        assert saved.notice == ""
    elif damage in ("a byte of the list", "no list", "no rows") and whole:
        assert there < 125 * whole
        assert ("damaged" in saved.notice) == (damage == "a byte of the list")
    saved.remove()
    assert list(path.parent.iterdir()) == []


def there_runs(path: Path) -> list[int]:
    listed = path.with_name("x.runs.list")
    return [1 for _ in listed.read_bytes().splitlines()] if listed.exists() else []


def spoil(path: Path, listed: Path, damage: str, rng: np.random.Generator) -> None:
    """Change a file as a bad disk, a power cut or a user may."""
    if damage == "nothing" or not path.exists():
        return
    file = listed if "list" in damage else path
    content = bytearray(file.read_bytes())
    if damage.startswith("no "):
        file.unlink()
    elif damage.startswith("a byte"):
        at = int(rng.integers(0, len(content)))
        content[at] ^= 1 << int(rng.integers(0, 8))
        file.write_bytes(content)
    else:
        file.write_bytes(content[: rng.integers(0, len(content))])


def test_runs_are_used_up_to_the_first_part_that_changed(tmp_path: Path) -> None:
    table, path = rows(1000, "integers"), tmp_path / "x.runs"
    build(table, SavedRuns(path, parts_of(1000)), stop=1000)
    changed = parts_of(1000)
    changed[5] = ("another time", 100)  # rows 500 to 599
    other = (table[0].copy(), table[1])
    other[0][555] = [1, 2, 3]
    saved = SavedRuns(path, changed)
    there, trie = build(other, saved)
    assert there == 500
    assert "4 runs of sorted rows" in saved.notice
    assert "made of other files" in saved.notice
    assert trie is not None
    same(trie, Trie.build(other[0], SIZES, other[1]))


def test_a_table_that_grew_goes_on_behind_its_old_end(tmp_path: Path) -> None:
    table, path = rows(1000, "strings"), tmp_path / "x.runs"
    assert table[1] is not None
    build((table[0][:600], table[1][:600]), SavedRuns(path, parts_of(600)))
    there, trie = build(table, SavedRuns(path, parts_of(1000)))
    assert there == 600
    assert trie is not None
    same(trie, Trie.build(table[0], SIZES, table[1]))


def test_an_id_that_is_gone_does_not_leave_its_width(tmp_path: Path) -> None:
    codes, _ = rows(300, "rows")
    path, short = tmp_path / "x.runs", [f"{row}" for row in range(300)]
    long = [*short[:130], "a very long id that the next version of the table does not have", *short[131:]]
    build((codes, long), SavedRuns(path, [("a", 125), ("b", 175)]), stop=140, chunk=140)
    there, trie = build((codes, short), SavedRuns(path, [("a", 125), ("changed", 175)]), chunk=140)
    assert there == 125
    assert trie is not None
    same(trie, Trie.build(codes, SIZES, short))


@pytest.mark.parametrize("change", ["sizes", "limit"])
def test_runs_of_other_settings_are_made_again(tmp_path: Path, change: str) -> None:
    table, path = rows(500, "integers"), tmp_path / "x.runs"
    build(table, SavedRuns(path, parts_of(500)), stop=500)
    saved = SavedRuns(path, parts_of(500))
    sizes = [61, *SIZES[1:]] if change == "sizes" else SIZES
    with TrieBuilder(sizes, memory_limit=LIMIT if change == "sizes" else 2 * LIMIT, saved=saved) as builder:
        assert builder.num_items == 0
        assert "with other options" in saved.notice
        builder.add(*table)
        same(builder.finish(), Trie.build(table[0], sizes, table[1]))


def test_two_builds_do_not_write_one_file(tmp_path: Path) -> None:
    codes, _ = rows(500, "rows")
    path = tmp_path / "x.runs"
    with TrieBuilder(SIZES, memory_limit=LIMIT, saved=SavedRuns(path, parts_of(500))) as builder:
        builder.add(codes)
        with pytest.raises(IndexFileError, match="another build is writing"):
            TrieBuilder(SIZES, memory_limit=LIMIT, saved=SavedRuns(path, parts_of(500)))
        same(builder.finish(), Trie.build(codes, SIZES))


def test_a_link_under_the_name_is_refused(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "x.runs"
    victim.write_text("another user's file")
    path.symlink_to(victim)
    with pytest.raises(IndexFileError, match="cannot make a file"):
        TrieBuilder(SIZES, memory_limit=LIMIT, saved=SavedRuns(path, []))
    assert victim.read_text() == "another user's file"


def test_a_builder_that_is_used_again_begins_anew(tmp_path: Path) -> None:
    codes, _ = rows(500, "rows")
    saved = SavedRuns(tmp_path / "x.runs", parts_of(500))
    with TrieBuilder(SIZES, memory_limit=LIMIT, saved=saved) as builder:
        for table in (codes, codes[::-1]):
            builder.add(table)
            same(builder.finish(), Trie.build(table, SIZES))


def test_ids_of_two_kinds_are_refused_after_going_on_too(tmp_path: Path) -> None:
    table, path = rows(500, "integers"), tmp_path / "x.runs"
    build(table, SavedRuns(path, parts_of(500)), stop=300)
    with TrieBuilder(SIZES, memory_limit=LIMIT, saved=SavedRuns(path, parts_of(500))) as builder:
        assert builder.num_items == 250
        with pytest.raises(ItemIdError, match="are strings, those before were integers"):
            builder.add([[1, 2, 3]], ["a"])
        with pytest.raises(ItemIdError, match="some chunks have item_ids"):
            builder.add([[1, 2, 3]])


@pytest.mark.parametrize(("num_items", "limit"), [(200_000, 1 << 30), (200_000, 4_000_000), (200_000, 1_500_000)])
@pytest.mark.parametrize("id_bytes", [0, 8])
@pytest.mark.parametrize("packed", [False, True])
def test_the_disk_that_a_build_takes_is_what_was_estimated(
    tmp_path: Path, num_items: int, limit: int, id_bytes: int, packed: bool
) -> None:
    sizes = [2048] * 8
    codes = np.random.default_rng(0).integers(0, 2048, (num_items, 8), np.uint16)
    saved = SavedRuns(tmp_path / "x.runs", [("a", num_items)])
    estimate = BuildEstimate.of(num_items, sizes, memory_limit=limit, id_bytes=id_bytes, packed=packed)
    with TrieBuilder(sizes, memory_limit=limit, packed=packed, saved=saved) as builder:
        builder.add(codes, np.arange(num_items)[::-1] if id_bytes else None)
        trie = builder.finish()
    size = saved.path.stat().st_size if saved.path.exists() else 0
    assert (size == 0) == (limit == 1 << 30)
    assert estimate.scratch == pytest.approx(size, rel=0.02)
    trie.save(tmp_path / "x.leafbeam")
    assert estimate.index == pytest.approx((tmp_path / "x.leafbeam").stat().st_size, rel=0.02)
