"""Requests in, items out: the one room where model, search, catalog and index meet."""

from leafbeam.engine.batcher import Batch, Batcher, Waiting
from leafbeam.engine.capacity import BatchSize, Capacity
from leafbeam.engine.counts import KINDS, Counts
from leafbeam.engine.decoder import Model
from leafbeam.engine.engine import Engine, name_of
from leafbeam.engine.latency_model import LatencyFit, LatencyModel
from leafbeam.engine.request import ItemId, Limits, Request, Result, Scoring, Timings, UserId
from leafbeam.engine.scheduler import Load
from leafbeam.engine.settings import Settings

__all__ = [
    "KINDS",
    "Batch",
    "BatchSize",
    "Batcher",
    "Capacity",
    "Counts",
    "Engine",
    "ItemId",
    "LatencyFit",
    "LatencyModel",
    "Limits",
    "Load",
    "Model",
    "Request",
    "Result",
    "Scoring",
    "Settings",
    "Timings",
    "UserId",
    "Waiting",
    "name_of",
]
