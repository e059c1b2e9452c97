"""Decoding: turns a model's logits into ranked items of an index, or sequences of a language. Knows no transformer."""

from pleach.decode.beam import BeamSearch
from pleach.decode.sample import Sampler
from pleach.decode.search import SearchResult, StepFn
from pleach.decode.sequence import SequenceResult, SequenceSearch

__all__ = ["BeamSearch", "Sampler", "SearchResult", "SequenceResult", "SequenceSearch", "StepFn"]
