"""Opening of files by the endings of their names, in upper or lower case; .gz means compressed with gzip."""

import gzip
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from leafbeam.errors import DataError
from leafbeam.files import open_regular

_MAGIC = {  # the first bytes of formats whose files often have a wrong ending
    b"\x1f\x8b": "compressed with gzip: add .gz to its name",
    b"PAR1": "Parquet: rename it, so that its name ends in .parquet",
    b"PK\x03\x04": "a ZIP file or an Excel workbook: save the table as CSV (UTF-8), or as Parquet",
    b"\xd0\xcf\x11\xe0": "an Excel workbook: save the table as CSV (UTF-8), or as Parquet",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: decompress it, or compress it with gzip",
}


def ending_of(path: Path, endings: Sequence[str]) -> str:
    """Return which of `endings` a file's name has, in lower case, or "" if it has none of them.

    >>> ending_of(Path("Items.CSV.GZ"), (".csv", ".csv.gz"))
    '.csv.gz'
    """
    return next((ending for ending in endings if path.name.lower().endswith(ending)), "")


def is_compressed(path: Path) -> bool:
    """Return whether a file's name says that gzip compressed it."""
    return path.name.lower().endswith(".gz")


def is_utf_16(head: bytes) -> bool:
    """Return whether the first bytes of a text are those of UTF-16, with or without a byte order mark."""
    return head.startswith((b"\xff\xfe", b"\xfe\xff")) or 4 * head.count(b"\0", 0, 1000) > len(head[:1000])


def check_content(path: Path) -> None:
    """Raise DataError if a file that should be text begins with the bytes of another format."""
    try:
        with open_regular(path) as file:
            head = file.read(8)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    for magic, advice in _MAGIC.items():
        if head.startswith(magic) and not (is_compressed(path) and magic == b"\x1f\x8b"):
            raise DataError(f"{path} is {advice}")


@contextmanager
def opened(path: Path) -> Generator[BinaryIO]:
    """Open a regular file, decompressed if it ends in .gz. Raises OSError; reading may also raise EOFError and zlib.error."""
    with open_regular(path) as file:
        if is_compressed(path):
            with gzip.open(file) as plain:
                yield cast("BinaryIO", plain)
        else:
            yield file
