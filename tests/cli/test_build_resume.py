"""`leafbeam build TABLE` that is killed, or whose disk or table fails: the old index stays, and the next build goes on."""

import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leafbeam import Trie
from tests.fixtures.command_line import call, flat, succeed

NUM_ROWS, FILES, LEVELS = 240_000, 6, 4


@pytest.fixture(scope="module")
def codes() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (NUM_ROWS, LEVELS), np.uint16)


@pytest.fixture(scope="module")
def expected(codes: np.ndarray) -> str:
    return Trie.build(codes, [256] * LEVELS, ids()).version


def ids() -> np.ndarray:
    return np.random.default_rng(1).permutation(NUM_ROWS) * 3


def write_part(folder: Path, codes: np.ndarray, number: int) -> None:
    part = slice(number * NUM_ROWS // FILES, (number + 1) * NUM_ROWS // FILES)
    table = pa.table({"item_id": ids()[part], **{f"c{level}": codes[part, level] for level in range(LEVELS)}})
    pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=15_000, write_page_checksum=True)


@pytest.fixture
def words(tmp_path: Path, codes: np.ndarray) -> list[str]:
    """The words of a build of a table of many runs, beside an older index."""
    (tmp_path / "table").mkdir()
    for number in range(FILES):
        write_part(tmp_path / "table", codes, number)
    Trie.build([[1, 2]], [3, 3]).save(tmp_path / "x.leafbeam")
    out = str(tmp_path / "x.leafbeam")
    return ["build", str(tmp_path / "table"), "--codebook-sizes", "256", "--memory-limit", "700kB", "--out", out, "--force"]


def is_old(folder: Path) -> bool:
    return len(Trie.load(folder / "x.leafbeam")) == 1


def is_built(folder: Path, expected: str) -> bool:
    names = sorted(path.name for path in folder.iterdir())
    return names == ["table", "x.leafbeam"] and Trie.load(folder / "x.leafbeam").version == expected


KILLED = """
import os, signal, sys
from leafbeam.cli import app, console
where, left = sys.argv.pop(1), int(sys.argv.pop(1))
write = os.pwrite

def end(*_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def end_in_write(descriptor, data, position):
    end_now = left == 1
    count = write(descriptor, data[: len(data) // 2] if end_now else data, position)
    end()
    return count

if where == "progress":
    console.Bar.show = end
else:
    os.pwrite = end_in_write
app()
"""


@pytest.mark.parametrize(("where", "calls"), [("progress", (1, 15)), pytest.param("write", (4, 9), marks=pytest.mark.slow)])
def test_a_build_that_is_killed_goes_on_to_the_index_of_one_build(
    tmp_path: Path, words: list[str], expected: str, where: str, calls: tuple[int, int]
) -> None:
    rng = np.random.default_rng(0)
    for _ in range(4):
        arguments = [sys.executable, "-c", KILLED, where, str(rng.integers(*calls)), *words]
        child = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert child.returncode == -signal.SIGKILL, child.stderr
        assert is_old(tmp_path)
        assert (tmp_path / ".x.leafbeam.runs").exists()
    result = call(*words)
    assert result.exit_code == 0, result.stderr
    assert "going on behind row" in flat(result.stderr)
    assert is_built(tmp_path, expected)


@contextmanager
def max_file_size(nbytes: int) -> Generator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("nbytes", [2_000_000, 5_000_000])  # while rows are read, and while the index is made
def test_a_disk_that_fills_up_is_named_and_the_next_build_goes_on(
    tmp_path: Path, words: list[str], expected: str, nbytes: int
) -> None:
    with max_file_size(nbytes):
        refused = call(*words)
    assert refused.exit_code == 2
    assert f"the disk of {tmp_path} is full" in flat(refused.stderr)
    assert "run the same command to continue from there" in flat(refused.stderr)
    assert is_old(tmp_path)
    assert "going on behind row" in flat(call(*words).stderr)
    assert is_built(tmp_path, expected)


def test_a_damaged_chunk_is_named_and_the_next_build_goes_on(
    tmp_path: Path, words: list[str], codes: np.ndarray, expected: str
) -> None:
    chunk = tmp_path / "table" / "part-3.parquet"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 0xFF
    chunk.write_bytes(content)
    refused = call(*words)
    assert refused.exit_code == 2
    assert f"{chunk} cannot be read" in flat(refused.stderr)
    assert is_old(tmp_path)
    write_part(chunk.parent, codes, 3)
    again = call(*words)
    assert "going on behind row" in flat(again.stderr)
    assert is_built(tmp_path, expected)


def test_rows_of_a_table_that_changed_are_sorted_again(
    tmp_path: Path, words: list[str], codes: np.ndarray, expected: str
) -> None:
    other = codes.copy()
    other[7] = 0
    write_part(tmp_path / "table", other, 0)
    (tmp_path / "table" / "part-5.parquet").rename(tmp_path / "part-5.parquet")
    (tmp_path / "table" / "part-5.parquet").write_bytes(b"not Parquet, but found too late")
    assert call(*words).exit_code == 2  # before a row is read
    assert not (tmp_path / ".x.leafbeam.runs").exists()
    (tmp_path / "part-5.parquet").rename(tmp_path / "table" / "part-5.parquet")
    with max_file_size(4_000_000):
        assert call(*words).exit_code == 2
    assert (tmp_path / ".x.leafbeam.runs").exists()
    write_part(tmp_path / "table", codes, 0)
    again = flat(call(*words).stderr)
    assert "made of other files or with other options: sorting those rows again" in again
    assert "going on behind row" not in again
    assert is_built(tmp_path, expected)


def test_what_a_build_needs_is_told_and_compared_with_the_disk(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = flat(call(*words).stderr)
    assert "240,000 rows: about" in told
    assert f"in {tmp_path} while it is sorted" in told
    Trie.build([[1, 2]], [3, 3]).save(tmp_path / "x.leafbeam")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=3_000_000))
    refused = call(*words)
    assert refused.exit_code == 2
    assert f"{tmp_path} has 3.0 MB free, but this build needs about" in flat(refused.stderr)
    assert "--scratch or --out" in flat(refused.stderr)
    assert is_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "x.leafbeam"]


def test_a_scratch_that_is_not_there_is_named(tmp_path: Path, words: list[str]) -> None:
    refused = call(*words, "--scratch", tmp_path / "nowhere")
    assert (refused.exit_code, "is not a directory: make it" in flat(refused.stderr)) == (2, True)
    (tmp_path / "here").mkdir()
    succeed(*words, "--scratch", tmp_path / "here")
    assert list((tmp_path / "here").iterdir()) == []
