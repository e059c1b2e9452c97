"""`leafbeam demo`: the commands from a log to a running server, and checks of its answers in SQL."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leafbeam.demo.pipeline import Demo

__all__ = ["Demo"]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__, {"Demo": ".pipeline"})
