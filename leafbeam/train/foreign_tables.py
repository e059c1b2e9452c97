"""Tables as other libraries keep them: RecBole's atomic files, Hugging Face datasets on disk, cornac's and RecTools' tables."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from leafbeam.errors import DataError, short_repr
from leafbeam.files import open_regular, read_text

ATOMIC_SUFFIXES = (".inter", ".item", ".user")
_ATOMIC_TYPES = {"token": pa.string(), "token_seq": pa.string(), "float": pa.float64(), "float_seq": pa.string()}
_MAX_HEADER = 1 << 16
_DATASET, _SPLITS = "state.json", "dataset_dict.json"


def read_atomic(path: Path) -> pa.Table:
    """A file of RecBole: a line of `name:type` (token, token_seq, float, float_seq), then rows, fields separated by tabs.

    Columns lose their types; ids are text; sequences are text of words. Raises DataError, OSError, ArrowException.
    """
    with open_regular(path) as file:
        line = file.readline(_MAX_HEADER)
    fields = [field.partition(":") for field in line.decode("utf-8", "replace").rstrip("\r\n").split("\t")]
    for name, _, kind in fields:
        if not name or kind not in _ATOMIC_TYPES:
            raise DataError(
                f"{path}: the column {short_repr(name)} has the type {short_repr(kind)}: expected a first line of names with "
                f"types ({', '.join(_ATOMIC_TYPES)}) and tabs between them, such as user_id:token"
            )
    names = [name for name, _, _ in fields]
    return pacsv.read_csv(
        path,
        read_options=pacsv.ReadOptions(column_names=names, skip_rows=1),
        parse_options=pacsv.ParseOptions(delimiter="\t", quote_char=False),
        convert_options=pacsv.ConvertOptions(
            column_types={name: _ATOMIC_TYPES[kind] for name, _, kind in fields}, strings_can_be_null=True, null_values=[""]
        ),
    )


def is_dataset(directory: Path) -> bool:
    """Whether `datasets` saved a directory (`save_to_disk`)."""
    return (directory / _DATASET).is_file() or (directory / _SPLITS).is_file()


def read_dataset(directory: Path) -> pa.Table:
    """A dataset that `save_to_disk` of Hugging Face's datasets wrote: Arrow streams that state.json names.

    A directory of several splits is refused: name one of its directories. Raises DataError, OSError, ArrowException.
    """
    if not (directory / _DATASET).is_file():
        splits = _read_fields(directory / _SPLITS).get("splits")
        if not isinstance(splits, list) or not splits or not all(_is_name(split) for split in splits):
            raise DataError(f"{directory / _SPLITS} names no splits: save the dataset again")
        if len(splits) > 1:
            raise DataError(f"{directory} has the splits {', '.join(splits)}: name one, such as {directory / splits[0]}")
        directory = directory / splits[0]
    files = _read_fields(directory / _DATASET).get("_data_files")
    if not isinstance(files, list) or not all(isinstance(file, dict) and _is_name(file.get("filename")) for file in files):
        raise DataError(f"{directory / _DATASET} names no data files: save the dataset again")
    tables: list[Any] = []
    for file in files:
        path = directory / file["filename"]
        if not path.is_file():
            raise DataError(f"{path} is missing: copy the dataset again")
        with open_regular(path) as opened, pa.ipc.open_stream(opened) as reader:
            tables.append(reader.read_all())
        tables[-1].validate(full=True)
    if not tables:
        raise DataError(f"{directory} is a dataset without files: expected at least one")
    return pa.concat_tables(tables).replace_schema_metadata(None)


def read_ratings(path: Path) -> pa.Table:
    """A file without names of columns: user, item, rating and, if there is a fourth, time (cornac's UIR and UIRT).

    The first line tells the separator: a tab, a comma, `::` or blanks. Raises DataError, OSError, ArrowException.
    """
    with open_regular(path) as file:
        lines = file.read().decode("utf-8").splitlines()
    first = next((line for line in lines if line.strip()), "")
    mark = next((mark for mark in ("\t", "::", ",") if mark in first), None)
    rows = [line.strip().split(mark) for line in lines if line.strip()]
    width = len(rows[0]) if rows else 0
    if width not in (3, 4):
        raise DataError(f"{path}: line 1 has {width} fields: expected user, item, rating and perhaps time, as cornac has them")
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise DataError(f"{path}: row {number:,} has {len(row)} fields, the first {width}: expected as many in all")
    columns = dict(zip(("user_id", "item_id", "rating", "timestamp"), zip(*rows, strict=True), strict=False))
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    for name in ("rating", "timestamp"):
        if name in columns:
            try:
                numbers = table[name].cast(pa.float64())
            except pa.ArrowInvalid as error:
                raise DataError(f"{path}: a {name} is no number ({error}): is this a table with names of columns?") from error
            whole = name == "timestamp" and pc.all(pc.equal(numbers, pc.floor(numbers))).as_py()
            table = table.set_column(table.column_names.index(name), name, numbers.cast(pa.int64()) if whole else numbers)
    return table


def joined_features(table: pa.Table) -> pa.Table:
    """RecTools' features of items, a row for each value (id, feature, value), as a row for each item; another table as it is.

    Several values of a feature are joined with blanks.
    """
    if set(table.column_names) != {"id", "feature", "value"} or any(column.null_count for column in table.columns):
        return table
    rows: dict[Any, dict[str, list[str]]] = {}
    for item, feature, value in zip(*(table[name].to_pylist() for name in ("id", "feature", "value")), strict=True):
        rows.setdefault(item, {}).setdefault(str(feature), []).append(str(value))
    names = dict.fromkeys(name for row in rows.values() for name in row)
    joined = {name: pa.array([" ".join(row[name]) if name in row else None for row in rows.values()]) for name in names}
    return pa.table({**joined, "id": pa.array(list(rows), table["id"].type)})


def _is_name(name: object) -> bool:
    """Whether it names a file of the directory itself."""
    return isinstance(name, str) and re.fullmatch(r"[\w.-]{1,255}", name) is not None and not name.startswith(".")


def _read_fields(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}): save the dataset again") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no object: save the dataset again")
    return content
