"""The goods of the demo's shop: titles, prices, stock, age and how well they sell.

Shapes: N items.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.datasets.assortment import Category, Department
from leafbeam.errors import ArgumentError

__all__ = ["NUM_TIERS", "Goods", "make_goods"]

NUM_TIERS = 3
NEW_DAYS = 7
OLDEST_DAYS = 1_100


@dataclass(frozen=True, slots=True, kw_only=True)
class Goods:
    """Everything the shop has, in no telling order.

    category_N: number of the category, over all departments. brand_N: number of the brand, over all departments.
    tier_N: 0 cheap, 1 middling, 2 dear for what it is. price_N in the shop's currency. age_N: days since it came, 0 is
    today. weight_N: how well it sells, a Zipf law over the whole shop.
    """

    titles: tuple[str, ...]
    category_N: NDArray[np.int64]
    brand_N: NDArray[np.int64]
    tier_N: NDArray[np.int64]
    price_N: NDArray[np.float64]
    stock_N: NDArray[np.int64]
    age_N: NDArray[np.int64]
    weight_N: NDArray[np.float64]


def make_goods(assortment: tuple[Department, ...], num_items: int, rng: np.random.Generator, *, zipf: float = 1.0) -> Goods:
    """Invent `num_items` goods with distinct titles; about 15 % are sold out and 3 % came in the last week.

    Raises ArgumentError when there are fewer items than categories, or more than there are titles.
    """
    shelves = [(department, category) for department in assortment for category in department.categories]
    limits = np.array([len(department.brands) * num_titles(category) for department, category in shelves])
    sizes = share_out(num_items, limits, rng)

    brand_quality = [np.exp(rng.normal(0.0, 0.22, len(department.brands))) for department in assortment]
    first_brand = np.cumsum([0] + [len(department.brands) for department in assortment])
    numbers = {department.name: number for number, department in enumerate(assortment)}

    titles: list[str] = []
    category_n, brand_n, tier_n, price_n = [], [], [], []
    for number, (department, category) in enumerate(shelves):
        brand, noun, line, finish, size = draw_titles(department, category, int(sizes[number]), rng)
        titles += [
            f"{department.brands[b]} {category.lines[i]} {category.nouns[n]}, {category.finishes[f]}, {category.sizes[s]}"
            for b, n, i, f, s in zip(brand, noun, line, finish, size, strict=True)
        ]
        department_number = numbers[department.name]
        quality = (
            brand_quality[department_number][brand]
            * np.geomspace(0.75, 1.6, len(category.sizes))[size]
            * np.exp(rng.normal(0.0, 0.1, len(size)))
        )
        category_n.append(np.full(len(size), number))
        brand_n.append(first_brand[department_number] + brand)
        tier_n.append(np.argsort(np.argsort(quality)) * NUM_TIERS // max(len(quality), 1))
        price_n.append(shop_price(np.array(category.prices)[noun] * quality, rng))

    num_new = max(1, round(0.03 * num_items))
    age = np.where(rng.random(num_items) < 0.12, rng.integers(NEW_DAYS, 180, num_items), 0)
    age = np.where(age == 0, rng.integers(180, OLDEST_DAYS, num_items), age)
    newcomers = rng.choice(num_items, num_new, replace=False)
    age[newcomers] = rng.integers(0, NEW_DAYS, num_new)
    age[newcomers[0]] = 0  # something came today: "this week" counts back from the newest day of the catalog
    stock = np.where(rng.random(num_items) < 0.15, 0, 1 + np.floor(rng.lognormal(2.8, 1.0, num_items)))

    # Ids must tell nothing, so nothing is numbered in the order in which it was invented.
    order = rng.permutation(num_items)
    return Goods(
        titles=tuple(titles[row] for row in order),
        category_N=np.concatenate(category_n)[order],
        brand_N=np.concatenate(brand_n)[order],
        tier_N=np.concatenate(tier_n)[order],
        price_N=np.concatenate(price_n)[order],
        stock_N=stock.astype(np.int64),
        age_N=age,
        weight_N=np.power(1.0 + rng.permutation(num_items), -zipf, dtype=np.float64),
    )


def num_titles(category: Category) -> int:
    return len(category.nouns) * len(category.lines) * len(category.finishes) * len(category.sizes)


def share_out(num_items: int, limits: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """How many items each category gets: at least one, at most its number of titles, some more than others."""
    if not len(limits) <= num_items <= limits.sum():
        raise ArgumentError(
            f"a shop needs at least one item for each of its {len(limits)} categories and has words for "
            f"{limits.sum():,} titles, but {num_items:,} items were asked for: choose a number in between"
        )
    share = rng.dirichlet(np.full(len(limits), 12.0))
    sizes = np.clip(np.floor(share * num_items).astype(np.int64), 1, limits)
    while (missing := num_items - int(sizes.sum())) != 0:
        movable = np.flatnonzero(sizes < limits if missing > 0 else sizes > 1)
        chosen = rng.permutation(movable)[: abs(missing)]
        sizes[chosen] += np.sign(missing)
    return sizes


def draw_titles(department: Department, category: Category, num: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], ...]:
    """`num` distinct (brand, noun, line, finish, size), better known brands with more of them (Gumbel top-k)."""
    shape = (
        len(department.brands),
        len(category.nouns),
        len(category.lines),
        len(category.finishes),
        len(category.sizes),
    )
    fame = -0.7 * np.log1p(np.arange(shape[0]))
    keys = fame[:, None] + rng.gumbel(size=(shape[0], int(np.prod(shape[1:]))))
    chosen = np.argpartition(keys.ravel(), keys.size - num)[keys.size - num :]
    return tuple(np.unravel_index(np.sort(chosen), shape))


def shop_price(price: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Prices as shops write them: 12.99, 12.50, 13.00."""
    endings = np.array([0.99, 0.99, 0.95, 0.50, 0.00])
    return np.maximum(np.floor(price), 1.0) + rng.choice(endings, len(price))
