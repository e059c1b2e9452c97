"""The quotation against the work: planned bytes and built bytes, the paper's own example, and the entropy bound."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.errors import ArgumentError, CodesError
from leafbeam.index.memory_estimate import MemoryEstimate, entropy_bits, expected_nodes


@pytest.mark.parametrize(
    ("num_items", "sizes"),
    [
        (200_000, [2048] * 4),
        (200_000, [256] * 8),
        (300_000, [3, 70_000, 5, 9]),
        (100_000, [64, 64, 64]),
        (50_000, [16] * 4),
        (1000, [2, 2, 2]),
        (5000, [40_000, 8]),
    ],
)
def test_a_plan_for_uniform_codes_is_within_a_percent_of_what_is_built(num_items: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(11)
    trie = Trie.build(np.stack([rng.integers(0, size, num_items) for size in sizes], axis=1), sizes)
    plan = MemoryEstimate.uniform(num_items, sizes)
    assert plan.nbytes == pytest.approx(trie.nbytes, rel=0.01)
    assert plan.items == pytest.approx(trie.items.nbytes, rel=0.01)
    assert plan.num_leaves == pytest.approx(trie.num_leaves, rel=0.01)
    for planned, level in zip(plan.levels, trie.levels, strict=True):
        assert planned.num_nodes == pytest.approx(level.num_nodes, rel=0.01)
        assert planned.layout == level.layout


@given(st.integers(0, 2**32), st.lists(st.sampled_from([1, 2, 5, 300, 70_000]), min_size=1, max_size=6))
def test_a_plan_of_an_index_is_its_bytes_exactly(seed: int, sizes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    num_items = int(rng.integers(0, 400))
    codes = np.stack([np.minimum(rng.geometric(0.1, num_items) - 1, size - 1) for size in sizes], axis=1)
    trie = Trie.build(codes, sizes, [f"{row}" for row in range(num_items)] if seed % 2 else None)
    plan = MemoryEstimate.of(trie)
    assert plan.nbytes == trie.nbytes
    assert plan.items == trie.items.nbytes
    assert [(one.layout, one.nbytes) for one in plan.levels] == [(one.layout, one.nbytes) for one in trie.levels]
    packed = trie.packed()
    assert plan.packed_nbytes == MemoryEstimate.of(packed).packed_nbytes == MemoryEstimate.of(packed).nbytes == packed.nbytes
    assert [(one.width, one.nbytes) for one in MemoryEstimate.of(packed).levels] == [
        (one.width, one.nbytes) for one in packed.levels
    ]


def test_u_max_is_the_papers_at_its_own_settings() -> None:
    twenty = MemoryEstimate.uniform(20_000_000, [2048] * 8).static
    assert twenty.dense == 17_301_504
    assert twenty.upper_bound == 17_301_504 + 6 * 20_000_000 * 12
    one = MemoryEstimate.uniform(1_000_000, [2048] * 8).static
    assert one.upper_bound == 17_301_504 + 72_000_000


def test_u_max_bounds_the_estimate_from_real_node_counts() -> None:
    rng = np.random.default_rng(3)
    codes = np.minimum(rng.geometric(0.05, (20_000, 6)) - 1, 63)
    static = MemoryEstimate.of(Trie.build(codes, [64] * 6)).static
    assert static.dense < static.estimate < static.upper_bound
    nodes = [len(np.unique(codes[:, : level + 1], axis=0)) for level in range(6)]
    assert static.estimate == static.dense + 12 * sum(nodes[2:])


def test_dense_levels_may_be_chosen() -> None:
    none, all_ = (MemoryEstimate.uniform(1000, [8, 8], dense_levels=dense).static for dense in (0, 2))
    assert none.upper_bound == 1 + 4 + 12 * (8 + 64)
    assert all_.upper_bound == 8 + 4 * 64
    assert MemoryEstimate.uniform(1000, [8]).static.dense_levels == 1
    with pytest.raises(ArgumentError, match="3 dense levels: expected 0 to 2"):
        MemoryEstimate.uniform(1000, [8, 8], dense_levels=3)


@given(st.integers(1, 3000), st.data())
def test_the_entropy_bound_is_log2_of_the_binomial(capacity: int, data: st.DataObject) -> None:
    leaves = data.draw(st.integers(0, capacity))
    exact = math.log2(math.comb(capacity, leaves))
    assert entropy_bits(capacity, leaves) == pytest.approx(exact, rel=1e-9, abs=1e-9)


def test_the_entropy_bound_holds_for_astronomic_numbers_of_codes() -> None:
    # ln binomial(P, M) = M ln P - ln M! where M^2 / P is nothing
    exact = 88 * 10_000_000 - math.lgamma(10_000_001) / math.log(2)
    assert entropy_bits(2**88, 10_000_000) == pytest.approx(exact, rel=1e-9)
    assert MemoryEstimate.uniform(10_000_000, [2048] * 8).entropy_bits / 8e7 == pytest.approx(8.27, abs=0.01)


def test_the_deepest_index_of_the_largest_codebooks_can_be_planned() -> None:
    plan = MemoryEstimate.uniform(2**32 - 1, [2**31] * 65)
    assert plan.num_leaves == 2**32 - 1
    assert plan.entropy_bits == pytest.approx((2**32 - 1) * (65 * 31 - 32 + 1 / math.log(2)), rel=1e-6)
    assert entropy_bits(2**200, 10**6) == pytest.approx(entropy_bits(2**200 + 1, 10**6), rel=1e-9)
    json.dumps(plan.as_json())


def test_expected_nodes_at_its_ends() -> None:
    assert expected_nodes(0, 10) == 0
    assert expected_nodes(5, 1) == 1
    assert expected_nodes(1, 10) == pytest.approx(1)
    assert expected_nodes(10**9, 16) == pytest.approx(16)
    assert expected_nodes(10**7, 2**88) == pytest.approx(10**7)


def test_no_index_costs_less_than_the_entropy_bound() -> None:
    for num_items, sizes in [(10**6, [2048] * 8), (10**5, [16] * 5), (10**8, [32_768] * 3), (3, [2])]:
        plan = MemoryEstimate.uniform(num_items, sizes)
        assert 8 * plan.nbytes > plan.entropy_bits


def test_a_plan_is_json() -> None:
    plan = json.loads(json.dumps(MemoryEstimate.uniform(10**8, [2048] * 8, id_bytes=8).as_json()))
    assert plan["static"]["U_max"] == 17_301_504 + 6 * 12 * 10**8
    assert plan["item_table_bytes"] == 12 * 10**8
    assert plan["bytes"] == sum(level["bytes"] for level in plan["levels"])


def test_plans_that_no_index_can_hold_are_refused() -> None:
    for error, call, message in (
        (ArgumentError, lambda: MemoryEstimate.uniform(2**32, [10]), "4,294,967,295"),
        (ArgumentError, lambda: MemoryEstimate.uniform(-1, [10]), "expected 0 to"),
        (CodesError, lambda: MemoryEstimate.uniform(10, []), "0 levels"),
    ):
        with pytest.raises(error, match=message):
            call()
