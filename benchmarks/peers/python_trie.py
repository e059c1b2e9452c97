"""The nested-dict trie that users of Hugging Face pass to `generate(prefix_allowed_tokens_fn=...)`.

Written as they write it (GENRE's `trie.py` is the pattern that most copy), without its recursion and slicing, which cost more:
one dict for each node, a walk from the root for each row and step, the node's keys as a list.

    node = root
    for token in the tokens generated so far: node = node.get(token, nothing)
    allowed = list(node)

Shapes: N items, L tokens of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

__all__ = ["PythonTrie"]

Node = dict[int, Any]


class PythonTrie:
    """A closed set of token sequences, one Python dict a node (about 0.2 to 1 kB each)."""

    def __init__(self, sequences: Iterable[Sequence[int]]) -> None:
        self.root: Node = {}
        for sequence in sequences:
            node = self.root
            for token in sequence:
                node = node.setdefault(token, {})

    def get(self, prefix: Sequence[int]) -> list[int]:
        """The tokens that may follow a prefix; none behind a whole sequence or an unknown prefix."""
        node = self.root
        for token in prefix:
            node = node.get(token)
            if node is None:
                return []
        return list(node)

    def allowed_tokens(self, prompt_length: int, eos_token_id: int) -> Any:
        """`prefix_allowed_tokens_fn` for prompts of this many tokens: the end token where nothing else may follow."""

        def allowed(batch_id: int, input_ids: Tensor) -> list[int]:
            return self.get(input_ids[prompt_length:].tolist()) or [eos_token_id]

        return allowed
