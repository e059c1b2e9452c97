"""Loader of MovieLens: ratings.csv and movies.csv (ml-latest, ml-20m, ml-25m, ml-32m)."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from leafbeam.errors import DataError
from leafbeam.train.interaction_log import Columns, InteractionLog, log_from_tables
from leafbeam.train.tables import read_table

__all__ = ["load_movielens"]

_COLUMNS = Columns(user="userId", item="movieId", timestamp="timestamp", item_of_items="movieId")


def load_movielens(directory: str | Path, *, min_rating: float = 0.0, k_core: int = 0) -> InteractionLog:
    """Read a MovieLens directory: every rating of at least `min_rating` stars is an interaction.

    ratings.csv: userId, movieId, rating, timestamp (seconds). movies.csv: movieId, title, genres ("Action|Drama"); genres
    are separated by spaces, null for "(no genres listed)". Movies without a rating are dropped. Both files may be .csv.gz.
    Raises DataError for missing files and columns and malformed rows.
    """
    directory = Path(directory)
    rated = read_table(_find(directory, "ratings"), ("userId", "movieId"))
    listed = read_table(_find(directory, "movies"), ("movieId",))
    for source, columns in ((rated, ("userId", "movieId", "rating", "timestamp")), (listed, ("movieId", "title", "genres"))):
        missing = [column for column in columns if column not in source.table.column_names]
        if missing:
            raise DataError(f"{source.source} has no column {missing[0]!r}; it has {', '.join(source.table.column_names)}")
    ratings, movies, where = rated.table, listed.table, f"{rated.source}, column 'rating'"
    if not (pa.types.is_floating(ratings["rating"].type) or pa.types.is_integer(ratings["rating"].type)):
        raise DataError(f"{where} is of type {ratings['rating'].type}: numbers of stars are expected")
    if ratings["rating"].null_count:
        row = pc.index(ratings["rating"].is_null(), True).as_py()
        raise DataError(f"{where}: empty in {ratings['rating'].null_count:,} rows, first in row {row:,}")
    ratings = ratings.filter(pc.greater_equal(ratings["rating"], min_rating))
    if len(ratings) == 0:
        raise DataError(f"no rating in {rated.source} has at least {min_rating} stars")
    genres = movies["genres"].cast(pa.string())
    genres = pc.if_else(pc.equal(genres, "(no genres listed)"), None, pc.replace_substring(genres, "|", " "))
    movies = pa.table({"movieId": movies["movieId"], "title": movies["title"].cast(pa.string()), "genres": genres})
    return log_from_tables(
        rated._replace(table=ratings), listed._replace(table=movies), columns=_COLUMNS, unseen="drop", k_core=k_core
    )


def _find(directory: Path, stem: str) -> Path:
    for path in (directory / f"{stem}.csv", directory / f"{stem}.csv.gz"):
        if path.is_file():
            return path
    raise DataError(f"{directory} holds no {stem}.csv: it should be an unpacked MovieLens folder (ml-latest, ml-25m, ml-32m)")
