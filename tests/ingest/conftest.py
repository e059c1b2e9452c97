from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.index import Trie
from leafbeam.retrieve import ItemMemory
from leafbeam.semid import QuantiserConfig, fit_sids
from tests.ingest.shop import TITLES, Shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    ids = [f"i{n}" for n in range(6)]
    items = pa.table(
        {
            "item_id": ids,
            "title": TITLES,
            "price": [10.0, 20.0, 30.0, 5.0, 6.0, 7.0],
            "stock": [1, 2, 3, 4, 5, 6],
            "seen": pa.array(["2024-01-01"] * 6).cast(pa.timestamp("us")),
        }
    )
    fit = fit_sids(items, None, quantiser=QuantiserConfig(codebook_sizes=(4,), collision_strategy="spread"))
    Trie.build(fit.table.codes, fit.table.codebook_sizes, ids).save(tmp_path / "index.leafbeam")
    Catalog.create(tmp_path / "items.duckdb", items)
    memory = ItemMemory.fit(ids, np.array([0, 2]), np.array([0, 1]), texts=TITLES)
    return Shop(folder=tmp_path, encoder=fit.encoder, codes=fit.table.codes, memory=memory)
