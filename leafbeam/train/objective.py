"""The forward pass of training for each architecture.

Shapes: B windows, T items of each, P predicted items of each, L levels, D hidden, S tokens.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from leafbeam.model import AnyModel, EncoderDecoder

__all__ = ["Predictions", "predict"]


class Predictions(NamedTuple):
    """Hidden states before each code of the last P items of each window, and the router loss (0 without experts)."""

    hidden_BPLD: Tensor
    router_loss: Tensor


def predict(model: AnyModel, tokens_BTL: Tensor, dropout: torch.Generator, users_B: Tensor | None = None) -> Predictions:
    """One forward pass. users_B: the user tokens, for a vocabulary that has them.

    A decoder predicts every item of a window from those before it (P = T); an encoder-decoder predicts the last item from
    the others (P = 1), as in TIGER.
    """
    B, T, L = tokens_BTL.shape
    start = [tokens_BTL.new_full((B, 1), model.vocabulary.bos)]
    if users_B is not None:
        start.append(users_B[:, None])
    prompt_BS = torch.cat((*start, tokens_BTL.reshape(B, T * L)[:, :-1]), dim=1)
    if not isinstance(model, EncoderDecoder):
        hidden_BSD = model(prompt_BS, dropout=dropout)[:, len(start) - 1 :]
        return Predictions(hidden_BSD.reshape(B, T, L, -1), hidden_BSD.new_zeros(()))
    losses: list[Tensor] = []
    history_BS = prompt_BS[:, : len(start) + (T - 1) * L]
    hidden_BLD = model(history_BS, tokens_BTL[:, -1, :-1], dropout=dropout, balance=losses)
    router_loss = torch.stack(losses).mean() * model.config.router_aux_loss_coef if losses else hidden_BLD.new_zeros(())
    return Predictions(hidden_BLD[:, None], router_loss)
