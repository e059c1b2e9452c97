"""Requests in, items out: the one room where model, search, catalogue and index meet."""

from pleach.engine.batcher import Batch, Batcher, Waiting
from pleach.engine.capacity import BatchSize, Capacity
from pleach.engine.counts import KINDS, Counts
from pleach.engine.decoder import Model
from pleach.engine.engine import Engine, name_of
from pleach.engine.request import ItemId, Limits, Request, Result, Scoring, Timings, UserId
from pleach.engine.scheduler import Load
from pleach.engine.settings import Settings
from pleach.engine.steptime import Fit, StepTime

__all__ = [
    "KINDS",
    "Batch",
    "BatchSize",
    "Batcher",
    "Capacity",
    "Counts",
    "Engine",
    "Fit",
    "ItemId",
    "Limits",
    "Load",
    "Model",
    "Request",
    "Result",
    "Scoring",
    "Settings",
    "StepTime",
    "Timings",
    "UserId",
    "Waiting",
    "name_of",
]
