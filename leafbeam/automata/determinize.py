"""The determinisation of a network (Rabin and Scott, 1959), state by state: what a byte leads to is found when it is asked for.

A network is copies of parts. Copy 0 is the network's own nodes, with edges that take no byte (skips). Another copy repeats a
byte automaton: turn t of it is states first + t * size to first + (t + 1) * size - 1. Its edges are not written out, so a
repetition costs nothing until one of its states is reached.

    first   low     and what is behind an accepting state of turn t:
    part    more      the start of turn t + 1, if t + 1 < count
    count   to        the start of turn t again, if t + 1 == count and `more`
            margin    the node `to`, if t + 1 >= low

Or the turns of a copy are the characters so far of one string of its part (`more` is CHARACTERS, or CHARACTERS + 1): an edge
that begins a character leads to the next turn, and what is behind an accepting state is only the node `to`. Edges to states
whose shortest string is too long or whose longest is too short are left out.

Kernels do not allocate. They return 0 when they are done, or what is too small (`SETS` and following); `LazyDFA` makes it
larger and calls again.

Shapes: C copies, P parts, X states of all parts, E their edges, F skips, J classes of bytes, Y sets, Z members of all sets,
R edges of all sets, D sets with a table row, H slots.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.jit import njit

START, END = 0, 1  # the nodes of a network between which its strings are
CHARACTERS = 2  # the value of `more` if turns are characters; one more if their number has no bound
SETS, MEMBERS, EDGES, ROWS, SCRATCH = range(1, 6)  # what is too small
NUM_SETS, NUM_EDGES, NUM_ROWS, STAMP = range(4)  # the indices of counts
_WIDE = 12  # a set with more edges has a table row


def used_bytes(class_256: NDArray[np.uint8], label_E: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the bytes whose classes label an edge, as a mask."""
    used_J = np.zeros(256, np.bool_)
    used_J[label_E] = True
    return used_J[class_256]


class NetworkArrays(NamedTuple):
    """A network as kernels read it.

    Args:
        class_256: The class of each byte.
        copy_C7: first, part, count, low, more, to and margin of each copy, ascending by first. The margin is how many
            characters before the ends of its turns states are told apart.
        part_indptr: The first state of each part, of all parts' states.
        edge_indptr: The edges of state x, ascending by label, are edge_indptr[x] to edge_indptr[x + 1] - 1.
        next_E: Counted from the first state of the part.
        begins_E: Whether an edge begins a character, in parts whose characters are counted.
        shortest_X, longest_X: The numbers of characters of a state's shortest and longest string, in these parts.
        skip_indptr, skip_F: Where the nodes lead without a byte: states of the network.
    """

    class_256: NDArray[np.uint8]
    copy_C7: NDArray[np.int64]
    part_indptr: NDArray[np.int64]
    edge_indptr: NDArray[np.int64]
    label_E: NDArray[np.uint8]
    next_E: NDArray[np.int32]
    begins_E: NDArray[np.bool_]
    accepting_X: NDArray[np.bool_]
    shortest_X: NDArray[np.int32]
    longest_X: NDArray[np.int32]
    skip_indptr: NDArray[np.int64]
    skip_F: NDArray[np.int64]

    @property
    def used_256(self) -> NDArray[np.bool_]:
        """Return the bytes that appear in some string of the language, and perhaps others of the parts."""
        return used_bytes(self.class_256, self.label_E)


class Sets(NamedTuple):
    """The sets of states so far: set 0 is the start. The edges of a set that were not asked for begin at -1.

    Args:
        slot_H: A hash table of the sets.
        row_Y: The row of a set in `table_DJ`, -1 if it has few edges.
    """

    member_Z: NDArray[np.int64]
    member_indptr: NDArray[np.int64]
    hash_Y: NDArray[np.uint64]
    accepting_Y: NDArray[np.bool_]
    slot_H: NDArray[np.int32]
    edge_begin_Y: NDArray[np.int64]
    edge_end_Y: NDArray[np.int64]
    row_Y: NDArray[np.int32]
    label_R: NDArray[np.uint8]
    to_R: NDArray[np.int32]
    table_DJ: NDArray[np.int32]


