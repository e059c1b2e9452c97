"""Public data sets: Amazon's reviews in three forms, and MovieLens."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.errors import DataError, LeafbeamError
from leafbeam.train import load_amazon, load_movielens

REVIEWS_2014 = [
    {
        "reviewerID": "A2SUAM1J3GNN3B",
        "asin": "0000013714",
        "reviewerName": "J. McDonald",
        "helpful": [2, 3],
        "reviewText": "I bought this for my husband who plays the piano.",
        "overall": 5.0,
        "summary": "Heavenly Highway Hymns",
        "unixReviewTime": 1252800000,
        "reviewTime": "09 13, 2009",
    },
    {"reviewerID": "A2SUAM1J3GNN3B", "asin": "B00AAA", "overall": 1.0, "unixReviewTime": 1152800000},
]
# The metadata of 2014 are Python literals, one dict a line, with quotes as Python writes them.
META_2014 = [
    {
        "asin": "0000013714",
        "title": "Girls' Ballet Tutu",
        "price": 3.17,
        "imUrl": "http://example.org/51fAmVkTbyL.jpg",
        "related": {"also_bought": ["B00JHONN1S"]},
        "salesRank": {"Toys & Games": 211836},
        "brand": "Coxlures",
        "categories": [["Sports & Outdoors", "Other Sports", "Dance"], ["Sports & Outdoors", "Clothing"]],
    },
    {"asin": "B00UNSEEN", "title": "Never reviewed"},
]
REVIEWS_2018 = [
    {
        "image": ["https://example.org/71eG75FTJJL._SY88.jpg"],
        "overall": 5.0,
        "vote": "2",
        "verified": True,
        "reviewTime": "01 1, 2018",
        "reviewerID": "AUI6WTTT0QZYS",
        "asin": "5120053084",
        "style": {"Size:": "Large", "Color:": "Charcoal"},
        "reviewText": "I now have 4 of the 5 available colors of this shirt...",
        "unixReviewTime": 1514764800,
    }
]
META_2018 = [
    {
        "category": ["Movies & TV", "Movies"],
        "description": ["A", "description"],
        "title": "Peace",
        "brand": "",
        "price": "$12.30",
        "asin": "5120053084",
    },
    {"asin": "5120053084", "title": "Peace, listed again", "category": []},
]
REVIEWS_2023 = [
    {
        "rating": 5.0,
        "title": "Such a lovely scent",
        "text": "This spray is really nice.",
        "images": [],
        "asin": "B00YQ6X8EO",
        "parent_asin": "B00PARENT",
        "user_id": "AGKHLEW2SOWHNMFQIJGBECAF7INQ",
        "timestamp": 1588687728923,
        "helpful_vote": 0,
        "verified_purchase": True,
    }
]
META_2023 = [
    {
        "main_category": "All Beauty",
        "title": "Howard LC0008 Leather Conditioner",
        "average_rating": 4.8,
        "features": [],
        "description": ["For", "leather"],
        "price": None,
        "store": "Howard Products",
        "categories": ["Beauty", "Care"],
        "details": {"Package Dimensions": "7.1 x 5.5 x 3 inches"},
        "parent_asin": "B00PARENT",
    }
]


def lines(records, dumps=json.dumps) -> bytes:
    return "".join(dumps(record) + "\n" for record in records).encode()


def test_2014_with_python_literals_and_nested_categories(tmp_path):
    (tmp_path / "reviews.json").write_bytes(lines(REVIEWS_2014))
    (tmp_path / "meta.json").write_bytes(lines(META_2014, repr))
    log = load_amazon(tmp_path / "reviews.json", tmp_path / "meta.json")
    assert log.item_ids.tolist() == ["0000013714", "B00AAA"]
    assert log.item_ids[log.histories[0]].tolist() == ["B00AAA", "0000013714"]
    assert log.histories.times_E[-1] == 1252800000 * 10**9
    assert log.items.to_pylist()[0] == {
        "item_id": "0000013714",
        "title": "Girls' Ballet Tutu",
        "brand": "Coxlures",
        "categories": "Sports & Outdoors, Other Sports, Dance, Clothing",
        "price": "3.17",
        "description": None,
    }
    assert log.report.unlisted_items == 1


def test_2018_gzipped_keeps_the_first_of_two_lines_of_a_product(tmp_path):
    (tmp_path / "reviews.json.gz").write_bytes(gzip.compress(lines(REVIEWS_2018)))
    (tmp_path / "meta.json.gz").write_bytes(gzip.compress(lines(META_2018)))
    log = load_amazon(tmp_path / "reviews.json.gz", tmp_path / "meta.json.gz")
    assert log.items.to_pylist() == [
        {
            "item_id": "5120053084",
            "title": "Peace",
            "brand": None,
            "categories": "Movies & TV, Movies",
            "price": "$12.30",
            "description": "A description",
        }
    ]


def test_2023_counts_parents_and_milliseconds(tmp_path):
    (tmp_path / "reviews.jsonl").write_bytes(lines(REVIEWS_2023) + b"\n  \n")
    (tmp_path / "meta.jsonl").write_bytes(lines(META_2023))
    log = load_amazon(tmp_path / "reviews.jsonl", tmp_path / "meta.jsonl")
    assert log.item_ids.tolist() == ["B00PARENT"]
    assert log.histories.times_E.tolist() == [1588687728923 * 10**6]
    assert log.items["brand"].to_pylist() == ["Howard Products"]
    assert log.items["price"].to_pylist() == [None]


def test_reviews_alone_are_a_log_without_attributes(tmp_path):
    (tmp_path / "reviews.json").write_bytes(lines(REVIEWS_2014))
    log = load_amazon(tmp_path / "reviews.json")
    assert log.items.column_names == ["item_id"]
    assert log.num_items == 2


BAD_REVIEWS = {
    "no lines": (b"", "has no lines"),
    "neither": (lines(REVIEWS_2014) + b"{broken\n", "line 3 is neither JSON"),
    "a list": (b"[1, 2]\n", "holds a list"),
    "other fields": (b'{"user": "a", "item": "b"}\n', "needs the fields"),
    "null user": (b'{"reviewerID": null, "asin": "b", "unixReviewTime": 1}\n', "line 1: reviewerID"),
    "number for an item": (b'{"reviewerID": "a", "asin": 5, "unixReviewTime": 1}\n', "expected text"),
    "field lost on line 2": (lines(REVIEWS_2014[:1]) + b'{"reviewerID": "a", "asin": "b"}\n', "line 2: unixReviewTime"),
    "text for a time": (b'{"reviewerID": "a", "asin": "b", "unixReviewTime": "09 13, 2009"}\n', "whole number"),
    "time in milliseconds": (b'{"reviewerID": "a", "asin": "b", "unixReviewTime": 1400000000000}\n', "year 2262"),
    "deep": (b"[" * 100_000 + b"\n", "line 1 is"),
    "not utf-8": (b"\xff\xfe\n", "line 1 is neither"),
}


@pytest.mark.parametrize("case", BAD_REVIEWS)
def test_malformed_reviews_are_named_with_their_line(tmp_path, case):
    content, message = BAD_REVIEWS[case]
    (tmp_path / "reviews.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_amazon(tmp_path / "reviews.json")


def test_a_cut_gzip_file_and_a_missing_one_are_named(tmp_path):
    whole = gzip.compress(lines(REVIEWS_2014 * 500))
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read after line"):
        load_amazon(tmp_path / "cut.json.gz")
    (tmp_path / "plain.json.gz").write_bytes(lines(REVIEWS_2014))
    with pytest.raises(DataError, match="cannot be read"):
        load_amazon(tmp_path / "plain.json.gz")
    with pytest.raises(DataError, match="there is no file"):
        load_amazon(tmp_path / "nothing.json")


def test_metadata_of_another_category_or_without_ids_are_named(tmp_path):
    (tmp_path / "reviews.json").write_bytes(lines(REVIEWS_2014))
    (tmp_path / "meta.json").write_bytes(lines(META_2023))
    with pytest.raises(DataError, match="none that a review names"):
        load_amazon(tmp_path / "reviews.json", tmp_path / "meta.json")
    (tmp_path / "meta.json").write_bytes(b'{"title": "no id"}\n')
    with pytest.raises(DataError, match="line 1: a product needs"):
        load_amazon(tmp_path / "reviews.json", tmp_path / "meta.json")


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from(lines(REVIEWS_2014 + META_2014).splitlines())), max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_file_loads_or_gives_a_named_error(tmp_path_factory, content):
    directory = tmp_path_factory.mktemp("fuzz")
    (directory / "any.json").write_bytes(b"\n".join(content))
    for arguments in ((directory / "any.json",), (directory / "any.json", directory / "any.json")):
        try:
            log = load_amazon(*arguments)
        except LeafbeamError:
            continue
        assert log.num_users >= 1


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
