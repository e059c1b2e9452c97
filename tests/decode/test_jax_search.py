"""The whole search in one compiled function: equal to BeamSearch, compiled once, sharded over a mesh, without torch."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from leafbeam import BeamSearch, Trie  # noqa: E402
from leafbeam.decode.jax_search import BatchSplit, JaxBeamSearch  # noqa: E402
from leafbeam.errors import ArgumentError, ForeignFilterError, LogitsError  # noqa: E402
from leafbeam.index import Segment, Version  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_compilation")

SIZES = (40, 200, 7)
STATES = 61


class TableModel:
    """Logits looked up by a number that the prefix hashes to; the same numbers for JAX (traced) and for numpy."""

    def __init__(self, sizes: Sequence[int] = SIZES, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = tuple(sizes)
        self.tables = [rng.normal(size=(STATES, size)).astype(np.float32) for size in sizes]
        self.traced = 0

    def carry(self, batch_size: int) -> dict[str, Any]:
        return {
            "state": np.arange(batch_size, dtype=np.int32)[:, None] * 5,
            "tables": [jnp.asarray(one) for one in self.tables],
        }

    def __call__(self, carry: Any, codes: Any, parents: Any, level: int) -> tuple[Any, Any]:
        self.traced += level == 0
        state = carry["state"]
        if codes is not None:
            state = (jnp.take_along_axis(state, parents, axis=1) * 31 + codes + 7) % STATES
        return carry | {"state": state}, carry["tables"][level][state]

    def on_host(self, batch_size: int) -> Any:
        level, state = 0, np.arange(batch_size)[:, None] * 5

        def step_fn(codes: Any, parents: Any) -> Any:
            nonlocal level, state
            if codes is not None:
                state = (np.take_along_axis(state, parents, axis=1) * 31 + codes + 7) % STATES
            logits = self.tables[level][state]
            level += 1
            return logits

        return step_fn


def table(rng: np.random.Generator, num_items: int, sizes: Sequence[int] = SIZES) -> np.ndarray:
    skewed = [np.minimum(rng.geometric(0.05, num_items) - 1, size - 1) for size in sizes]
    return np.stack(skewed, axis=1) if num_items else np.empty((0, len(sizes)), np.int64)


def version_of(rng: np.random.Generator, num_items: int, num_delta: int, sizes: Sequence[int] = SIZES) -> Version:
    """A base of which a tenth is deleted and a delta."""
    base = Trie.build(table(rng, num_items, sizes), sizes, np.arange(num_items))
    delta = Trie.build(table(rng, num_delta, sizes), sizes, np.arange(num_delta) + 1_000_000)
    return Version(segments=(Segment(trie=base, live=base.filter(rng.random(num_items) < 0.9)), Segment(trie=delta)))


def assert_same(ours: Any, truth: Any) -> None:
    assert ours.num_valid.tolist() == truth.num_valid.tolist()
    np.testing.assert_allclose(ours.scores, truth.scores, rtol=1e-5, atol=2e-5)
    for mine, its in zip(ours.item_ids, truth.item_ids, strict=True):
        assert mine.tolist() == its.tolist()
    np.testing.assert_array_equal(ours.codes, truth.codes)


@pytest.fixture(scope="module")
def compiled() -> JaxBeamSearch:
    """A search that is compiled once: its room is enough for every catalog here."""
    rng = np.random.default_rng(1)
    search = JaxBeamSearch(version_of(rng, 1000, 250), [8, 30, 20], delta_leaves=300, max_filters=3)
    for num_items in (1000, 300, 30):  # sizes grow and never shrink
        search = search.for_version(version_of(rng, num_items, 250))
    return search.for_version(Trie.build([[0, 0, code] for code in range(SIZES[2])], SIZES))


MODEL = TableModel()


def test_every_version_equals_beam_search_and_compiles_once(compiled: JaxBeamSearch) -> None:
    rng = np.random.default_rng(1)
    search = compiled
    MODEL.traced = 0
    for turn in range(0, 12, 2):
        version = version_of(rng, 900 + turn, 20 * turn)
        search = search.for_version(version)
        ids = np.concatenate([one.trie.item_ids[one.is_live(np.arange(one.trie.num_items))] for one in version.segments])
        filters = [None, version.filter(item_ids=rng.choice(ids, 60 * turn)), version.filter(item_ids=ids[:turn])]
        deny = [rng.choice(ids, 5), [1, 2], None]
        ours = search.run(MODEL, MODEL.carry(3), 3, filters, deny)
        assert_same(ours, BeamSearch(version, [8, 30, 20]).run(MODEL.on_host(3), 3, filters, deny))
    assert MODEL.traced == 1


def test_fewer_items_than_beams_and_no_items_give_short_answers(compiled: JaxBeamSearch) -> None:
    rng = np.random.default_rng(3)
    for num_items in (0, 1, 5):
        trie = Trie.build(table(rng, num_items), SIZES, np.arange(num_items) if num_items else None)
        result = compiled.for_version(trie).run(MODEL, MODEL.carry(3), 3)
        assert_same(result, BeamSearch(trie, [8, 30, 20]).run(MODEL.on_host(3), 3))
        assert result.num_valid.max() <= num_items


def test_items_that_share_a_leaf_are_listed_one_by_one(compiled: JaxBeamSearch) -> None:
    trie = Trie.build(np.random.default_rng(4).integers(0, 3, (200, 3)), SIZES, np.arange(200))
    fresh = trie.filter(np.arange(200) % 3 == 0)
    requests: Any = [fresh, None, fresh], [[0, 3], None, np.arange(8)]
    result = compiled.for_version(trie).run(MODEL, MODEL.carry(3), 3, *requests)
    assert_same(result, BeamSearch(trie, [8, 30, 20]).run(MODEL.on_host(3), 3, *requests))


@pytest.mark.slow
def test_a_search_with_pallas_kernels_equals_beam_search() -> None:
    rng = np.random.default_rng(7)
    version, model = version_of(rng, 900, 60), TableModel()
    ids = np.flatnonzero(version.knows(np.arange(900)))
    filters, deny = [version.filter(item_ids=ids[::9]), None], [None, ids[:3]]
    ours = JaxBeamSearch(version, 15, kernels="pallas").run(model, model.carry(2), 2, filters, deny)
    assert_same(ours, BeamSearch(version, 15).run(model.on_host(2), 2, filters, deny))


@pytest.mark.slow
def test_a_delta_that_outgrows_its_space_compiles_again_and_is_right() -> None:
    rng = np.random.default_rng(2)
    model = TableModel()
    small = version_of(rng, 40, 3)
    search = JaxBeamSearch(small, 20, "allowed")
    assert_same(search.run(model, model.carry(1), 1), BeamSearch(small, 20, "allowed").run(model.on_host(1), 1))
    version = version_of(rng, 50, 3000)
    search = search.for_version(version)
    assert_same(search.run(model, model.carry(1), 1), BeamSearch(version, 20, "allowed").run(model.on_host(1), 1))
    assert model.traced == 2
    search = search.for_version(small)  # what has grown stays: the small version compiles nothing
    assert_same(search.run(model, model.carry(1), 1), BeamSearch(small, 20, "allowed").run(model.on_host(1), 1))
    assert model.traced == 2


@pytest.mark.slow
def test_an_ended_sequence_keeps_its_score() -> None:
    rng = np.random.default_rng(5)
    names = [rng.integers(0, 5, rng.integers(0, 5)).tolist() for _ in range(60)]
    trie = Trie.from_sequences(names, vocabulary_size=5)
    model = TableModel([6] * trie.num_levels)
    result = JaxBeamSearch(trie, 12).run(model, model.carry(2), 2)
    assert_same(result, BeamSearch(trie, 12).run(model.on_host(2), 2))


def test_results_stay_on_the_device_until_items_are_asked_for(compiled: JaxBeamSearch) -> None:
    trie = Trie.build(np.unique(table(np.random.default_rng(6), 300), axis=0), SIZES)
    search = compiled.for_version(trie)
    batch = search.prepare(3)
    ranked = search.decode(MODEL, MODEL.carry(3), batch)
    assert isinstance(ranked.codes_BKL, jax.Array)
    assert (ranked.scores_BK.dtype, ranked.lo_SBK.dtype) == (jnp.float32, jnp.int32)
    result = search.items(batch, ranked)
    np.testing.assert_array_equal(np.asarray(ranked.codes_BKL), result.codes)
    np.testing.assert_array_equal(trie.codes_at(np.asarray(ranked.lo_SBK[0, 0])), result.codes[0])


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_nan_is_named_with_request_level_and_beam(compiled: JaxBeamSearch, poison: float) -> None:
    carry = MODEL.carry(3)
    carry["tables"][1] = jnp.full_like(carry["tables"][1], poison)
    with pytest.raises(LogitsError, match="request 0, beam 0 at level 1 hold NaN or \\+inf"):
        compiled.run(MODEL, carry, 3)


def test_what_step_fn_returns_is_checked_when_it_is_traced() -> None:
    search = JaxBeamSearch(Trie.build([[0, 1, 2]], SIZES), 10)
    with pytest.raises(LogitsError, match="of shape \\(2, 1, 3\\)"):
        search.run(lambda carry, codes, parents, level: (carry, jnp.zeros((2, 3))), None, 2)
    with pytest.raises(LogitsError, match="dtype int32"):
        search.run(lambda carry, codes, parents, level: (carry, jnp.zeros((2, 40), jnp.int32)), None, 2)


def test_arguments_are_checked() -> None:
    trie = Trie.build([[0, 1, 2]], SIZES)
    for wrong in (0, [1, 2], [3, 0, 3]):
        with pytest.raises(ArgumentError, match="num_beams"):
            JaxBeamSearch(trie, wrong)
    for call, message in (
        (lambda: JaxBeamSearch(trie, 3, "fulll"), "scoring"),
        (lambda: BatchSplit(mesh=jax.make_mesh((1,), ("requests",))), "the mesh has 'requests'"),
        (lambda: JaxBeamSearch(trie, 3).for_version(Trie.build([[0, 1]], (4, 4))), "another version"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
    foreign = Trie.build([[0, 1, 3]], SIZES)
    with pytest.raises(ForeignFilterError):
        JaxBeamSearch(trie, 3).prepare(1, foreign.filter([True]))


def in_a_process(code: str, **environment: str) -> str:
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    given: Any = {"cwd": root, "env": os.environ | environment, "capture_output": True, "text": True}
    done = subprocess.run(command, check=False, **given)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_sharded_over_four_devices_equals_one_and_imports_no_torch() -> None:
    out = in_a_process(
        """
        import sys
        import numpy as np, jax
        from jax.sharding import PartitionSpec as P
        from tests.decode.test_jax_search import TableModel, SIZES, assert_same, version_of
        from leafbeam import BeamSearch
        from leafbeam.decode.jax_search import BatchSplit, JaxBeamSearch
        assert len(jax.devices()) == 4
        rng = np.random.default_rng(8)
        version = version_of(rng, 900, 60)
        ids = version.segments[0].trie.item_ids[version.segments[0].is_live(np.arange(900))]
        filters = [None, version.filter(item_ids=ids[:300])] * 4
        deny = [None, ids[:20]] * 4
        model = TableModel()
        alone = BeamSearch(version, 15).run(model.on_host(8), 8, filters, deny)
        mesh = jax.make_mesh((4,), ("batch",))
        specs = {"state": P("batch"), "tables": P()}
        search = JaxBeamSearch(version, 15, split=BatchSplit(mesh=mesh, carry_specs=specs))
        batch = search.prepare(8, filters, deny)
        ranked = search.decode(model, model.carry(8), batch)
        assert len(ranked.scores_BK.sharding.device_set) == 4
        assert ranked.scores_BK.addressable_shards[0].data.shape == (2, 15)
        assert model.traced == 1
        assert_same(search.items(batch, ranked), alone)
        split = BatchSplit(mesh=mesh, carry_specs=specs)
        pallas = JaxBeamSearch(version, 15, split=split, kernels="pallas")
        assert_same(pallas.run(model, model.carry(8), 8, filters, deny), alone)
        later = version_of(rng, 905, 80)
        again = search.for_version(later).run(model, model.carry(8), 8)
        assert_same(again, BeamSearch(later, 15).run(model.on_host(8), 8))
        try:
            search.prepare(6)
        except ValueError as error:
            assert "a multiple of 4" in str(error)
        else:
            raise AssertionError("6 requests were split over 4 devices")
        print("torch" in sys.modules, jax.config.jax_enable_x64)
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    assert out.split() == ["False", "False"]
