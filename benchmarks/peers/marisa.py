"""marisa-trie behind Hugging Face's `prefix_allowed_tokens_fn`, as GENRE and its followers do it.

    for each beam, in Python: list every key that begins with its prefix; the characters after it are the codes that may follow
    a mask of -inf, 0 where a code may follow, is added to the scores (transformers' PrefixConstrainedLogitsProcessor)

A code is one character of a string. The codes of the empty prefix are cached, as there; each other prefix enumerates its keys.

Shapes: B requests, K beams, t codes so far, V codes, L levels, M SIDs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.peer import Offers, Selection
from leafbeam.extras import optional_imports

__all__ = ["MarisaTrie"]

_SURROGATES = (0xD800, 0xE000)  # no characters of their own
_BYTES_OF_KEY = 130  # measured while building 10^6 keys of eight codes: the keys, sorted, and marisa's own copy


@dataclass(frozen=True, kw_only=True, eq=False)
class MarisaTrie:
    """trie: a marisa_trie.Trie of the SIDs as strings. first_codes: those that any SID begins with."""

    trie: Any
    first_codes: list[int]
    num_levels: int
    nbytes: int
    exact: bool = True

    @classmethod
    def of_sorted(cls, codes_LM: NDArray[np.integer]) -> MarisaTrie:
        """From sorted SIDs. Cost: about 3 µs a SID. Raises MissingExtraError without marisa-trie."""
        with optional_imports("this peer"):
            import marisa_trie
        trie = marisa_trie.Trie(_keys(codes_LM))
        return cls(
            trie=trie,
            first_codes=np.unique(codes_LM[0]).tolist() if codes_LM.size else [],
            num_levels=len(codes_LM),
            nbytes=len(trie.tobytes()),
        )

    @staticmethod
    def needs(num_sids: int) -> int:
        """Bytes that building takes, about."""
        return _BYTES_OF_KEY * num_sids

    def prefix_allowed_tokens_fn(self, batch_id: int, input_ids: Tensor) -> list[int]:
        """The codes that may follow `input_ids`, for transformers' `generate(prefix_allowed_tokens_fn=...)`."""
        prefix = "".join(chr(_point(code)) for code in input_ids.tolist())
        if not prefix:
            return self.first_codes
        at = len(prefix)
        return list({_code(ord(key[at])) for key in self.trie.keys(prefix) if len(key) > at})

    def root(self, batch_size: int) -> Tensor:
        """No codes: int64 [B, 1, 0]."""
        return torch.empty(batch_size, 1, 0, dtype=torch.int64)

    def mask_step(self, state: Tensor, log_p_BKV: Tensor) -> tuple[Tensor, Offers]:
        """A mask of -inf and zeros, row by row, added to the scores."""
        mask = torch.full_like(log_p_BKV, -torch.inf)
        for batch_id, beams in enumerate(state):
            for beam, sent in enumerate(beams):
                mask[batch_id, beam, self.prefix_allowed_tokens_fn(batch_id, sent)] = 0
        return state, Offers(log_p_BKF=log_p_BKV + mask)

    def advance(self, pending: Tensor, best: Selection) -> Tensor:
        """The prefixes of the kept beams, on the host."""
        parent_BK, code_BK = best.parent_BK.cpu(), best.code_BK.cpu()
        kept = pending.gather(1, parent_BK[:, :, None].expand(-1, -1, pending.shape[2]))
        return torch.cat([kept, code_BK[:, :, None]], dim=2)


def _point(code: int) -> int:
    """The code point of a code: no NUL, no surrogate."""
    return code + 1 if code + 1 < _SURROGATES[0] else code + 1 + _SURROGATES[1] - _SURROGATES[0]


def _code(point: int) -> int:
    return point - 1 if point < _SURROGATES[0] else point - 1 - _SURROGATES[1] + _SURROGATES[0]


def _keys(codes_LM: NDArray[np.integer]) -> Any:
    """SIDs as strings, a chunk at a time."""
    for begin in range(0, codes_LM.shape[1], 100_000):
        points = codes_LM[:, begin : begin + 100_000].T.astype(np.int64) + 1
        points[points >= _SURROGATES[0]] += _SURROGATES[1] - _SURROGATES[0]
        width = len(codes_LM)
        text = points.astype("<u4").tobytes().decode("utf-32-le")
        yield from (text[at : at + width] for at in range(0, len(text), width))
