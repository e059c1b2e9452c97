"""What a batch of windows teaches each architecture.

Shapes: B windows, T items of each, P predicted items of each, L levels, D hidden.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from leafbeam.model import AnyModel, EncoderDecoder

__all__ = ["Predictions", "predict"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Predictions:
    """Hidden states before each code of the predicted items, the last P of each window.

    hidden_BPLD: what the head of each level reads. penalty: a scalar for the loss, 0 for a model without experts.
    """

    hidden_BPLD: Tensor
    penalty: Tensor


def predict(model: AnyModel, tokens_BTL: Tensor, dropout: torch.Generator, users_B: Tensor | None = None) -> Predictions:
    """One forward pass in training. users_B: the tokens of the windows' users, for a vocabulary that has them.

    A decoder alone predicts every item of a window from those before it, in one pass (P = T). An encoder sees all that it is
    shown at once, so a window is one example: its last item from the others (P = 1), as TIGER trains.
    """
    B, T, L = tokens_BTL.shape
    begin = [tokens_BTL.new_full((B, 1), model.vocabulary.bos)]
    if users_B is not None:
        begin.append(users_B[:, None])
    prompt_BS = torch.cat((*begin, tokens_BTL.reshape(B, T * L)[:, :-1]), dim=1)
    if not isinstance(model, EncoderDecoder):
        hidden_BSD = model(prompt_BS, dropout=dropout)[:, len(begin) - 1 :]
        return Predictions(hidden_BPLD=hidden_BSD.reshape(B, T, L, -1), penalty=hidden_BSD.new_zeros(()))
    balance: list[Tensor] = []
    history_BS = prompt_BS[:, : len(begin) + (T - 1) * L]
    hidden_BLD = model(history_BS, tokens_BTL[:, -1, :-1], dropout=dropout, balance=balance)
    penalty = torch.stack(balance).mean() * model.config.router_aux_loss_coef if balance else hidden_BLD.new_zeros(())
    return Predictions(hidden_BPLD=hidden_BLD[:, None], penalty=penalty)
