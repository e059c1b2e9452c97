"""The step in torch without loops: the whole parity grid, and one graph for every version and filter of the same sizes."""

import shutil
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo

from leafbeam import Trie
from leafbeam.index import Segment, Version
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.fixed_shape import torch as ops
from tests.ops import rounds

SIZES = (9, 300, 11)
WIDTHS = (6, 20, 12)


def random_version(rng: np.random.Generator, num_items: int, num_delta: int) -> Version:
    def table(size: int) -> np.ndarray:
        first = np.minimum(rng.geometric(0.5, size) - 1, SIZES[0] - 1)
        return np.stack([first, rng.integers(0, SIZES[1], size) // (1 + first * 5), rng.integers(0, SIZES[2], size)], axis=1)

    base = Trie.build(table(num_items), SIZES, np.arange(num_items))
    live = base.filter(rng.random(num_items) < 0.9)
    return Version(segments=(Segment(trie=base, live=live), Segment(trie=Trie.build(table(num_delta), SIZES))))


def search(extend: Any, version: Version, arrays: Any, requests: Any, seed: int, scoring: Any) -> None:
    rng, filters = np.random.default_rng(seed), ops.bind_filters(arrays, requests)

    def step(level: int, beams: Beams, logits: np.ndarray, **settings: Any) -> Any:
        *ranges, drawn = [torch.from_numpy(one) for one in (beams.lo, beams.hi, beams.scores, logits)]
        ours, bad = extend(arrays.levels[level], filters.levels[level], Beams.start(*ranges), drawn, **settings)
        assert not bad.any()
        return ours

    rounds.compare(step, version, requests, lambda shape: rng.normal(size=shape).astype(np.float32), WIDTHS, scoring)


@pytest.mark.slow
def test_one_graph_a_level_without_breaks_serves_every_version_and_filter() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(ops.extend, fullgraph=True, backend="eager", dynamic=False)
    rng = np.random.default_rng(3)
    arrays = ops.bind(random_version(rng, 1000, 150), delta_leaves=200)
    with torch.inference_mode():
        for turn in range(8):
            version = random_version(rng, 900 + turn, 100 + turn)
            arrays = ops.bind(version, like=arrays)
            ids = np.flatnonzero(version.knows(np.arange(900)))
            filters = [version.filter(item_ids=rng.choice(ids, 30 * turn + 1)), None]
            requests = request_filters(version, 2, filters, [rng.choice(ids, 5), None])
            with torch._dynamo.config.patch(error_on_recompile=turn > 0):
                search(compiled, version, arrays, requests, turn, "full")
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch about itself
def test_inductor_gives_the_same_beams() -> None:
    rng = np.random.default_rng(4)
    trie = Trie.build(rng.permutation(300)[:200, None], (300,))
    arrays = ops.bind(trie)
    assert arrays.levels[0][0].capacity.wide > 0
    compiled = torch.compile(ops.extend, fullgraph=True, dynamic=False)
    for allowed in (trie.filter(rng.random(200) < 0.5), trie.filter(rng.random(200) < 0.1)):
        filters = ops.bind_filters(arrays, request_filters(trie, 2, [allowed, None], None))
        root = Beams.start(torch.zeros(1, 2, 1).long(), torch.full((1, 2, 1), 200), torch.zeros(2, 1))
        given = root, torch.randn(2, 1, 300)
        settings: Any = {"num_beams": 30, "scoring": "full"}
        ours, _ = compiled(arrays.levels[0], filters.levels[0], *given, **settings)
        eager, _ = ops.extend(arrays.levels[0], filters.levels[0], *given, **settings)
        torch.testing.assert_close(ours.scores, eager.scores)
        for name in ("parent", "code", "lo", "hi", "num_valid"):
            torch.testing.assert_close(getattr(ours, name), getattr(eager, name), rtol=0, atol=0)
    torch._dynamo.reset()


@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_a_long_deny_list_takes_its_children_out_one_by_one(scoring: Any) -> None:
    rng = np.random.default_rng(12)
    version = random_version(rng, 900, 100)
    ids = np.flatnonzero(version.knows(np.arange(900)))
    requests = request_filters(version, 2, [version.filter(item_ids=ids[::2]), None], [ids[:600], rng.choice(ids, 400)])
    search(ops.extend, version, ops.bind(version), requests, 1, scoring)
