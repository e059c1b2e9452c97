"""The shop of both soaks: random codes, attributes that follow from an item's id, rules, and a small model, not trained."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from leafbeam.catalog import Catalog
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, Transformer, Vocabulary

__all__ = ["NUM_ITEMS", "RULES", "draw_codes", "index_of", "rows_of", "small_model", "write_run"]

SIZES = (16, 32, 32)
NUM_ITEMS = 3_000
RULES = {"cheap": "price < 20", "dear": "price >= 20", "in_stock": "stock > 0"}


def draw_codes(rng: np.random.Generator, number: int) -> NDArray[np.int64]:
    """Codes (number, L) of so many items."""
    return np.stack([rng.integers(0, size, number) for size in SIZES], axis=1)


def rows_of(item_ids: Iterable[Any]) -> list[dict[str, Any]]:
    """What an item costs follows from its id, so that an answer can be judged without the catalog."""
    return [{"item_id": int(one), "price": float(one % 40), "stock": int(one % 3)} for one in item_ids]


def index_of(codes_NL: NDArray[np.int64]) -> Trie:
    """The index of items 0 to N - 1."""
    return Trie.build(codes_NL, SIZES, item_ids=np.arange(len(codes_NL)))


def small_model(seed: int) -> Transformer:
    """Two layers of 32: what surrounds a model is soaked, not its products."""
    vocabulary = Vocabulary(codebook_sizes=SIZES)
    config = ModelConfig(
        vocab_size=vocabulary.size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
    )
    return Transformer(config, vocabulary, torch.Generator().manual_seed(seed)).eval()


def write_run(path: Path, codes_NL: NDArray[np.int64], seed: int) -> None:
    """Write a run that `leafbeam serve` takes, of items 0 to N - 1 with these codes."""
    path.mkdir()
    index_of(codes_NL).save(path / "index.leafbeam")
    small_model(seed).save_pretrained(path / "model")
    Catalog.create(path / "catalog.duckdb", pa.Table.from_pylist(rows_of(range(len(codes_NL)))))
    lines = [f"{name} = '{where}'\n" for name, where in RULES.items()]
    (path / "rules.toml").write_text("[rules]\n" + "".join(lines), encoding="utf-8")
