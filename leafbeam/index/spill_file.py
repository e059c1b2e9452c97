"""Temporary arrays on disk, for data that does not fit into memory.

The file is unlinked when it is created, so nothing is left behind however the process ends.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import IndexFileError

__all__ = ["SpillFile", "SpilledArray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilledArray:
    """A 1-D array in a `SpillFile`."""

    descriptor: int
    offset: int
    length: int
    dtype: np.dtype[Any]

    def __len__(self) -> int:
        return self.length

    def read(self, begin: int, out: NDArray[Any]) -> NDArray[Any]:
        """Fill `out`, an array of the same item size, with the values from `begin` on."""
        offset = self.offset + begin * self.dtype.itemsize
        left = out.view(np.uint8).data if len(out) else memoryview(b"")
        while len(left):
            count = os.preadv(self.descriptor, [left[: 1 << 30]], offset)
            assert count > 0
            left, offset = left[count:], offset + count
        return out


class SpillFile:
    """A growing temporary file of arrays. Raises IndexFileError where the folder cannot be written or its disk is full."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        try:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 (closed by `close`)
        except OSError as error:
            raise IndexFileError(
                f"no temporary file can be made in {self.folder} ({error.strerror}): name another folder"
            ) from error
        self.size = 0

    def append(self, array: NDArray[Any]) -> SpilledArray:
        """Write a contiguous array at the end of the file."""
        descriptor, offset = self._file.fileno(), self.size
        left = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.size += len(left)
        position = offset
        while len(left):
            part = left[: 1 << 30]
            count = self._or_full(lambda part=part, position=position: os.pwrite(descriptor, part, position), self.size)
            left, position = left[count:], position + count
        return SpilledArray(descriptor=descriptor, offset=offset, length=len(array), dtype=array.dtype)

    def allocate(self, length: int, dtype: Any) -> NDArray[Any]:
        """An array mapped from the file, whose disk space is reserved first; it may outlive `close`."""
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
