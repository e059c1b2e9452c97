"""Rules are SQL predicates over the items; a request names them. Needs leafbeam[catalog]."""

import numpy as np
import pyarrow as pa

from leafbeam import BeamSearch, Trie
from leafbeam.catalog import Catalog

rng = np.random.default_rng(0)
names = [f"item-{row}" for row in range(1_000)]
index = Trie.build(rng.integers(0, 32, (1_000, 3)), codebook_sizes=[32] * 3, item_ids=names)
items = pa.table({"item_id": names, "price": rng.uniform(1, 100, 1_000).round(2), "stock": rng.integers(0, 3, 1_000)})

rules = {"in_stock": "stock > 0", "cheap": "price < 10", "luxury": "price > 90"}
with Catalog.in_memory(items, index, rules) as catalog:
    print(catalog.rules.report)
    allowed = catalog.filter("(cheap | luxury) & in_stock", deny=["item-7"])

    def model(codes, parents):
        return rng.normal(size=(1, 32) if codes is None else (*codes.shape, 32))

    result = BeamSearch(catalog.version(), num_beams=5).run(model, batch_size=1, filters=[allowed])
    for row in catalog.lookup(result.item_ids[0].tolist()).to_pylist():
        print(f"{row['item_id']:>9}  price {row['price']:6.2f}  stock {row['stock']}")
        assert row["stock"] > 0
        assert not 10 <= row["price"] <= 90
