"""A simulated disk in the place of `leafbeam.live.disk`: one directory in memory, with faults, torn writes and power cuts.

What a process sees and what is durable are kept apart. A file's bytes are durable once it is synced, its name once the
directory is. A power cut keeps, of everything since, whatever a real disk may keep: any version of a file torn into sectors of
old and new bytes, any prefix or any subset of the changed names. After a failed sync, what was written before may be lost for
good, although every later read shows it and every later sync succeeds (as on Linux).
"""

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import pytest

from leafbeam import Trie
from leafbeam.errors import IndexFileError
from leafbeam.live import disk

OPERATIONS = (
    "sync",
    "truncate",
    "rename",
    "names",
    "save",
    "load",
    "create",
    "open_own",
    "read",
    "lock",
    "is_at",
    "write",
    "close",
)
OPERATIONS += ("remove", "sync_path")
FAULTS = {  # what fails, and with which of these errors
    **dict.fromkeys(("write", "create", "save"), (errno.ENOSPC, errno.EIO)),
    **dict.fromkeys(("sync", "sync_path", "truncate", "rename", "remove", "open_own", "read", "names", "is_at"), (errno.EIO,)),
}
NameChange = tuple[str, str, "Inode", str]  # "link", "rename" or "remove", the name, its file, the name before a rename


class Crash(BaseException):
    """The process died at a file operation."""


class Inode:
    """A file: its bytes as read now, those that are durable, and every state since the last sync."""

    def __init__(self) -> None:
        self.data = b""
        self.durable = b""
        self.states: list[bytes] = []
        self._dirty_from = 0  # bytes before were synced, or lost by a failed sync

    def set(self, data: bytes, dirty_from: int) -> None:
        self._dirty_from = min(self._dirty_from, dirty_from) if self.states else dirty_from
        self.data = data
        self.states.append(data)

    def sync(self) -> None:
        if self.states:
            begin = self._dirty_from
            self.durable, self.states = self.durable[:begin].ljust(begin, b"\0") + self.data[begin:], []

    def lose(self, random: Random) -> None:
        """After a failed sync nothing of before is written again: durable is what was written until then."""
        self.durable, self.states = self.after_power_cut(random), []

    def restart(self, random: Random) -> None:
        """After a power cut."""
        self.data = self.durable = self.after_power_cut(random)
        self.states = []

    def after_power_cut(self, random: Random) -> bytes:
        """Durable bytes, or some state since torn into sectors."""
        if not self.states or random.random() < 0.3:
            return self.durable
        new, old = random.choice(self.states), self.durable
        size = random.choice([len(new), len(new), random.randint(min(len(old), len(new)), max(len(old), len(new)))])
        share, sector = random.choice([0.5, 0.9, 1.0]), random.choice([8, 32, 128])
        torn = bytearray(size)
        for begin in range(0, size, sector):
            source = new if random.random() < share else old
            part = source[begin : min(begin + sector, size)]
            torn[begin : begin + len(part)] = part
        return bytes(torn)


