"""Loaders of public logs: Amazon Reviews (JSON lines of 2014, 2018 and 2023) and MovieLens (ratings.csv and movies.csv)."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

import ast
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leafbeam.errors import DataError, counted
from leafbeam.tables import SourceTable, TimeUnit, column, read_table
from leafbeam.train.interaction_log import InteractionLog, log_from_tables
from leafbeam.train.log_rules import Columns, LogRules


class _Format(NamedTuple):
    """The field names of one generation of the files."""

    years: str
    user: str
    item: str
    timestamp: str
    time_unit: TimeUnit


_FORMATS = (
    _Format(years="2014 or 2018", user="reviewerID", item="asin", timestamp="unixReviewTime", time_unit="s"),
    _Format(years="2023", user="user_id", item="parent_asin", timestamp="timestamp", time_unit="ms"),
)


def load_amazon(reviews: str | Path, meta: str | Path | None = None, *, k_core: int = 0) -> InteractionLog:
    """Read a file of reviews, and of the products' metadata, of 2014, 2018 or 2023 (detected by the first line's fields).

    Every review is an interaction. The attributes are title, brand (store in 2023), categories (joined), price and description,
    all of them text, null if missing. The first line of a product counts; products without a review are dropped. It reads about
    200,000 lines per second. Raises DataError with the number of the first malformed line.
    """
    path = Path(reviews)
    users: list[str] = []
    taken: list[str] = []
    times: list[int] = []
    form: _Format | None = None
    for number, record in _records(path):
        form = form or _format_of(record, path)
        user, item, time = record.get(form.user), record.get(form.item), record.get(form.timestamp)
        if not (isinstance(user, str) and user and isinstance(item, str) and item):
            raise DataError(f"{path}, line {number:,}: {form.user} and {form.item} are {user!r} and {item!r}: expected text")
        if not isinstance(time, int) or isinstance(time, bool) or abs(time) >= 1 << 62:
            raise DataError(f"{path}, line {number:,}: {form.timestamp} is {time!r}: expected a whole number")
        users.append(user)
        taken.append(item)
        times.append(time)
    if form is None:
        raise DataError(f"{path} has no lines")
    interactions = pa.table({"user_id": users, "item_id": taken, "timestamp": pa.array(times, pa.int64())})
    items = None if meta is None else SourceTable(table=_read_items(Path(meta), set(taken)), source=str(meta))
    return log_from_tables(
        SourceTable(table=interactions, source=str(path)),
        items,
        rules=LogRules(time_unit=form.time_unit, unseen="drop", k_core=k_core),
    )


def _format_of(record: Mapping[str, object], path: Path) -> _Format:
    for form in _FORMATS:
        if {form.user, form.item, form.timestamp} <= record.keys():
            return form
    expected = "; or ".join(f"{form.user}, {form.item}, {form.timestamp} ({form.years})" for form in _FORMATS)
    raise DataError(f"{path}: a review needs the fields {expected}. The first line has {', '.join(map(str, record)) or 'none'}")


def _read_items(path: Path, reviewed: set[str]) -> pa.Table:
    """Return the attributes of the products in `reviewed`."""
    rows: dict[str, dict[str, str | None]] = {}
    count = 0
    for count, record in _records(path):
        item = record.get("parent_asin") or record.get("asin")
        if not isinstance(item, str):
            raise DataError(f"{path}, line {count:,}: a product needs asin or parent_asin, as text")
        if item in reviewed and item not in rows:
            rows[item] = {
                "item_id": item,
                "title": _text(record.get("title")),
                "brand": _text(record.get("brand") or record.get("store")),
                "categories": _text(record.get("categories") or record.get("category"), ", "),
                "price": _text(record.get("price")),
                "description": _text(record.get("description")),
            }
    if not rows:
        contents = f"{counted(count, 'product')}, but none that a review names" if count else "no lines"
        raise DataError(f"{path} has {contents}: is it the metadata of the same category?")
    names = next(iter(rows.values()))
    return pa.Table.from_pylist(list(rows.values()), pa.schema([(name, pa.string()) for name in names]))


def _text(value: object, separator: str = " ") -> str | None:
    """Return a text, a number, or the distinct texts in (nested) lists, joined; None if nothing is left."""
    return separator.join(dict.fromkeys(_words(value))) or None


def _words(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for part in cast("list[object]", value):
            yield from _words(part)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value).strip()
        if text and text != "None":
            yield text


def _records(path: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the objects of the non-blank lines of a file, with the line numbers from 1."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    number = 0
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _record(line, f"{path}, line {number:,}")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read after line {number:,}: {error}") from error


def _record(line: bytes, where: str) -> dict[str, object]:
    record: object
    try:
        record = json.loads(line)
    except ValueError:  # the metadata of 2014 are Python literals
        try:
            record = ast.literal_eval(line.decode().strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            start = line[:60].decode(errors="replace").strip()
            raise DataError(f"{where} is neither JSON nor a Python literal: {start!r}") from error
    except RecursionError as error:
        raise DataError(f"{where} is nested too deeply to be a review") from error
    if not isinstance(record, dict):
        raise DataError(f"{where} holds a {type(record).__name__}: expected one JSON object in each line")
    return cast("dict[str, object]", record)


def load_movielens(directory: str | Path, *, min_rating: float = 0.0, k_core: int = 0) -> InteractionLog:
    """Read ratings.csv and movies.csv (.csv.gz): a rating of at least `min_rating` stars is an interaction.

    Genres are separated by spaces, null for "(no genres listed)". Movies without a rating are dropped. Raises DataError.
    """
    directory = Path(directory)
    columns = Columns(user="userId", item="movieId", item_of_items="movieId")
    rated = read_table(_find(directory, "ratings"), ids=("userId", "movieId"), times=("timestamp",))
    listed = read_table(_find(directory, "movies"), ids=("movieId",))
    for source, names in ((rated, ("userId", "movieId", "rating", "timestamp")), (listed, ("movieId", "title", "genres"))):
        missing = [name for name in names if name not in source.table.column_names]
        if missing:
            raise DataError(f"{source.source} has no column {missing[0]!r}; it has {', '.join(source.table.column_names)}")
    stars, movies = column(rated, "rating", "rating"), listed.table
    if not (pa.types.is_floating(stars.type) or pa.types.is_integer(stars.type)):
        raise DataError(f"{rated.source}, column 'rating' is of type {stars.type}: expected numbers of stars")
    rated = rated.take(np.flatnonzero(np.asarray(pc.greater_equal(stars, min_rating))))
    if len(rated.table) == 0:
        raise DataError(f"no rating in {rated.source} is {min_rating} or more")
    genres = movies["genres"].cast(pa.string())
    genres = pc.if_else(pc.equal(genres, "(no genres listed)"), None, pc.replace_substring(genres, "|", " "))
    movies = pa.table({"movieId": movies["movieId"], "title": movies["title"].cast(pa.string()), "genres": genres})
    return log_from_tables(rated, listed.with_table(movies), columns=columns, rules=LogRules(unseen="drop", k_core=k_core))


def _find(directory: Path, stem: str) -> Path:
    for path in (directory / f"{stem}.csv", directory / f"{stem}.csv.gz"):
        if path.is_file():
            return path
    raise DataError(f"{directory} holds no {stem}.csv: it should be an unpacked MovieLens folder (ml-latest, ml-25m, ml-32m)")
