"""A believable shop for people who have no interaction log at hand."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.datasets.assortment import read_assortment
from leafbeam.datasets.goods import make_goods
from leafbeam.datasets.interactions import make_visits
from leafbeam.errors import ArgumentError

__all__ = ["TODAY", "Shop", "make_shop"]

TODAY = date(2026, 3, 1)


@dataclass(frozen=True, slots=True)
class Shop:
    """A shop's two tables, as they would come out of its database.

    items: item_id, title, brand, category, price, stock, first_seen (a date).
    interactions: user_id, item_id, timestamp; each user's rows in time order.
    """

    items: pa.Table
    interactions: pa.Table

    def save(self, directory: Path) -> None:
        """Write items.parquet and interactions.parquet into `directory`, which is made if need be."""
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.items, directory / "items.parquet")
        pq.write_table(self.interactions, directory / "interactions.parquet")


def make_shop(*, num_items: int = 20_000, num_users: int = 20_000, seed: int = 0) -> Shop:
    """Invent a shop and its customers' history; the same arguments give the same tables on every machine.

    The shop's clock stands still: its last day is `TODAY`, so "new this week" is written against the newest
    `first_seen` of the catalog and never against the wall clock. About a second for the default sizes.

    Raises ArgumentError for fewer users than one, or a number of items that the assortment cannot fill.

    >>> shop = make_shop(num_items=300, num_users=100, seed=1)
    >>> shop.items.num_rows
    300
    """
    if num_users < 1:
        raise ArgumentError(f"a shop needs at least one customer, but num_users is {num_users}")
    if seed < 0:
        raise ArgumentError(f"a seed is a whole number from 0 on, but seed is {seed}")
    rng = np.random.default_rng(seed)
    assortment = read_assortment()
    goods = make_goods(assortment, num_items, rng)
    visits = make_visits(assortment, goods, num_users, rng)

    categories = pa.array([category.name for department in assortment for category in department.categories])
    brands = pa.array([brand for department in assortment for brand in department.brands])
    width = len(str(num_items))
    item_ids = pa.array([f"P{number:0{width}d}" for number in range(1, num_items + 1)])
    user_ids = pa.array([f"U{number:0{len(str(num_users))}d}" for number in range(1, num_users + 1)])
    today = np.datetime64(TODAY, "D")
    items = pa.table(
        {
            "item_id": item_ids,
            "title": pa.array(goods.titles),
            "brand": brands.take(pa.array(goods.brand_N)),
            "category": categories.take(pa.array(goods.category_N)),
            "price": pa.array(goods.price_N),
            "stock": pa.array(goods.stock_N),
            "first_seen": pa.array(today - goods.age_N.astype("timedelta64[D]")),
        }
    )
    end = (today + np.timedelta64(1, "D")).astype("datetime64[us]")
    interactions = pa.table(
        {
            "user_id": user_ids.take(pa.array(visits.user_E)),
            "item_id": item_ids.take(pa.array(visits.item_E)),
            "timestamp": pa.array(end - visits.seconds_E.astype("timedelta64[s]")),
        }
    )
    return Shop(items, interactions)
