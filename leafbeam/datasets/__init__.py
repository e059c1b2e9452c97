"""Synthetic data: a shop with items, attributes and learnable interactions."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.datasets.shop import Shop, make_shop

__all__ = ["Shop", "make_shop"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("leafbeam.datasets.shop"), name)
