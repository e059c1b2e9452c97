"""Items come and go while searches run, and every change survives the process. Needs leafbeam alone."""

import tempfile
from pathlib import Path

import numpy as np

from leafbeam import BeamSearch, Trie
from leafbeam.live import LiveIndex

rng = np.random.default_rng(0)
names = [f"item-{row}" for row in range(5_000)]
index = Trie.build(rng.integers(0, 64, (5_000, 3)), codebook_sizes=[64] * 3, item_ids=names)


def model(codes, parents):
    """Wants code 1 at every level."""
    logits = rng.normal(size=(1, 64) if codes is None else (*codes.shape, 64))
    logits[..., 1] += 50
    return logits


with tempfile.TemporaryDirectory() as folder:
    with LiveIndex.create(Path(folder) / "shop", index) as live:
        before = live.version()  # a version never changes: a search that holds it finishes on it
        live.insert([[1, 1, 1]], ["new"])
        live.delete(["item-0"])
        best = BeamSearch(live.version(), num_beams=5).run(model, batch_size=1).item_ids[0].tolist()
        print(f"{before.num_items:,} items before, {live.version().num_items:,} after; best {best[:2]}")
        assert "new" in best[:2]  # items may share a Semantic ID
        with live.transaction() as change:  # all of it or none of it
            change.delete(["new"])
            change.insert([[2, 2, 2], [3, 3, 3]], ["newer", "newest"])
    with LiveIndex.open(Path(folder) / "shop") as live:  # as another process would, later
        known = live.version().knows(["newer", "newest", "new", "item-0"])
        print(f"{live.version().num_items:,} items after the restart")
        assert known.tolist() == [True, True, False, False]
