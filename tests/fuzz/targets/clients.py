"""What a server and its commands read of clients: files of keys, headers with keys, files of items."""

import functools
import tempfile
from pathlib import Path

from leafbeam.serve.keys import KeyFile, digest_of
from leafbeam.tables import read_rows


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def fuzz_keys(data: bytes) -> None:
    """A file of keys, and its own bytes as a header."""
    path = Path(_temporary().name) / "keys.json"
    path.write_bytes(data)
    keys = KeyFile(path, rate=1.0)
    assert keys.find(data.decode("latin-1")) is None
    assert keys.find("Bearer " + digest_of("x")) is None


def fuzz_item_file(data: bytes) -> None:
    """A file of items as JSON, Parquet, CSV or JSON lines, by how it begins."""
    suffix = {b"[": "json", b"P": "parquet", b"i": "csv", b"{": "jsonl"}.get(data[:1], "json")  # " {" begins one object
    path = Path(_temporary().name) / f"items.{suffix}"
    path.write_bytes(data)
    for batch in read_rows(path, 100, types={"price": "double"}, ids=("item_id",)):
        assert 0 < len(batch.rows) <= 100
        assert all(isinstance(row, dict) for row in batch.rows)
        assert batch.line_of(0) >= 1
