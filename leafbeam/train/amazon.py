"""Amazon Reviews as their sites give them: JSON lines of 2014, 2018 and 2023, plain or gzipped."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import ast
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from leafbeam.errors import DataError
from leafbeam.train.data import Columns, InteractionLog, log_of_tables
from leafbeam.train.tables import TimeUnit

__all__ = ["load_amazon"]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Format:
    """What one generation of the files calls its fields."""

    years: str
    user: str
    item: str
    timestamp: str
    time_unit: TimeUnit


_FORMATS = (
    _Format(years="2014 or 2018", user="reviewerID", item="asin", timestamp="unixReviewTime", time_unit="s"),
    _Format(years="2023", user="user_id", item="parent_asin", timestamp="timestamp", time_unit="ms"),
)
_ATTRIBUTES = ("title", "brand", "categories", "price", "description")


def load_amazon(reviews: str | Path, meta: str | Path | None = None, *, k_core: int = 0) -> InteractionLog:
    """Read a file of reviews, and of the products' metadata, of any generation (it is told by the first line's fields).

    Every review is an interaction. 2014 and 2018: reviewerID, asin, unixReviewTime (seconds); 2023: user_id, parent_asin,
    timestamp (milliseconds). Of the metadata come title, brand (2023: store), categories (joined), price (as it is
    written) and description, all text, null where there is none. Lines are JSON, or Python literals (the 2014
    metadata). A product on several lines is its first line; products without a review leave the catalog.
    About 200,000 lines a second. Raises DataError with the number of the first line that is malformed.
    """
    reviews_path = Path(reviews)
    users: list[str] = []
    taken: list[str] = []
    times: list[int] = []
    form: _Format | None = None
    for number, record in _records(reviews_path):
        form = form or _format_of(record, reviews_path)
        user, item, time = record.get(form.user), record.get(form.item), record.get(form.timestamp)
        if not (isinstance(user, str) and user and isinstance(item, str) and item):
            raise DataError(
                f"{reviews_path}, line {number:,}: {form.user} and {form.item} have to be text, not {user!r}, {item!r}"
            )
        if not isinstance(time, int) or isinstance(time, bool) or abs(time) >= 1 << 62:
            raise DataError(f"{reviews_path}, line {number:,}: {form.timestamp} has to be a whole number, not {time!r}")
        users.append(user)
        taken.append(item)
        times.append(time)
    if form is None:
        raise DataError(f"{reviews_path} has no lines")
    return log_of_tables(
        pa.table({"user_id": users, "item_id": taken, "timestamp": pa.array(times, pa.int64())}),
        None if meta is None else _items_of(Path(meta), set(taken)),
        columns=Columns(),
        time_unit=form.time_unit,
        unseen="drop",
        k_core=k_core,
    )


def _format_of(record: dict[str, Any], path: Path) -> _Format:
    for form in _FORMATS:
        if {form.user, form.item, form.timestamp} <= record.keys():
            return form
    wanted = "; or ".join(f"{form.user}, {form.item}, {form.timestamp} ({form.years})" for form in _FORMATS)
    raise DataError(f"{path}: a review needs the fields {wanted}. The first line has {', '.join(map(str, record)) or 'none'}")


def _items_of(path: Path, wanted: set[str]) -> pa.Table:
    """The attributes of the products in `wanted`."""
    rows: dict[str, tuple[str | None, ...]] = {}
    lines = 0
    for number, record in _records(path):
        lines = number
        item = record.get("parent_asin") or record.get("asin")
        if not isinstance(item, str):
            raise DataError(f"{path}, line {number:,}: a product needs asin or parent_asin, as text")
        if item in wanted and item not in rows:
            rows[item] = (
                _text(record.get("title")),
                _text(record.get("brand") or record.get("store")),
                _text(record.get("categories") or record.get("category"), ", "),
                _text(record.get("price")),
                _text(record.get("description")),
            )
    if not rows:
        what = "no lines" if lines == 0 else f"{lines:,} products, but none that a review names"
        raise DataError(f"{path} has {what}: is it the metadata of the same category?")
    columns = {name: pa.array([row[place] for row in rows.values()], pa.string()) for place, name in enumerate(_ATTRIBUTES)}
    return pa.table({"item_id": pa.array(list(rows), pa.string()), **columns})


def _text(value: object, between: str = " ") -> str | None:
    """A text, a number, or the different texts in lists (of lists), as one text; None where nothing is left."""
    return between.join(dict.fromkeys(_words(value))) or None


def _words(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for part in cast("list[object]", value):
            yield from _words(part)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value).strip()
        if text and text != "None":
            yield text


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a file that are not blank, numbered from 1, as objects."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    number = 0
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _record(line, number, path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read after line {number:,}: {error}") from error


def _record(line: bytes, number: int, path: Path) -> dict[str, Any]:
    record: object
    try:
        record = json.loads(line)
    except ValueError:  # the metadata of 2014 are Python literals
        try:
            record = ast.literal_eval(line.decode().strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            start = line[:60].decode(errors="replace").strip()
            raise DataError(f"{path}, line {number:,} is neither JSON nor a Python literal: {start!r}") from error
    except RecursionError as error:
        raise DataError(f"{path}, line {number:,} is nested too deeply to be a review") from error
    if not isinstance(record, dict):
        raise DataError(f"{path}, line {number:,} holds a {type(record).__name__}: one object a line is expected")
    return cast("dict[str, Any]", record)
