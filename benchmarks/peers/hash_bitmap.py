"""A bitmap of hashed prefixes, Bloom's filter with one hash: STATIC's "Hash Bitmap" (§5.2, method 5).

    a prefix has the bits of its codes from the byte hash(prefix) on: that of each code that follows it in some SID is set

Never refuses a legal code, but allows wrong ones where bits collide: its beams may hold SIDs that no item has. With one hash,
the share of wrong codes that it allows is the share of bits that are set, 1 - exp(-prefixes / bits): `expected_rate`. The
paper's public code has one hash and 2^30 bits (128 MiB) too, and the bits of a prefix follow each other there as well, so that
a probe of all codes reads neighbours; they begin with a whole byte here, so it reads V / 8. Hashes have 32 bits, so that JAX,
which has no wider integers, reads the same bitmap (`baselines_jax`).

Shapes: B requests, K beams, V codes, F bytes of V bits, L levels, M SIDs.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.peer import Offers, Selection

__all__ = ["SEED", "WORD", "HashBitmap", "expected_rate", "mixed"]

SEED = 0x811C9DC5
WORD = 2**32 - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class HashBitmap:
    """bytes_W: uint8. bit_8: the bits of a byte, uint8, made once, since torch.compile (2.13) has none for a shift of bytes."""

    bytes_W: Tensor
    bit_8: Tensor
    exact: bool = False

    @classmethod
    def of_sorted(cls, codes_LM: NDArray[np.integer], num_bits: int = 2**30, device: torch.device | str = "cpu") -> HashBitmap:
        """From any table of SIDs, one row a level. Cost: about 10 ns for each code. num_bits: a power of two, 8 to 2^31."""
        assert num_bits.bit_count() == 1
        assert 8 <= num_bits <= 2**31
        bytes_W = np.zeros(num_bits // 8, np.uint8)
        _set_bits(codes_LM, bytes_W)
        bit_8 = torch.tensor([1 << bit for bit in range(8)], dtype=torch.uint8)
        return cls(bytes_W=torch.from_numpy(bytes_W).to(device), bit_8=bit_8.to(device))

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmap."""
        return self.bytes_W.nbytes

    def root(self, batch_size: int) -> Tensor:
        """The hash of nothing, int64 [B, 1]."""
        return torch.full((batch_size, 1), SEED, dtype=torch.int64, device=self.bytes_W.device)

    def mask_step(self, state: Tensor, log_p_BKV: Tensor) -> tuple[Tensor, Offers]:
        """Probe the bitmap for every code of every beam."""
        batch_size, num_beams, num_codes = log_p_BKV.shape
        byte_F = torch.arange(-(-num_codes // 8), device=state.device)
        byte_BKF = (state[:, :, None] + byte_F) & (len(self.bytes_W) - 1)
        probed_BKF = self.bytes_W.index_select(0, byte_BKF.view(-1)).view(batch_size, num_beams, -1, 1)
        allowed_BKV = (probed_BKF & self.bit_8).view(batch_size, num_beams, -1)[:, :, :num_codes] != 0
        return state, Offers(log_p_BKF=torch.where(allowed_BKV, log_p_BKV, -torch.inf))

    def advance(self, pending: Tensor, best: Selection) -> Tensor:
        """Hash the kept codes onto their parents' hashes."""
        return mixed(pending.gather(1, best.parent_BK) ^ (best.code_BK + 1))


def expected_rate(num_prefixes: int, num_bits: int = 2**30) -> float:
    """Return the share of wrong codes that a bitmap of so many bits allows: that of its bits which these prefixes set."""
    return -math.expm1(-num_prefixes / num_bits)


def mixed(word: Any, mask: Any = WORD) -> Any:
    """The hash of 32 bits: of int64 in torch and numba, whose products stay below 2^63, or of uint32 in JAX."""
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & mask
    word = ((word ^ (word >> 15)) * 0x735A2D97) & mask
    return word ^ (word >> 15)


_mixed_number = njit(nogil=True)(mixed)


@njit(cache=True, nogil=True)
def _set_bits(codes_LM, out_bytes_W):
    """Set the bits that `mask_step` probes: each prefix of each SID."""
    levels, size = codes_LM.shape
    last = np.int64(out_bytes_W.size - 1)
    for place in range(size):
        hash_of_prefix = np.int64(SEED)
        for level in range(levels):
            code = np.int64(codes_LM[level, place])
            out_bytes_W[(hash_of_prefix + (code >> 3)) & last] |= np.uint8(1) << np.uint8(code & 7)
            hash_of_prefix = _mixed_number(hash_of_prefix ^ (code + np.int64(1)))
