"""Decoding: turns a model's logits into ranked items of an index, or into sequences of an automaton."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.decode.beam_search import BeamSearch
    from leafbeam.decode.jax_search import JaxBeamSearch
    from leafbeam.decode.model_calls import StepFn, SuffixFn
    from leafbeam.decode.results import BeamLevel, SearchResult
    from leafbeam.decode.sample import Sampler
    from leafbeam.decode.sampling import Sampling
    from leafbeam.decode.sequence_sampler import SequenceSampler
    from leafbeam.decode.sequence_search import SequenceResult, SequenceRun, SequenceSearch

__all__ = [
    "BeamLevel",
    "BeamSearch",
    "JaxBeamSearch",
    "Sampler",
    "Sampling",
    "SearchResult",
    "SequenceResult",
    "SequenceRun",
    "SequenceSampler",
    "SequenceSearch",
    "StepFn",
    "SuffixFn",
]

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
