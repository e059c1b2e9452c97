"""Synthetic data: a shop with items, attributes and learnable interactions."""

from leafbeam.extras import optional_imports

with optional_imports("leafbeam.datasets"):
    from leafbeam.datasets.shop import Shop, make_shop

__all__ = ["Shop", "make_shop"]
