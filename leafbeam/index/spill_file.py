"""Temporary arrays on disk, for what does not fit into memory.

The file has no name (it is unlinked when it is made), so nothing is left behind whatever ends the process.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import IndexFileError

__all__ = ["SpillFile"]


class SpillFile:
    """A growing temporary file that hands out pieces of itself.

    Think of it as a drawer: `put` appends an array and says where, `take` reads some of it back, `allocate` gives an array
    whose memory is the file's, for as long as that array lives. Raises IndexFileError where the disk is full.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        try:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (it lives as long as this object)
        except OSError as error:
            raise IndexFileError(
                f"no temporary file can be made in {self.folder} ({error.strerror}): name another folder"
            ) from error
        self.size = 0

    def put(self, array: NDArray[Any]) -> int:
        """Append a contiguous array; returns the offset of its first byte."""
        offset = self.size
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.size += len(left)
        at = offset
        while len(left):
            written = self._or_full(lambda left=left, at=at: os.pwrite(self._file.fileno(), left[: 1 << 30], at), self.size)
            left, at = left[written:], at + written
        return offset

    def take(self, offset: int, length: int, dtype: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read `length` values that `put` wrote, into `out` or a new array."""
        array = np.empty(length, dtype) if out is None else out
        left = array.view(np.uint8).data if length else memoryview(b"")
        while len(left):
            got = os.preadv(self._file.fileno(), [left[: 1 << 30]], offset)
            assert got > 0
            left, offset = left[got:], offset + got
        return array

    def allocate(self, length: int, dtype: Any) -> NDArray[Any]:
        """An array in the file, all of its bytes set aside on the disk beforehand."""
        nbytes = length * np.dtype(dtype).itemsize
        if nbytes == 0:
            return np.empty(length, dtype)
        offset = -(-self.size // 4096) * 4096
        self._or_full(lambda: os.posix_fallocate(self._file.fileno(), offset, nbytes), offset + nbytes)
        self.size = offset + nbytes
        return np.asarray(np.memmap(self._file, dtype, "r+", offset, (length,)))

    def close(self) -> None:
        """Give the space back, as soon as no allocated array is left."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _or_full(self, write: Callable[[], Any], needed: int) -> Any:
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise IndexFileError(
                f"the disk of {self.folder} is full: this build needs {needed / 1e6:,.1f} MB there for a while, and more; "
                f"free some, name another folder, or raise the memory limit"
            ) from error
