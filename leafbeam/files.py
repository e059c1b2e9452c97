"""Files: written so that they appear only once they are complete, and read only if they are regular ones."""

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

_MAX_TEXT_BYTES = 64 << 20


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """A path beside this one, to be written in the block, which then takes its name; removed if the block raises.

    Its name cannot be guessed, so no link planted there is followed, and hidden, so that readers of the directory skip it.
    Raises OSError.

    >>> with replacing(Path("report.json")) as part: _ = part.write_text("{}")
    """
    part = path.with_name(f".{path.name}.{token_hex(8)}.part")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def open_regular(path: Path) -> BinaryIO:
    """A regular file, to be read. A FIFO or a device is refused at once, not waited for. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} is no regular file")
    return os.fdopen(descriptor, "rb")


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8, of at most 64 MiB. Raises OSError, UnicodeDecodeError."""
    with open_regular(path) as file:
        data = file.read(_MAX_TEXT_BYTES + 1)
    if len(data) > _MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"{path.name} is larger than {_MAX_TEXT_BYTES >> 20} MiB")
    return data.decode("utf-8")
