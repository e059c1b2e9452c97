"""The memory and disk that `TrieBuilder` will need, known before the first row is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from leafbeam.index.builder import row_bytes, rows_within
from leafbeam.index.level import check_sizes
from leafbeam.index.memory_estimate import MemoryEstimate
from leafbeam.index.radix_sort import WordLayout


@dataclass(frozen=True, kw_only=True)
class BuildEstimate:
    """Bytes of a build. Those of the levels are of uniform codes; real Semantic IDs share prefixes and take less.

    Args:
        memory: The most bytes that rows and index take at a time. Python and its libraries are not counted, nor is an index
            that is mapped from the scratch file, whose pages the system can take back.
        scratch: The bytes of the file of sorted rows, which is there until the index is saved; 0 if all rows fit into memory.
        index: The bytes of the index file.

    Examples:
        >>> estimate = BuildEstimate.of(1_000_000_000, [2048] * 8, memory_limit=4 << 30, packed=True)
        >>> [round(nbytes / 1e9, 1) for nbytes in (estimate.memory, estimate.scratch, estimate.index)]
    """

    memory: int
    scratch: int
    index: int

    @classmethod
    def of(
        cls, num_items: int, codebook_sizes: Sequence[int], *, memory_limit: int, id_bytes: int = 0, packed: bool = False
    ) -> "BuildEstimate":
        """Return the estimate.

        Args:
            num_items: The number of rows.
            codebook_sizes: The number of codes of each level.
            memory_limit: As for `TrieBuilder`.
            id_bytes: The bytes of the longest id; 0 for row numbers.
            packed: As for `TrieBuilder`.

        Raises:
            CodesError: If the codebook sizes are invalid.
            ArgumentError: If there are more rows than one index can hold.
        """
        sizes = check_sizes(codebook_sizes)
        plan, layout = MemoryEstimate.uniform(num_items, sizes, id_bytes=id_bytes), WordLayout.of(sizes)
        index = plan.items + (plan.packed_nbytes if packed else plan.nbytes)
        repacked = plan.packed_nbytes if packed else 0
        nodes = sum(level.firsts + ceil(level.boundary / 3) for level in plan.levels)  # the rank directories
        result = num_items * row_bytes(sizes, id_bytes)
        if num_items < rows_within(memory_limit, layout):
            memory = num_items * (8 * layout.num_words + 16) + num_items * id_bytes
            return cls(memory=max(memory, num_items * 8 * layout.num_words + result) + nodes + repacked, scratch=0, index=index)
        runs = num_items * (8 * layout.num_words + 4 + id_bytes)
        if result <= memory_limit:
            return cls(memory=memory_limit + result + nodes + repacked, scratch=runs, index=index)
        mapped = result + sum(level.firsts + level.boundary - ceil(level.boundary / 3) for level in plan.levels)
        return cls(memory=memory_limit + nodes + repacked, scratch=runs + mapped, index=index)
