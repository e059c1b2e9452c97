"""The determinisation of a network (Rabin and Scott, 1959), state by state: what a byte leads to is found when it is asked for.

A network is units. A unit is a byte automaton; or nodes with edges, with edges that take no byte (skips), and with copies of
other units between two nodes. Unit 0 is the network itself. A state is a number: in a unit, its own states are the first, and
then come those of its copies. A copy repeats its unit: turn t of it is states first + t * size to first + (t + 1) * size - 1.
None of this is written out, so a repetition costs nothing until one of its states is reached, and a unit costs as much as its
own states, however often it is used.

    first   low     and what is behind an accepting state of turn t:
    unit    more      the start of turn t + 1, if t + 1 < count
    count   to        the start of turn t again, if t + 1 == count and `more`
            margin    the node `to`, if t + 1 >= low

Or the turns of a copy are the characters so far of one string of its unit (`more` is CHARACTERS, or CHARACTERS + 1): an edge
that begins a character leads to the next turn, and what is behind an accepting state is only the node `to`. Edges to states
whose shortest string is too long or whose longest is too short are left out.

Kernels do not allocate. They return 0 when they are done, or what is too small (`SETS` and following); `LazyDFA` makes it
larger and calls again.

Shapes: C copies, U units, X own states of all units, E their edges, F skips, J classes of bytes, Y sets, Z members of all sets,
R edges of all sets, D sets with a table row, H slots.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.addresses import arrays_at
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
        copy_C7: first, unit, count, low, more, to and margin of each copy, ascending by first within a unit. `first` and `to`
            are counted from the start of the unit that has the copy. The margin is how many characters before the ends of
            its turns states are told apart.
        copy_indptr: The copies of unit u are copy_indptr[u] to copy_indptr[u + 1] - 1.
        size_U: The number of states of a unit with those of its copies, or more.
        unit_indptr: The first own state of each unit, of all units' own states.
        edge_indptr: The edges of state x, ascending by label, are edge_indptr[x] to edge_indptr[x + 1] - 1.
        next_E: Counted from the start of the unit.
        begins_E: Whether an edge begins a character, in units whose characters are counted.
        accepting_X: Whether a string of the unit may end; of nodes only END.
        shortest_X, longest_X: The numbers of characters of a state's shortest and longest string, in these units.
        skip_indptr, skip_F: Where the nodes lead without a byte, counted from the start of the unit.
    """

    class_256: NDArray[np.uint8]
    copy_C7: NDArray[np.int64]
    copy_indptr: NDArray[np.int64]
    size_U: NDArray[np.int64]
    unit_indptr: NDArray[np.int64]
    edge_indptr: NDArray[np.int64]
    label_E: NDArray[np.uint8]
    next_E: NDArray[np.int32]
    begins_E: NDArray[np.bool_]
    accepting_X: NDArray[np.bool_]
    shortest_X: NDArray[np.int32]
    longest_X: NDArray[np.int32]
    skip_indptr: NDArray[np.int64]
    skip_F: NDArray[np.int64]

    KINDS = "u1 i8:2 i8 i8 i8 i8 u1 i4 b1 b1 i4 i4 i8 i8"

    @property
    def used_256(self) -> NDArray[np.bool_]:
        """Return the bytes that appear in some string of the language, and perhaps others of the units."""
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

    KINDS = "i8 i8 u8 b1 i4 i8 i8 i4 u1 i4 i4:2"


class Scratch(NamedTuple):
    """Buffers of one expansion: the targets of a set by label, and the states that some of them reach without a byte."""

    bucket_J: NDArray[np.int64]
    target_e: NDArray[np.int64]
    key_H: NDArray[np.int64]
    stamp_H: NDArray[np.int64]
    stack_n: NDArray[np.int64]
    closed_n: NDArray[np.int64]

    KINDS = "i8 i8 i8 i8 i8 i8"


@njit(cache=True, nogil=True, _nrt=False)
def _copy_at(unit, offset, net):
    """Return the copy of a unit in which a state is, counted from the start of the unit; -1 if it is the unit's own."""
    if offset < net.unit_indptr[unit + 1] - net.unit_indptr[unit]:
        return np.int64(-1)
    low, high = net.copy_indptr[unit], net.copy_indptr[unit + 1]
    while high - low > 1:
        middle = (low + high) >> 1
        if net.copy_C7[middle, 0] <= offset:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, nogil=True, _nrt=False)
