"""The step in JAX: the whole parity grid, histories of one catalog in one compilation, nothing large written, no junk."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from leafbeam import Trie  # noqa: E402
from leafbeam.errors import ArgumentError, LogitsError  # noqa: E402
from leafbeam.index import Segment, Version  # noqa: E402
from leafbeam.ops.constrain import Beams, request_filters  # noqa: E402
from leafbeam.ops.constrain.fixed_shape import jax as ops  # noqa: E402
from leafbeam.ops.constrain.fixed_shape import step as fixed_step  # noqa: E402
from leafbeam.ops.constrain.fixed_shape.capacity import SHORT, Capacity, bucket, narrow_limit  # noqa: E402
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout  # noqa: E402
from tests.fixtures import grid  # noqa: E402
from tests.ops.fixed_shapes import SIZES, compare, random_table, random_version  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_compilation")


GRID = [  # each case with one shape of an index and one scoring: every compilation costs a second
    (name, ("changed", "whole", "changed-packed")[number % 3], ("full", "allowed")[number // 3 % 2])
    for number, name in enumerate(grid.CASES)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape", "scoring"), GRID)
def test_the_parity_grid(name: str, shape: str, scoring: str) -> None:
    grid.check_case(name, shape, "jax", scoring)


@pytest.mark.slow
def test_inserts_deletes_filters_and_compactions_run_what_is_compiled() -> None:
    rng = np.random.default_rng(11)
    compiled = ops.namespace("xla").compiled(fixed_step.run)
    compiled.clear_cache()
    largest = random_version(rng, 1000, 200)
    arrays = ops.bind(largest, delta_leaves=256, num_filters=7)
    for turn in range(40):
        version = random_version(rng, int(rng.integers(400, 1000)), int(rng.integers(0, 200)))
        if turn % 10 == 9:  # compacted: the delta is empty
            version = Version(segments=(version.segments[0], Segment(trie=Trie.build(random_table(rng, 0), SIZES))))
        arrays = ops.bind(version, like=arrays)
        ids = np.concatenate([np.arange(one.trie.num_items) for one in version.segments[:1]])
        ids = ids[version.knows(ids)]
        filters = [None, version.filter(item_ids=rng.choice(ids, 200)), version.filter(item_ids=rng.choice(ids, turn))]
        deny = [rng.choice(ids, 8), None, rng.choice(ids, 3)]
        requests = request_filters(version, 3, filters, deny)
        compare(version, arrays, requests, rng, ("full", "allowed")[turn % 2], ties=turn % 4 == 2)
    assert compiled._cache_size() == 2 * len(SIZES)  # a scoring, a level: nothing else


@pytest.mark.slow
def test_a_long_deny_list_takes_its_children_out_one_by_one() -> None:
    rng = np.random.default_rng(12)
    version = random_version(rng, 900, 100)
    arrays = ops.bind(version)
    ids = np.flatnonzero(version.knows(np.arange(900)))
    filters = [version.filter(item_ids=ids[::2]), None]
    requests = request_filters(version, 2, filters, [ids[:600], rng.choice(ids, 400)])
    compare(version, arrays, requests, rng, "full")


@pytest.mark.slow
def test_a_full_cache_drops_the_filter_used_longest_ago_and_what_was_bound_stays_right() -> None:
    rng = np.random.default_rng(13)
    trie = Trie.build(random_table(rng, 500), SIZES)
    version = Version.of(trie)
    arrays = ops.bind(version, num_filters=3)
    masks = [trie.filter(rng.random(500) < 0.5) for _ in range(9)]
    requests = [request_filters(version, 1, one, None) for one in masks]
    bound = [ops.bind_filters(arrays, one) for one in requests]

    for one, filters in zip(requests, bound, strict=True):
        compare(version, arrays, one, np.random.default_rng(1), "full", filters=filters)
    assert bound[-1].levels[0][0].leaves_FW.shape[0] == 4
    wider = ops.bind_filters(arrays, request_filters(version, 5, masks[:5], None))  # more than the cache holds: it grows
    assert wider.levels[0][0].leaves_FW.shape[0] == 8
    assert len(set(wider.levels[0][0].slot_B.tolist())) == 5


@pytest.mark.slow
def test_no_buffer_of_the_size_of_the_logits_is_written() -> None:
    jax.config.update("jax_disable_most_optimizations", False)
    rng = np.random.default_rng(14)
    size, beams = 2048, 300  # more logits than may be written because they stay in a CPU's cache
    trie = Trie.build(rng.integers(0, size, (30_000, 2)), (size, size))
    arrays = ops.bind(trie)
    filters = ops.bind_filters(arrays, request_filters(trie, 2, None, None))
    assert arrays.levels[0][0].capacity.wide > 0
    assert arrays.levels[1][0].capacity.wide == 0
    for level, parents in enumerate((1, beams)):
        ranges = jnp.zeros((1, 2, parents), jnp.int32), jnp.ones((1, 2, parents), jnp.int32)
        start = Beams.start(*ranges, jnp.zeros((2, parents)))
        for scoring in ("full", "allowed"):
            lowered = (
                ops.namespace("xla")
                .compiled(fixed_step.run)
                .lower(
                    arrays.levels[level],
                    filters.levels[level],
                    start,
                    jnp.zeros((2, parents, size)),
                    num_beams=beams,
                    scoring=scoring,
                )
            )
            written = lowered.compile().memory_analysis().temp_size_in_bytes
            assert written < 2 * beams * size * 4 / 2, (level, scoring, written)


@pytest.mark.parametrize("largest", [0.0, 60.0, -60.0, 300.0, -300.0, 3e38])
def test_log_sum_exp_is_exact_however_large_or_small_the_logits_are(largest: float) -> None:
    rng = np.random.default_rng(17)
    values = (rng.normal(size=(5, 300)) + largest).astype(np.float32)
    values[1, 7:] = -np.inf
    values[2] = -np.inf
    top = values.max(1, keepdims=True).astype(np.float64)
    with np.errstate(invalid="ignore"):
        truth = (top + np.log(np.exp(values - top).sum(1, keepdims=True)))[:, 0]
    truth[2] = -np.inf
    np.testing.assert_allclose(jax.jit(ops.namespace("xla").log_sum_exp)(values), truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_and_infinity_are_named_with_request_and_beam(scoring: Any, poison: float) -> None:
    trie = Trie.build(np.arange(10)[:, None], [10])
    arrays = ops.bind(trie)
    filters = ops.bind_filters(arrays, request_filters(trie, 2, None, None))
    logits = np.zeros((2, 1, 10), np.float32)
    logits[1, 0, 3] = poison
    root = Beams.start(np.zeros((1, 2, 1), np.int64), np.full((1, 2, 1), 10), np.zeros((2, 1), np.float32))
    with pytest.raises(LogitsError, match="request 1, beam 0 at level 0 hold NaN or \\+inf"):
        ops.step(arrays, 0, root, logits, filters, num_beams=2, scoring=scoring)


def test_more_leaves_than_int32_counts_are_refused() -> None:
    trie = replace(Trie.build([[0, 1]], (2, 2)), num_leaves=2**31)
    with pytest.raises(ArgumentError, match="2,147,483,648 leaves: this backend numbers them in 32 bits"):
        ops.bind(trie)
    with pytest.raises(ArgumentError, match="33,554,432 codes"):
        ops.bind(Trie.build([[0, 1]], (2, 2**25)))


def test_skew_widens_no_level_beyond_its_limit() -> None:
    rng = np.random.default_rng(15)
    mass = 1.0 / np.arange(1, 2049)
    table = rng.choice(2048, p=mass / mass.sum(), size=(100_000, 4))
    arrays = ops.bind(Trie.build(table, (2048,) * 4))
    for level in arrays.levels:
        assert level[0].capacity.lanes <= max(SHORT, narrow_limit(2048)) == 64
    used = arrays.layouts[0].needs
    assert all(
        room.wide < 2 * max(4, need.wide) for room, need in zip(arrays.capacity.segments[0].levels, used.levels, strict=True)
    )


def test_sizes_are_powers_of_two_and_grow_only() -> None:
    assert [bucket(n) for n in (0, 1, 2, 3, 1000)] == [0, 1, 2, 4, 1024]
    assert [narrow_limit(size) for size in (1, 256, 2048, 4096, 70_000)] == [64, 64, 64, 128, 2048]
    rng = np.random.default_rng(16)
    small, large = (SegmentLayout.of(Trie.build(random_table(rng, n), SIZES)).needs for n in (30, 5000))
    room = Capacity.of([large])
    again = Capacity.of([small], like=room)
    assert Capacity.of([large], like=again) == again
    assert [level.entries for level in again.segments[0].levels] == [level.entries for level in room.segments[0].levels]
    assert len(Capacity.of([small, small], like=room).segments) == 2
    assert Capacity.of([small], delta_leaves=500, like=room).segments[1].leaves == 1024


@pytest.mark.slow
def test_neither_the_step_nor_the_search_imports_torch() -> None:
    code = (
        "import sys, numpy as np; from leafbeam.index import Trie; from leafbeam.ops.constrain import Beams, request_filters;"
        "from leafbeam.ops.constrain.fixed_shape import jax as ops;"
        "import leafbeam.decode.jax_search, jax; trie = Trie.build([[0, 1], [1, 0]], (2, 2)); arrays = ops.bind(trie);"
        "filters = ops.bind_filters(arrays, request_filters(trie, 1, None, None)); one = np.zeros((1, 1, 1));"
        "root = Beams.start(one, one + 2, one[0]); logits = np.zeros((1, 1, 2));"
        "beams = ops.step(arrays, 0, root, logits, filters, num_beams=2, scoring='full');"
        "print(beams.num_valid, 'torch' in sys.modules, jax.config.jax_enable_x64, beams.lo.dtype)"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[2]", "False", "False", "int32"]
