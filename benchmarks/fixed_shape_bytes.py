"""The bytes that a version and filters of fixed shapes take on a device, padding included."""

from __future__ import annotations

from leafbeam.ops.constrain.fixed_shape.arrays import FilterArrays, VersionArrays

__all__ = ["filter_bytes", "version_bytes"]

_PARTS = {
    "columns": ("column_M",),
    "boundaries": ("boundary_W",),
    "directories": ("directory_M", "ranges_G3"),
    "listings": ("codes_E", "firsts_E"),
}


def version_bytes(arrays: VersionArrays) -> dict[str, int]:
    """Bytes by part."""
    levels = [level for pair in arrays.levels for level in pair]
    return {part: _sum([getattr(level, name) for level in levels for name in names]) for part, names in _PARTS.items()}


def filter_bytes(filters: FilterArrays) -> int:
    """Bytes of a batch's filters and boosts, with those of others in the same cache."""
    levels = [level for pair in filters.levels for level in pair]
    return _sum(
        [array for level in levels for part in (level, level.boosts) if part is not None for array in vars(part).values()]
    )


def _sum(arrays: list[object]) -> int:
    return sum({id(array): getattr(array, "nbytes", 0) for array in arrays}.values())
