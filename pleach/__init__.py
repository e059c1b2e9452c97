"""pleach: generative retrieval that can only return items you may show.

>>> index = pleach.Trie.build(codes, codebook_sizes=[256, 256, 256], item_ids=ids)
>>> search = pleach.BeamSearch(index, num_beams=20)
>>> result = search.run(step_fn, batch_size=1, filters=index.filter(in_stock))
"""

from pleach.decode import BeamSearch, Sampler, SearchResult
from pleach.errors import PleachError
from pleach.index import Filter, Trie

__all__ = ["BeamSearch", "Filter", "PleachError", "Sampler", "SearchResult", "Trie"]
__version__ = "0.1.0"
