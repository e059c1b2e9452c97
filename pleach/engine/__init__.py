"""Requests in, items out: the one room where model, search, catalogue and index meet."""

from pleach.engine.batcher import Batcher
from pleach.engine.engine import Engine, name_of
from pleach.engine.request import ItemId, Limits, Request, Result, Scoring, Timings

__all__ = ["Batcher", "Engine", "ItemId", "Limits", "Request", "Result", "Scoring", "Timings", "name_of"]
