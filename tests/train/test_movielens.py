"""MovieLens' ratings.csv and movies.csv, from small files in that format."""

import gzip

import pytest

from leafbeam.errors import DataError
from leafbeam.train import load_movielens

RATINGS = "userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n1,10,5.0,1260759100\n2,10,4.0,835355493\n"
MOVIES = (
    'movieId,title,genres\n10,"American President, The (1995)",Comedy|Drama\n31,Dangerous Minds (1995),(no genres listed)\n'
    "32,Never rated (1995),Sci-Fi\n"
)


def folder(tmp_path, ratings=RATINGS, movies=MOVIES):
    (tmp_path / "ratings.csv").write_text(ratings)
    (tmp_path / "movies.csv").write_text(movies)
    return tmp_path


def test_ratings_are_histories_and_genres_are_words(tmp_path):
    log = load_movielens(folder(tmp_path))
    assert log.user_ids.tolist() == [1, 2]
    assert [log.item_ids[log.histories[user]].tolist() for user in range(2)] == [[10, 31], [10]]
    assert log.items.to_pylist() == [
        {"item_id": 10, "title": "American President, The (1995)", "genres": "Comedy Drama"},
        {"item_id": 31, "title": "Dangerous Minds (1995)", "genres": None},
    ]


def test_gzipped_files_are_read(tmp_path):
    (tmp_path / "ratings.csv.gz").write_bytes(gzip.compress(RATINGS.encode()))
    (tmp_path / "movies.csv.gz").write_bytes(gzip.compress(MOVIES.encode()))
    assert load_movielens(tmp_path).num_items == 2


def test_low_ratings_can_be_left_out(tmp_path):
    log = load_movielens(folder(tmp_path), min_rating=4)
    assert log.item_ids.tolist() == [10]
    with pytest.raises(DataError, match="is 6 or more"):
        load_movielens(tmp_path, min_rating=6)


@pytest.mark.parametrize(
    ("ratings", "movies", "message"),
    [
        (RATINGS.replace("rating", "stars"), MOVIES, "no column 'rating'"),
        (RATINGS, MOVIES.replace("genres", "kinds", 1), "no column 'genres'"),
        (RATINGS + "3,10,good,1\n", MOVIES, "numbers of stars"),
        (RATINGS + "3,10,,1\n", MOVIES, "column 'rating': empty in line 5"),
        (RATINGS + ",10,3.0,1\n", MOVIES, "ratings.csv, column 'userId': empty in line 5"),
        (RATINGS + "3,10,3.0,\n", MOVIES, "column 'timestamp': empty in line 5"),
        (RATINGS + "3,10\n", MOVIES, "line 5 has 2 cells, but the first line names 4 columns"),
        ("userId,movieId,rating,timestamp\n", MOVIES, "numbers of stars|no rating"),
        (RATINGS, MOVIES + "10,again,Drama\n", "listed more than once"),
        (RATINGS, "", "empty"),
    ],
)
def test_malformed_files_are_named(tmp_path, ratings, movies, message):
    with pytest.raises(DataError, match=message):
        load_movielens(folder(tmp_path, ratings, movies))


def test_a_folder_without_ratings_is_named(tmp_path):
    with pytest.raises(DataError, match=r"holds no ratings\.csv"):
        load_movielens(tmp_path)
