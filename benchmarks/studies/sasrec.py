"""SASRec (Kang and McAuley, 2018), trained with a softmax: the usual baseline of sequential recommendation.

Shapes: B histories of a batch, T items of each, D hidden, N items, U users.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import log

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from leafbeam.errors import ArgumentError, TrainingError
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.train import EvaluationSet, Histories, RankingMetrics, Split
from leafbeam.train.baselines import ScoreFn, rank_targets
from leafbeam.train.batches import Batches

__all__ = ["SasRec", "SasRecRecipe", "fit_sasrec", "sasrec_scores"]

Drop = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class SasRecRecipe:
    """How SASRec is trained. The loss is the cross-entropy over the target and `negatives` items drawn anew for each batch.

    One negative a target, as in the paper, understates the model by a third (Klenitskiy and Vasilev, 2023).
    minutes, epochs: training ends at whichever comes first. Every `validate_every` epochs Recall@10 without seen items is
    measured on `validation_users` users; the best weights are kept, and training stops after `patience` measurements without a
    better one. Batches hold histories of one length instead of padded ones (the sums are the same).
    """

    negatives: int = 1024
    hidden: int = 128
    layers: int = 2
    heads: int = 2
    max_items: int = 50
    dropout: float = 0.5
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    batch_items: int = 1024
    epochs: int = 200
    minutes: float | None = None
    validate_every: int = 5
    validation_users: int = 3000
    patience: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        names = (
            "negatives",
            "hidden",
            "layers",
            "heads",
            "max_items",
            "batch_items",
            "epochs",
            "validate_every",
            "validation_users",
        )
        for name in (*names, "patience"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}={getattr(self, name)}: at least 1")
        if self.hidden % self.heads:
            raise ArgumentError(f"hidden={self.hidden} must be a multiple of heads={self.heads}")
        if not 0 <= self.dropout < 1 or self.learning_rate <= 0 or (self.minutes is not None and self.minutes <= 0):
            raise ArgumentError(f"dropout={self.dropout}, learning_rate={self.learning_rate}, minutes={self.minutes}")


class SasRec(nn.Module):
    """Self-attention over item embeddings; an item's score is its embedding times the last hidden state.

    Positions count from the newest item, as in the original with left padding.
    """

    def __init__(self, num_items: int, recipe: SasRecRecipe, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe = recipe
        hidden = recipe.hidden
        self.items = nn.Embedding(num_items, hidden)
        self.positions = nn.Embedding(recipe.max_items, hidden)
        self.blocks = nn.ModuleList([_Block(hidden, recipe.heads) for _ in range(recipe.layers)])
        self.norm = nn.LayerNorm(hidden, eps=1e-8)
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    module.weight.normal_(std=0.02, generator=generator)
                if isinstance(module, nn.Linear):
                    module.bias.zero_()

    def forward(self, items_BT: Tensor, drop: Drop = lambda x: x) -> Tensor:
        """The state (B, T, D) after each item; score item n next by `state @ items.weight[n]`."""
        positions_T = torch.arange(items_BT.shape[1] - 1, -1, -1)
        hidden_BTD = drop(self.items(items_BT) * self.recipe.hidden**0.5 + self.positions(positions_T))
        for block in self.blocks:
            hidden_BTD = block(hidden_BTD, drop)
        return self.norm(hidden_BTD)


class _Block(nn.Module):
    """Causal self-attention with normed queries and a two-layer feed-forward network, each with a residual connection."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(hidden, eps=1e-8) for _ in range(2))
        self.query, self.key, self.value, self.out, self.first, self.second = (nn.Linear(hidden, hidden) for _ in range(6))

    def forward(self, x_BTD: Tensor, drop: Drop) -> Tensor:
        query_BTD = self.norm_1(x_BTD)
        parts = (self.query(query_BTD), self.key(x_BTD), self.value(x_BTD))
        query, key, value = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BTD = self.norm_2(query_BTD + drop(self.out(mixed.transpose(1, 2).flatten(2))))
        return x_BTD + drop(self.second(drop(F.relu(self.first(x_BTD)))))


