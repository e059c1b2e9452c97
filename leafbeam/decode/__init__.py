"""Decoding: turns a model's logits into ranked items of an index, or sequences of a language. Knows no transformer."""

from leafbeam.decode.beam_search import BeamSearch
from leafbeam.decode.results import SearchResult, StepFn
from leafbeam.decode.sample import Sampler
from leafbeam.decode.sequence_search import SequenceResult, SequenceSearch

__all__ = ["BeamSearch", "Sampler", "SearchResult", "SequenceResult", "SequenceSearch", "StepFn"]
