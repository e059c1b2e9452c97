"""Constrained beam search in one compiled JAX function, on one device or over a mesh of them.

Over a mesh the batch is split and the index is whole on every device: each searches its own requests, none waits for another.

Shapes: S segments, B requests, K beams, V codes of a level, L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.results import SearchResult, check_batch, collect_items, root_ranges
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.extras import optional_imports
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds
from leafbeam.ops.constrain import RequestFilter, Scoring

with optional_imports("JaxBeamSearch"):
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

from leafbeam.decode.jax_rounds import NOT_BAD, JaxStepFn, Plan, Ranked, beam_search, filter_specs, search
from leafbeam.ops.constrain.fixed_shape.jax import FilterArrays, FilterCache, VersionArrays, bind

__all__ = ["JaxBatch", "JaxBeamSearch", "JaxStepFn", "Ranked", "beam_search"]


@dataclass(frozen=True, kw_only=True, eq=False)
class JaxBatch:
    """Requests ready to be decoded: their filters on the device, and what turns leaves into items. It pins its version."""

    version: Version
    requests: list[tuple[RequestFilter, ...]]
    arrays: VersionArrays
    filters: FilterArrays
    hi_SB: NDArray[np.int32]


class JaxBeamSearch:
    """Beam search over the Semantic IDs of an index, compiled as a whole; results equal those of `BeamSearch`.

    step_fn(carry, codes_BK, parents_BK, level) -> (carry, logits): a pure function that JAX can trace. `carry` is any pytree:
    the model's weights and caches. The first call passes None for codes and parents and expects (B, V) logits; each later one
    passes int32 arrays, the code that every beam just took and the beam that it extends (dead beams: 0), and expects
    (B, K, V). `level` is a Python number.

    Compiles once for each step_fn (pass the same function object, not a new lambda), batch size and `Capacity`; another
    version, filter or deny list runs what is there, until a size has doubled (see docs/jax.md). Weights belong in `carry`: what
    step_fn closes over becomes a constant of the compiled code.

    delta_leaves: space for a delta of so many leaves, where changes are to come. mesh: split the batch over its axis `axis`;
    carry_specs: a pytree of PartitionSpec over `carry` (or a prefix of it), by default every leaf is split by its first axis.

    >>> search = JaxBeamSearch(index, num_beams=70)
    >>> result = search.run(step_fn, carry, batch_size=2, filters=[fresh, None])
    """

    def __init__(
        self,
        index: Trie | Version,
        num_beams: int | Sequence[int] = 20,
        scoring: Scoring = "full",
        *,
        delta_leaves: int = 0,
        max_filters: int = 1,
        mesh: Mesh | None = None,
        axis: str = "batch",
        carry_specs: Any = None,
    ) -> None:
        version = Version.of(index)
        widths = [num_beams] * version.num_levels if isinstance(num_beams, int) else [int(width) for width in num_beams]
        if len(widths) != version.num_levels or min(widths) < 1:
            raise ArgumentError(
                f"num_beams is {num_beams!r}: expected a positive number, or one for each of the {version.num_levels} levels"
            )
        if scoring not in get_args(Scoring):
            raise ArgumentError(f"scoring is {scoring!r}: expected 'full' or 'allowed'")
        if mesh is not None and axis not in mesh.axis_names:
            raise ArgumentError(f"axis is {axis!r}: the mesh has {', '.join(map(repr, mesh.axis_names))}")
        # More beams than prefixes can exist would only be dead weight for the model.
        self.widths = tuple(
            min(width, prod(version.codebook_sizes[: level + 1])) if level + 1 < len(widths) else width
            for level, width in enumerate(widths)
        )
        self.scoring: Scoring = scoring
        self._plan = Plan(widths=self.widths, scoring=scoring, end_code=_end_code(version), mesh=mesh, axis=axis)
        self._carry_specs = PartitionSpec(axis) if carry_specs is None else carry_specs
        self._take(version, bind(version, delta_leaves=delta_leaves), None, max_filters)

    def _take(self, version: Version, arrays: VersionArrays, shelf: FilterCache | None, max_filters: int) -> None:
        place = None if self._plan.mesh is None else NamedSharding(self._plan.mesh, PartitionSpec())
        self.version = version
        self.arrays = arrays if place is None else arrays.placed(place)
        self._shelf = FilterCache(self.arrays, max_filters + 1, place) if shelf is None else shelf.for_version(self.arrays)

    def for_version(self, index: Trie | Version) -> JaxBeamSearch:
        """The same search on another version of the catalog; segments and filters that have not changed are not copied again.

        This one stays as it is: a batch that runs on it is not disturbed. Cost: packing and copying what is new.
        """
        version = Version.of(index)
        if version.codebook_sizes != self.version.codebook_sizes or _end_code(version) != self._plan.end_code:
            raise ArgumentError(
                f"the index has codebooks {version.codebook_sizes}: expected another version of one with "
                f"{self.version.codebook_sizes}, with the same end code"
            )
        other = JaxBeamSearch.__new__(JaxBeamSearch)
        other.widths, other.scoring, other._plan, other._carry_specs = self.widths, self.scoring, self._plan, self._carry_specs
        other._take(version, bind(version, like=self.arrays), self._shelf, 0)
        return other

    def run(
        self,
        step_fn: JaxStepFn,
        carry: Any,
        batch_size: int = 1,
        filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None = None,
        deny: Sequence[ItemIds | None] | None = None,
    ) -> SearchResult:
        """Decode a batch of requests to items: `prepare`, `decode` and `items` in one call; filters and deny as for BeamSearch.

        Raises ArgumentError, ForeignFilterError, LogitsError.
        """
        batch = self.prepare(batch_size, filters, deny)
        return self.items(batch, self.decode(step_fn, carry, batch))

    def prepare(
        self,
        batch_size: int,
        filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None = None,
        deny: Sequence[ItemIds | None] | None = None,
    ) -> JaxBatch:
        """Check a batch's filters and send what is new of them to the device. Raises ArgumentError, ForeignFilterError."""
        plan = self._plan
        if plan.mesh is not None and batch_size % plan.mesh.shape[plan.axis]:
            raise ArgumentError(
                f"batch_size is {batch_size}: expected a multiple of {plan.mesh.shape[plan.axis]}, the devices that share it"
            )
        requests = check_batch(self.version, batch_size, filters, deny)
        hi_SB = np.zeros((len(self.arrays.layouts), batch_size), np.int32)
        hi_SB[: len(self.version.segments)] = root_ranges(self.version, requests)[1][:, :, 0]
        return JaxBatch(
            version=self.version,
            requests=requests,
            arrays=self.arrays,
            filters=self._shelf.bind(requests),
            hi_SB=hi_SB,
        )

    def decode(self, step_fn: JaxStepFn, carry: Any, batch: JaxBatch) -> Ranked:
        """Run the compiled search; returns at once, with arrays that the device is still working on."""
        plan, specs = self._plan, self._carry_specs
        if plan.mesh is None:
            return search(batch.arrays.levels, batch.filters.levels, batch.hi_SB, carry, step_fn=step_fn, plan=plan)
        mesh = plan.mesh

        def placed(tree: Any, specs: Any) -> Any:
            return jax.tree.map(lambda one, spec: jax.device_put(one, NamedSharding(mesh, spec)), tree, specs)

        carry_specs = jax.tree.broadcast(specs, carry, is_leaf=_is_spec)
        return search(
            batch.arrays.levels,
            placed(batch.filters.levels, filter_specs(batch.filters.levels, plan.axis)),
            placed(batch.hi_SB, PartitionSpec(None, plan.axis)),
            placed(carry, carry_specs),
            step_fn=step_fn,
            plan=plan,
            carry_specs=tuple(jax.tree.leaves(carry_specs, is_leaf=_is_spec)),
        )

    def items(self, batch: JaxBatch, ranked: Ranked) -> SearchResult:
        """Turn leaves into items on the host; waits for the device. Raises LogitsError where the model gave NaN or +inf."""
        found = jax.device_get(ranked)
        bad = np.flatnonzero(found.bad_B2[:, 0] != NOT_BAD)
        if bad.size:
            level, beam = found.bad_B2[bad[0]].tolist()
            raise LogitsError.not_finite(int(bad[0]), beam, f"at level {level}")
        num_segments = len(batch.version.segments)
        ranges = found.lo_SBK[:num_segments].astype(np.int64), found.hi_SBK[:num_segments].astype(np.int64)
        num_valid = found.num_valid_B.astype(np.int64)
        return collect_items(batch.version, batch.requests, ranges, found.scores_BK, num_valid, self.widths[-1])


def _is_spec(one: Any) -> bool:
    return isinstance(one, PartitionSpec)


def _end_code(version: Version) -> int | None:
    return version.segments[0].trie.end_code
