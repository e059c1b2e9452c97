"""Random catalogs and logits for the step in JAX, whose rounds are compared with those of the CPU."""

from typing import Any

import numpy as np

from leafbeam import Trie
from leafbeam.index import Segment, Version
from leafbeam.ops.constrain.fixed_shape import jax as ops
from tests.ops import rounds

SIZES = (9, 300, 11)
WIDTHS = (6, 20, 12)


def random_table(rng: np.random.Generator, num_items: int) -> np.ndarray:
    """Some prefixes with hundreds of children, some with few and many leaves under each, some with one."""
    kind = rng.integers(0, 3, num_items)
    middle = np.choose(
        kind, [rng.integers(0, 300, num_items), rng.integers(0, 5, num_items) * 7, rng.geometric(0.02, num_items)]
    )
    return np.stack(
        [
            np.minimum(rng.geometric(0.5, num_items) - 1, SIZES[0] - 1) * (kind != 1) + 5 * (kind == 1),
            np.minimum(middle, SIZES[1] - 1),
            rng.integers(0, SIZES[2], num_items),
        ],
        axis=1,
    )


def random_version(rng: np.random.Generator, num_items: int, num_delta: int) -> Version:
    tables = random_table(rng, num_items), random_table(rng, num_delta)
    base = Trie.build(tables[0], SIZES, np.arange(num_items))
    delta = Trie.build(np.concatenate([tables[1], tables[0][: num_delta // 4]]), SIZES)
    live = base.filter(rng.random(num_items) < 0.8)
    return Version(segments=(Segment(trie=base, live=live), Segment(trie=delta)))


def random_logits(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    logits = rng.normal(size=shape).astype(np.float32)
    if rng.random() < 0.3:
        logits[rng.random(shape) < 0.5] = -np.inf
    return logits


def compare(
    version: Version,
    arrays: Any,
    requests: Any,
    rng: np.random.Generator,
    scoring: Any,
    ties: bool = False,
    filters: Any = None,
) -> None:
    """ties: every score of a round is equal."""
    filters = ops.bind_filters(arrays, requests) if filters is None else filters
    rounds.compare(
        lambda level, beams, logits, **settings: ops.step(arrays, level, beams, logits, filters, **settings),
        version,
        requests,
        lambda shape: np.zeros(shape, np.float32) if ties else random_logits(rng, shape),
        WIDTHS,
        scoring,
    )
