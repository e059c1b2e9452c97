"""leafbeam: generative retrieval that can only return items you may show.

>>> index = leafbeam.Trie.build(codes, codebook_sizes=[256, 256, 256], item_ids=ids)
>>> search = leafbeam.BeamSearch(index, num_beams=20)
>>> result = search.run(step_fn, batch_size=1, filters=index.filter(in_stock))
"""

from leafbeam.decode import BeamSearch, Sampler, SearchResult
from leafbeam.errors import LeafbeamError
from leafbeam.index import Filter, Trie

__all__ = ["BeamSearch", "Filter", "LeafbeamError", "Sampler", "SearchResult", "Trie"]
__version__ = "0.1.0"
