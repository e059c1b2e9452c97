"""Codes and texts learnt together: a model over Semantic IDs that reads what its items are about, with a dense head beside.

Shapes: U users, N items, D values of a text vector, H hidden, B histories of a batch, T items of each, L levels, S tokens,
M items of a step, C candidates, P predicted items.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pleach.errors import ArgumentError, TrainingError
from pleach.model import Transformer, Vocabulary
from pleach.model.config import ModelConfig
from pleach.model.qwen3 import Dropout, Layer, Rotary, causal
from pleach.train.batches import Batches
from pleach.train.dense import DenseRecipe, DenseRetriever
from pleach.train.histories import Histories
from pleach.train.recipe import Budget, Recipe
from pleach.train.threads import torch_threads

__all__ = ["JointModel", "JointRecipe", "fit_joint"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JointRecipe:
    """How codes and texts are learnt together.

    recipe: the model over codes, its budget, batches and learning rate (a decoder alone, without user tokens). dense: of the
    dense head, whose epochs and batches are those of `recipe`. reads_text: whether an item's text is added to its last code, or
    the model sees codes alone. state_dropout: share of the hidden state that the dense head does not see in training.
    code_weight, dense_weight: how much each loss counts.
    """

    recipe: Recipe = field(default_factory=lambda: Recipe(budget=Budget(epochs=3), batch_tokens=4096))
    dense: DenseRecipe = field(default_factory=DenseRecipe)
    reads_text: bool = True
    state_dropout: float = 0.5
    code_weight: float = 1.0
    dense_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.recipe.architecture != "decoder-only" or self.recipe.num_users:
            raise ArgumentError("joint training is for recipes with architecture='decoder-only' and num_users=0")
        if not 0 <= self.state_dropout < 1:
            raise ArgumentError(f"state_dropout={self.state_dropout}: at least 0 and below 1")
        if min(self.code_weight, self.dense_weight) < 0 or self.code_weight + self.dense_weight == 0:
            raise ArgumentError(f"code_weight={self.code_weight}, dense_weight={self.dense_weight}: at least 0, and not both 0")


class JointModel(nn.Module):
    """A dense retriever whose queries a model over codes corrects, while it learns to spell the next item.

    Think of it as `DenseRetriever` with an opinion: where a history points is the retriever's direction plus a linear reading
    of the backbone's hidden state after the last item. That reading starts at zero, so that untrained it *is* the retriever.
    The backbone reads each item's text beside its codes, so that it knows what a cold item is about. (After LIGER, Yang et
    al., 2024. On Amazon Beauty it is no better than the retriever alone: see docs/training.md.)

    codes_NL: the items' SIDs. vectors_ND: their text vectors, rows of zeros where there is no text.
    """

    def __init__(
        self, codes_NL: NDArray[np.int64], vectors_ND: NDArray[np.float32], vocabulary: Vocabulary, joint: JointRecipe
    ) -> None:
        super().__init__()
        if len(codes_NL) != len(vectors_ND):
            raise ArgumentError(f"{len(codes_NL):,} items have SIDs, but {len(vectors_ND):,} text vectors: one each")
        config = joint.recipe.model_config(vocabulary)
        assert isinstance(config, ModelConfig)  # the recipe is a decoder's
        generator = torch.Generator().manual_seed(joint.recipe.seed)
        self.joint = joint
        self.backbone = Transformer(config, vocabulary, generator)
        self.retriever = DenseRetriever(vectors_ND, temperature=joint.dense.temperature)
        dims, hidden = vectors_ND.shape[1], config.hidden_size
        self.inlet_DH = nn.Parameter(config.initializer_range * torch.randn(dims, hidden, generator=generator))
        self.outlet_HD = nn.Parameter(torch.zeros(hidden, dims))
        self.codes_NL = torch.as_tensor(codes_NL)
        self._tokens_NL = torch.as_tensor(vocabulary.tokens(codes_NL))

    def states(self, items_BT: Tensor, dropout: Dropout = lambda x: x) -> Tensor:
        """The backbone's hidden states (B, 1 + T x L, H): at the beginning, then after each code of each item."""
        B, T = items_BT.shape
        tokens_BTL = self._tokens_NL[items_BT]
        bos_B1 = tokens_BTL.new_full((B, 1), self.backbone.vocabulary.bos)
        body = self.backbone.model
        hidden_BSH = body.embed_tokens(torch.cat((bos_B1, tokens_BTL.reshape(B, -1)), dim=1))
        if self.joint.reads_text:
            L = tokens_BTL.shape[2]
            text_BTH = self.retriever.vectors_ND[items_BT] @ self.inlet_DH
            hidden_BSH = hidden_BSH.index_add(1, torch.arange(L, 1 + T * L, L), text_BTH)
        hidden_BSH = dropout(hidden_BSH)
        rotary = Rotary(self.backbone.config, torch.arange(hidden_BSH.shape[1]), hidden_BSH.dtype)
        for number, layer in enumerate(body.layers):
            hidden_BSH = cast(Layer, layer)(hidden_BSH, number, rotary, causal, dropout)
        return body.norm(hidden_BSH)

    def queries(self, states_BTH: Tensor, items_BTD: Tensor) -> Tensor:
        """Where a history points after each of its items, from the states there and what items are compared by: unit rows."""
        return F.normalize(self.retriever.queries(items_BTD) + states_BTH @ self.outlet_HD, dim=-1)

    @torch.inference_mode()
    def scores(self, histories: Histories, candidates_C: NDArray[np.integer], *, batch_users: int = 64) -> NDArray[np.float32]:
        """The cosine of each candidate to where each history points: (U, C), 0 after an empty history."""
        levels = self.codes_NL.shape[1]
        items_ND = self.retriever.items(torch.arange(len(self.codes_NL)))
        candidates_DC = items_ND[torch.as_tensor(candidates_C, dtype=torch.int64)].T
        scores_UC = np.zeros((len(histories), len(candidates_C)), np.float32)
        lengths_U = np.minimum(histories.lengths_U, self.joint.recipe.max_items)
        for length in np.unique(lengths_U[lengths_U > 0]).tolist():
            users = np.flatnonzero(lengths_U == length)
            for first in range(0, len(users), batch_users):
                some = users[first : first + batch_users]
                rows_BT = histories.items_E[histories.ptr_U1[1:][some, None] + np.arange(-length, 0)]
                items_BT = torch.as_tensor(rows_BT, dtype=torch.int64)
                queries_BTD = self.queries(self.states(items_BT)[:, levels::levels], items_ND[items_BT])
                scores_UC[some] = (queries_BTD[:, -1] @ candidates_DC).numpy()
        return scores_UC


