"""Prompts that come again, longer: their keys and values, kept from one search to the next.

Shapes: G key heads, E values of a head, T tokens.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError

__all__ = ["CachedPrompt", "PromptStore"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedPrompt:
    """Keys and values of one prompt, (layers, 2, G, T, E), as another search left them; num_tokens: of them to be used."""

    slots: Tensor
    num_tokens: int


class PromptStore:
    """The prompts seen last, so that a user who comes back with a longer history is read from where the last one ended.

    Think of it as a cache from token sequences to keys and values: `find` gives the longest kept sequence that a new prompt
    begins with (the prompt's last token is always run, since somebody has to answer), `keep` puts a prompt in and throws out
    the one that it continues, and those that were used least recently, until all fit into max_bytes. A history that was cut at
    its old end to fit the model begins with other items, so nothing is found for it.

    A store belongs to one model with its present weights: after training make another. Threads may share it. Cost: a copy of
    the keys and values a prompt, and a look-up for each length that is kept.

    hits, misses, tokens_saved: since it was made.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ArgumentError(f"max_bytes={max_bytes} has to be at least 1; leave the store out to keep nothing")
        self.max_bytes = max_bytes
        self.hits = self.misses = self.tokens_saved = 0
        self._lock = threading.Lock()
        self._slots: OrderedDict[bytes, Tensor] = OrderedDict()  # by tokens (int64), least recently used first
        self._lengths: Counter[int] = Counter()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values now."""
        return self._nbytes

    def find(self, tokens_T: NDArray[np.int64]) -> CachedPrompt | None:
        """What is known of the beginning of this prompt."""
        whole = np.ascontiguousarray(tokens_T, np.int64).tobytes()
        with self._lock:
            for length in sorted((length for length in self._lengths if length <= len(tokens_T)), reverse=True):
                slots = self._slots.get(whole[: 8 * length])
                known = min(length, len(tokens_T) - 1)
                if slots is not None and known:
                    self._slots.move_to_end(whole[: 8 * length])
                    self.hits += 1
                    self.tokens_saved += known
                    return CachedPrompt(slots=slots, num_tokens=known)
            self.misses += 1
            return None

    def keep(self, tokens_T: NDArray[np.int64], slots: Tensor, continues: CachedPrompt | None = None) -> None:
        """Copy a prompt's keys and values, which continue another's; one that is larger than the whole store is not kept."""
        key = np.ascontiguousarray(tokens_T, np.int64).tobytes()
        with self._lock:
            if key in self._slots:
                self._slots.move_to_end(key)
                return
            if slots.nbytes > self.max_bytes:
                return
        own = slots.clone(memory_format=torch.contiguous_format)
        with self._lock:
            if continues is not None:
                self._drop(key[: 8 * continues.num_tokens])
            while self._slots and self._nbytes + own.nbytes > self.max_bytes:
                self._drop(next(iter(self._slots)))
            if key not in self._slots:
                self._slots[key] = own
                self._lengths[len(tokens_T)] += 1
                self._nbytes += own.nbytes

    def _drop(self, key: bytes) -> None:
        slots = self._slots.pop(key, None)
        if slots is None:
            return
        self._nbytes -= slots.nbytes
        self._lengths[len(key) // 8] -= 1
        if not self._lengths[len(key) // 8]:
            del self._lengths[len(key) // 8]
