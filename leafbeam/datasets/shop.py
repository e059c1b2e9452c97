"""The synthetic shop: a table of items and a table of interactions."""

from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from leafbeam.datasets.interactions import generate_interactions
from leafbeam.datasets.items import generate_items, read_assortment
from leafbeam.errors import check_number, check_whole, counted

TODAY = date(2026, 3, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The tables of a shop's database.

    Attributes:
        items: item_id, title, brand, category, price, stock and first_seen (a date).
        interactions: user_id, item_id and timestamp; each user's rows in time order.
    """

    items: pa.Table
    interactions: pa.Table

    def __repr__(self) -> str:
        return f"Shop({counted(self.items.num_rows, 'item')}, {counted(self.interactions.num_rows, 'interaction')})"

    def save(self, directory: str | Path) -> None:
        """Write items.parquet and interactions.parquet into `directory`, created if needed."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.items, directory / "items.parquet")
        pq.write_table(self.interactions, directory / "interactions.parquet")


def make_shop(*, num_items: int = 20_000, num_users: int = 20_000, repeats: float = 0.0, seed: int = 0) -> Shop:
    """Generate a shop and its users' history; the same arguments give the same tables on every machine.

    The last day is always `TODAY`: compare it with the newest `first_seen` of the catalog, not with the clock. The default
    sizes take about a second.

    Args:
        num_items: The number of items.
        num_users: The number of users.
        repeats: The share of interactions that take an item again, as in logs of music or groceries.
        seed: The seed of everything random.

    Raises:
        ArgumentError: If there are no users, the share is 1 or more, or the assortment cannot fill the number of items.

    Examples:
        >>> shop = make_shop(num_items=300, num_users=100, seed=1)
        >>> shop.items.num_rows
        300
    """
    check_whole(num_users=num_users)
    check_whole(0, seed=seed)
    check_number(below=1, repeats=repeats)
    rng = np.random.default_rng(seed)
    assortment = read_assortment()
    generated = generate_items(assortment, num_items, rng)
    user_E, item_E, seconds_E = generate_interactions(assortment, generated, num_users, rng, repeats)

    categories = pa.array([category.name for department in assortment for category in department.categories])
    brands = pa.array([brand for department in assortment for brand in department.brands])
    item_ids = pa.array([f"P{number:0{len(str(num_items))}d}" for number in range(1, num_items + 1)])
    user_ids = pa.array([f"U{number:0{len(str(num_users))}d}" for number in range(1, num_users + 1)])
    today = np.datetime64(TODAY, "D")
    end = (today + np.timedelta64(1, "D")).astype("datetime64[us]")
    return Shop(
        items=pa.table(
            {
                "item_id": item_ids,
                "title": pa.array(generated.titles),
                "brand": brands.take(pa.array(generated.brand_N)),
                "category": categories.take(pa.array(generated.category_N)),
                "price": pa.array(generated.price_N),
                "stock": pa.array(generated.stock_N),
                "first_seen": pa.array(today - generated.age_N.astype("timedelta64[D]")),
            }
        ),
        interactions=pa.table(
            {
                "user_id": user_ids.take(pa.array(user_E)),
                "item_id": item_ids.take(pa.array(item_E)),
                "timestamp": pa.array(end - seconds_E.astype("timedelta64[s]")),
            }
        ),
    )
