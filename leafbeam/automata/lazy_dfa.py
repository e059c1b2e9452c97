"""The deterministic automaton of a network, as far as it was asked for.

Shapes: J classes of bytes, R states, T bytes of all tokens, Y sets (the states of this automaton).
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata import determinize as kernels
from leafbeam.automata.addresses import addresses
from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.automata.determinize import NetworkArrays, Scratch, Sets
from leafbeam.automata.minimize import Edges
from leafbeam.errors import AutomatonError, counted


class LazyDFA:
    """A deterministic automaton whose states are found when a string reaches them; state 0 is the start.

    Every state leads to acceptance, and two states may have the same language. Any number of threads may use it, under `lock`.

    Args:
        network: The network; it is not empty.
        max_states: The largest number of states.
        max_bytes: The largest size of what was found.
    """

    def __init__(self, network: NetworkArrays, max_states: int, max_bytes: int = 1 << 40) -> None:
        self.network, self.max_states, self.lock = network, max_states, threading.RLock()
        self._max_bytes = max_bytes
        num_labels = int(network.class_256.max()) + 1
        self.counts = np.zeros(4, np.int64)
        space = 256 + num_labels
        self.sets = Sets(
            member_Z=np.empty(1024, np.int64),
            member_indptr=np.zeros(space + 1, np.int64),
            hash_Y=np.empty(space, np.uint64),
            accepting_Y=np.empty(space, np.bool_),
            slot_H=np.full(2048, -1, np.int32),
            edge_begin_Y=np.empty(space, np.int64),
            edge_end_Y=np.empty(space, np.int64),
            row_Y=np.empty(space, np.int32),
            label_R=np.empty(4 * space, np.uint8),
            to_R=np.empty(4 * space, np.int32),
            table_DJ=np.empty((16, num_labels), np.int32),
        )
        self.scratch = Scratch(
            bucket_J=np.zeros(num_labels + 1, np.int64),
            target_e=np.empty(1024, np.int64),
            key_H=np.empty(1024, np.int64),
            stamp_H=np.zeros(1024, np.int64),
            stack_n=np.empty(1024, np.int64),
            closed_n=np.empty(1024, np.int64),
        )
        self._network_rows, self._sets_rows = addresses(network), addresses(self.sets)
        self._scratch_rows = addresses(self.scratch)
        while code := kernels.begin(self.state):
            self.enlarge(code)

    @property
    def num_states(self) -> int:
        """Return the number of states so far."""
        return int(self.counts[kernels.NUM_SETS])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.network, *self.sets, *self.scratch))

    def enlarge(self, code: int) -> None:
        """Make twice as large what a kernel says is too small. Raises AutomatonError above the limits."""
        if self.num_states > self.max_states or self.nbytes > self._max_bytes:
            raise self._too_large()
        names = {
            kernels.SETS: ("member_indptr", "hash_Y", "accepting_Y", "edge_begin_Y", "edge_end_Y", "row_Y"),
            kernels.MEMBERS: ("member_Z",),
            kernels.EDGES: ("label_R", "to_R"),
            kernels.ROWS: ("table_DJ",),
        }
        if code == kernels.SCRATCH:
            doubled = {name: _doubled(getattr(self.scratch, name)) for name in ("target_e", "stack_n", "closed_n")}
            slots = np.zeros((2, 2 * len(self.scratch.key_H)), np.int64)
            self.scratch = self.scratch._replace(key_H=slots[0], stamp_H=slots[1], **doubled)
            self._scratch_rows = addresses(self.scratch)
            return
        self.sets = self.sets._replace(**{name: _doubled(getattr(self.sets, name)) for name in names[code]})
        if code == kernels.SETS:
            slot_H = np.full(1 << (4 * len(self.sets.hash_Y) - 1).bit_length(), -1, np.int32)
            kernels.fill_slots(self.sets.hash_Y, self.num_states, slot_H)
            self.sets = self.sets._replace(slot_H=slot_H)
        self._sets_rows = addresses(self.sets)

    def language(self) -> ByteDFA:
        """Return the whole language, if no state was asked for before. Raises AutomatonError above the limits."""
        number, code = 0, 1
        while code:
            number, code = kernels.expand_all(number, self.max_states, self.state)
            if code:
                self.enlarge(int(code))
        count = self.num_states
        if count > self.max_states:
            raise self._too_large()
        from_e = np.repeat(np.arange(count, dtype=np.int32), self.sets.edge_end_Y[:count] - self.sets.edge_begin_Y[:count])
        edges = Edges(from_e, self.sets.label_R[: len(from_e)].astype(np.int32), self.sets.to_R[: len(from_e)])
        return ByteDFA.of_classes(self.network.class_256, edges, self.sets.accepting_Y[:count].copy(), 0)

    def _too_large(self) -> AutomatonError:
        return AutomatonError(
            f"the language unrolls to more than max_states={counted(self.max_states, 'state')}, or takes too many bytes: "
            "simplify it, bound repetitions more tightly, or raise the limit"
        )

    @property
    def state(self) -> tuple[NDArray[np.int64], ...]:
        """Return what kernels read and write: the addresses of the network and of the sets, the counts, and the scratch."""
        return self._network_rows, self._sets_rows, self.counts, self._scratch_rows


def _doubled(array: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([array, np.empty_like(array)])