def fit_sasrec(
    split: Split,
    num_items: int,
    recipe: SasRecRecipe | None = None,
    *,
    progress: Callable[[float, float, float | None], None] | None = None,
) -> tuple[SasRec, dict[str, float]]:
    """Train on the training part of a split; returns the best weights on validation items, and training statistics.

    One thread. Deterministic under the seed unless `minutes` ends it. progress: called after each epoch with the share of
    the budget, the mean loss and the last validation recall. Raises TrainingError when the loss is no longer finite.
    """
    recipe = recipe or SasRecRecipe()
    generator = torch.Generator().manual_seed(recipe.seed)
    model = SasRec(num_items, recipe, generator)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay, fused=True
    )
    batches = Batches(
        histories=split.train, max_items=recipe.max_items, num_levels=1, batch_tokens=recipe.batch_items, seed=recipe.seed
    )
    validation = EvaluationSet.from_split(split, "valid", sample=recipe.validation_users)
    best: dict[str, Tensor] = {}
    best_recall, best_epoch, recall, worse, epoch = -1.0, 0, None, 0, 0
    start = time.monotonic()

    def drop(x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=generator) >= recipe.dropout) / (1 - recipe.dropout)

    def share() -> float:
        by_clock = 0.0 if recipe.minutes is None else (time.monotonic() - start) / (60 * recipe.minutes)
        return min(1.0, max(epoch / recipe.epochs, by_clock))

    with torch_threads(1):
        while share() < 1 and worse < recipe.patience:
            model.train()
            losses: list[float] = []
            for items_BT in batches.epoch(epoch):
                if items_BT.shape[1] < 2:
                    continue
                items = torch.as_tensor(items_BT, dtype=torch.int64)
                state_XD = model(items[:, :-1], drop).flatten(0, 1)
                loss = sampled_softmax(model, state_XD, items[:, 1:].flatten(), generator)
                if not bool(torch.isfinite(loss)):
                    raise TrainingError(f"SASRec's loss is {loss.item()} in epoch {epoch}: lower learning_rate")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if recipe.minutes is not None and time.monotonic() - start > 60 * recipe.minutes:
                    break
            epoch += 1
            if epoch % recipe.validate_every == 0 or share() >= 1:
                ranks = rank_targets(sasrec_scores(model), validation.histories, validation.targets_U, num_items=num_items)
                recall = RankingMetrics.from_ranks(ranks.removed).recall_10.mean
                worse += 1
                if recall > best_recall:
                    best_recall, best_epoch, worse = recall, epoch, 0
                    best = {name: weight.detach().clone() for name, weight in model.named_parameters()}
            if progress is not None:
                progress(share(), float(np.mean(losses)) if losses else float("nan"), recall)
    model.load_state_dict(best)
    statistics = {
        "epochs": epoch,
        "best_epoch": best_epoch,
        "valid_recall_10": best_recall,
        "seconds": time.monotonic() - start,
    }
    return model.eval(), statistics


def sasrec_scores(model: SasRec) -> ScoreFn:
    """Scores all items by the products of their embeddings with the state after each history."""

    @torch.inference_mode()
    def scores(histories: Histories) -> NDArray[np.float32]:
        model.eval()
        scores_BN = np.empty((len(histories), model.items.num_embeddings), np.float32)
        lengths_B = np.minimum(histories.lengths_U, model.recipe.max_items)
        for length in np.unique(lengths_B).tolist():
            rows = np.flatnonzero(lengths_B == length)
            items_BT = histories.items_E[histories.indptr_U1[1:][rows, None] + np.arange(-length, 0)]
            state_BD = model(torch.as_tensor(items_BT, dtype=torch.int64))[:, -1]
            scores_BN[rows] = (state_BD @ model.items.weight.T).numpy()
        return scores_BN

    return scores


def sampled_softmax(model: SasRec, state_XD: Tensor, target_X: Tensor, generator: torch.Generator) -> Tensor:
    count, drawn = model.items.num_embeddings, model.recipe.negatives
    if drawn >= count:
        return F.cross_entropy(state_XD @ model.items.weight.T, target_X)
    negative_M = torch.randint(count, (drawn,), generator=generator)
    positive_X1 = (state_XD * model.items(target_X)).sum(dim=1, keepdim=True)
    # Each negative stands for count / drawn items, so that the sum estimates the full softmax's.
    logits_XM = state_XD @ model.items(negative_M).T + log(count / drawn)
    logits_XM = logits_XM.masked_fill(negative_M == target_X[:, None], -torch.inf)
    return F.cross_entropy(torch.cat((positive_X1, logits_XM), dim=1), torch.zeros_like(target_X))
