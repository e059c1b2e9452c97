"""A small recipe, a log that can be learned, and trainers of it."""

import numpy as np
import pyarrow as pa
import torch

from leafbeam.model import Transformer, Vocabulary, new_model
from leafbeam.semid import SidTable
from leafbeam.train import Budget, Histories, InteractionLog, Recipe, Trainer, log_from_tables

SIZES = (4, 5, 2)
TINY = Recipe(
    teacher_weight=0.0,
    budget=Budget(steps=12),
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_items=6,
    batch_tokens=90,
    learning_rate=1e-2,
    precision="fp32",
    validations=0,
)


def all_codes(sizes: tuple[int, ...] = SIZES) -> np.ndarray:
    return np.stack(np.unravel_index(np.arange(np.prod(sizes)), sizes), axis=1)


def walks(users: int, *, seed: int = 0, items: int = 40) -> Histories:
    """Each user walks round the catalog in steps of one: the next item follows from the last one."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 11, users)
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    first = np.repeat(rng.integers(0, items, users), lengths)
    position = np.arange(ptr[-1]) - np.repeat(ptr[:-1], lengths)
    return Histories(indptr_U1=ptr, items_E=(first + position) % items, times_E=position)


def trainer_of(recipe: Recipe = TINY, *, histories: Histories | None = None, **rest: object) -> Trainer:
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    model = new_model(recipe.model_config(vocabulary), vocabulary, torch.Generator().manual_seed(recipe.seed))
    return Trainer(model, walks(60) if histories is None else histories, all_codes(), recipe, **rest)


def weights_of(model: Transformer) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def same(these: dict[str, torch.Tensor], those: dict[str, torch.Tensor]) -> bool:
    return these.keys() == those.keys() and all(torch.equal(these[name], those[name]) for name in these)


def log_of(histories: list[list[str]]) -> InteractionLog:
    rows = [(user, item, time) for user, items in enumerate(histories) for time, item in enumerate(items)]
    users, items, times = zip(*rows, strict=True)
    return log_from_tables(pa.table({"user_id": users, "item_id": items, "timestamp": times}))


def sids_of(item_ids: list[str]) -> SidTable:
    return SidTable(item_ids=np.array(item_ids), codes=all_codes()[: len(item_ids)], codebook_sizes=SIZES)
