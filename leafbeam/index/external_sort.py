"""External merge sort of packed rows: a table of any size is sorted a block at a time.

    spill: each sorted run is written to disk; every step-th row of it is kept in memory as a sample
    merge: keys are chosen among the samples so that the rows between two of them, of all runs, fit into memory;
           those rows are read run by run as one block, and the blocks follow each other in order

Equal rows keep the caller's order. Shapes: P words a row, n rows of a run or block, S samples of a run.
"""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from leafbeam.errors import IndexFileError
from leafbeam.index.tensor_file import digest

_SAMPLES = 1024
Number = TypeVar("Number", bound=np.generic)
Answer = TypeVar("Answer")

Block = tuple[list[NDArray[np.uint64]], NDArray[np.uint32]]  # words_Pn and the caller's rows_n


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilledArray:
    """A 1-D array in a `SpillFile`. digest: the hash of its content, "" in a file without a name."""

    descriptor: int
    offset: int
    length: int
    dtype: np.dtype[np.generic]
    digest: str = ""

    def __len__(self) -> int:
        return self.length

    @property
    def end(self) -> int:
        """Return the first byte of the file behind the array."""
        return self.offset + self.length * self.dtype.itemsize

    @property
    def fields(self) -> list[int | str]:
        """Return what `SpillFile.restore` needs, as JSON can hold it."""
        return [self.offset, self.length, self.dtype.str, self.digest]

    def read(self, begin: int, out: NDArray[Number]) -> NDArray[Number]:
        """Fill `out`, an array of the same item size, with the values from `begin` on."""
        offset = self.offset + begin * self.dtype.itemsize
        left = out.view(np.uint8).data if len(out) else memoryview(b"")
        while len(left):
            count = os.preadv(self.descriptor, [left[: 1 << 30]], offset)
            assert count > 0
            left, offset = left[count:], offset + count
        return out


