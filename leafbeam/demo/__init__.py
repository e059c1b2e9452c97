"""`leafbeam demo`: the commands from a log to a running server, and checks of its answers in SQL."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.demo.pipeline import Demo

__all__ = ["Demo"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("leafbeam.demo.pipeline"), name)
