"""Models for `Engine` whose attention alone differs: the same weights and the same search, which runs all beams of all levels.

leafbeam's sessions offer an engine more: beams with one item left, and those that can no longer win, are not run. That saves a
model's work under any attention, so neither has it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.peers import paged_encoder_decoder, paged_engine
from leafbeam.errors import ArgumentError
from leafbeam.model import AnyModel, AnyVocabulary, DecodeSession, EncoderDecoder, Workspace

__all__ = ["SESSIONS", "ComparedModel", "own_session", "paged_session"]

Session = Callable[[AnyModel, torch.Tensor, torch.Tensor, Workspace], DecodeSession]


@dataclass(frozen=True, kw_only=True, slots=True)
class AllBeams:
    """A session's decode steps, and nothing that would spare any of them."""

    step_fn: Callable[..., Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedModel:
    """What an engine needs of a model (`leafbeam.engine.Model`), float32 on a CPU, for one worker: buffers are of one batch.

    session: one of SESSIONS.

    >>> Engine(ComparedModel(model=model, session=paged_session), trie)     # doctest: +SKIP
    """

    model: AnyModel
    session: Session
    workspace: Workspace = field(default_factory=Workspace)

    def __post_init__(self) -> None:
        weight = self.model.head_weight
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            raise ArgumentError(f"both run in float32 on a CPU, the model is {weight.dtype} on {weight.device}")

    @property
    def vocabulary(self) -> AnyVocabulary:
        return self.model.vocabulary

    @property
    def config(self) -> Any:
        return self.model.config

    @property
    def device(self) -> torch.device:
        return self.model.device

    def start(self, tokens_BT: torch.Tensor, lengths_B: torch.Tensor | None = None) -> AllBeams:
        """Prefill or encode."""
        if lengths_B is None:
            lengths_B = torch.full((len(tokens_BT),), tokens_BT.shape[1])
        return AllBeams(step_fn=self.session(self.model, tokens_BT, lengths_B, self.workspace).step_fn)


def own_session(model: AnyModel, tokens_BT: torch.Tensor, lengths_B: torch.Tensor, workspace: Workspace) -> DecodeSession:
    """leafbeam's: all beams read the prompt together."""
    if isinstance(model, EncoderDecoder):
        return model.start(tokens_BT, lengths_B)
    return model.start(tokens_BT, lengths_B, workspace=workspace)


def paged_session(model: AnyModel, tokens_BT: torch.Tensor, lengths_B: torch.Tensor, workspace: Workspace) -> DecodeSession:
    """PagedAttention: each beam reads its pages."""
    if isinstance(model, EncoderDecoder):
        return paged_encoder_decoder.start(model, tokens_BT, lengths_B)
    return paged_engine.start(model, tokens_BT, lengths_B, workspace)


SESSIONS: Mapping[str, Session] = {"leafbeam": own_session, "paged_attention": paged_session}
