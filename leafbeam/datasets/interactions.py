"""Interactions of the synthetic shop: a simulation of users who move between related categories.

After each item a user goes to a related category, compares items of the same category, returns to a favourite category, or
picks from the whole shop. Brand loyalty and price tier narrow the choice; among the rest items are drawn by sales (Zipf).
The next item can therefore be learnt from categories, brands and price tiers, but never with certainty.

Shapes: N items, U users, E interactions, C categories, D departments, K keys.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leafbeam.datasets.items import NUM_TIERS, Department, ShopItems

RELATED, SAME, FAVOURITE = 0.58, 0.12, 0.24  # shares of moves; the others pick from the whole shop
NEXT_SHARES = np.array([0.66, 0.24, 0.10])
FAVOURITE_SHARES = np.array([0.5, 0.3, 0.2])
MAX_TRIES = 12
SECONDS_A_DAY = 86_400


class WeightedGroups:
    """Items grouped by a key, to draw one of a group by weight with one binary search."""

    def __init__(self, key_N: NDArray[np.int64], num_keys: int, weight_N: NDArray[np.float64]) -> None:
        self.items_N = np.argsort(key_N, kind="stable")
        self.indptr_K1 = np.searchsorted(key_N[self.items_N], np.arange(num_keys + 1))
        self.cumulative_weights_N1 = np.concatenate(([0.0], np.cumsum(weight_N[self.items_N])))

    def is_filled(self, key: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.indptr_K1[key + 1] > self.indptr_K1[key]

    def draw(self, key: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw one item of each group, by weight; no group may be empty."""
        first, last = self.indptr_K1[key], self.indptr_K1[key + 1] - 1
        low, high = self.cumulative_weights_N1[first], self.cumulative_weights_N1[last + 1]
        drawn = np.searchsorted(self.cumulative_weights_N1, low + rng.random(len(key)) * (high - low), side="right") - 1
        return self.items_N[np.clip(drawn, first, last)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The distributions from which each moving user draws the next item.

    width: 0 the brand's items of a price tier in the category, 1 the price tier, 2 the category, 3 the whole shop.
    """

    category: NDArray[np.int64]
    brand: NDArray[np.int64]
    tier: NDArray[np.int64]
    width: NDArray[np.int64]


class ItemSampler:
    """A sampler of items by brand, tier, category or from the whole shop.

    `next_C3` are the categories that follow a category, the most frequent first. `sales_C` is the total weight of a category.
    `groups` are by `Moves.width`.
    """

    def __init__(self, assortment: tuple[Department, ...], items: ShopItems) -> None:
        categories = [category for department in assortment for category in department.categories]
        names = [category.name for category in categories]
        self.brand_indptr_D1 = np.cumsum([0] + [len(department.brands) for department in assortment])
        self.num_brands, num_categories = int(self.brand_indptr_D1[-1]), len(names)
        self.department_C = np.repeat(np.arange(len(assortment)), [len(d.categories) for d in assortment])
        self.next_C3 = np.array([[names.index(name) for name in category.next_categories] for category in categories])
        self.sales_C = np.bincount(items.category_N, items.weight_N, num_categories).astype(np.float64)
        num_keys = (num_categories * self.num_brands * NUM_TIERS, num_categories * NUM_TIERS, num_categories, 1)
        keys = self._keys(items.category_N, items.brand_N, items.tier_N)
        self.groups = [WeightedGroups(key, num, items.weight_N) for key, num in zip(keys, num_keys, strict=True)]

    def draw(self, moves: Moves, rows: NDArray[np.intp], min_width: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draw an item for each of `rows` of `moves`, from a group of at least `min_width`, or a wider one if that is empty."""
        keys = self._keys(moves.category[rows], moves.brand[rows], moves.tier[rows])
        width = np.maximum(moves.width[rows], min_width)
        item = np.empty(len(rows), np.int64)
        for level, (group, key) in enumerate(zip(self.groups, keys, strict=True)):
            here = width == level
            empty = here & ~group.is_filled(key)
            width[empty] += 1
            here &= ~empty
            item[here] = group.draw(key[here], rng)
        return item

    def _keys(
        self, category: NDArray[np.int64], brand: NDArray[np.int64], tier: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], ...]:
        """Return the key of each width of `Moves`."""
        by_brand = (category * self.num_brands + brand) * NUM_TIERS + tier
        return by_brand, category * NUM_TIERS + tier, category, np.zeros_like(category)


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Favourite categories, price tier, brand loyalty, favourite brand of each department, and number of interactions."""

    favourite_U3: NDArray[np.int64]
    tier_U: NDArray[np.int64]
    loyalty_U: NDArray[np.float64]
    brand_UD: NDArray[np.int64]
    length_U: NDArray[np.int64]


def generate_users(assortment: tuple[Department, ...], sampler: ItemSampler, num: int, rng: np.random.Generator) -> Users:
    preference_UC = np.log(sampler.sales_C) + 1.5 * rng.gumbel(size=(num, len(sampler.sales_C)))
    first_brands = zip(sampler.brand_indptr_D1[:-1], (len(department.brands) for department in assortment), strict=True)
    return Users(
        favourite_U3=np.argsort(-preference_UC, axis=1)[:, : len(FAVOURITE_SHARES)],
        tier_U=rng.choice(NUM_TIERS, num, p=[0.35, 0.4, 0.25]),
        loyalty_U=rng.beta(7.0, 3.0, num),
        brand_UD=np.stack([first + np.minimum(rng.geometric(0.3, num) - 1, size - 1) for first, size in first_brands], axis=1),
        length_U=np.clip(np.round(rng.lognormal(2.15, 0.5, num)), 5, 40).astype(np.int64),
    )


def generate_times(length_U: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the seconds before today's end of each interaction, oldest first: sessions of several items, days apart."""
    shape = (len(length_U), int(length_U.max()))
    minutes, days = rng.exponential(600.0, shape), rng.exponential(9.0 * SECONDS_A_DAY, shape)
    gap_UT = np.where(rng.random(shape) < 0.55, minutes, days) + 1.0
    gap_UT[:, 0] = rng.exponential(15.0 * SECONDS_A_DAY, shape[0])
    newest_first_UT = np.cumsum(gap_UT, axis=1).astype(np.int64)
    step_UT = length_U[:, None] - 1 - np.arange(shape[1])
    return np.take_along_axis(newest_first_UT, np.maximum(step_UT, 0), axis=1)


