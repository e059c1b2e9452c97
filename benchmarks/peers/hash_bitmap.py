"""A bitmap of hashed prefixes, Bloom's filter with one hash: STATIC's "Hash Bitmap" (§5.2, method 5).

    bit hash(prefix) is set for every prefix of every SID; a code may follow a prefix if the bit of both together is set

Never refuses a legal code, but allows wrong ones where bits collide: its beams may hold SIDs that no item has. With one hash,
the share of wrong codes that it allows is the share of bits that are set, 1 - exp(-prefixes / bits): `expected_rate`. The
paper's public code has one hash and 2^30 bits (128 MiB) too. Hashes have 32 bits, so that JAX, which has no wider integers,
reads the same bitmap (`baselines_jax`).

Shapes: B requests, K beams, V codes, L levels, M SIDs.
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
_NUM_CODES = 1 << 16
WORD = 2**32 - 1
_BIT = 29  # where the three bits of a code's hash begin that say which bit of a byte is its own


@dataclass(frozen=True, kw_only=True, eq=False)
class HashBitmap:
    """bytes_W: uint8. A prefix and a code after it stand in byte `mix(hash of the prefix) ^ mix(code)`, at a bit that the code
    alone decides: of a probe of all codes, only the byte is looked up by a hash of both. byte_C, bit_C: of each code, int32 and
    uint8; made once: a probe that makes them takes longer, and once torch.compile (2.13) has compiled it, ends the process.
    """

    bytes_W: Tensor
    byte_C: Tensor
    bit_C: Tensor
    exact: bool = False

    @classmethod
    def of_sorted(cls, codes_LM: NDArray[np.integer], num_bits: int = 2**30, device: torch.device | str = "cpu") -> HashBitmap:
        """From any table of SIDs, one row a level. Cost: about 10 ns for each code. num_bits: a power of two, 8 to 2^31."""
        assert num_bits.bit_count() == 1
        assert 8 <= num_bits <= 2**31
        bytes_W = np.zeros(num_bits // 8, np.uint8)
        assert codes_LM.max(initial=0) < _NUM_CODES
        code_C = torch.arange(_NUM_CODES)
        hash_C = mixed(code_C + 1)
        byte_C, bit_C = _byte(hash_C, len(bytes_W)), torch.ones_like(hash_C, dtype=torch.uint8) << (hash_C >> _BIT).byte()
        _set_bits(codes_LM, byte_C.numpy(), bit_C.numpy(), bytes_W)
        return cls(bytes_W=torch.from_numpy(bytes_W).to(device), byte_C=byte_C.to(device), bit_C=bit_C.to(device))

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmap."""
        return self.bytes_W.nbytes

    def root(self, batch_size: int) -> Tensor:
        """The hash of nothing, int64 [B, 1]."""
        return torch.full((batch_size, 1), SEED, dtype=torch.int64, device=self.bytes_W.device)

    def mask_step(self, state: Tensor, log_p_BKV: Tensor) -> tuple[Tensor, Offers]:
        """Probe the bitmap for every code of every beam."""
        num_codes = log_p_BKV.shape[2]
        byte_BKV = _byte(state, len(self.bytes_W))[:, :, None] ^ self.byte_C[:num_codes]
        probed_BKV = self.bytes_W.index_select(0, byte_BKV.view(-1)).view(byte_BKV.shape)
        return state, Offers(log_p_BKF=torch.where((probed_BKV & self.bit_C[:num_codes]) != 0, log_p_BKV, -torch.inf))

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


def _byte(hash_n: Tensor, num_bytes: int) -> Tensor:
    """int32, below the number of bytes."""
    return (hash_n & (num_bytes - 1)).int()


@njit(cache=True, nogil=True)
def _set_bits(codes_LM, byte_of_code_V, bit_of_code_V, out_bytes_W):
    """Set the bits that `mask_step` probes: each prefix of each SID, with the hashes of `mixed` and `_byte`."""
    levels, size = codes_LM.shape
    last = np.int64(out_bytes_W.size - 1)
    for place in range(size):
        hash_of_prefix = np.int64(SEED)
        for level in range(levels):
            code = np.int64(codes_LM[level, place])
            byte = (hash_of_prefix & last) ^ np.int64(byte_of_code_V[code])
            out_bytes_W[byte] |= bit_of_code_V[code]
            hash_of_prefix = _mixed_number(hash_of_prefix ^ (code + np.int64(1)))
