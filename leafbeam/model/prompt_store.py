"""A cache of prompts' keys and values across searches, by longest common prefix.

Shapes: G key heads, E values of a head, T tokens.
"""

import bisect
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedPrompt:
    """Keys and values (layers, 2, G, T, E) of a stored prompt, of which the first num_tokens are valid for the new one."""

    slots: Tensor
    num_tokens: int


class PromptStore:
    """A least-recently-used cache from token sequences to keys and values, so that a longer history runs its new tokens only.

    It belongs to one model and its current weights. Thread-safe. Cost: a copy of the keys and values per prompt, and a look-up
    that takes microseconds, however many prompts are stored. A history truncated at its old end is a miss.
    hits, misses, tokens_saved: since construction. nbytes: of what is stored.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ArgumentError(f"max_bytes={max_bytes} has to be at least 1; leave the store out to keep nothing")
        self.max_bytes = max_bytes
        self.hits = self.misses = self.tokens_saved = 0
        self._lock = threading.Lock()
        self._slots: OrderedDict[bytes, Tensor] = OrderedDict()  # by tokens (int64), least recently used first
        self._sorted: list[bytes] = []  # the keys of `_slots`
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"PromptStore(prompts={len(self)}, nbytes={self.nbytes}, max_bytes={self.max_bytes})"

    def find(self, tokens_T: NDArray[np.int64]) -> CachedPrompt | None:
        """Return the longest stored prefix; never the whole prompt, because its last token must run to give logits."""
        whole = np.ascontiguousarray(tokens_T, np.int64).tobytes()
        with self._lock:
            prefix = self._longest_prefix(whole)
            known = min(len(prefix) * len(tokens_T) // len(whole), len(tokens_T) - 1)
            if known < 1:
                self.misses += 1
                return None
            self._slots.move_to_end(prefix)
            self.hits += 1
            self.tokens_saved += known
            return CachedPrompt(slots=self._slots[prefix], num_tokens=known)

    def put(self, tokens_T: NDArray[np.int64], slots: Tensor, extends: CachedPrompt | None = None) -> None:
        """Copy a prompt's keys and values, dropping the prompt that it extends; one larger than max_bytes is not stored."""
        key = np.ascontiguousarray(tokens_T, np.int64).tobytes()
        with self._lock:
            if key in self._slots:
                self._slots.move_to_end(key)
                return
        if slots.nbytes > self.max_bytes:
            return
        own = slots.clone(memory_format=torch.contiguous_format)
        with self._lock:
            if extends is not None:
                self._drop(key[: len(key) * extends.num_tokens // len(tokens_T)])
            while self._slots and self.nbytes + own.nbytes > self.max_bytes:
                self._drop(next(iter(self._slots)))
            if key not in self._slots:
                self._slots[key] = own
                bisect.insort(self._sorted, key)
                self.nbytes += own.nbytes

    def _drop(self, key: bytes) -> None:
        slots = self._slots.pop(key, None)
        if slots is None:
            return
        self.nbytes -= slots.nbytes
        del self._sorted[bisect.bisect_left(self._sorted, key)]

    def _longest_prefix(self, whole: bytes) -> bytes:
        """Return the longest key that begins `whole`, or nothing."""
        end = len(whole)
        while at := bisect.bisect_right(self._sorted, whole[:end]):
            nearest = self._sorted[at - 1]
            if whole.startswith(nearest):
                return nearest
            # What `whole` and the last key before it do not share, it shares with no key.
            size = min(end, len(nearest))
            end = int((np.frombuffer(whole, np.uint8, size) != np.frombuffer(nearest, np.uint8, size)).argmax())
        return b""
