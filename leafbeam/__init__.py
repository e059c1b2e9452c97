"""leafbeam: generative retrieval that can only return items you may show.

>>> index = leafbeam.Trie.build(codes, codebook_sizes=[256, 256, 256], item_ids=ids)
>>> search = leafbeam.BeamSearch(index, num_beams=20)
>>> result = search.run(step_fn, batch_size=1, filters=index.filter(in_stock))
"""

from typing import TYPE_CHECKING

from leafbeam.errors import LeafbeamError

if TYPE_CHECKING:  # for type checkers; at run time `__getattr__` imports a name when it is first used
    from leafbeam.client import AsyncClient, Client
    from leafbeam.decode import BeamSearch, Sampler, SearchResult
    from leafbeam.index import Filter, Trie
    from leafbeam.text import generate

__all__ = ["AsyncClient", "BeamSearch", "Client", "Filter", "LeafbeamError", "Sampler", "SearchResult", "Trie", "generate"]
__version__ = "0.1.0"

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there are no other names
    from leafbeam.extras import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)
