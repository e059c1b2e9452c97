"""A cost model that chooses into how many parts a prompt's attention is split on a GPU (xGR, section 5.2).

More parts keep more of the device busy; each part's values are written, read again and merged. With Z parts:

    nanoseconds = waves x (wave + block x blocks of a part) + merge x Z x values
    waves       how often the programs of all parts fill the device
    values      floats that one part writes: B x K x H x E

What a call costs beyond this does not depend on Z. Shapes: as `ops.attention.triton`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, DataError, check_whole
from leafbeam.files import read_json, write_json

BLOCK = 64  # tokens of a prompt that a program reads together
_MAX_SPLITS = 16
_MAX_COST = 1e12  # nanoseconds
_FORMAT = "leafbeam-attention-costs-1"
COST_NAMES = ("wave", "block", "merge")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionWork:
    """The sizes of one call: requests, tokens of the longest prompt, beams, query heads, key heads, values of a head."""

    requests: int
    tokens: int
    beams: int
    heads: int
    groups: int
    size: int

    @property
    def tile(self) -> int:
        """Return the rows of one program: beams x query heads of a key head."""
        return max(16, min(64, 1 << (self._rows - 1).bit_length()))

    @property
    def programs(self) -> int:
        """Return the number of programs of each part."""
        return -(-self._rows // self.tile) * self.requests * self.groups

    @property
    def values(self) -> int:
        return self.requests * self.beams * self.heads * self.size

    @property
    def _rows(self) -> int:
        return self.beams * self.heads // self.groups

    def blocks_of_part(self, splits: int) -> int:
        """Return the blocks of each of `splits` equal parts, rounded up, so that fewer parts may be enough."""
        return -(-self.tokens // (splits * BLOCK))

    def splits(self) -> list[int]:
        """Return the different numbers of parts that are possible, up to 16, ascending."""
        blocks = self.blocks_of_part(1)
        return sorted({-(-blocks // self.blocks_of_part(splits)) for splits in range(1, min(_MAX_SPLITS, blocks) + 1)})


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCosts:
    """The costs of the parts of a prompt on one GPU, in nanoseconds: `make gpu` measures them and writes them to a file.

    The defaults are estimates by arithmetic for an H100, not measured.

    Args:
        programs: The number of programs that the GPU runs side by side.
        wave: The time to begin a program.
        block: The time of a block of 64 tokens.
        merge: The time to merge one value of one part.
        one_launch: Whether a prompt in one part is read by the launch that also reads the codes and writes the answer.
        descriptors: Whether keys and values of prompts are read through tensor descriptors, on GPUs that have them.
        device: The name of the GPU; None if the costs are estimates.

    >>> call = AttentionWork(requests=1, tokens=1000, beams=512, heads=16, groups=8, size=128)
    >>> AttentionCosts().splits(call)
    2
    """

    programs: int = 264
    wave: float = 2_000.0
    block: float = 1_000.0
    merge: float = 0.0024
    one_launch: bool = False
    descriptors: bool = False
    device: str | None = None

    def __post_init__(self) -> None:
        check_whole(programs=self.programs)
        costs = [getattr(self, name) for name in COST_NAMES]
        if not all(type(cost) in (int, float) and 0 <= cost <= _MAX_COST for cost in costs) or not any(costs):
            raise ArgumentError(f"wave, block and merge must be nanoseconds from 0 to {_MAX_COST:g}, not all 0: not {costs}")
        if not (type(self.one_launch) is type(self.descriptors) is bool):
            raise ArgumentError(
                f"one_launch and descriptors must be true or false, not {self.one_launch!r} and {self.descriptors!r}"
            )
        if not isinstance(self.device, str | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentError(f"device must be the name of a GPU, or None, not {self.device!r}")

    def nanoseconds(self, work: AttentionWork, splits: int) -> float:
        """Return the expected time of a call, without the share that does not depend on `splits`."""
        costs = np.array([self.wave, self.block, self.merge])
        return float(features(work, splits, self.programs) @ costs)

    def splits(self, work: AttentionWork) -> int:
        """Return the number of parts with the smallest expected time."""
        return min(work.splits(), key=lambda splits: self.nanoseconds(work, splits))

    def save(self, path: Path) -> None:
        """Write a JSON file. Raises OSError."""
        write_json(path, {"format": _FORMAT, **asdict(self)})

    @classmethod
    def load(cls, path: str | PathLike[str]) -> AttentionCosts:
        """Read a file of `make gpu`. Raises DataError."""
        try:
            content = read_json(Path(path))
            if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
                raise ValueError(f"its format is not {_FORMAT!r}")
            return cls(**content)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise DataError(
                f"{path} holds no costs of attention ({str(error)[:200]}): run `make gpu` on the GPU and name its file"
            ) from None


def features(work: AttentionWork, splits: int, programs: int) -> NDArray[np.float64]:
    """Return the factors of wave, block and merge in the time of a call."""
    waves = -(-work.programs * splits // programs)
    return np.array([waves, waves * work.blocks_of_part(splits), splits * work.values], np.float64)
