"""Constrained beam search in one compiled JAX function, on one device or over a mesh of them.

    for each level: (carry, logits) = step_fn(carry, codes, parents, level); beams = extend(logits)

The rounds are unrolled, because each level of an index has sizes of its own. Over a mesh the batch is split and the index is
whole on every device: each searches its own requests, without communication.

Shapes: S segments, B requests, K beams, V codes of a level, L levels, D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from leafbeam.decode.boosts import check_boosts, root_boosts, shared_leaves, with_more_leaves
from leafbeam.decode.bound import search_until_proved
from leafbeam.decode.config import SearchConfig, beams_of_search, end_code_of, first_width
from leafbeam.decode.constraint import BatchBoosts, Cut, TrieConstraint, decode, raise_first_bad
from leafbeam.decode.model_calls import ModelCalls
from leafbeam.decode.results import BatchFilters, DenyLists, SearchResult, check_batch, collect_items, root_ranges
from leafbeam.errors import ArgumentError, counted
from leafbeam.extras import optional_imports
from leafbeam.index import Filter, ItemColumn, Trie, Version
from leafbeam.ops.constrain import Beams, Boosts, Scoring

with optional_imports("JaxBeamSearch"):
    import jax
    import jax.numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

from leafbeam.ops.constrain.fixed_shape import jax as ops
from leafbeam.ops.constrain.fixed_shape import step as fixed_step
from leafbeam.ops.constrain.namespaces import ArrayNamespace

Array = jax.Array
JaxStepFn = Callable[[Any, Array | None, Array | None, int], tuple[Any, Array]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class JaxResult:
    """The leaves that a search found, on the device, best first; beyond `num_valid_B` scores are -inf and all else is 0.

    scores_BK: float32. codes_BKL: int32. lo_SBK, hi_SBK: int32, the leaf in each segment, (0, 0) where it has none.
    num_valid_B: int32. bad_DL: int32, for each device and level 0, or the number + 1 of a row that held NaN or +inf. bound_B:
    float32, a score that no dropped prefix exceeds, see `SearchResult.bound`.
    """

    scores_BK: Array
    codes_BKL: Array
    lo_SBK: Array
    hi_SBK: Array
    num_valid_B: Array
    bad_DL: Array
    bound_B: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class JaxBatch:
    """Requests ready to be decoded: their filters and boosts on the device, and the version that they are for.

    hi_SB: how many leaves of each segment a request starts from. root_B1: the largest boost of these, 0 without one.
    """

    version: Version
    requests: list[Filter]
    arrays: ops.VersionArrays
    filters: ops.FilterArrays
    hi_SB: Array
    root_B1: Array
    boosts: Boosts = None


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchSplit:
    """The devices over which batches are split.

    Args:
        mesh: A mesh of devices.
        axis: The name of the axis over which a batch is split.
        carry_specs: A pytree of PartitionSpec over `carry` (or a prefix of it); by default every leaf is split by its first
            axis.

    Raises:
        ArgumentError: If the mesh has no such axis.
    """

    mesh: Mesh
    axis: str = "batch"
    carry_specs: Any = None

    def __post_init__(self) -> None:
        if self.axis not in self.mesh.axis_names:
            raise ArgumentError(f"axis is {self.axis!r}: the mesh has {', '.join(map(repr, self.mesh.axis_names))}")


class JaxBeamSearch:
    """Beam search over the Semantic IDs of an index, compiled as a whole; results equal those of `BeamSearch`.

    It compiles once for each step_fn (pass the same function object), batch size and `Capacity`. Another version, filter or
    deny list runs the compiled code, until a size has doubled (docs/how-to/jax.md).

    Args:
        index: A trie, or a version of a live index.
        num_beams: As for `BeamSearch`.
        scoring: As for `BeamSearch`.
        num_items: As for `BeamSearch`. Each pass of a proof is compiled once: for 20 items the passes keep 40, 160 and 512
            prefixes of a level.
        max_rows: As for `BeamSearch`.
        delta_leaves: The number of leaves of a delta for which to leave space, if changes will come.
        max_filters: The largest number of distinct filters in a batch.
        split: The devices over which batches are split; None runs on one.
        kernels: What reads the logits of a step. "xla" leaves it to XLA. "pallas" is a kernel of our own, for TPUs and NVIDIA
            GPUs, that reads them once; a CPU interprets it, slowly.

    Examples:
        >>> search = JaxBeamSearch(index, num_items=10)
        >>> result = search.run(step_fn, carry, batch_size=2, filters=[fresh, None])
    """

    def __init__(
        self,
        index: Trie | Version,
        num_beams: int | Sequence[int] | None = None,
        scoring: Scoring = "full",
        *,
        num_items: int | None = None,
        max_rows: int = 512,
        delta_leaves: int = 0,
        max_filters: int = 1,
        split: BatchSplit | None = None,
        kernels: ops.Kernels = "xla",
    ) -> None:
        version = Version.of(index)
        beams = beams_of_search(version.num_levels, num_beams, num_items, max_rows)
        self._max_rows = max_rows
        self._widest = SearchConfig.fixed(version.codebook_sizes, end_code_of(version), beams, scoring)
        self.config, self.num_items, self._proves = self._widest, beams[-1], num_beams is None
        if self._proves:
            width = first_width(1.0, self.num_items, scoring)
            widths = [min(width, limit) for limit in self._widest.num_beams[:-1]]
            self.config = replace(self._widest, num_beams=(*widths, self.num_items))
        self._split = split
        device = None if split is None else NamedSharding(split.mesh, PartitionSpec())
        self.version = version
        options: dict[str, Any] = {"delta_leaves": delta_leaves, "num_filters": max_filters, "kernels": kernels}
        self.arrays = ops.bind(version, device, **options)

    def __repr__(self) -> str:
        config = self.config
        return (
            f"JaxBeamSearch({counted(self.version.num_items, 'item')}, num_beams={config.num_beams}, "
            f"scoring={config.scoring!r})"
        )

    def for_version(self, index: Trie | Version) -> JaxBeamSearch:
        """Return the same search on another version.

        What has not changed is not copied again, and this search stays as it is.
        """
        version, config = Version.of(index), self.config
        if version.codebook_sizes != config.code_sizes or end_code_of(version) != config.end_code:
            found = f"codebooks {version.codebook_sizes} and end code {end_code_of(version)}"
            expected = f"another version of one with {config.code_sizes} and {config.end_code}"
            raise ArgumentError(f"the index has {found}: expected {expected}")
        other = copy(self)
        other.version, other.arrays = version, ops.bind(version, like=self.arrays)
        return other

    def run(
        self,
        step_fn: JaxStepFn,
        carry: Any,
        batch_size: int = 1,
        filters: BatchFilters = None,
        deny: DenyLists = None,
        *,
        boosts: ItemColumn | Sequence[ItemColumn | None] | None = None,
    ) -> SearchResult:
        """Call `prepare`, `decode` and `items`.

        Args:
            step_fn: `step_fn(carry, codes_BK, parents_BK, level)` returns (carry, logits). It is a pure function that JAX can
                trace; `level` is a Python number. Codes and parents are int32, otherwise they and the logits are as for
                `BeamSearch.run`.
            carry: Any pytree. It holds the model's weights, because what step_fn closes over becomes a constant of the compiled
                code.
            batch_size: As for `BeamSearch.run`.
            filters: As for `BeamSearch.run`.
            deny: As for `BeamSearch.run`.
            boosts: As for `BeamSearch.run`. The first batch with boosts compiles again.

        Raises:
            ArgumentError: If the arguments contradict each other or the capacity.
            ForeignFilterError: If a filter was made for another index.
            LogitsError: If the model gave NaN or +inf.
        """
        batch = self.prepare(batch_size, filters, deny, boosts=boosts)

        def search(config: SearchConfig, _: Cut | None) -> SearchResult:
            return self._items(batch, self._decode(step_fn, carry, batch, config), config)

        if not self._proves:
            return search(self.config, None)
        widths_BL = np.tile(self.config.num_beams[:-1], (batch_size, 1))
        limits = self._widest
        if batch.boosts is not None:
            # The number of leaves would be another one for each version, and compiled anew.
            most = max(self._max_rows, self.num_items) if shared_leaves(self.version) else 0
            limits = with_more_leaves(limits, most, self._max_rows)
        return search_until_proved(limits, search, widths_BL, num_items=self.num_items)

    def prepare(
        self,
        batch_size: int,
        filters: BatchFilters = None,
        deny: DenyLists = None,
        *,
        boosts: ItemColumn | Sequence[ItemColumn | None] | None = None,
    ) -> JaxBatch:
        """Check a batch's filters and boosts, and send those that are new to the device.

        Raises:
            ArgumentError: If the arguments do not fit.
            ForeignFilterError: If a filter was made for another index.
        """
        num_devices = 1 if self._split is None else self._split.mesh.shape[self._split.axis]
        if batch_size % num_devices:
            raise ArgumentError(f"batch_size is {batch_size}: expected a multiple of {num_devices}, the devices that share it")
        requests = check_batch(self.version, batch_size, filters, deny)
        columns = check_boosts(self.version, batch_size, boosts)
        hi_SB = np.zeros((len(self.arrays.layouts), batch_size), np.int32)
        hi_SB[: len(self.version.segments)] = root_ranges(self.version, requests)[1][:, :, 0]
        root_B1 = np.zeros((batch_size, 1), np.float32)
        if columns is not None:
            root_B1 = root_boosts(self.version, columns, hi_SB[: len(self.version.segments)])
        return JaxBatch(
            version=self.version,
            requests=requests,
            arrays=self.arrays,
            filters=ops.bind_filters(self.arrays, requests, columns),
            hi_SB=jnp.asarray(hi_SB),
            root_B1=jnp.asarray(root_B1),
            boosts=columns,
        )

    def decode(self, step_fn: JaxStepFn, carry: Any, batch: JaxBatch) -> JaxResult:
        """Run one pass of the compiled search, and return at once with arrays that the device still computes."""
        return self._decode(step_fn, carry, batch, self.config)

    def _decode(self, step_fn: JaxStepFn, carry: Any, batch: JaxBatch, config: SearchConfig) -> JaxResult:
        arguments = batch.arrays.levels, batch.filters.levels, batch.hi_SB, batch.root_B1, carry
        xp = batch.arrays.xp
        if self._split is None:
            return search(*arguments, step_fn=step_fn, config=config, xp=xp)
        mesh, axis = self._split.mesh, self._split.axis
        whole_specs = PartitionSpec(axis) if self._split.carry_specs is None else self._split.carry_specs
        carry_specs = jax.tree.broadcast(whole_specs, carry, is_leaf=_is_spec)
        specs = (filter_specs(batch.filters.levels, axis), PartitionSpec(None, axis), PartitionSpec(axis), carry_specs)
        levels, *split = arguments
        placed = [
            jax.tree.map(lambda array, spec, mesh=mesh: jax.device_put(array, NamedSharding(mesh, spec)), tree, spec)
            for tree, spec in zip(split, specs, strict=True)
        ]
        leaves = tuple(jax.tree.leaves(carry_specs, is_leaf=_is_spec))
        return search(levels, *placed, step_fn=step_fn, config=config, xp=xp, split=(mesh, axis, leaves))

    def items(self, batch: JaxBatch, result: JaxResult) -> SearchResult:
        """Turn leaves into items on the host. This waits for the device.

        Raises:
            LogitsError: If the model gave NaN or +inf.
        """
        return self._items(batch, result, self.config)

    def _items(self, batch: JaxBatch, result: JaxResult, config: SearchConfig) -> SearchResult:
        found = jax.device_get(result)
        raise_first_bad(found.bad_DL, config.rows_of_rounds, len(batch.requests) // len(found.bad_DL))
        num_segments = len(batch.version.segments)
        ranges = found.lo_SBK[:num_segments].astype(np.int64), found.hi_SBK[:num_segments].astype(np.int64)
        num_valid_B = found.num_valid_B.astype(np.int64)
        found_items = ranges, found.scores_BK, num_valid_B, self.num_items
        items = collect_items(batch.version, batch.requests, *found_items, boosts=batch.boosts)
        return replace(items, bound=found.bound_B)


def beam_search(
    levels: Sequence[tuple[ops.LevelArrays, ...]],
    filters: Sequence[tuple[ops.LevelFilters, ...]],
    hi_SB: Array,
    root_B1: Array,
    step_fn: JaxStepFn,
    carry: Any,
    *,
    config: SearchConfig,
    xp: ArrayNamespace,
) -> JaxResult:
    """Run the whole search, inside a traced function. hi_SB, root_B1: as in `JaxBatch`. xp: of the bound version,
    `arrays.xp`."""
    level = -1

    def call_model(codes_BK: Array | None, parents_BK: Array | None) -> Array:
        nonlocal carry, level
        level += 1
        carry, logits = step_fn(carry, codes_BK, parents_BK, level)
        return logits

    def launch(level: int, beams: Beams[Array], logits_BKV: Any, num_beams: int) -> tuple[Beams[Array], Array]:
        arguments = (levels[level], filters[level], beams, logits_BKV)
        return fixed_step.extend(xp, *arguments, num_beams=num_beams, scoring=config.scoring)

    constraint = TrieConstraint(config, hi_SB, launch, boosts=BatchBoosts(columns=(), root_B1=root_B1))
    trace = decode(constraint, ModelCalls(call_model), watch=False)
    beams = trace.beams
    return JaxResult(
        scores_BK=beams.scores,
        codes_BKL=jnp.where((beams.scores > -jnp.inf)[:, :, None], trace.codes(), 0),
        lo_SBK=beams.lo,
        hi_SBK=beams.hi,
        num_valid_B=beams.num_valid,
        bad_DL=fixed_step.first_bad_rows(xp, constraint.bad_T)[None],
        bound_B=trace.bound(config.num_rounds - (filters[0][0].boosts is None)),  # as in `beam_search.result_of`
    )


@partial(jax.jit, static_argnames=("step_fn", "config", "xp", "split"))
def search(
    levels: tuple[tuple[ops.LevelArrays, ...], ...],
    filters: tuple[tuple[ops.LevelFilters, ...], ...],
    hi_SB: Array,
    root_B1: Array,
    carry: Any,
    *,
    step_fn: JaxStepFn,
    config: SearchConfig,
    xp: ArrayNamespace,
    split: tuple[Mesh, str, tuple[PartitionSpec, ...]] | None = None,
) -> JaxResult:
    """Run `beam_search`, compiled. split: mesh, axis and specs of the carry; each device then searches for its own
    requests."""

    def whole_search(levels: Any, filters: Any, hi_SB: Array, root_B1: Array, carry: Any) -> JaxResult:
        return beam_search(levels, filters, hi_SB, root_B1, step_fn, carry, config=config, xp=xp)

    if split is None:
        return whole_search(levels, filters, hi_SB, root_B1, carry)
    mesh, axis, carry_specs = split
    first, second = PartitionSpec(axis), PartitionSpec(None, axis)
    level_specs = jax.tree.map(lambda _: PartitionSpec(), levels)
    carry_tree = jax.tree.unflatten(jax.tree.structure(carry), carry_specs)
    specs: dict[str, Any] = dict.fromkeys(("scores_BK", "codes_BKL", "num_valid_B", "bad_DL", "bound_B"), first)
    specs |= {"lo_SBK": second, "hi_SBK": second}
    split_search = jax.shard_map(
        whole_search,
        mesh=mesh,
        in_specs=(level_specs, filter_specs(filters, axis), second, first, carry_tree),
        out_specs=JaxResult(**specs),
        axis_names={axis},
        check_vma=False,  # the interpreter of Pallas does not say what differs between devices
    )
    return split_search(levels, filters, hi_SB, root_B1, carry)


def filter_specs(filters: Any, axis: str) -> Any:
    """Return how filters are spread over a mesh: arrays over requests are split, and each device has the whole cache."""
    by_request = ("slot_B", "weight_B", "denied_BD", "dead_BD3")
    whole, split = PartitionSpec(), PartitionSpec(axis)
    return jax.tree.map_with_path(lambda path, _: split if path[-1].name in by_request else whole, filters)


def _is_spec(node: Any) -> bool:
    return isinstance(node, PartitionSpec)
