"""A prefix tree of nested Python dictionaries on the host: STATIC's "CPU Trie" (§5.2, method 2).

At every step the kept beams go to the host, each beam's dictionary says which codes may follow, and a [rows, V] mask goes back.
Lean where the paper's code walks from the root each time: a beam keeps the dictionary that it has reached.

Shapes: B requests, K beams, V codes, M SIDs.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.peer import Offers, Selection

__all__ = ["CpuTrie", "DictState"]

Node = dict[int, Any]
_NOTHING: Node = {}
# Measured with getsizeof: a dictionary of one entry (most of them), and what each further entry costs about.
_BYTES_OF_NODE, _BYTES_OF_ENTRY = 232, 100


@dataclass(frozen=True, kw_only=True, eq=False)
class DictState:
    """The dictionary that each beam has reached, request by request."""

    nodes: list[list[Node]]


@dataclass(frozen=True, kw_only=True, eq=False)
class CpuTrie:
    """Code -> dictionary of the codes after it; the last level's values are one shared empty dictionary."""

    first: Node
    nbytes: int
    exact: bool = True

    @classmethod
    def of_sorted(cls, codes_LM: NDArray[np.integer], nodes_L: list[int]) -> CpuTrie:
        """From sorted, distinct SIDs. Cost: about half a microsecond and 232 bytes for each node."""
        was_enabled = gc.isenabled()
        gc.disable()  # a collection walks every dictionary made so far, again and again
        try:
            first = _build(codes_LM)
        finally:
            if was_enabled:
                gc.enable()
        return cls(first=first, nbytes=cls.needs(nodes_L))

    @staticmethod
    def needs(nodes_L: list[int]) -> int:
        """Bytes of all dictionaries, about: one for the root and each node above the last level."""
        inner = 1 + sum(nodes_L[:-1])
        return _BYTES_OF_NODE * inner + _BYTES_OF_ENTRY * (sum(nodes_L) - inner)

    def root(self, batch_size: int) -> DictState:
        """The root for every request."""
        return DictState(nodes=[[self.first]] * batch_size)

    def mask_step(self, state: DictState, log_p_BKV: Tensor) -> tuple[DictState, Offers]:
        """Build the mask on the host, send it to the device, apply it there."""
        mask = np.zeros(log_p_BKV.shape, np.bool_)
        for request, nodes in enumerate(state.nodes):
            for beam, node in enumerate(nodes):
                mask[request, beam, list(node)] = True
        on_device = torch.from_numpy(mask).to(log_p_BKV.device)
        return state, Offers(log_p_BKF=torch.where(on_device, log_p_BKV, -torch.inf))

    def advance(self, pending: DictState, best: Selection) -> DictState:
        """Bring the kept beams to the host and follow their codes."""
        parents, codes = best.parent_BK.cpu().tolist(), best.code_BK.cpu().tolist()
        return DictState(
            nodes=[
                [nodes[parent].get(code, _NOTHING) for parent, code in zip(of_parent, of_code, strict=True)]
                for nodes, of_parent, of_code in zip(pending.nodes, parents, codes, strict=True)
            ]
        )


def _build(codes_LM: NDArray[np.integer]) -> Node:
    first: Node = {}
    # One int object a code for all dictionaries: new ones would take 32 bytes for each node.
    shared_V = np.arange(int(codes_LM.max(initial=0)) + 1).astype(object)
    for begin in range(0, codes_LM.shape[1], 100_000):
        for sid in shared_V[codes_LM[:, begin : begin + 100_000].T].tolist():
            node = first
            for code in sid[:-1]:
                node = node.setdefault(code, {})
            node[sid[-1]] = _NOTHING
    return first
