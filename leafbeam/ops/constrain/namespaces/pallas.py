"""`JaxNamespace` with the logits read by a Pallas kernel: once, where XLA reads them up to three times.

The kernel takes a block of rows and codes, and loops over 128 codes at a time with a maximum and a sum for each of 128 lanes.
So it needs neither a gather nor a reshape. Blocks share nothing; their sums are combined after the kernel. A TPU compiles it
with Mosaic, a GPU with Triton; a CPU interprets it, which is for tests.

Shapes: R rows, V codes, H words of 32 codes, N blocks of codes.
"""

# It takes only the arrays of JAX.
# pyright: reportIncompatibleMethodOverride=false
from functools import partial
from typing import Any

from leafbeam.extras import optional_imports
from leafbeam.ops.constrain.namespaces import CHUNK, NEG_INF
from leafbeam.ops.constrain.namespaces.jax import JaxNamespace

with optional_imports("kernels 'pallas'"):
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.experimental import pallas as pl

Array = jax.Array

_LANES = 128
_WORDS = _LANES // CHUNK  # of the lanes
_MAX_CODES = _LANES * CHUNK  # of a block: it has 128 words, which is the narrowest block of several that a TPU takes


class PallasNamespace(JaxNamespace):
    """The functions of `JaxNamespace`, with a `scan` of its own."""

    def scan(self, logits_RV: Array, words_RH: Array | None, *, full: bool) -> tuple[Array, Array | None]:
        size = logits_RV.shape[1]
        codes = min(_MAX_CODES, max(_LANES, pl.next_power_of_2(size)))
        inputs = [self.pad(logits_RV, -size % codes, NEG_INF)]
        if words_RH is not None:
            words_RH = self.pad(words_RH, -words_RH.shape[1] % (codes // CHUNK), 0)
            inputs.append(lax.bitcast_convert_type(words_RH, jnp.int32))
        scan = partial(_scan, codes=codes, full=full)
        # A program of a GPU takes one row, because it cannot leave out rows that a block has beyond the last one.
        top_NR, sum_NR, *top_RH = lax.platform_dependent(
            *inputs,
            cpu=partial(scan, rows=8, interpret=True),
            cuda=partial(scan, rows=1, triton=True),
            tpu=partial(scan, rows=8),
        )
        lse_R = _combined(top_NR, sum_NR)
        return lse_R, top_RH[0][:, : -(-size // CHUNK)] if top_RH else None


def _scan(
    logits_RV: Array,
    words_RH: Array | None = None,
    *,
    rows: int,
    codes: int,
    full: bool,
    triton: bool = False,
    interpret: bool = False,
) -> list[Array]:
    """Return maxima and sums [N, R] of blocks of `codes` codes and, with words, each chunk's largest legal logit [R, H]."""
    num_rows, size = logits_RV.shape
    num_blocks = size // codes
    block_sums = pl.BlockSpec((None, rows, 1), lambda i, j: (j, i, 0))
    in_specs, out_specs = [pl.BlockSpec((rows, codes), lambda i, j: (i, j))], [block_sums, block_sums]
    out_shapes = [jax.ShapeDtypeStruct((num_blocks, num_rows, 1), jnp.float32)] * 2
    if words_RH is not None:
        block_words = pl.BlockSpec((rows, codes // CHUNK), lambda i, j: (i, j))
        in_specs.append(block_words)
        out_specs.append(block_words)
        out_shapes.append(jax.ShapeDtypeStruct(words_RH.shape, jnp.float32))
    settings: dict[str, Any] = {}
    if triton:
        from jax.experimental.pallas import triton as pallas_triton

        settings["compiler_params"] = pallas_triton.CompilerParams(num_warps=4)
    top_NR1, sum_NR1, *top_RH = pl.pallas_call(
        partial(_kernel, full=full),
        grid=(pl.cdiv(num_rows, rows), num_blocks),
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out_shapes,
        interpret=interpret,
        **settings,
    )(logits_RV, *(() if words_RH is None else (words_RH,)))
    return [top_NR1[:, :, 0], sum_NR1[:, :, 0], *top_RH]


def _kernel(logits_ref: Any, *refs: Any, full: bool) -> None:
    """Write, for a block of rows and codes:

    top = max(logits); sum = sum(exp(logits - top)), of all codes if `full`, else of the legal ones
    chunk_top[h] = max(legal logits of chunk h)
    """
    words_ref, top_ref, sum_ref, chunk_top_ref = refs if len(refs) == 4 else (None, *refs, None)
    rows, codes = logits_ref.shape
    lane = lax.broadcasted_iota(jnp.int32, (rows, _LANES), 1)
    chunk = lax.broadcasted_iota(jnp.int32, (rows, codes // CHUNK), 1)
    top = jnp.full((rows, _LANES), NEG_INF, jnp.float32)
    total = jnp.zeros((rows, _LANES), jnp.float32)
    chunk_top = jnp.full((rows, codes // CHUNK), NEG_INF, jnp.float32)
    for group in range(codes // _LANES):
        values = logits_ref[:, group * _LANES : (group + 1) * _LANES]
        if words_ref is not None:
            first = group * _WORDS
            word = words_ref[:, first : first + 1]
            for number in range(1, _WORDS):
                word = jnp.where(lane >= number * CHUNK, words_ref[:, first + number : first + number + 1], word)
            masked = jnp.where((word >> (lane & 31)) & 1 != 0, values, NEG_INF)
            for number in range(_WORDS):
                own = jnp.where(lane >> 5 == number, masked, NEG_INF)
                chunk_top = jnp.where(chunk == first + number, own.max(1, keepdims=True), chunk_top)
            values = values if full else masked
        higher = jnp.maximum(top, values)
        shift = jnp.where(higher == NEG_INF, 0.0, higher)
        total = total * jnp.exp(top - shift) + jnp.exp(values - shift)
        top = higher
    row_top = top.max(1, keepdims=True)
    shift = jnp.where(row_top == NEG_INF, 0.0, row_top)
    top_ref[:, :] = row_top
    sum_ref[:, :] = (total * jnp.exp(top - shift)).sum(1, keepdims=True)
    if chunk_top_ref is not None:
        chunk_top_ref[:, :] = chunk_top


def _combined(top_NR: Array, sum_NR: Array) -> Array:
    """Return the log-sum-exp of rows whose blocks have these maxima and sums."""
    top_R = top_NR.max(0)
    shift_R = jnp.where(top_R == NEG_INF, 0.0, top_R)
    return shift_R + jnp.log((sum_NR * jnp.exp(top_NR - shift_R)).sum(0))