class Scratch(NamedTuple):
    """Buffers of one expansion: the targets of a set by label, and the states that some of them reach without a byte."""

    bucket_J: NDArray[np.int64]
    target_e: NDArray[np.int64]
    key_H: NDArray[np.int64]
    stamp_H: NDArray[np.int64]
    stack_n: NDArray[np.int64]
    closed_n: NDArray[np.int64]


@njit(cache=True, nogil=True, _nrt=False)
def _position(state, net):
    """Return (copy, turn, state of all parts' states) of a state of the network."""
    low, high = 0, len(net.copy_C7)
    while high - low > 1:
        middle = (low + high) >> 1
        if net.copy_C7[middle, 0] <= state:
            low = middle
        else:
            high = middle
    part, offset = net.copy_C7[low, 1], state - net.copy_C7[low, 0]
    size = net.part_indptr[part + 1] - net.part_indptr[part]
    turn = offset // size
    return low, turn, net.part_indptr[part] + offset - turn * size


@njit(cache=True, nogil=True, _nrt=False)
def _sorted_hash(member_n, size):
    """Sort the first `size` members (Shell, 1959: most sets have few) and return a hash of them."""
    state, gap = np.uint64(size), size
    while gap > 1:
        gap >>= 1
        for index in range(gap, size):
            member, at = member_n[index], index
            while at >= gap and member_n[at - gap] > member:
                member_n[at] = member_n[at - gap]
                at -= gap
            member_n[at] = member
    for index in range(size):
        state = (state ^ np.uint64(member_n[index])) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(29)
    return state


@njit(cache=True, nogil=True, _nrt=False)
def _counted(copy, turn, edge, net):
    """Return where an edge of a copy that counts characters leads from a turn; -1 if no string with such a length follows."""
    first, part, count = net.copy_C7[copy, 0], net.copy_C7[copy, 1], net.copy_C7[copy, 2]
    low, has_bound = net.copy_C7[copy, 3], net.copy_C7[copy, 4] == CHARACTERS
    if net.begins_E[edge]:
        turn += 1
    begin, following = net.part_indptr[part], np.int64(net.next_E[edge])
    if turn + net.longest_X[begin + following] + 1 < low:
        return np.int64(-1)
    if has_bound and turn + net.shortest_X[begin + following] >= count:
        return np.int64(-1)
    return first + min(turn, count - 1) * (net.part_indptr[part + 1] - begin) + following


@njit(cache=True, nogil=True, _nrt=False)
def _gather(number, net, sets, scratch):
    """Write the targets of a set's members by label: those of j are target_e[bucket_J[j] : bucket_J[j + 1]]."""
    bucket_J, target_e = scratch.bucket_J, scratch.target_e
    num_labels = len(bucket_J) - 1
    bucket_J[:] = 0
    for is_count in (True, False):
        for index in range(sets.member_indptr[number], sets.member_indptr[number + 1]):
            state = sets.member_Z[index]
            copy, turn, at = _position(state, net)
            part = net.copy_C7[copy, 1]
            base = state - (at - net.part_indptr[part])
            counts = net.copy_C7[copy, 4] >= CHARACTERS
            for edge in range(net.edge_indptr[at], net.edge_indptr[at + 1]):
                label, target = net.label_E[edge], base + net.next_E[edge]
                if counts:
                    target = _counted(copy, turn, edge, net)
                    if target < 0:
                        continue
                if is_count:
                    bucket_J[label + 1] += 1
                else:
                    target_e[bucket_J[label]] = target
                    bucket_J[label] += 1
        if is_count:
            for label in range(num_labels):
                bucket_J[label + 1] += bucket_J[label]
            if bucket_J[num_labels] > len(target_e):
                return SCRATCH
    for label in range(num_labels, 0, -1):  # back to where each label begins
        bucket_J[label] = bucket_J[label - 1]
    bucket_J[0] = 0
    return 0


@njit(cache=True, nogil=True, _nrt=False)
def _push(state, stamp, depth, scratch):
    """Put a state on the stack unless it was there under this stamp; returns the depth of the stack."""
    mask = len(scratch.key_H) - 1
    slot = np.int64((np.uint64(state) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)) & mask
    while scratch.stamp_H[slot] == stamp:
        if scratch.key_H[slot] == state:
            return depth
        slot = (slot + 1) & mask
    scratch.key_H[slot], scratch.stamp_H[slot] = state, stamp
    scratch.stack_n[depth] = state
    return depth + 1


