"""MovieLens as its site gives it: ratings.csv and movies.csv (ml-latest, ml-20m, ml-25m, ml-32m)."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from leafbeam.errors import DataError
from leafbeam.train.data import Columns, InteractionLog, log_of_tables
from leafbeam.train.tables import read_table

__all__ = ["load_movielens"]

_COLUMNS = Columns(user="userId", item="movieId", timestamp="timestamp", item_of_items="movieId")


def load_movielens(directory: str | Path, *, min_rating: float = 0.0, k_core: int = 0) -> InteractionLog:
    """Read a folder of MovieLens: every rating of at least `min_rating` stars is an interaction.

    ratings.csv: userId, movieId, rating, timestamp (seconds). movies.csv: movieId, title, genres ("Action|Drama"); the
    items become `title` and `genres`, with spaces for bars and null for "(no genres listed)". Films that nobody rated
    leave the catalog. Both files may be .csv.gz. Raises DataError for missing files and columns and malformed rows.
    """
    place = Path(directory)
    ratings = read_table(_either(place, "ratings"), (_COLUMNS.user, _COLUMNS.item))
    movies = read_table(_either(place, "movies"), (_COLUMNS.item_of_items,))
    for name, table, columns in (
        ("ratings", ratings, ("userId", "movieId", "rating", "timestamp")),
        ("movies", movies, ("movieId", "title", "genres")),
    ):
        missing = [column for column in columns if column not in table.column_names]
        if missing:
            raise DataError(f"{name}.csv of {place} has no column {missing[0]!r}; it has {', '.join(table.column_names)}")
    if not (pa.types.is_floating(ratings["rating"].type) or pa.types.is_integer(ratings["rating"].type)):
        raise DataError(f"'rating' in {place} is of type {ratings['rating'].type}: numbers of stars are expected")
    if ratings["rating"].null_count:
        raise DataError(f"'rating' in {place} is empty in {ratings['rating'].null_count:,} rows")
    ratings = ratings.filter(pc.greater_equal(ratings["rating"], min_rating))
    if len(ratings) == 0:
        raise DataError(f"no rating in {place} has at least {min_rating} stars")
    genres = movies["genres"].cast(pa.string())
    genres = pc.if_else(pc.equal(genres, "(no genres listed)"), None, pc.replace_substring(genres, "|", " "))
    movies = pa.table({"movieId": movies["movieId"], "title": movies["title"].cast(pa.string()), "genres": genres})
    return log_of_tables(ratings, movies, columns=_COLUMNS, unseen="drop", k_core=k_core, from_csv=(True, True))


def _either(place: Path, stem: str) -> Path:
    for name in (f"{stem}.csv", f"{stem}.csv.gz"):
        if (place / name).is_file():
            return place / name
    raise DataError(f"{place} holds no {stem}.csv: it should be an unpacked MovieLens folder (ml-latest, ml-25m, ml-32m)")
