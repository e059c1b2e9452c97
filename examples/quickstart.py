"""Items, a filter for each request, a model: ranked items that the filter allows. Needs leafbeam alone."""

import numpy as np

from leafbeam import BeamSearch, Trie

rng = np.random.default_rng(0)
codes = rng.integers(0, 256, (10_000, 3))  # the Semantic IDs of 10,000 items
names = [f"item-{row}" for row in range(10_000)]
index = Trie.build(codes, codebook_sizes=[256] * 3, item_ids=names)

in_stock = index.filter(rng.random(10_000) < 0.9)  # a mask in the order of the ids
promoted = index.filter(item_ids=["item-3", "item-14", "item-159"])


def model(codes, parents):
    """Logits of the next code: (requests, 256) in the first round, (requests, beams, 256) after. Yours; noise here."""
    return rng.normal(size=(2, 256) if codes is None else (*codes.shape, 256))


result = BeamSearch(index, num_beams=10).run(model, batch_size=2, filters=[in_stock, promoted], deny=[["item-4"], None])
for request in range(2):
    count = int(result.num_valid[request])
    print(f"request {request}: {count} items, best {result.item_ids[request][:3].tolist()}")
assert all(item in in_stock for item in result.item_ids[0])
assert set(result.item_ids[1][:3].tolist()) == {"item-3", "item-14", "item-159"}  # three are allowed: three come back
