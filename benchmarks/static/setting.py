"""How a table or figure is measured: sizes of the run, memory, and what is left out of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leafbeam.errors import ArgumentError

__all__ = ["Setting", "memory_of_machine"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How to measure. memory: bytes that catalog and methods together may hold. seconds_each: for one method at one point.

    compiles: whether torch methods may be compiled. apart: whether each point is measured in a process of its own. only: these
    methods, where it is not None. without: methods to leave out, and why. journal: a file with the method that is running.
    Raises ArgumentError for a number that cannot be one.
    """

    quick: bool
    device: str
    memory: int
    num_trials: int
    seconds_each: float
    batch_size: int = 2
    num_beams: int = 70
    compiles: bool = False
    apart: bool = False
    only: Sequence[str] | None = None
    without: Mapping[str, str] = field(default_factory=dict[str, str])
    journal: Path | None = None

    def __post_init__(self) -> None:
        if self.num_trials < 1:
            raise ArgumentError(f"the number of trials is {self.num_trials}: expected at least 1, the paper has 100")
        if self.memory <= 0 or self.seconds_each < 0:
            raise ArgumentError(f"memory is {self.memory} bytes and seconds are {self.seconds_each}: expected positive numbers")

    @classmethod
    def of(cls, *, quick: bool, device: str, memory_gib: float | None = None, num_trials: int | None = None) -> Setting:
        """The defaults: 100 trials and a minute for each method in four fifths of the free memory; quick: 10, 4 s, 4 GiB."""
        default = 4 * 2**30 if quick else memory_of_machine() * 4 // 5
        return cls(
            quick=quick,
            device=device,
            memory=default if memory_gib is None else int(memory_gib * 2**30),
            num_trials=num_trials if num_trials is not None else 10 if quick else 100,
            seconds_each=4.0 if quick else 60.0,
            compiles=not quick,
            apart=not quick,
        )

    def announce(self, name: str) -> None:
        """Note the method that is about to run."""
        if self.journal is not None:
            self.journal.write_text(name, encoding="utf-8")


def memory_of_machine() -> int:
    """Bytes that are free for use now."""
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
