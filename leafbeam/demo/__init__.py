"""`leafbeam demo`: the commands from a log to a running server, and checks of its answers in SQL."""

from typing import TYPE_CHECKING

from leafbeam.extras import lazy_exports

if TYPE_CHECKING:
    from leafbeam.demo.pipeline import Demo

__all__ = ["Demo"]
__getattr__, __dir__ = lazy_exports(__name__, {"Demo": ".pipeline"})