def fit_joint(
    histories: Histories,
    codes_NL: NDArray[np.int64],
    vectors_ND: NDArray[np.float32],
    vocabulary: Vocabulary,
    joint: JointRecipe | None = None,
    *,
    progress: Callable[[float, float, float], None] | None = None,
) -> JointModel:
    """Train codes and texts together on histories (the training part of a split).

    Each step adds the codes' cross-entropy of every item of the batch, as in `Trainer.loss`, to the dense head's, as in
    `fit_dense`. Deterministic under the seed, on one thread. progress: called after each step with the share of the budget and
    both losses. Raises TrainingError when a loss is no number, ArgumentError for a budget in minutes.
    """
    joint = joint or JointRecipe()
    recipe = joint.recipe
    if recipe.budget.minutes is not None:
        raise ArgumentError("joint training takes a budget in steps or epochs, not in minutes")
    model = JointModel(codes_NL, vectors_ND, vocabulary, joint)
    batches = Batches(
        histories=histories,
        max_items=recipe.max_items,
        num_levels=codes_NL.shape[1],
        batch_tokens=recipe.batch_tokens,
        seed=recipe.seed,
    )
    optimizer = _optimizer(model, joint)
    warm_W = np.unique(histories.items_E).astype(np.int64)
    generator = torch.Generator().manual_seed(recipe.seed)
    rng = np.random.default_rng([recipe.seed, 7])
    step, number, share = 0, 0, 0.0
    with torch_threads(1):
        while share < 1:
            epoch = batches.epoch(number)
            for place, items_BT in enumerate(epoch):
                share = recipe.budget.share(steps=step, epochs=number + place / len(epoch), seconds=0.0)
                if share >= 1:
                    break
                step += 1
                if items_BT.shape[1] < 2:
                    continue
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * recipe.learning_rate_at(share) / recipe.learning_rate
                codes, dense = _losses(model, items_BT, rng.choice(warm_W, joint.dense.negatives), generator)
                loss = joint.code_weight * codes + joint.dense_weight * dense
                if not bool(torch.isfinite(loss)):
                    raise TrainingError(f"the losses of joint training are {codes.item()}, {dense.item()}: lower learning_rate")
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
                optimizer.step()
                if progress is not None:
                    progress(share, codes.item(), dense.item())
            number += 1
            share = max(share, recipe.budget.share(steps=step, epochs=number, seconds=0.0))
    return model.eval()


