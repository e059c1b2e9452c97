"""The cores, memory and files that a process may use, within the limits of its control group."""

import ctypes
import os
import resource
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60  # control groups of version 1 write a number of this size for no limit


def return_freed_memory() -> None:
    """Return memory that this process has freed to the system, which glibc keeps otherwise; elsewhere nothing happens."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The cores and bytes of a machine, None where the system does not say them.

    `quota` and `memory_limit` are those of the control group, None without a limit. `available` is what both the system and the
    control group have left.
    """

    cores: int
    allowed_cores: int
    quota: float | None
    memory: int | None
    available: int | None
    memory_limit: int | None
    open_files: int

    @classmethod
    def this(cls, root: Path = Path("/")) -> "Machine":
        """Return this machine; `root` is where `proc` and `sys` are."""
        cores = os.cpu_count() or 1
        memory = _meminfo(root / "proc/meminfo")
        quotas: list[float] = []
        limits: list[int] = []
        left = [memory["MemAvailable"]] if "MemAvailable" in memory else []
        for group in _groups(root):
            quota, period = _words(group / "cpu.max", 2) or _quota_of_version_1(group)
            if (used := _number(quota)) is not None and (of := _number(period)):
                quotas.append(used / of)
            for name, now in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
                limit, current = (_number((_words(group / file, 1) or [""])[0]) for file in (name, now))
                if limit is not None and limit < _UNLIMITED:
                    limits.append(limit)
                    if current is not None:
                        left.append(max(0, limit - current + _inactive_files(group)))
        return cls(
            cores=cores,
            allowed_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
            quota=min(quotas, default=None),
            memory=memory.get("MemTotal"),
            available=min(left, default=None),
            memory_limit=min(limits, default=None),
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        )

    @property
    def usable_cores(self) -> int:
        """Return the number of cores on which threads should count, at least 1."""
        return max(1, min(self.allowed_cores, int(self.quota or self.allowed_cores)))


def _groups(root: Path) -> list[Path]:
    """Return the directories of this process's control groups, up to their roots; the limit of each one counts."""
    found: list[Path] = []
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        for controller in controllers.split(",") if controllers else [""]:
            base = root / "sys/fs/cgroup" / controller
            here = base / path.lstrip("/")
            # In a container the path may be the host's, which is not there: its own limits are at the base.
            found += [here, *(parent for parent in here.parents if parent.is_relative_to(base))]
    return list(dict.fromkeys(found))


def _inactive_files(group: Path) -> int:
    """Return the bytes of files that a control group keeps in memory, and that the system takes back when they are needed."""
    try:
        lines = (group / "memory.stat").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    sizes = {words[0]: _number(words[1]) for words in (line.split() for line in lines) if len(words) == 2}
    return sizes.get("inactive_file") or 0


def _quota_of_version_1(group: Path) -> list[str]:
    names = "cpu.cfs_quota_us", "cpu.cfs_period_us"
    return [(_words(group / name, 1) or [""])[0] for name in names]


def _words(path: Path, count: int) -> list[str] | None:
    try:
        words = path.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return None
    return words if len(words) == count else None


def _meminfo(path: Path) -> dict[str, int]:
    """Return bytes by name."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    parts = [line.replace(":", " ").split() for line in lines]
    sizes = {words[0]: _number(words[1]) for words in parts if len(words) == 3 and words[2] == "kB"}
    return {name: 1024 * size for name, size in sizes.items() if size is not None}


def _number(text: str) -> int | None:
    """Return a whole number of up to 20 digits, or None for "max", -1 and other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