def choose_moves(
    sampler: ItemSampler,
    items: ShopItems,
    users: Users,
    user: NDArray[np.intp],
    last: NDArray[np.int64],
    rng: np.random.Generator,
) -> Moves:
    """Choose the next move of each of `user` after the item `last` (-1 before the first)."""
    num = len(user)
    draw, has_last = rng.random(num), last >= 0
    related = has_last & (draw < RELATED)
    same = has_last & ~related & (draw < RELATED + SAME)
    favourite = ~related & ~same & (~has_last | (draw < RELATED + SAME + FAVOURITE))

    last_category = items.category_N[last]
    category = users.favourite_U3[user, rng.choice(len(FAVOURITE_SHARES), num, p=FAVOURITE_SHARES)]
    next_category = sampler.next_C3[last_category, rng.choice(len(NEXT_SHARES), num, p=NEXT_SHARES)]
    category = np.where(related, next_category, category)
    category = np.where(same, last_category, category)
    department = sampler.department_C[category]
    same_department = related & (department == sampler.department_C[last_category])
    loyal = (related | favourite) & (rng.random(num) < users.loyalty_U[user])
    return Moves(
        category=category,
        brand=np.where(same_department, items.brand_N[last], users.brand_UD[user, department]),
        tier=np.where(rng.random(num) < 0.85, users.tier_U[user], rng.integers(0, NUM_TIERS, num)),
        width=np.where(~(related | same | favourite), 3, np.where(loyal, 0, 1)),
    )


def generate_interactions(
    assortment: tuple[Department, ...], items: ShopItems, num_users: int, rng: np.random.Generator, repeats: float = 0.0
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (user_E, item_E, seconds_E before the end of today), user by user, oldest first.

    All users are simulated one step at a time. None takes an item before its first day, or twice except for the share `repeats`
    of steps, which take one of the user's earlier items. A user takes 5 to 40 items, and fewer only if a tiny shop has none
    left.
    """
    sampler = ItemSampler(assortment, items)
    users = generate_users(assortment, sampler, num_users, rng)
    seconds_UT = generate_times(users.length_U, rng)
    available_N = (items.age_N + 1) * SECONDS_A_DAY  # an item is available from the morning of its first day

    taken_UT = np.full(seconds_UT.shape, -1)
    last_U = np.full(num_users, -1)
    for step in range(seconds_UT.shape[1]):
        user = np.flatnonzero(step < users.length_U)
        moves = choose_moves(sampler, items, users, user, last_U[user], rng)
        pending = np.arange(len(user))
        if repeats and step:
            again = pending[rng.random(len(user)) < repeats]
            taken_UT[user[again], step] = last_U[user[again]] = taken_UT[user[again], rng.integers(0, step, len(again))]
            pending = np.flatnonzero(taken_UT[user, step] < 0)
        for attempt in range(MAX_TRIES):
            item = sampler.draw(moves, pending, attempt // 3, rng)  # wider groups after every third failed attempt
            mover = user[pending]
            valid = (available_N[item] >= seconds_UT[mover, step]) & ~(taken_UT[mover] == item[:, None]).any(axis=1)
            taken_UT[mover[valid], step] = last_U[mover[valid]] = item[valid]
            pending = pending[~valid]

    user, step = np.nonzero(taken_UT >= 0)
    return user, taken_UT[user, step], seconds_UT[user, step]
