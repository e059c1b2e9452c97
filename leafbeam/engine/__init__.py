"""The engine: queues requests, runs them in batches through model and constrained search, and returns items."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.engine.batcher import Batch, Batcher, QueueEntry, RequestSize
    from leafbeam.engine.capacity import BatchSize, Capacity
    from leafbeam.engine.catalog_files import CatalogFiles
    from leafbeam.engine.counts import COUNTERS, Counts
    from leafbeam.engine.decoder import Model
    from leafbeam.engine.engine import Engine
    from leafbeam.engine.latency_model import LatencyFit, LatencyModel
    from leafbeam.engine.request import ItemId, Limits, Request, Result, Scoring, Timings, UserId
    from leafbeam.engine.results import version_name
    from leafbeam.engine.scheduler import Load
    from leafbeam.engine.settings import Settings

__all__ = [
    "COUNTERS",
    "Batch",
    "BatchSize",
    "Batcher",
    "Capacity",
    "CatalogFiles",
    "Counts",
    "Engine",
    "ItemId",
    "LatencyFit",
    "LatencyModel",
    "Limits",
    "Load",
    "Model",
    "QueueEntry",
    "Request",
    "RequestSize",
    "Result",
    "Scoring",
    "Settings",
    "Timings",
    "UserId",
    "version_name",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "COUNTERS": ".counts",
            "Batch": ".batcher",
            "BatchSize": ".capacity",
            "Batcher": ".batcher",
            "Capacity": ".capacity",
            "CatalogFiles": ".catalog_files",
            "Counts": ".counts",
            "Engine": ".engine",
            "ItemId": ".request",
            "LatencyFit": ".latency_model",
            "LatencyModel": ".latency_model",
            "Limits": ".request",
            "Load": ".scheduler",
            "Model": ".decoder",
            "QueueEntry": ".batcher",
            "Request": ".request",
            "RequestSize": ".batcher",
            "Result": ".request",
            "Scoring": ".request",
            "Settings": ".settings",
            "Timings": ".request",
            "UserId": ".request",
            "version_name": ".results",
        },
    )