@njit(cache=True, nogil=True, _nrt=False)
def _close(begin, end, net, stamp, scratch):
    """Write the states that have edges, and END, among some targets and what they reach without a byte.

    Returns how many; -1 if there is no space.
    """
    size, depth, limit = 0, 0, len(scratch.key_H) // 2
    pushed = 0
    for index in range(begin, end):
        if pushed + 1 > limit:
            return -1
        before = depth
        depth = _push(scratch.target_e[index], stamp, depth, scratch)
        pushed += depth - before
    while depth:
        depth -= 1
        state = scratch.stack_n[depth]
        copy, turn, at = _position(state, net)
        if net.edge_indptr[at + 1] > net.edge_indptr[at] or state == END:
            scratch.closed_n[size] = state
            size += 1
        before = depth
        if copy == 0:
            if pushed + net.skip_indptr[at + 1] - net.skip_indptr[at] > limit:
                return -1
            for index in range(net.skip_indptr[at], net.skip_indptr[at + 1]):
                depth = _push(net.skip_F[index], stamp, depth, scratch)
        elif net.accepting_X[at]:
            if pushed + 2 > limit:
                return -1
            part = net.copy_C7[copy, 1]
            length = net.part_indptr[part + 1] - net.part_indptr[part]
            count, low, more = net.copy_C7[copy, 2], net.copy_C7[copy, 3], net.copy_C7[copy, 4]
            if more < CHARACTERS and (turn + 1 < count or more):
                following = min(turn + 1, count - 1)
                depth = _push(net.copy_C7[copy, 0] + following * length, stamp, depth, scratch)
            if turn + 1 >= low:
                depth = _push(net.copy_C7[copy, 5], stamp, depth, scratch)
        pushed += depth - before
    return size


@njit(cache=True, nogil=True, _nrt=False)
def _number_of(size, sets, counts, scratch):
    """Return the number of the set that `closed_n` begins with, a new one if need be; -1 minus what is too small."""
    closed_n = scratch.closed_n
    hashed = _sorted_hash(closed_n, size)
    mask = len(sets.slot_H) - 1
    slot = np.int64(hashed & np.uint64(mask))
    while sets.slot_H[slot] >= 0:
        other = sets.slot_H[slot]
        begin = sets.member_indptr[other]
        if sets.hash_Y[other] == hashed and sets.member_indptr[other + 1] - begin == size:
            index = 0
            while index < size and sets.member_Z[begin + index] == closed_n[index]:
                index += 1
            if index == size:
                return other
        slot = (slot + 1) & mask
    number = counts[NUM_SETS]
    begin = sets.member_indptr[number]
    if begin + size > len(sets.member_Z):
        return -1 - MEMBERS
    sets.slot_H[slot], sets.hash_Y[number] = number, hashed
    sets.edge_begin_Y[number], sets.row_Y[number] = -1, -1
    ends = False
    for index in range(size):
        sets.member_Z[begin + index] = closed_n[index]
        ends |= closed_n[index] == END
    sets.accepting_Y[number] = ends
    sets.member_indptr[number + 1] = begin + size
    counts[NUM_SETS] += 1
    return number


@njit(cache=True, nogil=True, _nrt=False)
def begin(net, sets, counts, scratch):
    """Find set 0, the states of START."""
    scratch.target_e[0] = START
    counts[STAMP] += 1
    size = _close(0, 1, net, counts[STAMP], scratch)
    if size < 0:
        return SCRATCH
    number = _number_of(size, sets, counts, scratch)
    return 0 if number >= 0 else -1 - number


