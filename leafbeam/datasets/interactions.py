"""What the customers of the demo's shop do: visits in which one thing leads to another.

After an item, a customer goes on to what is used with it, compares it with others of its kind, returns to a favourite
shelf, or follows the crowd. On the shelf, brand loyalty and purse narrow the choice, and within what is left the
better-selling item wins (Zipf). So what follows what can be learnt from categories, brands and price bands, but never
with certainty.

Shapes: N items, U customers, C categories, D departments.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.datasets.assortment import Department
from leafbeam.datasets.goods import NUM_TIERS, Goods

__all__ = ["Visits", "make_visits"]

FOLLOW, COMPARE, RETURN = 0.58, 0.12, 0.24  # the rest follows the crowd
THEN = np.array([0.66, 0.24, 0.10])
FAVOURITES = np.array([0.5, 0.3, 0.2])
TRIES = 12
SECONDS_A_DAY = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """One row for each item that a customer took, customer by customer, oldest first.

    user_E, item_E: numbers. seconds_E: seconds before the end of today, so 0 is now and large is long ago.
    """

    user_E: NDArray[np.int64]
    item_E: NDArray[np.int64]
    seconds_E: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Shelves:
    """Items sorted by a key, so that the items of a key are a range and one search draws from it by sales."""

    order_N: NDArray[np.int64]
    first_K1: NDArray[np.int64]
    sales_N1: NDArray[np.float64]

    @classmethod
    def of(cls, key_N: NDArray[np.int64], num_keys: int, weight_N: NDArray[np.float64]) -> "Shelves":
        order = np.argsort(key_N, kind="stable")
        first = np.searchsorted(key_N[order], np.arange(num_keys + 1))
        return cls(order, first, np.concatenate(([0.0], np.cumsum(weight_N[order]))))

    def filled(self, key: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.first_K1[key + 1] > self.first_K1[key]

    def draw(self, key: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """One item of each key, by sales; every key must be filled."""
        first, last = self.first_K1[key], self.first_K1[key + 1] - 1
        low, high = self.sales_N1[first], self.sales_N1[last + 1]
        place = np.searchsorted(self.sales_N1, low + rng.random(len(key)) * (high - low), side="right") - 1
        return self.order_N[np.clip(place, first, last)]


@dataclass(frozen=True, slots=True)
class Ways:
    """Where customers look next, one entry for each that takes a step.

    category, brand, tier: numbers. width: 0 a brand's goods of a price tier, 1 the tier, 2 the
    category, 3 the whole shop.
    """

    category: NDArray[np.int64]
    brand: NDArray[np.int64]
    tier: NDArray[np.int64]
    width: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Floor:
    """The shop's shelves, from the narrowest to the whole shop, and which way people walk between them.

    department_C: the department of a category. first_brand_D1: the first brand of a department. then_C3: where people
    go next, the most usual first. turnover_C: how well a category sells.
    """

    num_brands: int
    department_C: NDArray[np.int64]
    first_brand_D1: NDArray[np.int64]
    then_C3: NDArray[np.int64]
    turnover_C: NDArray[np.float64]
    shelves: tuple[Shelves, Shelves, Shelves, Shelves]

    @classmethod
    def of(cls, assortment: tuple[Department, ...], goods: Goods) -> "Floor":
        categories = [category for department in assortment for category in department.categories]
        names = [category.name for category in categories]
        first_brand = np.cumsum([0] + [len(department.brands) for department in assortment])
        num_brands, num_categories = int(first_brand[-1]), len(names)
        tier = goods.category_N * NUM_TIERS + goods.tier_N
        brand = (goods.category_N * num_brands + goods.brand_N) * NUM_TIERS + goods.tier_N
        return cls(
            num_brands=num_brands,
            department_C=np.repeat(np.arange(len(assortment)), [len(d.categories) for d in assortment]),
            first_brand_D1=first_brand,
            then_C3=np.array([[names.index(name) for name in category.then] for category in categories]),
            turnover_C=np.bincount(goods.category_N, goods.weight_N, num_categories).astype(np.float64),
            shelves=(
                Shelves.of(brand, num_categories * num_brands * NUM_TIERS, goods.weight_N),
                Shelves.of(tier, num_categories * NUM_TIERS, goods.weight_N),
                Shelves.of(goods.category_N, num_categories, goods.weight_N),
                Shelves.of(np.zeros_like(goods.category_N), 1, goods.weight_N),
            ),
        )

    def draw(self, ways: Ways, rows: NDArray[np.intp], widest: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """An item for each of `rows`, from its shelf or one at least `widest` wide; an empty one yields to a wider."""
        category, brand, tier = ways.category[rows], ways.brand[rows], ways.tier[rows]
        keys = (
            (category * self.num_brands + brand) * NUM_TIERS + tier,
            category * NUM_TIERS + tier,
            category,
            np.zeros_like(category),
        )
        width = np.maximum(ways.width[rows], widest)
        item = np.empty(len(rows), np.int64)
        for level, (shelf, key) in enumerate(zip(self.shelves, keys, strict=True)):
            here = width == level
            empty = here & ~shelf.filled(key)
            width[empty] += 1
            here &= ~empty
            item[here] = shelf.draw(key[here], rng)
        return item


@dataclass(frozen=True, slots=True)
class Customers:
    """Who they are: favourite shelves, price tier, loyalty to brands, a favourite brand by department, appetite."""

    favourite_U3: NDArray[np.int64]
    tier_U: NDArray[np.int64]
    loyalty_U: NDArray[np.float64]
    brand_UD: NDArray[np.int64]
    length_U: NDArray[np.int64]


def make_customers(assortment: tuple[Department, ...], floor: Floor, num_users: int, rng: np.random.Generator) -> Customers:
    liking_UC = np.log(floor.turnover_C) + 1.5 * rng.gumbel(size=(num_users, len(floor.turnover_C)))
    sizes = [len(department.brands) for department in assortment]
    return Customers(
        favourite_U3=np.argsort(-liking_UC, axis=1)[:, : len(FAVOURITES)],
        tier_U=rng.choice(NUM_TIERS, num_users, p=[0.35, 0.4, 0.25]),
        loyalty_U=rng.beta(7.0, 3.0, num_users),
        brand_UD=np.stack(
            [
                first + np.minimum(rng.geometric(0.3, num_users) - 1, size - 1)
                for first, size in zip(floor.first_brand_D1[:-1], sizes, strict=True)
            ],
            axis=1,
        ),
        length_U=np.clip(np.round(rng.lognormal(2.15, 0.5, num_users)), 5, 40).astype(np.int64),
    )


def make_calendar(length_U: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Seconds ago of each step, oldest first: several items a visit, days between visits, the last not long ago."""
    shape = (len(length_U), int(length_U.max()))
    minutes, days = rng.exponential(600.0, shape), rng.exponential(9.0 * SECONDS_A_DAY, shape)
    gap_UT = np.where(rng.random(shape) < 0.55, minutes, days) + 1.0
    gap_UT[:, 0] = rng.exponential(15.0 * SECONDS_A_DAY, shape[0])
    newest_first_UT = np.cumsum(gap_UT, axis=1).astype(np.int64)
    step_UT = length_U[:, None] - 1 - np.arange(shape[1])
    return np.take_along_axis(newest_first_UT, np.maximum(step_UT, 0), axis=1)


