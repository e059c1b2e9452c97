"""A bitmap of hashed prefixes, Bloom's filter with one hash: STATIC's "Hash Bitmap" (§5.2, method 5).

    bit hash(prefix) is set for every prefix of every SID; a code may follow a prefix if the bit of both together is set

Never refuses a legal code, but allows wrong ones where bits collide: its beams may hold SIDs that no item has. The paper's code
uses 2^30 bits (128 MiB); the share of false positives is measured, never assumed.

Shapes: B requests, K beams, V codes, L levels, M SIDs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pleach.bench.peers.peer import Offers, Selection

__all__ = ["HashBitmap"]

_FACTOR = 0x9E3779B97F4A7C15 - 2**64  # 2^64 over the golden ratio, as int64 (Knuth's multiplicative hash)
_SEED = -3750763034362895579
_MIXED = 33  # the low bits of a product depend on the low bits of its factors alone: take the high ones
_CHUNK = 4_000_000


@dataclass(frozen=True, kw_only=True, eq=False)
class HashBitmap:
    """bytes_W: uint8, bit i % 8 of byte i // 8."""

    bytes_W: Tensor
    num_bits: int
    exact: bool = False

    @classmethod
    def of_sorted(cls, codes_LM: NDArray[np.integer], num_bits: int = 2**30, device: torch.device | str = "cpu") -> HashBitmap:
        """From any table of SIDs, one row a level. Cost: about 10 ns for each code. num_bits: a power of two, at most 2^31."""
        assert num_bits.bit_count() == 1
        bytes_W = np.zeros(max(1, num_bits // 8), np.uint8)
        for begin in range(0, codes_LM.shape[1], _CHUNK):
            hash_M = np.full(min(_CHUNK, codes_LM.shape[1] - begin), _SEED, np.int64)
            for codes_M in codes_LM[:, begin : begin + _CHUNK]:
                hash_M = (hash_M ^ (codes_M.astype(np.int64) + 1)) * np.int64(_FACTOR)
                at_M = (hash_M >> _MIXED) & (num_bits - 1)
                for bit in range(8):  # within one bit number, a byte that occurs twice is written twice with the same value
                    byte_M = at_M[at_M & 7 == bit] >> 3
                    bytes_W[byte_M] |= np.uint8(1 << bit)
        return cls(bytes_W=torch.from_numpy(bytes_W).to(device), num_bits=num_bits)

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmap."""
        return self.bytes_W.nbytes

    def root(self, batch_size: int) -> Tensor:
        """The hash of nothing, int64 [B, 1]."""
        return torch.full((batch_size, 1), _SEED, dtype=torch.int64, device=self.bytes_W.device)

    def mask_step(self, state: Tensor, log_p_BKV: Tensor) -> tuple[Tensor, Offers]:
        """Probe the bitmap for every code of every beam."""
        code_V = torch.arange(1, log_p_BKV.shape[2] + 1, device=state.device)
        at_BKV = (((state[:, :, None] ^ code_V) * _FACTOR) >> _MIXED) & (self.num_bits - 1)
        is_set = (self.bytes_W[at_BKV >> 3] >> (at_BKV & 7).to(torch.uint8)) & 1
        return state, Offers(log_p_BKF=torch.where(is_set.bool(), log_p_BKV, -torch.inf))

    def advance(self, pending: Tensor, best: Selection) -> Tensor:
        """Hash the kept codes onto their parents' hashes."""
        return (pending.gather(1, best.parent_BK) ^ (best.code_BK + 1)) * _FACTOR
