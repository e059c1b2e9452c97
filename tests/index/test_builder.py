"""Out of core: whatever the chunks, the limit and the runs, the result is that of one build, and no file is left."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.errors import ArgumentError, CodesError, IndexFileError, ItemIdError
from leafbeam.index import external_sort
from leafbeam.index.builder import TrieBuilder
from leafbeam.index.items import check_unique
from tests.index.tries import same

DTYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


def chunks_of(rng: np.random.Generator, size: int) -> list[slice]:
    """Cuts at random places, some of them at the same: empty chunks."""
    cuts = np.sort(rng.integers(0, size + 1, rng.integers(0, 6)))
    return [slice(int(a), int(b)) for a, b in zip([0, *cuts], [*cuts, size], strict=True)]


@settings(max_examples=50)
@given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from([1, 2, 5, 300, 2048, 70_000, 2**31]), min_size=1, max_size=9),
    st.sampled_from([0, 1, 5, 300, 3000]),
    st.sampled_from([1, 100, 5000, 30_000, 10**9]),
    st.sampled_from(["rows", "integers", "strings"]),
    st.sampled_from(["uniform", "few", "equal"]),
    st.booleans(),
)
def test_chunks_build_what_one_table_builds(
    seed: int, sizes: list[int], num_items: int, limit: int, kind: str, spread: str, packed: bool
) -> None:
    rng = np.random.default_rng(seed)
    if limit < 5000:
        num_items = min(num_items, 300)
    tops = {"uniform": 2**31, "few": 2, "equal": 1}
    codes = np.stack([rng.integers(0, min(size, tops[spread]), num_items) for size in sizes], axis=1)
    ids: list[int] | list[str] | None = None
    if kind == "integers":
        ids = (rng.permutation(num_items) * 7 - 50).tolist()
    elif kind == "strings":
        ids = [f"é{number}" for number in rng.permutation(num_items)]
    with TrieBuilder(sizes, memory_limit=limit, packed=packed) as builder:
        for part in chunks_of(rng, num_items):
            builder.add(codes[part], None if ids is None else ids[part])
        same(builder.finish(), Trie.build(codes, sizes, ids, packed=packed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_integer_dtype(dtype: type[np.integer]) -> None:
    codes = np.random.default_rng(0).integers(0, 100, (700, 5))
    with TrieBuilder([100] * 5, memory_limit=4000) as builder:
        for begin in range(0, 700, 90):
            builder.add(np.asfortranarray(codes[begin : begin + 90].astype(dtype)))
        same(builder.finish(), Trie.build(codes, [100] * 5))


@pytest.mark.parametrize("threads", [1, 2])
def test_many_rows_and_few_runs_and_heavy_keys(threads: int) -> None:
    rng = np.random.default_rng(9)
    codes = np.minimum(rng.geometric(0.01, (260_000, 7)) - 1, 255)
    codes[50_000:180_000] = codes[50_000]  # one key that fills pieces of its own
    with TrieBuilder([256] * 7, memory_limit=2_000_000, num_threads=threads) as builder:
        for begin in range(0, 260_000, 33_333):
            builder.add(codes[begin : begin + 33_333])
        same(builder.finish(), Trie.build(codes, [256] * 7))


def test_sequences_in_chunks() -> None:
    rng = np.random.default_rng(2)
    sequences = [rng.integers(0, 50, rng.integers(0, 9)).tolist() for _ in range(500)]
    whole = Trie.from_sequences(sequences, 50)
    table = whole.codes_of(range(500))
    with TrieBuilder(whole.codebook_sizes, end_code=50, memory_limit=6000) as builder:
        builder.add(table[:320])
        builder.add(table[320:])
        built = builder.finish()
        same(built, whole)
        assert built.end_code == 50
        with pytest.raises(CodesError, match="row 0 is"):
            builder.add(np.zeros((1, whole.num_levels), np.int64))


def test_a_builder_can_be_used_again_and_after_a_refused_chunk() -> None:
    builder = TrieBuilder([10, 10], memory_limit=500)
    for _ in range(2):
        builder.add(np.arange(60).reshape(30, 2) % 10, range(30))
        for bad, ids, message in [
            ([[3, 10]], [99], "row 30 has code 10 at level 1"),
            ([[1, 2, 3]], [99], "shape"),
            ([[3, 1]], None, "some chunks have item_ids"),
            ([[3, 1]], ["a"], "are strings, those before were integers"),
            ([[3, 1]], [1, 2], "expected \\(1,\\)"),
        ]:
            with pytest.raises((CodesError, ItemIdError), match=message):
                builder.add(bad, ids)
        builder.add([[3, 1]], [77])
        builder.add(np.empty((0, 2), np.int64))
        same(builder.finish(), Trie.build([*(np.arange(60).reshape(30, 2) % 10), [3, 1]], [10, 10], [*range(30), 77]))


def test_empty_chunks_decide_nothing() -> None:
    builder = TrieBuilder([4])
    builder.add(np.empty((0, 1), np.int64), np.empty(0, np.int64))
    builder.add([[1]], ["a"])
    builder.add([], [])
    builder.add([[2]], ["much longer"])
    same(builder.finish(), Trie.build([[1], [2]], [4], ["a", "much longer"]))
    builder.add([], ["x"][:0])
    builder.add([[1]])
    same(builder.finish(), Trie.build([[1]], [4]))
    same(builder.finish(), Trie.build([], [4]))
    builder.add([], [])
    same(builder.finish(), Trie.build([], [4], []))


@pytest.mark.parametrize("limit", [600, 10**9])
@pytest.mark.parametrize("ids", ["integers", "strings"])
def test_an_id_that_comes_twice_is_refused_wherever_it_stands(limit: int, ids: str) -> None:
    numbers = np.random.default_rng(1).permutation(200) - 20
    numbers[170] = numbers[3]
    item_ids = numbers.tolist() if ids == "integers" else [f"id {number}" for number in numbers]
    with TrieBuilder([200], memory_limit=limit) as builder:
        for begin in range(0, 200, 30):
            builder.add(np.arange(200)[begin : begin + 30, None], item_ids[begin : begin + 30])
        message = f"1 item id occurs more than once, {item_ids[3]!r} among them"
        with pytest.raises(ItemIdError, match=message):
            builder.finish()
    with pytest.raises(ItemIdError, match=message):
        Trie.build(np.arange(200)[:, None], [200], item_ids)


@given(st.lists(st.integers(-5, 30) | st.integers(-(2**63), 2**63 - 1), max_size=40), st.sampled_from([1, 100, 10**6]))
def test_distinct_or_not(ids: list[int], limit: int) -> None:
    for array in (np.array(ids, np.int64), np.array([f"{one}" for one in ids], np.bytes_)):
        if len(set(ids)) == len(ids):
            check_unique(array, limit)
        else:
            with pytest.raises(ItemIdError, match=f"^{len(ids) - len(set(ids))} item ids?"):
                check_unique(array, limit)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_no_file_is_left_after_success_or_error(tmp_path: Path) -> None:
    codes = np.arange(4000).reshape(1000, 4) % 60
    with TrieBuilder([60] * 4, memory_limit=3000, folder=tmp_path) as builder:
        builder.add(codes)
        assert builder._runs is not None
        assert len(builder._runs) > 5
        trie = builder.finish()
    assert files_below(tmp_path) == []
    same(trie, Trie.build(codes, [60] * 4))  # its arrays are mapped from files without a name
    assert isinstance(trie.levels[-1].codes.base, np.memmap)
    with TrieBuilder([60] * 4, memory_limit=3000, folder=tmp_path) as builder:
        builder.add(codes)
        with pytest.raises(CodesError):
            builder.add(codes + 1)
    assert files_below(tmp_path) == []


@pytest.mark.slow
def test_an_interrupt_leaves_no_file(tmp_path: Path) -> None:
    code = (
        "import signal, sys, numpy as np; from leafbeam.index.builder import TrieBuilder\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        "with TrieBuilder([60] * 4, memory_limit=3000, folder=sys.argv[1]) as builder:\n"
        "    while True:\n"
        "        builder.add(np.arange(4000).reshape(1000, 4) % 60)\n"
        "        print(builder.num_items, flush=True)\n"
    )
    for how in (signal.SIGINT, signal.SIGKILL):
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline()
            time.sleep(0.05)
            child.send_signal(how)
            _, error = child.communicate(timeout=60)
        assert ("KeyboardInterrupt" in error) == (how == signal.SIGINT)
        assert child.returncode == (-how if how == signal.SIGKILL else -signal.SIGINT)
        assert files_below(tmp_path) == []


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate"])
def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    codes = np.arange(4000).reshape(1000, 4) % 60

    def build() -> None:
        with TrieBuilder([60] * 4, memory_limit=3000, folder=tmp_path) as builder:
            builder.add(codes)
            builder.finish()

    with monkeypatch.context() as patched:
        patched.setattr(external_sort.os, call, full)
        with pytest.raises(IndexFileError, match="is full: this build needs"):
            build()
    build()
    assert files_below(tmp_path) == []


def test_a_folder_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match="name another folder"):
        TrieBuilder([60], memory_limit=1, folder=tmp_path / "nowhere").add([[1], [2]])


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(ArgumentError, match="memory_limit is 0"):
        TrieBuilder([60], memory_limit=0)
    with pytest.raises(CodesError, match="0 levels"):
        TrieBuilder([])


def test_the_limit_holds() -> None:
    code = (
        "import numpy as np; from benchmarks.resident import peak_bytes; from leafbeam.index.builder import TrieBuilder\n"
        "def build(num_chunks, limit):\n"
        "    rng = np.random.default_rng(0)\n"
        "    with TrieBuilder([2048] * 8, memory_limit=limit, num_threads=1) as builder:\n"
        "        for _ in range(num_chunks): builder.add(rng.integers(0, 2048, (50_000, 8), np.uint16))\n"
        "        return builder.finish()\n"
        "build(2, 10**6)\n"
        "before = peak_bytes(anew=True)\n"
        "trie = build(60, 20 * 10**6)\n"
        "print(peak_bytes() - before, trie.nbytes + trie.items.nbytes)\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    peak, result = int(found[0]), int(found[1])
    assert result > 55e6
    assert peak < 20e6 + result + 15e6  # the limit, and what is mapped


def test_progress_ascends_to_one() -> None:
    told: list[tuple[str, float]] = []
    with TrieBuilder([60] * 4, memory_limit=3000) as builder:
        builder.add(np.arange(4000).reshape(1000, 4) % 60)
        builder.finish(lambda what, share: told.append((what, share)))
    shares = [share for _, share in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert any(what.startswith("merging") for what, _ in told)
