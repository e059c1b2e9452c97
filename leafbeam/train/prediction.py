"""Running a model over windows of histories: the hidden states before each code of the items to predict.

Shapes: B windows, T items of each, P predicted items of each (or of all), L levels, M = L - 1 codes of a branch, N items,
R items of a soft target, S tokens of a prompt, D hidden.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from leafbeam.model import AnyModel, EncoderDecoder


class Taught(NamedTuple):
    """The lesson of a teacher about the predicted items: soft targets, an item drawn from each, their share in the loss."""

    items_PR: Tensor
    weights_PR: Tensor
    drawn_P: Tensor
    share_P: Tensor


class Predicted(NamedTuple):
    """The hidden states (B, P, L, D) before each code of the last P items of each window, those before each code of the drawn
    items in their place (None where these were read), and the router loss of experts.
    """

    hidden_BPLD: Tensor
    drawn_BPLD: Tensor | None
    router_loss: Tensor | float


def predict(
    model: AnyModel,
    tokens_BTL: Tensor,
    dropout: torch.Generator,
    users_B: Tensor | None,
    drawn_BPL: Tensor | None = None,
) -> Predicted:
    """Run the windows.

    A decoder predicts every item of a window from those before it (P = T); an encoder-decoder predicts the last item from the
    others (P = 1), as in TIGER. `drawn_BPL` are the tokens of the items that a teacher named.
    """
    B, T, L = tokens_BTL.shape
    start = [tokens_BTL.new_full((B, 1), model.vocabulary.bos)]
    if users_B is not None:
        start.append(users_B[:, None])
    prompt_BS = torch.cat((*start, tokens_BTL.reshape(B, T * L)[:, :-1]), dim=1)
    if not isinstance(model, EncoderDecoder):
        branches_BPM = None if drawn_BPL is None or L == 1 else drawn_BPL[..., :-1]
        hidden_BRD = model(prompt_BS, dropout=dropout, branches_BPM=branches_BPM)
        hidden_BPLD = hidden_BRD[:, len(start) - 1 : prompt_BS.shape[1]].reshape(B, T, L, -1)
        if branches_BPM is None:
            return Predicted(hidden_BPLD, None, 0.0)
        later_BPMD = hidden_BRD[:, prompt_BS.shape[1] :].reshape(B, T, L - 1, -1)
        return Predicted(hidden_BPLD, torch.cat((hidden_BPLD[:, :, :1], later_BPMD), 2), 0.0)
    losses: list[Tensor] = []
    history_BS = prompt_BS[:, : len(start) + (T - 1) * L]
    read_BTL = tokens_BTL if drawn_BPL is None else drawn_BPL
    hidden_BLD = model(history_BS, read_BTL[:, -1, :-1], dropout=dropout, balance=losses)
    router_loss = torch.stack(losses).mean() * model.config.router_aux_loss_coef if losses else 0.0
    return Predicted(hidden_BLD[:, None], None, router_loss)
