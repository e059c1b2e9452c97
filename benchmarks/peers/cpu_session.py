"""A session of this engine on another runner, which is how peers replace one part of it."""

from __future__ import annotations

import torch
from torch import Tensor

from leafbeam.model import DecodeSession, Transformer, Workspace
from leafbeam.model.cpu.runner import CpuOptions, CpuRunner

__all__ = ["start_with"]


def start_with(
    runner_class: type[CpuRunner],
    model: Transformer,
    tokens_BT: Tensor,
    lengths_B: Tensor,
    workspace: Workspace | None = None,
    beams: int = 0,
) -> DecodeSession:
    """As `Transformer.start`, float32 on a CPU, with this class of runner."""
    weight, vocabulary = model.head_weight, model.vocabulary
    with torch.inference_mode():
        options = CpuOptions(workspace=workspace, beams=beams)
        runner = runner_class(model.model, weight, vocabulary, tokens_BT, lengths_B, options)
    return DecodeSession(runner, vocabulary, lengths_B)