@njit(cache=True, nogil=True, _nrt=False)
def expand(number, has_rows, net, sets, counts, scratch):
    """Find the edges of a set, and the sets that they lead to."""
    num_labels = len(scratch.bucket_J) - 1
    if counts[NUM_SETS] + num_labels + 2 > len(sets.hash_Y) or 2 * (counts[NUM_SETS] + num_labels) > len(sets.slot_H):
        return SETS
    if counts[NUM_EDGES] + num_labels > len(sets.to_R):
        return EDGES
    if has_rows and counts[NUM_ROWS] == len(sets.table_DJ):
        return ROWS
    code = _gather(number, net, sets, scratch)
    if code:
        return code
    edge, target, known = counts[NUM_EDGES], np.int64(-1), np.int64(-1)
    for label in range(num_labels):
        first, end = scratch.bucket_J[label], scratch.bucket_J[label + 1]
        if end == first:
            continue
        if end - first > 1 or scratch.target_e[first] != target:
            counts[STAMP] += 1
            size = _close(first, end, net, counts[STAMP], scratch)
            if size < 0:
                return SCRATCH
            known = np.int64(-1)
            if size:
                known = np.int64(_number_of(size, sets, counts, scratch))
            if known < -1:
                return -1 - known
            target = scratch.target_e[first] if end - first == 1 else np.int64(-1)
        if known >= 0:
            sets.label_R[edge], sets.to_R[edge] = label, known
            edge += 1
    if has_rows and edge - counts[NUM_EDGES] > _WIDE:
        row = counts[NUM_ROWS]
        sets.table_DJ[row, :] = -1
        for index in range(counts[NUM_EDGES], edge):
            sets.table_DJ[row, sets.label_R[index]] = sets.to_R[index]
        sets.row_Y[number] = row
        counts[NUM_ROWS] += 1
    sets.edge_begin_Y[number], sets.edge_end_Y[number] = counts[NUM_EDGES], edge
    counts[NUM_EDGES] = edge
    return 0


@njit(cache=True, nogil=True, _nrt=False)
def fill_slots(hash_Y, count, slot_H):
    """Put some sets into an empty hash table."""
    mask = len(slot_H) - 1
    for number in range(count):
        slot = np.int64(hash_Y[number] & np.uint64(mask))
        while slot_H[slot] >= 0:
            slot = (slot + 1) & mask
        slot_H[slot] = number


@njit(cache=True, nogil=True, _nrt=False)
def expand_all(number, max_sets, net, sets, counts, scratch):
    """Expand sets from a number on, those among them that it finds; returns (the next number, what is too small)."""
    while number < counts[NUM_SETS] <= max_sets:
        code = expand(number, False, net, sets, counts, scratch)
        if code:
            return number, code
        number += 1
    return number, 0


@njit(cache=True, nogil=True, _nrt=False)
def following(number, label, sets):
    """Return the set after a byte's class, -1 if there is none; the set's edges are known."""
    row = sets.row_Y[number]
    if row >= 0:
        return np.int64(sets.table_DJ[row, label])
    for edge in range(sets.edge_begin_Y[number], sets.edge_end_Y[number]):
        if sets.label_R[edge] == label:
            return np.int64(sets.to_R[edge])
    return np.int64(-1)


@njit(cache=True, nogil=True, _nrt=False)
def _shape(member, height, net):
    """Return (state, turns to go until it may end, turns left), with no more turns than `height` bytes can take."""
    copy, turn, _ = _position(member, net)
    count, low, height = net.copy_C7[copy, 2], net.copy_C7[copy, 3], height + net.copy_C7[copy, 6]
    if count == 1:
        return member, np.int64(0), np.int64(0)
    size = net.part_indptr[net.copy_C7[copy, 1] + 1] - net.part_indptr[net.copy_C7[copy, 1]]
    return member - turn * size, min(max(low - 1 - turn, 0), height + 1), min(count - 1 - turn, height + 1)


@njit(cache=True, nogil=True, _nrt=False)
def alike(first, second, height, net, sets):
    """Return whether two sets differ at most in turns so far from the ends of repetitions that `height` bytes cannot tell."""
    begin, other = sets.member_indptr[first], sets.member_indptr[second]
    size = sets.member_indptr[first + 1] - begin
    if sets.member_indptr[second + 1] - other != size:
        return False
    for index in range(size):
        one, two = sets.member_Z[begin + index], sets.member_Z[other + index]
        if one != two and _shape(one, height, net) != _shape(two, height, net):
            return False
    return True


@njit(cache=True, nogil=True, _nrt=False)
def shape_hashes(begin, end, member_Z, net, heights_n, hash_n):
    """Write hashes of the members of a set, which sets that are `alike` at these heights share."""
    for number in range(len(heights_n)):
        state = np.uint64(heights_n[number] + 1)
        for index in range(begin, end):
            for value in _shape(member_Z[index], heights_n[number], net):
                state = (state ^ np.uint64(value)) * np.uint64(0x9E3779B97F4A7C15)
                state ^= state >> np.uint64(29)
        hash_n[number] = state