class SpillFile:
    """A growing file of arrays, unlinked when it is created if it has no path, else kept and locked.

    Raises IndexFileError for an unwritable folder or a full disk, BlockingIOError if another process has the path open.
    """

    def __init__(self, folder: Path | None, path: Path | None = None) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self._has_name = path is not None
        try:
            self._file = _open_locked(path) if path else tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (see `close`)
        except BlockingIOError:
            raise
        except OSError as error:
            raise IndexFileError(f"cannot make a file in {self.folder} ({error.strerror}): name another folder") from error
        self.size = 0

    def append(self, array: NDArray[np.generic]) -> SpilledArray:
        """Write a contiguous array at the end of the file."""
        descriptor, offset = self._file.fileno(), self.size
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.size += len(left)
        position = offset
        while len(left):
            part = left[: 1 << 30]
            count = self._or_full(lambda part=part, position=position: os.pwrite(descriptor, part, position), self.size)
            left, position = left[count:], position + count
        checksum = digest({"": array}) if self._has_name else ""
        return SpilledArray(descriptor=descriptor, offset=offset, length=len(array), dtype=array.dtype, digest=checksum)

    def restore(self, fields: Sequence[Any]) -> SpilledArray:
        """Return an array that was appended before the file was closed; ValueError where its content has changed."""
        offset, length, dtype, checksum = fields
        array = SpilledArray(
            descriptor=self._file.fileno(), offset=offset, length=length, dtype=np.dtype(dtype), digest=checksum
        )
        if not 0 <= offset <= array.end <= os.fstat(array.descriptor).st_size:
            raise ValueError("the array is not in the file")
        if digest({"": array.read(0, np.empty(length, array.dtype))}) != checksum:
            raise ValueError("the array is not what was written")
        return array

    def truncate(self, size: int) -> None:
        """Drop everything from a position on."""
        os.ftruncate(self._file.fileno(), size)
        self.size = size

    def allocate(self, length: int, dtype: DTypeLike) -> NDArray[Any]:
        """Return an array mapped from the file, whose disk space is reserved first; it may outlive `close`."""
        nbytes = length * np.dtype(dtype).itemsize
        if nbytes == 0:
            return np.empty(length, dtype)
        offset = -(-self.size // 4096) * 4096
        self._or_full(lambda: os.posix_fallocate(self._file.fileno(), offset, nbytes), offset + nbytes)
        self.size = offset + nbytes
        return np.asarray(np.memmap(self._file, dtype, "r+", offset, (length,)))

    def close(self) -> None:
        """Free the disk space once no allocated array is left."""
        self._file.close()

    def _or_full(self, write: Callable[[], Answer], needed: int) -> Answer:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise IndexFileError(
                f"the disk of {self.folder} is full: this build needs {needed / 1e6:,.1f} MB there for a while, or more; "
                f"free some space, name another folder, or raise the memory limit"
            ) from error


def _open_locked(path: Path) -> IO[bytes]:
    """Open or make a regular file of this process alone; a link is not followed. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, f"{path.name} is not a regular file")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "r+b", 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One sorted run on disk; samples_SP: the words of every `step`-th row."""

    words_P: list[SpilledArray]
    rows: SpilledArray
    step: int
    samples_SP: NDArray[np.uint64]

    @classmethod
    def read(cls, words_P: list[SpilledArray], rows: SpilledArray) -> "Run":
        """Return a run whose arrays are in a file already."""
        step = _step_of(len(rows))
        samples_SP = np.empty((-(-len(rows) // step), len(words_P)), np.uint64)
        for sample, row in enumerate(range(0, len(rows), step)):
            samples_SP[sample] = [word.read(row, np.empty(1, np.uint64))[0] for word in words_P]
        return cls(words_P=words_P, rows=rows, step=step, samples_SP=samples_SP)

    def rank(self, key: tuple[int, ...], after: bool) -> int:
        """Return how many rows are less than a key (`after`: or equal). Cost: a search among the samples, then on disk."""
        begin, end = 0, len(self.rows)
        while begin < end:
            middle = (begin + end) // 2
            if end - begin > 2 * self.step:
                middle = middle // self.step * self.step  # stay among the samples, in memory
            if middle % self.step == 0:
                row = tuple(int(word) for word in self.samples_SP[middle // self.step])
            else:
                row = tuple(int(word.read(middle, np.empty(1, np.uint64))[0]) for word in self.words_P)
            if row < key or (after and row == key):
                begin = middle + 1
            else:
                end = middle
        return begin


def _step_of(num_rows: int) -> int:
    return -(-num_rows // _SAMPLES)


class ExternalSort:
    """The sorted runs of one table. Cost: 8 bytes a word and 4 bytes a row on disk, one write and one read of them."""

    def __init__(self, file: SpillFile, num_words: int) -> None:
        self._file = file
        self._num_words = num_words
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def spill(self, words_Pn: Sequence[NDArray[np.uint64]], rows_n: NDArray[np.uint32]) -> Run:
        """Write a run: its words in ascending order and the caller's row of each."""
        step = _step_of(len(rows_n))
        samples_SP = np.stack([word_n[::step] for word_n in words_Pn], axis=1)
        words_P = [self._file.append(word_n) for word_n in words_Pn]
        self.add(Run(words_P=words_P, rows=self._file.append(rows_n), step=step, samples_SP=samples_SP))
        return self._runs[-1]

    def add(self, run: Run) -> None:
        """Add a run that is in the file already."""
        self._runs.append(run)

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Return all rows in ascending blocks of `max_rows` at most (more with a thousand runs), run by run inside a block."""
        begins = [0] * len(self._runs)
        for ends, equal in self._cuts(max_rows):
            sizes = [end - begin for begin, end in zip(begins, ends, strict=True)]
            yield from self._equal_rows(begins, sizes, max_rows) if equal else [self._read(begins, sizes)]
            begins = ends

    def _cuts(self, max_rows: int) -> Iterator[tuple[list[int], bool]]:
        """Return how many rows of each run lie before each cut, and whether all rows since the previous cut are equal.

        A run has fewer than `step` rows between neighbouring samples, so up to j samples between two keys mean at most
        (j + runs) x step rows. We cut before every stride-th sample; equal samples before the first of two such keys can make
        it 2 x stride of them. A key that occurs twice has very many equal rows: we cut behind those too.
        """
        if not self._runs:
            return
        samples_SP = np.concatenate([run.samples_SP for run in self._runs])
        samples_SP = samples_SP[np.lexsort(samples_SP.T[::-1])]
        max_step = max(run.step for run in self._runs)
        stride = max(1, (max_rows // max_step - len(self._runs)) // 2)
        keys = [tuple(int(word) for word in key) for key in samples_SP[stride::stride]]
        for index, key in enumerate(keys):
            if index > 0 and keys[index - 1] == key:
                continue
            yield [run.rank(key, False) for run in self._runs], False
            if index + 1 < len(keys) and keys[index + 1] == key:
                yield [run.rank(key, True) for run in self._runs], True
        yield [len(run.rows) for run in self._runs], False

    def _read(self, begins: Sequence[int], sizes: Sequence[int]) -> Block:
        total = sum(sizes)
        words_Pn = [np.empty(total, np.uint64) for _ in range(self._num_words)]
        rows_n = np.empty(total, np.uint32)
        position = 0
        for run, begin, size in zip(self._runs, begins, sizes, strict=True):
            for spilled, array in zip([*run.words_P, run.rows], [*words_Pn, rows_n], strict=True):
                spilled.read(begin, array[position : position + size])
            position += size
        return words_Pn, rows_n

    def _equal_rows(self, begins: Sequence[int], sizes: Sequence[int], max_rows: int) -> Iterator[Block]:
        """Yield rows that are all equal, however many: they are in order run by run, and need not be sorted together."""
        for number, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
            for start in range(0, size, max_rows):
                starts = [0] * len(self._runs)
                starts[number] = begin + start
                yield self._read(starts, [min(max_rows, size - start) if n == number else 0 for n in range(len(self._runs))])