class SimulatedDisk:
    """The operations of `leafbeam.live.disk` on one directory. random: decides on faults, and where the process crashes.

    fault_rate, crash_rate: for each operation, while `armed`. before: called before each operation with its name.
    """

    def __init__(self, random: Random, folder: Path, *, fault_rate: float = 0.0, crash_rate: float = 0.0) -> None:
        self.random, self.folder = random, folder
        self.fault_rate, self.crash_rate = fault_rate, crash_rate
        self.armed = False
        self.dead = False
        self.before: Callable[[str], None] | None = None
        self.names_now: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.num_crashes = self.num_faults = 0
        self._changes: list[NameChange] = []  # of names since the directory was synced
        self._open: dict[int, Inode] = {}
        self._locks: dict[int, int] = {}  # inode -> descriptor
        self._descriptors = itertools.count(1000)
        self._tries: dict[bytes, Trie] = {}
        self._bytes: dict[str, bytes] = {}

    @contextmanager
    def installed(self) -> Iterator["SimulatedDisk"]:
        """Within the block, live indexes are stored here."""
        with pytest.MonkeyPatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(disk, name, self._guarded(name, getattr(self, name)))
            yield self

    def restart(self, *, power_cut: bool) -> None:
        """A new process: after a power cut with what the disk kept, else with everything that was written."""
        if power_cut:
            random = self.random
            names = dict(self.names_durable)
            keep = self._changes[: random.randint(0, len(self._changes))]
            if random.random() < 0.5:
                keep = [change for change in self._changes if random.random() < 0.5]
            _apply(names, keep)
            for inode in {id(inode): inode for inode in [*names.values(), *self.names_now.values()]}.values():
                inode.restart(random)
            self.names_now, self.names_durable, self._changes = names, dict(names), []
        self.dead = False
        self._open.clear()
        self._locks.clear()

    # The operations.

    def names(self, path: Path) -> list[str]:
        return sorted(self.names_now)

    def create(self, path: Path) -> int:
        self.remove(path)
        return self._opened(self._link(path.name, Inode()))

    def open_own(self, path: Path, flags: int = 0) -> int:
        if path.name not in self.names_now:
            if not flags:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            self._link(path.name, Inode())
        return self._opened(self.names_now[path.name])

    def read(self, path: Path) -> BytesIO:
        return BytesIO(self._at(path).data)

    def lock(self, descriptor: int) -> None:
        holder = self._locks.setdefault(id(self._open[descriptor]), descriptor)
        if holder != descriptor:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked")

    def is_at(self, descriptor: int, path: Path, size: int | None = None) -> bool:
        inode = self._open[descriptor]
        return self.names_now.get(path.name) is inode and size in (None, len(inode.data))

    def write(self, descriptor: int, data: bytes) -> None:
        inode = self._open[descriptor]
        end = len(inode.data)
        self._tear(lambda: inode.set(inode.data + data[: self.random.randrange(len(data) + 1)], end))
        inode.set(inode.data + data, end)

    def truncate(self, descriptor: int, size: int) -> None:
        inode = self._open[descriptor]
        inode.set(inode.data[:size], size)

    def sync(self, descriptor: int) -> None:
        self._open[descriptor].sync()

    def sync_path(self, path: Path) -> None:
        if path == self.folder:
            self._tear(lambda: None)
            _apply(self.names_durable, self._changes)
            self._changes = []
        elif path != self.folder.parent:
            self._at(path).sync()

    def close(self, descriptor: int) -> None:
        inode = self._open.pop(descriptor)
        if self._locks.get(id(inode)) == descriptor:
            del self._locks[id(inode)]

    def rename(self, source: Path, target: Path) -> None:
        inode = self._at(source)
        del self.names_now[source.name]
        self.names_now[target.name] = inode
        self._changes.append(("rename", target.name, inode, source.name))

    def remove(self, path: Path) -> None:
        if path.name in self.names_now:
            self._changes.append(("remove", path.name, self.names_now.pop(path.name), ""))

    def save(self, trie: Trie, path: Path) -> None:
        part = path.with_name(f".{path.name}.part")
        raw = self._bytes.get(trie.version)
        if raw is None:
            trie.save(self.folder / "real")
            raw = self._bytes[trie.version] = (self.folder / "real").read_bytes()
        inode = self._link(part.name, Inode())
        self._tear(lambda: inode.set(raw[: self.random.randrange(len(raw))], 0))
        inode.set(raw, 0)
        self.rename(part, path)

    def load(self, path: Path) -> Trie:
        try:
            raw = self._at(path).data
        except FileNotFoundError as error:
            raise IndexFileError(f"cannot open {path}") from error
        if raw not in self._tries:
            (self.folder / "real").unlink(missing_ok=True)
            (self.folder / "real").write_bytes(raw)
            self._tries[raw] = Trie.load(self.folder / "real")
        return self._tries[raw]

    # What is behind them.

    def _guarded(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if self.dead:
                raise Crash
            if self.before is not None:
                self.before(name)
            self._crash_or_not(name)
            if self.armed and name in FAULTS and self.random.random() < self.fault_rate:
                self.num_faults += 1
                self._fail(name, *arguments)
                code = self.random.choice(FAULTS[name])
                raise OSError(code, errno.errorcode[code])
            result = operation(*arguments)
            self._crash_or_not(name)
            return result

        return call

    def _crash_or_not(self, name: str) -> None:
        rate = self.crash_rate * (4 if name in ("rename", "remove", "sync_path") else 1)  # rare, and what recovery depends on
        if self.armed and self.random.random() < rate:
            self._crash()

    def _crash(self) -> None:
        self.dead = True
        self.num_crashes += 1
        raise Crash

    def _tear(self, partly: Callable[[], None]) -> None:
        """Crash in the middle of an operation, or do not."""
        if self.armed and self.random.random() < self.crash_rate:
            partly()
            self._crash()

    def _fail(self, name: str, *arguments: Any) -> None:
        """What a failing operation leaves."""
        if name == "write":
            descriptor, data = arguments
            inode = self._open[descriptor]
            inode.set(inode.data + data[: self.random.randrange(len(data) or 1)], len(inode.data))
        elif name == "sync":
            self._open[arguments[0]].lose(self.random)
        elif name == "sync_path" and arguments[0] not in (self.folder, self.folder.parent):
            self._at(arguments[0]).lose(self.random)
        elif name in ("rename", "remove") and self.random.random() < 0.2:  # done, although it says that it failed
            getattr(self, name)(*arguments)

    def _link(self, name: str, inode: Inode) -> Inode:
        self.names_now[name] = inode
        self._changes.append(("link", name, inode, ""))
        return inode

    def _at(self, path: Path) -> Inode:
        if path.name not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return self.names_now[path.name]

    def _opened(self, inode: Inode) -> int:
        descriptor = next(self._descriptors)
        self._open[descriptor] = inode
        return descriptor


def _apply(names: dict[str, Inode], changes: list[NameChange]) -> None:
    for kind, name, inode, before in changes:
        if kind == "remove":
            if names.get(name) is inode:
                del names[name]
            continue
        names[name] = inode
        if kind == "rename" and names.get(before) is inode:
            del names[before]
