"""The engine: queues requests, runs them in batches through model and constrained search, and returns items."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.engine.catalog_files import CatalogFiles
    from leafbeam.engine.counts import COUNTERS, Counts
    from leafbeam.engine.decoder import Model
    from leafbeam.engine.engine import Engine
    from leafbeam.engine.request import Channel, ItemId, Request, Result, Scoring, Timings, UserId
    from leafbeam.engine.settings import Limits, Settings
    from leafbeam.engine.tuning import PrecisionReport, Tuning
    from leafbeam.engine.worker import SlowBatch
    from leafbeam.precision import Precision

__all__ = [
    "COUNTERS",
    "CatalogFiles",
    "Channel",
    "Counts",
    "Engine",
    "ItemId",
    "Limits",
    "Model",
    "Precision",
    "PrecisionReport",
    "Request",
    "Result",
    "Scoring",
    "Settings",
    "SlowBatch",
    "Timings",
    "Tuning",
    "UserId",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
