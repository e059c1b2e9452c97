"""FilterCache: which filters and boosts a device holds. Every backend on a device has one of each kind for each segment.

Shapes: B requests, n changed words.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap
from leafbeam.index.lineage import Lineage, Operator, Step
from leafbeam.index.node_maxima import NodeMaxima

MAX_FILTER_BYTES = 1 << 30
# What a request brings to a segment: the leaves that it may reach, or the largest boost below each prefix.
RequestData = Bitmap | NodeMaxima


class DeviceRows(Protocol):
    """The bitmaps or boosts of one segment on a device, in numbered rows.

    Row 0 is that of a request without: it allows everything, or adds nothing. It is never written.

    What a running search reads is not overwritten: a row that is written anew is new memory.
    """

    @property
    def row_nbytes(self) -> int:
        """Return the bytes of a row."""
        ...

    def resize(self, num_rows: int) -> None:
        """Make space for more rows."""
        ...

    def upload(self, rows: Sequence[int], data: Sequence[Any], /) -> None:
        """Copy bitmaps or boosts from the host to rows."""
        ...


@runtime_checkable
class PatchingRows(DeviceRows, Protocol):
    """Rows of bitmaps that the device can also make from others that differ in some words."""

    def patch(self, row: int, source: int, words_n: NDArray[np.int64], bitmap: Bitmap) -> None:
        """Make a row that differs from another one in some words."""
        ...


@runtime_checkable
class CombiningRows(PatchingRows, Protocol):
    """Rows of bitmaps that the device can also combine."""

    def combine(self, row: int, operator: Operator, left: int, right: int) -> None:
        """Make a row from two others."""
        ...


class FilterCache:
    """The bitmaps or boosts used last in one segment, known by their lineage, so that a batch sends row numbers alone.

    A bitmap that the device does not have is made there if it can be: from an earlier one that differs in some words, which
    alone are sent, or from the operands of an expression. Otherwise it is copied from the host. Thread-safe.

    Args:
        rows: Where they are.
        num_rows: The rows to reserve, row 0 included.
        max_bytes: Bytes beyond which those used longest ago are replaced. A batch that needs more gets them.
    """

    def __init__(self, rows: DeviceRows, *, num_rows: int = 2, max_bytes: int) -> None:
        self._rows, self.max_bytes = rows, max_bytes
        self._patching = rows if isinstance(rows, PatchingRows) else None
        self._combining = rows if isinstance(rows, CombiningRows) else None
        self._max_rows = max(2, num_rows, 1 + max_bytes // rows.row_nbytes)
        self._num_rows = num_rows
        self._row_of: OrderedDict[bytes, int] = OrderedDict()  # by key; the one used longest ago first
        self._free = list(range(num_rows - 1, 0, -1))
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def nbytes(self) -> int:
        """Return the bytes of the rows that are in use."""
        return len(self) * self._rows.row_nbytes

    @contextmanager
    def rows_of(self, data: Sequence[RequestData | None]) -> Generator[NDArray[np.int32]]:
        """Yield the row (B,) of each bitmap or boost, 0 for None. In the block no other batch can replace them.

        Cost: a look-up for each, and what new ones take to get there.
        """
        by_key = {of_request.lineage.key: of_request for of_request in data if of_request is not None}
        with self._lock:
            for key in by_key.keys() & self._row_of.keys():
                self._row_of.move_to_end(key)
            missing = [of_request for key, of_request in by_key.items() if key not in self._row_of]
            if missing:
                before = set(self._row_of)
                try:
                    self._add(missing, set(by_key))
                except BaseException:  # such as memory that ran out: a row that was not written is no filter
                    for key in self._row_of.keys() - before:
                        self._free.append(self._row_of.pop(key))
                    raise
            yield np.array([0 if one is None else self._row_of[one.lineage.key] for one in data], np.int32)

    def _add(self, data: Sequence[RequestData], in_use: set[bytes]) -> None:
        """Bring bitmaps or boosts to the device. in_use: keys whose rows must stay."""
        known = self._row_of.keys() | {of_request.lineage.key for of_request in data}
        uploaded: list[RequestData] = []
        derived: list[tuple[Bitmap, Step | None]] = []
        for of_request in data:
            bitmap = of_request if self._patching is not None and isinstance(of_request, Bitmap) else None
            change = None if bitmap is None else _change_of(bitmap, self._row_of)
            operands = None if change or bitmap is None or self._combining is None else _operands(bitmap.lineage, known)
            if bitmap is None or (change is None and operands is None):
                uploaded.append(of_request)
            else:
                derived.append((bitmap, change))
                in_use = in_use | (operands or set()) | ({change.key} if change else set())
        if uploaded:
            self._rows.upload([self._take(of_request.lineage.key, in_use) for of_request in uploaded], uploaded)
        for bitmap, change in sorted(derived, key=lambda pair: pair[0].lineage.depth):
            if change is None and self._combining is not None:
                self._combine(self._combining, bitmap.lineage, in_use)
            elif change is not None and self._patching is not None:
                row = self._take(bitmap.lineage.key, in_use)
                self._patching.patch(row, self._row_of[change.key], change.words_n, bitmap)

    def _combine(self, combining: CombiningRows, lineage: Lineage, in_use: set[bytes]) -> int:
        """Return the row of an expression, after its operands were made."""
        if (row := self._row_of.get(lineage.key)) is not None:
            return row
        assert lineage.parts is not None
        operator, left, right = lineage.parts
        kept = in_use | {left.key, right.key}
        rows = [self._combine(combining, operand, kept) for operand in (left, right)]
        row = self._take(lineage.key, kept)
        combining.combine(row, operator, rows[0], rows[1])
        return row

    def _take(self, key: bytes, in_use: set[bytes]) -> int:
        """Return a free row, or the one used longest ago."""
        if not self._free:
            oldest = next((other for other in self._row_of if other not in in_use), None)
            if self._num_rows < self._max_rows or oldest is None:
                larger = 2 * self._num_rows
                self._grow(larger if oldest is None else min(larger, self._max_rows))
            else:
                self._free.append(self._row_of.pop(oldest))
        row = self._row_of[key] = self._free.pop()
        return row

    def _grow(self, num_rows: int) -> None:
        self._rows.resize(num_rows)
        self._free = list(range(num_rows - 1, self._num_rows - 1, -1))
        self._num_rows = num_rows


def _change_of(bitmap: Bitmap, known: Container[bytes]) -> Step | None:
    """Return the latest earlier bitmap among the known ones, and the changed words, if these are less than the bitmap."""
    for chain in bitmap.lineage.chains:
        for number, step in enumerate(chain):
            if step.key in known:
                words_n = np.unique(np.concatenate([earlier.words_n for earlier in chain[: number + 1]]))
                if 2 * len(words_n) < len(bitmap.words_W):  # a word is sent with its position
                    return Step(step.key, words_n)
    return None


def _operands(lineage: Lineage, known: Container[bytes]) -> set[bytes] | None:
    """Return the keys of the known bitmaps from which an expression can be made; None if it cannot be."""
    if lineage.parts is None:
        return None
    keys: set[bytes] = set()
    for operand in lineage.parts[1:]:
        inner = {operand.key} if operand.key in known else _operands(operand, known)
        if inner is None:
            return None
        keys |= inner
    return keys
