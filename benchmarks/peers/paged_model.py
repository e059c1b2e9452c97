"""A model for `Engine` that runs with PagedAttention: the same weights, the peer's keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.peers import paged_encoder_decoder, paged_engine
from leafbeam.errors import ArgumentError
from leafbeam.model import AnyModel, AnyVocabulary, DecodeSession, EncoderDecoder, Workspace

__all__ = ["PagedModel"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PagedRounds:
    """A session's decode steps, which run every beam of every level, as xGR's and vLLM's do."""

    step_fn: Callable[..., Any]
    suffix_fn: Callable[..., Any]

    @classmethod
    def of(cls, session: DecodeSession) -> PagedRounds:
        return cls(step_fn=session.step_fn, suffix_fn=session.suffix_fn)


@dataclass(frozen=True, kw_only=True, eq=False)
class PagedModel:
    """What an engine needs of a model (`leafbeam.engine.Model`), float32 on a CPU, for one worker: buffers are of one batch.

    >>> Engine(PagedModel(model=model), trie)     # doctest: +SKIP
    """

    model: AnyModel
    workspace: Workspace = field(default_factory=Workspace)

    def __post_init__(self) -> None:
        weight = self.model.head_weight
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise ArgumentError(f"pages are read in float32 on a CPU, the model is {weight.dtype} on {weight.device}")

    @property
    def vocabulary(self) -> AnyVocabulary:
        return self.model.vocabulary

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return self.model.device

    def start(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor | None = None) -> PagedRounds:
        """Prefill or encode, and write the pages."""
        if lengths_B is None:
            lengths_B = torch.full((len(tokens_BT),), tokens_BT.shape[1])
        if isinstance(self.model, EncoderDecoder):
            return PagedRounds.of(paged_encoder_decoder.start(self.model, tokens_BT, lengths_B))
        return PagedRounds.of(paged_engine.start(self.model, tokens_BT, lengths_B, self.workspace))
