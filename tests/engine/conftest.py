"""A small real shop: random weights, an index with shared SIDs, a catalog in DuckDB."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from leafbeam.index import Trie
from leafbeam.model import Transformer, Vocabulary
from tests.fixtures.shops import small_model

if TYPE_CHECKING:
    from leafbeam.catalog import Catalog
    from leafbeam.engine import Engine

# pytest keeps a conftest to the very end of the process; DuckDB, reachable from it then, would complain of leaks.

SIZES = (8, 8, 4)
ITEM_IDS = [f"é{i}" for i in range(160)]
RULES = {"cheap": "price < 20", "in_stock": "stock > 0", "none": "price > 1e9", "rare": "price = 7"}


@dataclass(frozen=True, kw_only=True)
class Shop:
    model: Transformer
    trie: Trie
    codes_NL: np.ndarray
    rows: list[dict[str, Any]]

    def allowed(self, rules: tuple[str, ...] = (), deny: tuple[Any, ...] = ()) -> set[Any]:
        """What the rules mean, in Python."""
        meaning: dict[str, Callable[[dict[str, Any]], bool]] = {
            "cheap": lambda row: row["price"] < 20,
            "in_stock": lambda row: row["stock"] > 0,
            "none": lambda row: False,
            "rare": lambda row: row["price"] == 7,
        }
        return {row["item_id"] for row in self.rows if all(meaning[rule](row) for rule in rules)} - set(deny)

    @torch.inference_mode()
    def scores(self, history: list[Any], allowed: set[Any], scoring: str) -> dict[Any, float]:
        """Every allowed item as a row of its own, teacher-forced, summed in float64: no search, no index."""
        place = {row["item_id"]: i for i, row in enumerate(self.rows)}
        items = sorted(allowed)
        if not items:
            return {}
        known, codes_NL = [self.codes_NL[place[item]] for item in history if item in place], self.codes_NL
        codes_NL = codes_NL[[place[item] for item in items]]
        tokens_NT, _ = self.model.vocabulary.prompts([np.array([*known, codes]) for codes in codes_NL])
        hidden_NTD, scores_N = self.model(torch.from_numpy(tokens_NT)), torch.zeros(len(items), dtype=torch.float64)
        for level in range(3):
            logits_NC = self.model.head(hidden_NTD[:, -4 + level], level).double()
            if scoring == "allowed":
                legal = {tuple(codes) for codes in codes_NL[:, : level + 1].tolist()}
                rows = [[(*codes[:level], code) in legal for code in range(SIZES[level])] for codes in codes_NL.tolist()]
                logits_NC = logits_NC.masked_fill(~torch.tensor(rows), -torch.inf)
            log_p_NC = logits_NC.log_softmax(1)
            if scoring == "vocabulary":
                of_all_NW = self.model.logits(hidden_NTD[:, -4 + level]).double().log_softmax(1)
                log_p_NC = of_all_NW[:, self.model.vocabulary.level_tokens(level)]
            scores_N += log_p_NC[torch.arange(len(items)), torch.from_numpy(codes_NL[:, level])]
        return dict(zip(items, scores_N.tolist(), strict=True))


@pytest.fixture(scope="session")
def shop() -> Shop:
    return make_shop()


def make_shop() -> Shop:
    rng = np.random.default_rng(3)
    codes_NL = np.stack([rng.integers(0, size, len(ITEM_IDS)) for size in SIZES], axis=1)
    codes_NL[5] = codes_NL[6] = codes_NL[7]
    sizes = {"num_hidden_layers": 2, "max_position_embeddings": 40, "initializer_range": 0.5}
    model = small_model(Vocabulary(codebook_sizes=SIZES), seed=1, **sizes)
    rows = [{"item_id": one, "title": f"thing {i}", "price": float(i % 40), "stock": i % 3} for i, one in enumerate(ITEM_IDS)]
    return Shop(model=model, trie=Trie.build(codes_NL, SIZES, item_ids=ITEM_IDS), codes_NL=codes_NL, rows=rows)


@pytest.fixture(scope="session")
def catalog_file(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from leafbeam.catalog import Catalog

    path = tmp_path_factory.mktemp("engine") / "shop.duckdb"
    Catalog.create(path, pa.Table.from_pylist(shop.rows))
    return path


@pytest.fixture(scope="session")
def catalog(shop: Shop, catalog_file: Path) -> "Catalog":
    from leafbeam.catalog import Catalog

    return Catalog.open(catalog_file, shop.trie, RULES)


@pytest.fixture
def engine(shop: Shop, catalog: "Catalog") -> "Engine":
    from leafbeam.engine import Engine

    return Engine(shop.model, catalog)
