"""The whole beam search as one function that JAX compiles. Needs leafbeam[jax]."""

import jax.numpy as jnp
import numpy as np

from leafbeam import Trie
from leafbeam.decode.jax_search import JaxBeamSearch

rng = np.random.default_rng(0)
names = [f"item-{row}" for row in range(2_000)]
index = Trie.build(rng.integers(0, 64, (2_000, 3)), codebook_sizes=[64] * 3, item_ids=names)


def step_fn(carry, codes_BK, parents_BK, level):
    """A pure function: weights and caches in `carry`, None for codes in the first round. Yours; a bigram table here."""
    return carry, carry["first"] if level == 0 else carry["next"][level - 1][codes_BK]


carry = {
    "first": jnp.asarray(rng.normal(size=(2, 64)), jnp.float32),
    "next": jnp.asarray(rng.normal(size=(2, 64, 64)), jnp.float32),
}
fresh = index.filter(rng.random(2_000) < 0.1)
search = JaxBeamSearch(index, num_beams=10, max_filters=4)
result = search.run(step_fn, carry, batch_size=2, filters=[fresh, None], deny=[None, ["item-7"]])
print(result.num_valid.tolist(), result.item_ids[0][:3].tolist())
assert all(item in fresh for item in result.item_ids[0])
assert "item-7" not in result.item_ids[1].tolist()
