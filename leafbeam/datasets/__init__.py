"""Synthetic data: a shop with items, attributes and learnable interactions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.datasets.shop import Shop, make_shop

__all__ = ["Shop", "make_shop"]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
