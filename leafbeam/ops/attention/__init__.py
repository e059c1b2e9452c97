"""Attention of many beams over one shared prompt and over their own few codes, in plain torch; `triton` has it for a GPU."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.ops.attention.reference import (
        attend,
        causal_suffix_attention,
        extend_ancestors,
        merge,
        prefix_attention,
        suffix_attention,
    )

__all__ = ["attend", "causal_suffix_attention", "extend_ancestors", "merge", "prefix_attention", "suffix_attention"]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
