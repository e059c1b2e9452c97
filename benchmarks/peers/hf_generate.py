"""Hugging Face's `generate` on the same checkpoint: beam search with `prefix_allowed_tokens_fn` over a trie of Python dicts.

Written as its documentation does it: prompts padded on the left, num_beams beams, as many sequences back, one token a level,
and `renormalize_logits`, which scores as leafbeam does with "allowed": log-softmax over the tokens that may follow.

It copies keys and values of all beams in each round. With glibc's defaults up to a third of its time goes into pages that the
system clears for these copies, so benchmarks call `keep_freed_memory`, which is as fast as tcmalloc.

Shapes: B requests, K beams, L levels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.python_trie import PythonTrie
from leafbeam.index import Trie
from leafbeam.model import AnyVocabulary

__all__ = ["HfGenerate", "keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's mallopt


@dataclass(frozen=True, kw_only=True, eq=False)
class HfGenerate:
    """A checkpoint of a decoder in transformers, and the items it may answer."""

    model: Any
    vocabulary: AnyVocabulary
    items: PythonTrie
    item_of_sid: dict[tuple[int, ...], int]

    @classmethod
    def of(
        cls, directory: str | PathLike[str], trie: Trie, vocabulary: AnyVocabulary, dtype: torch.dtype = torch.float32
    ) -> HfGenerate:
        """Load a checkpoint and put every item's tokens into a dict of dicts."""
        from transformers import AutoModelForCausalLM  # a benchmark without transformers has a row that says so

        codes_NL = trie.codes_at(np.arange(trie.num_leaves))
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
        # Sequences have a fixed length; an end token would only give beam search something to look out for.
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = vocabulary.pad
        return cls(
            model=model,
            vocabulary=vocabulary,
            items=PythonTrie(vocabulary.tokens(codes_NL).tolist()),
            item_of_sid={tuple(sid): leaf for leaf, sid in enumerate(codes_NL.tolist())},
        )

    def recommend(
        self, histories: Sequence[NDArray[np.int64]], num_beams: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(leaves (B, K), scores (B, K)) of histories of SIDs (n, L), best first."""
        tokens_BT, lengths_B = self.vocabulary.prompts(histories)
        whole = tokens_BT.shape[1]
        left_BT = np.full_like(tokens_BT, self.vocabulary.pad)
        for row, (tokens_T, length) in enumerate(zip(tokens_BT, lengths_B, strict=True)):
            left_BT[row, whole - length :] = tokens_T[:length]
        with torch.inference_mode():
            found = self.model.generate(
                input_ids=torch.from_numpy(left_BT),
                attention_mask=torch.from_numpy((np.arange(whole) >= whole - lengths_B[:, None]).astype(np.int64)),
                prefix_allowed_tokens_fn=self.items.allowed_tokens(whole, self.vocabulary.pad),
                num_beams=num_beams,
                num_return_sequences=num_beams,
                max_new_tokens=self.vocabulary.num_levels,
                length_penalty=0.0,
                do_sample=False,
                renormalize_logits=True,
                return_dict_in_generate=True,
                output_scores=True,
            )
        sids = self.vocabulary.codes(found.sequences[:, whole:].numpy()).tolist()
        leaves = np.array([self.item_of_sid[tuple(sid)] for sid in sids], np.int64)
        shape = len(histories), num_beams
        return leaves.reshape(shape), found.sequences_scores.numpy().reshape(shape)


def keep_freed_memory() -> None:
    """Let glibc serve every size from memory that this process has, for as long as it runs; elsewhere nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
