"""The synthetic shop: learnable interactions, and the promised distributions of its attributes."""

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from numpy.typing import NDArray

from leafbeam.datasets import Shop, make_shop
from leafbeam.datasets.items import read_assortment
from leafbeam.datasets.shop import TODAY
from leafbeam.errors import ArgumentError


@pytest.fixture(scope="module")
def shop() -> Shop:
    return make_shop(num_items=4_000, num_users=8_000, seed=3)


def texts(column) -> NDArray[np.str_]:
    return np.array(column.to_pylist())


def log_of(shop: Shop) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(user_E, item_E) as row numbers."""
    _, user = np.unique(texts(shop.interactions["user_id"]), return_inverse=True)
    item = np.searchsorted(texts(shop.items["item_id"]), texts(shop.interactions["item_id"]))
    return user, item


def test_the_same_seed_gives_the_same_tables_and_another_seed_does_not():
    one, same, other = (make_shop(num_items=300, num_users=200, seed=seed) for seed in (5, 5, 6))
    assert one.items.equals(same.items)
    assert one.interactions.equals(same.interactions)
    assert not one.items.equals(other.items)
    assert not one.interactions.equals(other.interactions)


def test_every_next_category_is_a_category():
    assortment = read_assortment()
    names = [category.name for department in assortment for category in department.categories]
    assert len(set(names)) == len(names)
    for department in assortment:
        for category in department.categories:
            assert set(category.next_categories) <= set(names) - {category.name}
            assert len(category.next_categories) == 3


def test_titles_are_distinct_and_name_their_brand(shop: Shop):
    titles, brands = shop.items["title"].to_pylist(), shop.items["brand"].to_pylist()
    assert len(set(titles)) == len(titles)
    assert all(title.startswith(brand + " ") for title, brand in zip(titles, brands, strict=True))


def test_attribute_shares_are_as_documented(shop: Shop):
    age = (np.datetime64(TODAY) - shop.items["first_seen"].to_numpy()).astype(int)
    price, stock = shop.items["price"].to_numpy(), shop.items["stock"].to_numpy()
    assert age.min() == 0
    assert 0.02 <= (age < 7).mean() <= 0.04
    assert 0.12 <= (stock == 0).mean() <= 0.18
    assert stock.min() == 0
    assert 0.3 <= (price < 20).mean() <= 0.7
    assert price.min() >= 1.0


def test_items_new_this_week_have_few_interactions(shop: Shop):
    _, item = log_of(shop)
    new = (np.datetime64(TODAY) - shop.items["first_seen"].to_numpy()).astype(int) < 7
    counts = np.bincount(item, minlength=len(new))
    assert counts[new].mean() < 0.2 * counts[~new].mean()


def test_no_item_is_taken_before_its_first_day_after_today_or_twice(shop: Shop):
    user, item = log_of(shop)
    times = shop.interactions["timestamp"].to_numpy()
    came = shop.items["first_seen"].to_numpy()[item]
    assert (times >= came).all()
    assert times.max() < np.datetime64(TODAY) + np.timedelta64(1, "D")
    assert len(np.unique(user * shop.items.num_rows + item)) == len(item)


def test_each_users_rows_are_in_time_order_and_long_enough_to_be_split(shop: Shop):
    user, _ = log_of(shop)
    times = shop.interactions["timestamp"].to_numpy()
    same = user[1:] == user[:-1]
    assert (np.diff(user) >= 0).all()
    assert (times[1:][same] >= times[:-1][same]).all()
    lengths = np.bincount(user)
    assert len(lengths) == 8_000
    assert lengths.min() >= 5
    assert lengths.max() <= 40


def test_popularity_follows_zipf(shop: Shop):
    _, item = log_of(shop)
    counts = np.sort(np.bincount(item))[::-1]
    ranks = np.arange(10, 400)
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks]), 1)[0]
    assert -1.1 < slope < -0.5


def test_the_last_item_predicts_better_than_popularity(shop: Shop):
    """Recall@10 of each user's last item: the best sellers after the same category and brand, against the best sellers."""
    user, item = log_of(shop)
    is_last = np.append(user[1:] != user[:-1], True)
    is_first = np.append(True, user[1:] != user[:-1])
    shelf = texts(pc.binary_join_element_wise(shop.items["category"], shop.items["brand"], "/"))
    _, shelf = np.unique(shelf, return_inverse=True)

    target, previous = item[is_last], item[np.flatnonzero(is_last) - 1]
    learnt = np.flatnonzero(~is_last & ~is_first)
    counts = np.zeros((shelf.max() + 1, shop.items.num_rows))
    np.add.at(counts, (shelf[item[learnt - 1]], item[learnt]), 1)
    after = np.argsort(-counts, axis=1)[:, :10]
    popular = np.argsort(-np.bincount(item[~is_last], minlength=shop.items.num_rows))[:10]

    markov = (after[shelf[previous]] == target[:, None]).any(axis=1).mean()
    popularity = np.isin(target, popular).mean()
    assert markov > 2 * popularity
    assert markov < 0.6  # the interactions are noisy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_items": 5}, "at least one item for each of its"),
        ({"num_items": 50_000_000}, "titles"),
        ({"num_users": 0}, "num_users must be an integer of at least 1"),
        ({"seed": -1}, "seed"),
        ({"repeats": 1.0}, "repeats must be at least 0 and below 1"),
    ],
)
def test_invalid_sizes_are_named(arguments: dict[str, Any], message: str):
    with pytest.raises(ArgumentError, match=message):
        make_shop(**arguments)


def test_a_share_of_interactions_repeats_earlier_items():
    def repeated(shop: Shop) -> float:
        rows = list(zip(shop.interactions["user_id"].to_pylist(), shop.interactions["item_id"].to_pylist(), strict=True))
        return 1 - len(set(rows)) / len(rows)

    assert repeated(make_shop(num_items=400, num_users=300)) == 0
    assert 0.35 < repeated(make_shop(num_items=400, num_users=300, repeats=0.5)) < 0.5
