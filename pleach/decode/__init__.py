"""Decoding: turns a model's logits into ranked items of an index. Knows ranges and scores, no transformer."""

from pleach.decode.beam import BeamSearch
from pleach.decode.sample import Sampler
from pleach.decode.search import SearchResult, StepFn

__all__ = ["BeamSearch", "Sampler", "SearchResult", "StepFn"]