def _losses(
    model: JointModel, items_BT: NDArray[np.int32], negatives: NDArray[np.int64], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Nats an item of the codes, and of the dense head among the batch's items and the negatives."""
    recipe, L = model.joint.recipe, model.codes_NL.shape[1]

    def drop(x: Tensor, rate: float) -> Tensor:
        return x * (torch.rand(x.shape, generator=generator) >= rate) / (1 - rate)

    rows_BT = torch.as_tensor(items_BT, dtype=torch.int64)
    B, T = rows_BT.shape
    states_BSH = model.states(rows_BT, lambda x: drop(x, recipe.dropout))
    before_BTLH = states_BSH[:, :-1].unflatten(1, (T, L))
    codes_BTL = model.codes_NL[rows_BT]
    codes = torch.stack(
        [
            F.cross_entropy(
                model.backbone.head(before_BTLH[:, :, level], level).flatten(0, 1),
                codes_BTL[:, :, level].flatten(),
                label_smoothing=recipe.label_smoothing,
            )
            for level in range(L)
        ]
    ).sum()
    rows_M, place_X = np.unique(np.concatenate([items_BT.reshape(-1), negatives]), return_inverse=True)
    places_BT = torch.as_tensor(place_X[: B * T].reshape(B, T))
    items_MD = model.retriever.items(torch.as_tensor(rows_M, dtype=torch.int64), lambda x: drop(x, model.joint.dense.dropout))
    states_BPH = drop(states_BSH[:, L:-1:L], model.joint.state_dropout)
    queries_BPD = model.queries(states_BPH, items_MD[places_BT[:, :-1]])
    logits_XM = queries_BPD.flatten(0, 1) @ items_MD.T * model.retriever.log_scale.clamp(max=4.0).exp()
    return codes, F.cross_entropy(logits_XM, places_BT[:, 1:].flatten())


def _optimizer(model: JointModel, joint: JointRecipe) -> torch.optim.AdamW:
    """AdamW with two learning rates: the retriever's and its reading of the states learn as the retriever alone does."""
    dense = [*model.retriever.parameters(), model.outlet_HD]
    slow = {id(weight) for weight in dense}
    others = [weight for weight in model.parameters() if id(weight) not in slow]
    groups = [
        {
            "params": [weight for weight in weights if (weight.ndim > 1) == matrices],
            "peak": peak,
            "weight_decay": decay * matrices,
        }
        for weights, peak, decay in (
            (dense, joint.dense.learning_rate, joint.dense.weight_decay),
            (others, joint.recipe.learning_rate, joint.recipe.weight_decay),
        )
        for matrices in (True, False)
    ]
    return torch.optim.AdamW(groups, lr=joint.recipe.learning_rate, betas=joint.recipe.betas)
