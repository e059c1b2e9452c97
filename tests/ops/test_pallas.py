"""The Pallas kernel of the step in JAX: interpreted, equal to XLA's way and to the CPU's rounds; lowered for accelerators."""

from functools import partial
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from leafbeam.errors import ArgumentError  # noqa: E402
from leafbeam.index import Trie, Version  # noqa: E402
from leafbeam.ops.constrain import Beams, request_filters  # noqa: E402
from leafbeam.ops.constrain.fixed_shape import jax as ops  # noqa: E402
from tests.ops import fixed_shapes as fixed  # noqa: E402

pytestmark = pytest.mark.usefixtures("quick_compilation")


def rows_and_words(num_rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits, some of them excluded, a row of nothing else and one with NaN; masks of legal codes, one of them empty."""
    rng = np.random.default_rng(num_rows)
    logits = rng.normal(size=(num_rows, size)).astype(np.float32) * 30
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    if num_rows > 2:
        logits[1], logits[2, 3] = -np.inf, np.nan
    words = rng.integers(0, 2**32, (num_rows, -(-size // 32)), dtype=np.uint32)
    words[:, -1] &= np.uint32((1 << (size % 32 or 32)) - 1)
    words[0] = 0
    return logits, words


@pytest.mark.parametrize(
    ("num_rows", "size", "masked", "full"),
    [
        (1, 5, True, True),  # fewer codes than lanes
        (9, 300, True, True),  # a last block of rows that is not full
        (9, 300, True, False),
        (9, 300, False, True),
        (3, 5000, True, True),  # two blocks of codes
        (3, 5000, False, True),
    ],
)
@pytest.mark.slow
def test_one_pass_over_the_logits_equals_that_of_xla(num_rows: int, size: int, masked: bool, full: bool) -> None:
    logits, words = rows_and_words(num_rows, size)
    results: list[Any] = []
    for kernels in ("xla", "pallas"):
        scan = jax.jit(partial(ops.namespace(kernels).scan, full=full))  # type: ignore[arg-type]
        results.append(scan(logits, words if masked else None))
    (lse_R, top_RH), (own_lse_R, own_top_RH) = results
    np.testing.assert_allclose(own_lse_R, lse_R, rtol=1e-6, atol=1e-6)
    if masked:
        np.testing.assert_array_equal(own_top_RH, top_RH)
    else:
        assert own_top_RH is None


@pytest.mark.slow
def test_rounds_equal_those_of_the_cpu() -> None:
    """Under "allowed"; tests/decode/test_jax_search.py has a search under "full"."""
    rng = np.random.default_rng(18)
    version: Version = fixed.random_version(rng, 900, 150)
    arrays = ops.bind(version, kernels="pallas")
    assert any(level.capacity.wide for pair in arrays.levels for level in pair)
    ids = np.flatnonzero(version.knows(np.arange(900)))
    requests = request_filters(version, 2, [version.filter(item_ids=ids[::2]), None], [ids[:9], None])
    fixed.compare(version, arrays, requests, rng, "allowed")
    later = ops.bind(fixed.random_version(rng, 700, 90), like=arrays)
    assert later.xp is arrays.xp


def test_extend_inside_a_traced_function_takes_either_kernels() -> None:
    trie = Trie.build(np.random.default_rng(19).integers(0, 70, (400, 2)), (70, 70))
    arrays = ops.bind(trie)
    filters = ops.bind_filters(arrays, request_filters(trie, 1, None, None))
    root = Beams.start(jnp.zeros((1, 1, 1), jnp.int32), jnp.full((1, 1, 1), trie.num_leaves, jnp.int32), jnp.zeros((1, 1)))
    logits = jnp.asarray(np.random.default_rng(20).normal(size=(1, 1, 70)), jnp.float32)
    step = jax.jit(ops.extend, static_argnames=("num_beams", "scoring", "kernels"))
    both: list[Any] = [
        step(arrays.levels[0], filters.levels[0], root, logits, num_beams=9, scoring="full", kernels=kernels)[0]
        for kernels in ("xla", "pallas")
    ]
    np.testing.assert_array_equal(both[0].code, both[1].code)
    np.testing.assert_allclose(both[0].scores, both[1].scores, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("platform", "call"), [("tpu", "tpu_custom_call"), ("cuda", "__gpu$xla.gpu.triton")])
@pytest.mark.parametrize("size", [300, 2048, 5000])
def test_the_kernel_is_lowered_for_accelerators(platform: str, call: str, size: int) -> None:
    logits, words = jnp.zeros((140, size)), jnp.zeros((140, -(-size // 32)), jnp.uint32)
    scan = jax.jit(lambda logits, words: ops.namespace("pallas").scan(logits, words, full=True))
    checks = [jax.export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")]
    exported = jax.export.export(scan, platforms=[platform], disabled_checks=checks)(logits, words)
    assert call in exported.mlir_module()


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(ArgumentError, match="kernels is 'mosaic': expected 'xla' or 'pallas'"):
        ops.namespace("mosaic")  # type: ignore[arg-type]
