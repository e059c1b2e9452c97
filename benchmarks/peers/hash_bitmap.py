"""A bitmap of hashed prefixes, Bloom's filter with one hash: STATIC's "Hash Bitmap" (§5.2, method 5).

    bit hash(prefix) is set for every prefix of every SID; a code may follow a prefix if the bit of both together is set

Never refuses a legal code, but allows wrong ones where bits collide: its beams may hold SIDs that no item has. The paper's code
uses 2^30 bits (128 MiB); the share of false positives is measured, never assumed.

Shapes: B requests, K beams, V codes, L levels, M SIDs.
"""

# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportIndexIssue=false
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.peer import Offers, Selection

__all__ = ["HashBitmap"]

_FACTOR = 0x9E3779B97F4A7C15 - 2**64  # 2^64 over the golden ratio, as int64 (Knuth's multiplicative hash)
_SEED = -3750763034362895579
_NUM_CODES = 1 << 16
_MIXED = 33  # the low bits of a product depend on the low bits of its factors alone: take the high ones


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
        bytes_W = np.zeros(num_bits // 8, np.uint8)
        assert codes_LM.max(initial=0) < _NUM_CODES
        code_C = torch.arange(_NUM_CODES)
        byte_C, bit_C = _byte(_of_code(code_C), len(bytes_W)), _bit(code_C)
        _set_bits(codes_LM, byte_C.numpy(), bit_C.numpy(), bytes_W)
        return cls(bytes_W=torch.from_numpy(bytes_W).to(device), byte_C=byte_C.to(device), bit_C=bit_C.to(device))

    @property
    def nbytes(self) -> int:
        """Bytes of the bitmap."""
        return self.bytes_W.nbytes

    def root(self, batch_size: int) -> Tensor:
        """The hash of nothing, int64 [B, 1]."""
        return torch.full((batch_size, 1), _SEED, dtype=torch.int64, device=self.bytes_W.device)

    def mask_step(self, state: Tensor, log_p_BKV: Tensor) -> tuple[Tensor, Offers]:
        """Probe the bitmap for every code of every beam."""
        num_codes = log_p_BKV.shape[2]
        byte_BKV = _byte(state, len(self.bytes_W))[:, :, None] ^ self.byte_C[:num_codes]
        probed_BKV = self.bytes_W.index_select(0, byte_BKV.view(-1)).view(byte_BKV.shape)
        return state, Offers(log_p_BKF=torch.where((probed_BKV & self.bit_C[:num_codes]) != 0, log_p_BKV, -torch.inf))

    def advance(self, pending: Tensor, best: Selection) -> Tensor:
        """Hash the kept codes onto their parents' hashes."""
        return _after(pending.gather(1, best.parent_BK), best.code_BK)


def _after(hash_n: Tensor, code_n: Tensor) -> Tensor:
    """The hash of a prefix and one more code."""
    return (hash_n ^ (code_n + 1)) * _FACTOR


def _of_code(code_n: Tensor) -> Tensor:
    return (code_n + 1) * _FACTOR


def _byte(hash_n: Tensor, num_bytes: int) -> Tensor:
    """int32, below the number of bytes."""
    return ((hash_n >> _MIXED) & (num_bytes - 1)).int()


@njit(cache=True, nogil=True)
def _set_bits(codes_LM, byte_of_code_V, bit_of_code_V, out_bytes_W):
    """As `mask_step` probes: each prefix of each SID, with the hashes of `_after` and `_byte`."""
    levels, size = codes_LM.shape
    last = np.int64(out_bytes_W.size - 1)
    for place in range(size):
        hash_of_prefix = np.int64(_SEED)
        for level in range(levels):
            code = np.int64(codes_LM[level, place])
            byte = ((hash_of_prefix >> np.int64(_MIXED)) & last) ^ np.int64(byte_of_code_V[code])
            out_bytes_W[byte] |= bit_of_code_V[code]
            hash_of_prefix = (hash_of_prefix ^ (code + np.int64(1))) * np.int64(_FACTOR)


def _bit(code_n: Tensor) -> Tensor:
    """uint8, one bit set."""
    return torch.ones_like(code_n, dtype=torch.uint8) << (_of_code(code_n) >> 60 & 7).to(torch.uint8)
