"""The determinisation of a network: from edges between states, some of them without a byte, to a deterministic automaton.

Shapes: X states of the network, E edges, F edges without a byte, J classes of bytes, Z members of all sets, Y sets of states.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

import numpy as np

from leafbeam.jit import njit

END = 1  # the state of a network in which strings end
_MAX_MEMBERS = 1 << 26


@njit(cache=True)
def _doubled(array):
    return np.concatenate((array, np.empty_like(array)))


@njit(cache=True, nogil=True, _nrt=False)
def _sorted_hash(member_X, size):
    """Sort the first `size` members (Shell, 1959: most sets have few) and return a hash of them."""
    state, gap = np.uint64(size), size
    while gap > 1:
        gap >>= 1
        for index in range(gap, size):
            member, at = member_X[index], index
            while at >= gap and member_X[at - gap] > member:
                member_X[at] = member_X[at - gap]
                at -= gap
            member_X[at] = member
    for index in range(size):
        state = (state ^ np.uint64(member_X[index])) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
    return state


@njit(cache=True, nogil=True, _nrt=False)
def _equal(first_Z, begin, second_X, size):
    """Return whether `size` members are the same."""
    index = 0
    while index < size and first_Z[begin + index] == second_X[index]:
        index += 1
    return index == size


@njit(cache=True, nogil=True, _nrt=False)
def _gather(members, indptr, label_E, to_E, bucket_J, target_e):
    """Write the targets of all members by label: those of label j are target_e[bucket_J[j] : bucket_J[j + 1]].

    members: (member_Z, begin, end). Returns False, with nothing written, if `target_e` is too small.
    """
    member_Z, begin, end = members
    num_labels = len(bucket_J) - 1
    bucket_J[:] = 0
    for index in range(begin, end):
        for edge in range(indptr[member_Z[index]], indptr[member_Z[index] + 1]):
            bucket_J[label_E[edge] + 1] += 1
    for label in range(num_labels):
        bucket_J[label + 1] += bucket_J[label]
    if bucket_J[num_labels] > len(target_e):
        return False
    for index in range(begin, end):
        for edge in range(indptr[member_Z[index]], indptr[member_Z[index] + 1]):
            target_e[bucket_J[label_E[edge]]] = to_E[edge]
            bucket_J[label_E[edge]] += 1
    for label in range(num_labels, 0, -1):  # back to where each label begins
        bucket_J[label] = bucket_J[label - 1]
    bucket_J[0] = 0
    return True


@njit(cache=True, nogil=True, _nrt=False)
def _close(targets, skips, indptr, stamps, stack_X, closed_X):
    """Write the states that have edges, and END, among the targets and what they reach without a byte; returns how many.

    targets: (target_e, begin, end). stamps: (stamp_X, the stamp of this call).
    """
    (target_e, begin, end), (skip_indptr, skip_F), (stamp_X, stamp) = targets, skips, stamps
    size, depth = 0, 0
    for index in range(begin, end):
        target = target_e[index]
        if stamp_X[target] != stamp:
            stamp_X[target], stack_X[depth] = stamp, target
            depth += 1
    while depth:
        depth -= 1
        state = stack_X[depth]
        if indptr[state + 1] > indptr[state] or state == END:
            closed_X[size] = state
            size += 1
        for index in range(skip_indptr[state], skip_indptr[state + 1]):
            other = skip_F[index]
            if stamp_X[other] != stamp:
                stamp_X[other], stack_X[depth] = stamp, other
                depth += 1
    return size


@njit(cache=True, nogil=True, _nrt=False)
def _slot_of(closed_X, size, hashed, slot_H, hash_Y, begin_Y, member_Z):
    """Return the slot of a set, or the free slot for it."""
    slot = np.int64(hashed & np.uint64(len(slot_H) - 1))
    while slot_H[slot] >= 0:
        other = slot_H[slot]
        begins = begin_Y[other]
        if hash_Y[other] == hashed and begin_Y[other + 1] - begins == size and _equal(member_Z, begins, closed_X, size):
            break
        slot = (slot + 1) & (len(slot_H) - 1)
    return slot


@njit(cache=True, nogil=True, _nrt=False)
def _follow(source, label, counts, gathered, skips, indptr, sets, stacks, edges):
    """Add the edges of a set from a label on, and the sets that they lead to; returns the first label that is not done.

    counts: the numbers of sets, edges and stamps. It stops where the members of one more set do not fit.
    """
    (bucket_J, target_e), (from_e, label_e, to_e) = gathered, edges
    set_X, member_Z, begin_Y, slot_H, hash_Y = sets
    stamp_X, stack_X, closed_X = stacks
    num_labels = len(bucket_J) - 1
    while label < num_labels:
        begin, end = bucket_J[label], bucket_J[label + 1]
        known = np.int32(-2)
        if end > begin:
            known = set_X[target_e[begin]] if end - begin == 1 else np.int32(-1)
        if known == -1:
            counts[2] += 1
            size = _close((target_e, begin, end), skips, indptr, (stamp_X, counts[2]), stack_X, closed_X)
            known = np.int32(-2)
            if size:
                hashed = _sorted_hash(closed_X, size)
                slot = _slot_of(closed_X, size, hashed, slot_H, hash_Y, begin_Y, member_Z)
                known = slot_H[slot]
                if known < 0:
                    count = counts[0]
                    if begin_Y[count] + size > len(member_Z):
                        return label
                    known = np.int32(count)
                    slot_H[slot], hash_Y[count] = known, hashed
                    for index in range(size):
                        member_Z[begin_Y[count] + index] = closed_X[index]
                    begin_Y[count + 1] = begin_Y[count] + size
                    counts[0] += 1
            if end - begin == 1:
                set_X[target_e[begin]] = known
        if known >= 0 and source >= 0:
            from_e[counts[1]], label_e[counts[1]], to_e[counts[1]] = source, label, known
            counts[1] += 1
        label += 1
    return label


@njit(cache=True)
def determinize(indptr, label_E, to_E, skip_indptr, skip_F, num_labels, max_sets):
    """Return (from, label, to, accepting): the sets of states that strings from START reach, edges ascending by (from, label).

    Sets contain only states that have an edge, and END. The search stops above `max_sets`, or when sets have too many members.
    """
    num_states = len(indptr) - 1
    set_X = np.full(num_states, -1, np.int32)  # the set of a single state and the states it reaches without a byte; -2: no set
    stacks = np.zeros(num_states, np.int64), np.empty(num_states, np.int32), np.empty(num_states, np.int32)
    member_Z, begin_Y = np.empty(1024, np.int32), np.zeros(1024, np.int64)
    slot_H, hash_Y = np.full(1 << 12, -1, np.int32), np.empty(1024, np.uint64)
    from_e, label_e, to_e = np.empty(4096, np.int32), np.empty(4096, np.int32), np.empty(4096, np.int32)
    bucket_J, target_e = np.ones(num_labels + 1, np.int64), np.zeros(1024, np.int32)
    bucket_J[0] = 0  # one target, START, before the first source
    counts, source = np.zeros(3, np.int64), -1
    while True:
        while counts[0] + num_labels + 2 > len(begin_Y):
            begin_Y, hash_Y = _doubled(begin_Y), _doubled(hash_Y)
        while counts[1] + num_labels > len(from_e):
            from_e, label_e, to_e = _doubled(from_e), _doubled(label_e), _doubled(to_e)
        if 2 * (counts[0] + num_labels) > len(slot_H):
            slot_H = np.full(4 * len(slot_H), -1, np.int32)
            for other in range(counts[0]):
                slot = np.int64(hash_Y[other] & np.uint64(len(slot_H) - 1))
                while slot_H[slot] >= 0:
                    slot = (slot + 1) & (len(slot_H) - 1)
                slot_H[slot] = other
        label = 0
        while label < num_labels:
            sets = set_X, member_Z, begin_Y, slot_H, hash_Y
            edges = from_e, label_e, to_e
            label = _follow(source, label, counts, (bucket_J, target_e), (skip_indptr, skip_F), indptr, sets, stacks, edges)
            if label < num_labels:
                member_Z = _doubled(member_Z)
        source += 1
        if source >= counts[0] or counts[0] > max_sets or begin_Y[counts[0]] > _MAX_MEMBERS:
            break
        while not _gather((member_Z, begin_Y[source], begin_Y[source + 1]), indptr, label_E, to_E, bucket_J, target_e):
            target_e = _doubled(target_e)
    count, num_edges = counts[0], counts[1]
    accepting_Y = np.zeros(max(count, max_sets + 1 if begin_Y[count] > _MAX_MEMBERS else 0), np.bool_)
    for number in range(count):
        for index in range(begin_Y[number], begin_Y[number + 1]):
            accepting_Y[number] |= member_Z[index] == END
    return from_e[:num_edges].copy(), label_e[:num_edges].copy(), to_e[:num_edges].copy(), accepting_Y