def _position(state, net):
    """Return where a state is: (the copy that it is in, -1 for none; its turn; the start of that turn; the start of the unit
    that has the copy; the state of all units' own states)."""
    unit, offset, copy, turn, outer = np.int64(0), np.int64(state), np.int64(-1), np.int64(0), np.int64(0)
    inner = _copy_at(unit, offset, net)
    while inner >= 0:
        outer, copy, unit = state - offset, inner, net.copy_C7[inner, 1]
        offset -= net.copy_C7[copy, 0]
        turn = offset // net.size_U[unit]
        offset -= turn * net.size_U[unit]
        inner = _copy_at(unit, offset, net)
    return copy, turn, state - offset, outer, net.unit_indptr[unit] + offset


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
def _counted(copy, turn, outer, edge, net):
    """Return where an edge of a copy that counts characters leads from a turn; -1 if no string with such a length follows."""
    unit, count, low = net.copy_C7[copy, 1], net.copy_C7[copy, 2], net.copy_C7[copy, 3]
    has_bound = net.copy_C7[copy, 4] == CHARACTERS
    if net.begins_E[edge]:
        turn += 1
    following = np.int64(net.next_E[edge])
    at = net.unit_indptr[unit] + following
    if turn + net.longest_X[at] + 1 < low or (has_bound and turn + net.shortest_X[at] >= count):
        return np.int64(-1)
    return outer + net.copy_C7[copy, 0] + min(turn, count - 1) * net.size_U[unit] + following


@njit(cache=True, nogil=True, _nrt=False)
def _gather(number, net, sets, scratch):
    """Write the targets of a set's members by label: those of j are target_e[bucket_J[j] : bucket_J[j + 1]]."""
    bucket_J, target_e = scratch.bucket_J, scratch.target_e
    num_labels = len(bucket_J) - 1
    bucket_J[:] = 0
    for is_count in (True, False):
        for index in range(sets.member_indptr[number], sets.member_indptr[number + 1]):
            state = sets.member_Z[index]
            copy, turn, base, outer, at = _position(state, net)
            counts = copy >= 0 and net.copy_C7[copy, 4] >= CHARACTERS
            for edge in range(net.edge_indptr[at], net.edge_indptr[at + 1]):
                label, target = net.label_E[edge], base + net.next_E[edge]
                if counts:
                    target = _counted(copy, turn, outer, edge, net)
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
        copy, turn, base, outer, at = _position(state, net)
        if net.edge_indptr[at + 1] > net.edge_indptr[at] or state == END:
            scratch.closed_n[size] = state
            size += 1
        before = depth
        if pushed + net.skip_indptr[at + 1] - net.skip_indptr[at] + 2 > limit:
            return -1
        for index in range(net.skip_indptr[at], net.skip_indptr[at + 1]):
            depth = _push(base + net.skip_F[index], stamp, depth, scratch)
        if copy >= 0 and net.accepting_X[at]:
            count, low, more = net.copy_C7[copy, 2], net.copy_C7[copy, 3], net.copy_C7[copy, 4]
            if more < CHARACTERS and (turn + 1 < count or more):
                following = min(turn + 1, count - 1) * net.size_U[net.copy_C7[copy, 1]]
                depth = _push(outer + net.copy_C7[copy, 0] + following, stamp, depth, scratch)
            if turn + 1 >= low:
                depth = _push(outer + net.copy_C7[copy, 5], stamp, depth, scratch)
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


@njit(nogil=True)
def unpacked(state):
    """Return (network, sets, counts, scratch) of `LazyDFA.state`."""
    net, sets, counts, scratch = state
    return arrays_at(net, NetworkArrays), arrays_at(sets, Sets), counts, arrays_at(scratch, Scratch)


@njit(cache=True, nogil=True)
def begin(state):
    """Find set 0, the states of START."""
    net, sets, counts, scratch = unpacked(state)
    scratch.target_e[0] = START
    counts[STAMP] += 1
    size = _close(0, 1, net, counts[STAMP], scratch)
    if size < 0:
        return SCRATCH
    number = _number_of(size, sets, counts, scratch)
    return 0 if number >= 0 else -1 - number


@njit(cache=True, nogil=True)
def expand_one(number, state):
    """`expand` for callers in Python; sets with many edges get a table row."""
    net, sets, counts, scratch = unpacked(state)
    return expand(number, True, net, sets, counts, scratch)


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


@njit(cache=True, nogil=True)
def expand_all(number, max_sets, state):
    """Expand sets from a number on, those among them that it finds; returns (the next number, what is too small)."""
    net, sets, counts, scratch = unpacked(state)
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
def _shape(state, height, net):
    """Return the first of the states that differ from a state only in turns that `height` bytes cannot tell from its own."""
    unit, offset, first = np.int64(0), np.int64(state), np.int64(state)
    copy = _copy_at(unit, offset, net)
    while copy >= 0:
        unit, count, low = net.copy_C7[copy, 1], net.copy_C7[copy, 2], net.copy_C7[copy, 3]
        offset -= net.copy_C7[copy, 0]
        turn, ahead = offset // net.size_U[unit], height + net.copy_C7[copy, 6]
        offset -= turn * net.size_U[unit]
        if count - 1 - turn > ahead:  # the last turn is far away
            if low - 1 - turn > ahead:
                first -= turn * net.size_U[unit]
            elif turn >= low - 1:
                first -= (turn - max(low - 1, 0)) * net.size_U[unit]
        copy = _copy_at(unit, offset, net)
    return first


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
            state = (state ^ np.uint64(_shape(member_Z[index], heights_n[number], net))) * np.uint64(0x9E3779B97F4A7C15)
            state ^= state >> np.uint64(29)
        hash_n[number] = state
