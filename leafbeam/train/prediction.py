"""Running a model over windows of histories: the hidden states before each code of the items to predict.

Shapes: B windows, T items of each, P predicted and Q taught items of each, L levels, M = L - 1 codes of a branch, N items,
R items of a soft target, S tokens of a prompt, D hidden.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from leafbeam.model import AnyModel, EncoderDecoder


class Taught(NamedTuple):
    """The lesson of a teacher about the last Q items of each window: soft targets, an item drawn from each, their share in the
    loss.
    """

    items_BQR: Tensor
    weights_BQR: Tensor
    drawn_BQ: Tensor
    share_BQ: Tensor

    def mixed(self, loss_BP: Tensor, taught_BQ: Tensor) -> Tensor:
        """Return losses of which the last of each window are partly those of what is taught."""
        untaught_BP, next_BQ = loss_BP.tensor_split((loss_BP.shape[1] - taught_BQ.shape[1],), 1)
        return torch.cat((untaught_BP, torch.lerp(next_BQ, taught_BQ, self.share_BQ)), 1)


class Predicted(NamedTuple):
    """The hidden states (B, P, L, D) before each code of the last P items of each window, those (B, Q, M, D) before the later
    codes of the drawn items in their place (None where these were read), and the router loss of experts.
    """

    hidden_BPLD: Tensor
    drawn_BQMD: Tensor | None
    router_loss: Tensor | float


def predict(
    model: AnyModel,
    tokens_BTL: Tensor,
    dropout: torch.Generator,
    users_B: Tensor | None,
    drawn_BQL: Tensor | None = None,
) -> Predicted:
    """Run the windows.

    A decoder predicts every item of a window from those before it (P = T); an encoder-decoder predicts the last item from the
    others (P = 1), as in TIGER. `drawn_BQL` are the tokens of the items that a teacher named in the place of the last Q.
    """
    B, T, L = tokens_BTL.shape
    start = [tokens_BTL.new_full((B, 1), model.vocabulary.bos)]
    if users_B is not None:
        start.append(users_B[:, None])
    prompt_BS = torch.cat((*start, tokens_BTL.reshape(B, T * L)[:, :-1]), dim=1)
    if not isinstance(model, EncoderDecoder):
        branches_BQM = None if drawn_BQL is None or L == 1 else drawn_BQL[..., :-1]
        hidden_BRD = model(prompt_BS, dropout=dropout, branches_BPM=branches_BQM)
        hidden_BPLD = hidden_BRD[:, len(start) - 1 : prompt_BS.shape[1]].reshape(B, T, L, -1)
        if branches_BQM is None:
            return Predicted(hidden_BPLD, None, 0.0)
        return Predicted(hidden_BPLD, hidden_BRD[:, prompt_BS.shape[1] :].unflatten(1, branches_BQM.shape[1:]), 0.0)
    losses: list[Tensor] = []
    history_BS = prompt_BS[:, : len(start) + (T - 1) * L]
    read_BTL = tokens_BTL if drawn_BQL is None else drawn_BQL
    hidden_BLD = model(history_BS, read_BTL[:, -1, :-1], dropout=dropout, balance=losses)
    router_loss = torch.stack(losses).mean() * model.config.router_aux_loss_coef if losses else 0.0
    return Predicted(hidden_BLD[:, None], None, router_loss)
