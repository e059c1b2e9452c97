"""Tables that users bring: CSV against Python's own reader, JSON in every form, up to a log."""

import csv
import functools
import io
import tempfile
from pathlib import Path

from leafbeam.tables import read_rows, read_table
from leafbeam.tables.csv_rows import CsvFormat, read_csv
from leafbeam.train import Columns, LogRules, load_log

_ENCODINGS = {b"L": "latin-1", b"U": "utf-16-le"}


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _file(name: str, data: bytes) -> Path:
    path = Path(_folder().name) / name
    path.write_bytes(data)
    return path


def fuzz_csv(data: bytes) -> None:
    """A file whose first byte names its encoding: where it is read, cells and lines are those of Python's strict reader."""
    encoding = _ENCODINGS.get(data[:1], "utf-8")
    form, path = CsvFormat(encoding=encoding), _file("table.csv", data[1:])
    text = data[1:].decode(encoding, "replace").removeprefix("\ufeff")
    names = next((row for row in csv.reader(io.StringIO(text, newline="")) if row), [])
    names = [name or f"unnamed_{index}" for index, name in enumerate(names)]
    source = read_csv(path, form, ids=tuple(names))
    text = data[1:].decode(encoding).removeprefix("\ufeff")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, lines, line = [], [], 0
    for row in reader:
        if row:
            rows.append([cell or None for cell in row])
            lines.append(line + 1)
        line = reader.line_num
    columns = [source.table[name].to_pylist() for name in source.table.column_names]
    assert [list(row) for row in zip(*columns, strict=True)] == rows[1:]
    if "\r" not in text and len(source.table):
        assert source.where(len(source.table) - 1) == f"line {lines[-1]:,}"
    batches = [row for batch in read_rows(path, 3, types=dict.fromkeys(names, "string"), form=form) for row in batch.rows]
    assert batches == [{name: cell for name, cell in zip(names, row, strict=True) if cell is not None} for row in rows[1:]]


def fuzz_csv_types(data: bytes) -> None:
    """A column of text: its type changes no value that `str` would not give back."""
    table = read_table(_file("types.csv", b"item_id,x\n" + data), ids=("item_id",)).table
    written = read_csv(_file("types.csv", b"item_id,x\n" + data), ids=("item_id", "x")).table["x"].to_pylist()
    for value, text in zip(table["x"].to_pylist(), written, strict=True):
        assert (value is None) == (text is None)
        if isinstance(value, bool):
            assert text.strip().lower() == str(value).lower()
        elif isinstance(value, int):
            assert str(value) == text.strip()
        elif isinstance(value, float):
            assert value == float(text.strip())


def fuzz_json_log(data: bytes) -> None:
    """A log in JSON or JSON lines, with histories in cells, up to the log."""
    path = _file("log.json" if data[:1] == b"[" or data[:2] == b'{"' else "log.jsonl", data)
    log = load_log(interactions=path, columns=Columns(item="item"), rules=LogRules(order="file"))
    assert log.report.interactions == len(log.histories.items_E)