def choose_ways(
    floor: Floor,
    goods: Goods,
    customers: Customers,
    user: NDArray[np.intp],
    last: NDArray[np.int64],
    rng: np.random.Generator,
) -> Ways:
    """Where each of `user` looks after the item `last` (-1: they have just come in)."""
    num = len(user)
    mood, has_last = rng.random(num), last >= 0
    follow = has_last & (mood < FOLLOW)
    compare = has_last & ~follow & (mood < FOLLOW + COMPARE)
    favour = ~follow & ~compare & (~has_last | (mood < FOLLOW + COMPARE + RETURN))

    last_category = goods.category_N[last]
    category = customers.favourite_U3[user, rng.choice(len(FAVOURITES), num, p=FAVOURITES)]
    category = np.where(follow, floor.then_C3[last_category, rng.choice(len(THEN), num, p=THEN)], category)
    category = np.where(compare, last_category, category)
    department = floor.department_C[category]
    stays = follow & (department == floor.department_C[last_category])
    loyal = (follow | favour) & (rng.random(num) < customers.loyalty_U[user])
    return Ways(
        category=category,
        brand=np.where(stays, goods.brand_N[last], customers.brand_UD[user, department]),
        tier=np.where(rng.random(num) < 0.85, customers.tier_U[user], rng.integers(0, NUM_TIERS, num)),
        width=np.where(~(follow | compare | favour), 3, np.where(loyal, 0, 1)),
    )


def make_visits(assortment: tuple[Department, ...], goods: Goods, num_users: int, rng: np.random.Generator) -> Visits:
    """Walk `num_users` customers through the shop, all of them one step at a time; nobody takes an item twice.

    A customer takes 5 to 40 items, fewer only where a tiny shop has nothing left for them. Nothing is taken before it
    came.
    """
    floor = Floor.of(assortment, goods)
    customers = make_customers(assortment, floor, num_users, rng)
    seconds_UT = make_calendar(customers.length_U, rng)
    there_N = (goods.age_N + 1) * SECONDS_A_DAY  # an item is there from the morning of its day

    taken_UT = np.full(seconds_UT.shape, -1)
    last_U = np.full(num_users, -1)
    for step in range(seconds_UT.shape[1]):
        user = np.flatnonzero(step < customers.length_U)
        ways = choose_ways(floor, goods, customers, user, last_U[user], rng)
        waiting = np.arange(len(user))
        for attempt in range(TRIES):
            # Every third try that finds nothing new looks at a wider shelf: brand and tier, tier, category, whole shop.
            item = floor.draw(ways, waiting, attempt // 3, rng)
            who = user[waiting]
            good = (there_N[item] >= seconds_UT[who, step]) & ~(taken_UT[who] == item[:, None]).any(axis=1)
            taken_UT[who[good], step] = last_U[who[good]] = item[good]
            waiting = waiting[~good]

    user, step = np.nonzero(taken_UT >= 0)
    return Visits(user_E=user, item_E=taken_UT[user, step], seconds_E=seconds_UT[user, step])
