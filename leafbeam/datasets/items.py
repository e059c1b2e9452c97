"""Items of the synthetic shop: titles, prices, stock, age and popularity.

Shapes: N items.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Category:
    """A category: the words of its titles, and the categories that users visit next.

    `nouns` come with their typical prices. `sizes` ascend in size and price. `next_categories` has the most frequent one first.
    """

    name: str
    nouns: dict[str, float]
    lines: list[str]
    finishes: list[str]
    sizes: list[str]
    next_categories: list[str]

    @property
    def num_titles(self) -> int:
        """Return the number of distinct titles of one brand."""
        return len(self.nouns) * len(self.lines) * len(self.finishes) * len(self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Department:
    """Categories that share their brands, the best-known brand first."""

    name: str
    brands: list[str]
    categories: list[Category]


def read_assortment() -> tuple[Department, ...]:
    """Read the departments of the package's `assortment.toml`."""
    text = files("leafbeam.datasets").joinpath("assortment.toml").read_text(encoding="utf-8")
    return tuple(
        Department(**values | {"categories": [Category(**category) for category in values["categories"]]})
        for values in tomllib.loads(text)["departments"]
    )


NUM_TIERS = 3
NEW_DAYS = 7
MAX_AGE_DAYS = 1_100


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopItems:
    """All items of the shop, in random order.

    `category_N` and `brand_N` are numbers over all departments. `tier_N` is the price tier within the category, where 0 is
    cheap. `price_N` is in the shop's currency. `age_N` is the number of days since the item's first day, where 0 is today.
    `weight_N` is the sales, a Zipf law over the whole shop.
    """

    titles: tuple[str, ...]
    category_N: NDArray[np.int64]
    brand_N: NDArray[np.int64]
    tier_N: NDArray[np.int64]
    price_N: NDArray[np.float64]
    stock_N: NDArray[np.int64]
    age_N: NDArray[np.int64]
    weight_N: NDArray[np.float64]


def generate_items(assortment: tuple[Department, ...], num_items: int, rng: np.random.Generator) -> ShopItems:
    """Generate `num_items` items with distinct titles; about 15 % are sold out and 3 % are new this week.

    Raises:
        ArgumentError: If there are fewer items than categories, or more than possible titles.
    """
    categories = [(number, category) for number, department in enumerate(assortment) for category in department.categories]
    limits = np.array([len(assortment[number].brands) * category.num_titles for number, category in categories])
    sizes = items_per_category(num_items, limits, rng)
    brand_quality = [np.exp(rng.normal(0.0, 0.22, len(department.brands))) for department in assortment]
    first_brand = np.cumsum([0] + [len(department.brands) for department in assortment])

    titles: list[str] = []
    category_n, brand_n, tier_n, price_n = [], [], [], []
    for index, (number, category) in enumerate(categories):
        brands, nouns = assortment[number].brands, list(category.nouns)
        brand, noun, line, finish, size = draw_titles(brands, category, int(sizes[index]), rng)
        titles += [
            f"{brands[b]} {category.lines[i]} {nouns[n]}, {category.finishes[f]}, {category.sizes[s]}"
            for b, n, i, f, s in zip(brand, noun, line, finish, size, strict=True)
        ]
        size_factor = np.geomspace(0.75, 1.6, len(category.sizes))[size]
        quality = brand_quality[number][brand] * size_factor * np.exp(rng.normal(0.0, 0.1, len(size)))
        category_n.append(np.full(len(size), index))
        brand_n.append(first_brand[number] + brand)
        tier_n.append(np.argsort(np.argsort(quality)) * NUM_TIERS // max(len(quality), 1))
        endings = rng.choice(np.array([0.99, 0.99, 0.95, 0.50, 0.00]), len(size))  # 12.99, 12.50, 13.00
        price_n.append(np.maximum(np.floor(np.array([*category.nouns.values()])[noun] * quality), 1.0) + endings)

    num_new = max(1, round(0.03 * num_items))
    age = np.where(rng.random(num_items) < 0.12, rng.integers(NEW_DAYS, 180, num_items), 0)
    age = np.where(age == 0, rng.integers(180, MAX_AGE_DAYS, num_items), age)
    new_items = rng.choice(num_items, num_new, replace=False)
    age[new_items] = rng.integers(0, NEW_DAYS, num_new)
    age[new_items[0]] = 0  # one item is of today: "this week" counts back from the newest day of the catalog
    stock = np.where(rng.random(num_items) < 0.15, 0, 1 + np.floor(rng.lognormal(2.8, 1.0, num_items)))

    order = rng.permutation(num_items)  # an item's number must not reveal its category
    return ShopItems(
        titles=tuple(titles[row] for row in order),
        category_N=np.concatenate(category_n)[order],
        brand_N=np.concatenate(brand_n)[order],
        tier_N=np.concatenate(tier_n)[order],
        price_N=np.concatenate(price_n)[order],
        stock_N=stock.astype(np.int64),
        age_N=age,
        weight_N=1.0 / (1.0 + rng.permutation(num_items)).astype(np.float64),
    )


def items_per_category(num_items: int, limits: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return random sizes that sum to `num_items`: at least one item per category, and at most its number of titles."""
    if not len(limits) <= num_items <= limits.sum():
        raise ArgumentError(
            f"num_items={num_items:,}: a shop needs at least one item for each of its "
            f"{counted(len(limits), 'category', 'categories')} and has "
            f"words for {counted(limits.sum(), 'title')}, choose a number in between"
        )
    share = rng.dirichlet(np.full(len(limits), 12.0))
    sizes = np.clip(np.floor(share * num_items).astype(np.int64), 1, limits)
    while (missing := num_items - int(sizes.sum())) != 0:
        movable = np.flatnonzero(sizes < limits if missing > 0 else sizes > 1)
        chosen = rng.permutation(movable)[: abs(missing)]
        sizes[chosen] += np.sign(missing)
    return sizes


def draw_titles(brands: list[str], category: Category, num: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], ...]:
    """Draw `num` distinct (brand, noun, line, finish, size), with more items for better-known brands (Gumbel top-k)."""
    shape = tuple(map(len, (brands, category.nouns, category.lines, category.finishes, category.sizes)))
    popularity = -0.7 * np.log1p(np.arange(shape[0]))
    keys = popularity[:, None] + rng.gumbel(size=(shape[0], category.num_titles))
    chosen = np.argpartition(keys.ravel(), keys.size - num)[keys.size - num :]
    return tuple(np.unravel_index(np.sort(chosen), shape))
