"""The model, index and histories of the serving benchmarks: a small Qwen3 over a data set or the synthetic shop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.serving.load import Floats, Planned
from leafbeam.errors import DataError
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, Transformer, Vocabulary
from leafbeam.train import load_log

__all__ = ["BEAMS", "POSITIONS", "LoadRun", "small_qwen3"]

LAYERS, HIDDEN, POSITIONS = 4, 128, 8192
BEAMS = 50  # of requests, unless a benchmark says otherwise


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadRun:
    """A run directory that `leafbeam serve` takes, and what is in it. histories: item ids of each user, oldest first."""

    path: Path
    trie: Trie
    model: Transformer
    histories: list[NDArray[Any]]
    item_ids: NDArray[Any]

    @classmethod
    def make(
        cls,
        path: Path,
        data: Path | None = None,
        *,
        items: int = 12_000,
        users: int = 4_000,
        train_minutes: float | None = None,
    ) -> LoadRun:
        """Semantic IDs of three levels of 256 codes and one that tells collisions apart, an index, and a model.

        The model has seeded weights and is not trained: what it costs does not depend on what it learned, and its answers are
        compared with those of peers on the same weights. With `train_minutes` it is the demo's, trained so long, with positions
        for longer prompts. What is there already is taken as it is.
        """
        source = data or path
        if data is None and not (path / "interactions.parquet").exists():
            _run("make-shop", "--out", path, "--items", items, "--users", users)
        if not (path / "sids.parquet").exists():
            _run("fit-sids", "--data", source, "--run", path, "--codebooks", "256,256,256" if items > 2000 else "32,32,32")
        if not (path / "index.leafbeam").exists():
            _run("build", "--run", path)
        trie = Trie.load(str(path / "index.leafbeam"))
        if train_minutes is not None and not (path / "model").exists():
            _run("train", "--run", path, "--minutes", train_minutes)
            trained = Transformer.from_pretrained(path / "model")
            longer = Transformer(replace(trained.config, max_position_embeddings=POSITIONS), trained.vocabulary)
            longer.load_state_dict(trained.state_dict())
            longer.save_pretrained(path / "model")
        if not (path / "model").exists():
            small_qwen3(trie.codebook_sizes).save_pretrained(path / "model")
        log = load_log(source)
        rows = [np.asarray(log.item_ids[row]) for row in log.histories]
        return cls(
            path=path,
            trie=trie,
            model=Transformer.from_pretrained(path / "model"),
            histories=[one for one in rows if len(one)],
            item_ids=np.asarray(log.item_ids),
        )

    @classmethod
    def demo(cls, quick: bool = False) -> LoadRun:
        """The demo's shop and model, trained for two minutes, with positions for longer prompts. quick: small ones."""
        items, users = (600, 300) if quick else (12_000, 4_000)
        path = Path("runs") / ("bench-peers-quick" if quick else "bench-peers")
        return cls.make(path, items=items, users=users, train_minutes=0.05 if quick else 2.0)

    def planned(
        self,
        rng: np.random.Generator,
        times: Floats,
        *,
        num_items: int = 10,
        lengths: Sequence[int] | NDArray[Any] | None = None,
    ) -> list[Planned]:
        """A request at each time: of a user drawn from the data, or of so many items drawn at random (`lengths`)."""
        if lengths is None:
            chosen = [self.histories[int(user)] for user in rng.integers(0, len(self.histories), len(times))]
        else:
            chosen = [rng.choice(self.item_ids, int(length)) for length in lengths]
        return [
            Planned(at=float(at), body={"history": one.tolist(), "num_items": num_items, "scoring": "allowed"})
            for at, one in zip(times, chosen, strict=True)
        ]

    def prompts(self, rng: np.random.Generator, count: int) -> list[NDArray[np.int64]]:
        """SIDs (n, L) of the histories of users drawn from the data."""
        users = rng.integers(0, len(self.histories), count)
        return [self.trie.codes_at(self.leaves_of(self.histories[int(user)])) for user in users]

    def leaves_of(self, ids: NDArray[Any]) -> NDArray[np.int64]:
        """The leaves of items, without those that the index lacks."""
        rows = self.trie.find(ids)
        places = self.trie.items.ordinal_N[rows[rows >= 0]].astype(np.int64)
        first = self.trie.items.leaf_indptr
        return places if first is None else np.searchsorted(first, places, side="right") - 1

    @property
    def shape(self) -> dict[str, Any]:
        """The model and the catalog, for a row."""
        config = self.model.config
        return {
            "num_items": self.trie.num_items,
            "levels": self.trie.num_levels,
            "layers": config.num_hidden_layers,
            "hidden": config.hidden_size,
            "heads": config.num_attention_heads,
            "key_heads": config.num_key_value_heads,
            "threads": 1,
        }


def small_qwen3(codebook_sizes: Sequence[int], *, seed: int = 0) -> Transformer:
    """Qwen3's architecture at the size that learns Beauty on a CPU: 4 layers, 128 hidden, 4 heads of 32; seeded weights."""
    vocabulary = Vocabulary(codebook_sizes=tuple(codebook_sizes))
    config = ModelConfig(
        vocab_size=vocabulary.size,
        hidden_size=HIDDEN,
        intermediate_size=3 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HIDDEN // 32,
        num_key_value_heads=HIDDEN // 32,
        max_position_embeddings=POSITIONS,
        initializer_range=0.1,
    )
    return Transformer(config, vocabulary, torch.Generator().manual_seed(seed)).eval()


def _run(*words: object) -> None:
    """A command of leafbeam's own, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "leafbeam", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if done.returncode:
        raise DataError(f"`leafbeam {' '.join(map(str, words))}` failed: {done.stderr[-2000:]}")
