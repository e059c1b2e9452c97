"""A dense retriever over item text, which can recommend items without interactions.

Shapes: U users, N items, D values of a text vector, B histories of a batch, T items of each, M items of a step, C candidates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, log, pi

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from leafbeam.errors import ArgumentError, TrainingError
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.train import Histories
from leafbeam.train.batches import Batches

__all__ = ["DenseRecipe", "DenseRetriever", "fit_dense"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseRecipe:
    """How a dense retriever is trained; the defaults were chosen on validation items (see docs/engineering-log/trials.md).

    epochs: passes over the histories. max_items: the longest history. batch_items: interactions of a batch.
    negatives: items drawn in addition to those of a batch, for the softmax. dropout: of text dimensions.
    """

    epochs: int = 4
    seed: int = 0
    max_items: int = 20
    batch_items: int = 1024
    negatives: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    dropout: float = 0.2
    temperature: float = 0.1

    def __post_init__(self) -> None:
        for name in ("epochs", "max_items", "batch_items", "negatives"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}={getattr(self, name)}: at least 1")
        if self.learning_rate <= 0 or self.weight_decay < 0 or self.temperature <= 0 or not 0 <= self.dropout < 1:
            raise ArgumentError(
                f"learning_rate={self.learning_rate}, weight_decay={self.weight_decay}, temperature={self.temperature}, "
                f"dropout={self.dropout}: above 0, at least 0, above 0 and in [0, 1)"
            )


class DenseRetriever(nn.Module):
    """Scores items by the cosine of their projected text to a projected, decayed sum of the history's texts.

    Both projections start as the identity, so that it starts as text nearest neighbours of the decayed history. It has no
    parameters of single items, so what it learns from warm items applies to cold ones. (The dense half of LIGER, Yang et al.,
    2024, over text alone.)

    vectors_ND: float32, one row an item, cold ones included; zero rows (no text) score 0.
    """

    def __init__(self, vectors_ND: NDArray[np.float32], *, temperature: float = 0.1) -> None:
        super().__init__()
        if vectors_ND.ndim != 2 or not np.isfinite(vectors_ND).all():
            raise ArgumentError(f"text vectors are finite numbers (N, D), not shape {vectors_ND.shape}")
        self.vectors_ND = F.normalize(torch.as_tensor(vectors_ND, dtype=torch.float32), dim=-1)
        dims = self.vectors_ND.shape[1]
        self.item_DD = nn.Parameter(torch.eye(dims))
        self.query_DD = nn.Parameter(torch.eye(dims))
        self.decay = nn.Parameter(torch.tensor(1.0))  # its sigmoid: the weight of an item relative to the next one
        self.log_scale = nn.Parameter(torch.tensor(-log(temperature)))

    def items(self, rows_M: Tensor, drop: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Item embeddings: unit rows (M, D)."""
        vectors_MD = self.vectors_ND[rows_M]
        return F.normalize((vectors_MD if drop is None else drop(vectors_MD)) @ self.item_DD, dim=-1)

    def queries(self, items_BTD: Tensor) -> Tensor:
        """Query embeddings after each item of a history: unit rows (B, T, D)."""
        ages_T = torch.arange(items_BTD.shape[1])
        lag_TT = ages_T[:, None] - ages_T[None]
        weight_TT = torch.where(lag_TT >= 0, torch.sigmoid(self.decay) ** lag_TT.clamp(min=0), 0.0)
        return F.normalize((weight_TT @ items_BTD) @ self.query_DD, dim=-1)

    @torch.inference_mode()
    def all_items(self) -> Tensor:
        """Item embeddings of all items (N, D), without gradients."""
        return self.items(torch.arange(len(self.vectors_ND)))

    @torch.inference_mode()
    def scores(
        self,
        histories: Histories,
        candidates_C: NDArray[np.integer],
        *,
        max_items: int = 20,
        items_ND: Tensor | None = None,
    ) -> NDArray[np.float32]:
        """The cosine of each candidate to the query of each history: (U, C), 0 for an empty history.

        items_ND: `all_items`, of a caller that scores often without training between.
        """
        items_ND = self.all_items() if items_ND is None else items_ND
        candidates_DC = items_ND[torch.as_tensor(candidates_C, dtype=torch.int64)].T
        scores_UC = np.zeros((len(histories), len(candidates_C)), np.float32)
        lengths_U = np.minimum(histories.lengths_U, max_items)
        for length in np.unique(lengths_U[lengths_U > 0]).tolist():
            users = np.flatnonzero(lengths_U == length)
            rows_BT = histories.items_E[histories.indptr_U1[1:][users, None] + np.arange(-length, 0)]
            query_BD = self.queries(items_ND[torch.as_tensor(rows_BT, dtype=torch.int64)])[:, -1]
            scores_UC[users] = (query_BD @ candidates_DC).numpy()
        return scores_UC


def fit_dense(
    histories: Histories,
    vectors_ND: NDArray[np.float32],
    recipe: DenseRecipe | None = None,
    *,
    progress: Callable[[int, float], None] | None = None,
) -> DenseRetriever:
    """Train a retriever on histories (the training part of a split) to predict the next item.

    The softmax is over the items of the batch and `negatives` drawn from all trained items. Deterministic under the seed, on
    one thread: a minute for 130,000 interactions and 256 dimensions. progress: called after each epoch with its number and
    mean loss. Raises TrainingError when the loss is no longer finite.
    """
    recipe = recipe or DenseRecipe()
    model = DenseRetriever(vectors_ND, temperature=recipe.temperature)
    batches = Batches(
        histories=histories, max_items=recipe.max_items, num_levels=1, batch_tokens=recipe.batch_items, seed=recipe.seed
    )
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    numbers = [weight for weight in model.parameters() if weight.ndim < 2]
    # Cosines ignore the scale of the matrices, which weight decay shrinks; learnt deviations from the identity stay small.
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": numbers, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate)
    warm_W = np.unique(histories.items_E).astype(np.int64)
    generator = torch.Generator().manual_seed(recipe.seed)
    rng = np.random.default_rng([recipe.seed, 7])

    def drop(vectors_MD: Tensor) -> Tensor:
        kept = torch.rand(vectors_MD.shape, generator=generator) >= recipe.dropout
        return vectors_MD * kept / (1 - recipe.dropout)

    with torch_threads(1):
        for number in range(recipe.epochs):
            epoch = batches.epoch(number)
            losses: list[float] = []
            for batch, items_BT in enumerate(epoch):
                if items_BT.shape[1] < 2:
                    continue
                share = (number + batch / len(epoch)) / recipe.epochs
                for group in optimizer.param_groups:
                    group["lr"] = recipe.learning_rate * 0.5 * (1 + cos(pi * share))
                negatives = rng.choice(warm_W, recipe.negatives)
                rows_M, index_X = np.unique(np.concatenate([items_BT.reshape(-1), negatives]), return_inverse=True)
                indices_BT = torch.as_tensor(index_X[: items_BT.size].reshape(items_BT.shape))
                items_MD = model.items(torch.as_tensor(rows_M, dtype=torch.int64), drop)
                queries_BTD = model.queries(items_MD[indices_BT[:, :-1]])
                logits_XM = queries_BTD.flatten(0, 1) @ items_MD.T * model.log_scale.clamp(max=4.0).exp()
                loss = F.cross_entropy(logits_XM, indices_BT[:, 1:].flatten())
                if not bool(torch.isfinite(loss)):
                    raise TrainingError(f"the loss of the dense retriever is {loss.item()}: lower learning_rate")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            if progress is not None:
                progress(number + 1, float(np.mean(losses)) if losses else float("nan"))
    return model.eval()
