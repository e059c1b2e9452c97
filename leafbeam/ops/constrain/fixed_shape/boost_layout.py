"""Host layout of a request's boost: the largest number below each prefix, where a step finds the prefixes of its level.

    short range: the number of a child stands at its first leaf
    long range:  the number of a child stands at its entry, and the largest of a range at the range's number

Shapes: M leaves, G long ranges, E their children (entries).
"""

import numpy as np
from numpy.typing import NDArray

from leafbeam.index.node_maxima import NodeMaxima
from leafbeam.ops.constrain.fixed_shape.capacity import SHORT, SegmentCapacity
from leafbeam.ops.constrain.fixed_shape.layout import SegmentLayout


def boost_values(
    segment: SegmentLayout, maxima: NodeMaxima | None, capacity: SegmentCapacity
) -> dict[str, NDArray[np.float32]]:
    """Return a boost's numbers, padded to `capacity` with 0; None is 0 everywhere.

    leaves_M{t}, entries_E{t}, ranges_G{t}: float32, for each level t that has such ranges. Cost: a pass over the leaves for
    each level.
    """
    arrays: dict[str, NDArray[np.float32]] = {}
    for t, (level, sizes) in enumerate(zip(segment.levels, capacity.levels, strict=True)):
        if sizes.short:
            leaves_M = arrays[f"leaves_M{t}"] = np.zeros(capacity.leaves + SHORT, np.float32)
            if maxima is not None and level.num_leaves:
                firsts = level.source.firsts
                leaves_M[slice(level.num_leaves) if firsts is None else firsts] = maxima.levels[t]
        if sizes.ranges:
            entries_E = arrays[f"entries_E{t}"] = np.zeros(sizes.entries + sizes.width, np.float32)
            ranges_G = arrays[f"ranges_G{t}"] = np.zeros(sizes.ranges, np.float32)
            if maxima is not None and len(level.lo_G):
                of_children = maxima.at(segment.trie, t, level.firsts_E.astype(np.int64))
                entries_E[: len(of_children)] = of_children
                ranges_G[: len(level.lo_G)] = np.maximum.reduceat(of_children, level.indptr_G1[:-1])
    return arrays
