"""Kill a writer many times and check what is on disk; test_kill runs it in its own process, which forks quickly.

    python -m tests.live.kill_writer FOLDER sync|nosync KILLS SEED

The writer runs operations that depend on the seed alone and says on a pipe which changes were acknowledged. The parent kills it
at a random moment, opens the directory, makes the same operations with a dictionary, and compares. Prints one JSON line.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from leafbeam.live import CompactionPolicy, LiveIndex, disk
from tests.live.dictionary import Model, agree, content, union

SIZES = (3, 2, 300)
KEYS = [f"item-{number}" for number in range(24)]
Operation = list[tuple[str, list[str], list[tuple[int, ...]]]]


def next_operation(source: random.Random, items: Model) -> Operation:
    """One to three changes, legal one after the other, that are one transaction; `items` is changed by them."""
    operation: Operation = []
    for _ in range(source.choice([1, 1, 1, 2, 3])):
        kind = source.choice(["insert", "insert", "delete", "replace"])
        legal = [key for key in KEYS if (key in items) != (kind == "insert")]
        ids = source.sample(legal, min(len(legal), source.randint(1, 4)))
        rows = [tuple(source.randrange(size) for size in SIZES) for _ in ids]
        operation.append((kind, ids, rows))
        if kind != "insert":
            for key in ids:
                del items[key]
        if kind != "delete":
            items.update(zip(ids, rows, strict=True))
    return operation


def write_in_pieces(descriptor: int, data: bytes) -> None:
    cut = random.randrange(len(data) + 1)
    os.write(descriptor, data[:cut])
    time.sleep(0.001)
    os.write(descriptor, data[cut:])


def write(folder: Path, seed: int, sync: bool, pipe: int) -> None:
    """The child: open, change until killed; a byte on the pipe after each acknowledged change."""
    if seed % 2:
        disk.write = write_in_pieces  # a kill can come between them
    policy = CompactionPolicy(fraction=0.01, min_changes=random.Random(seed).choice([5, 15, 40, 1_000_000]))
    index = LiveIndex.open(folder, sync=sync, compaction=policy)
    source, items = random.Random(seed), content(index.version())
    os.write(pipe, b"o")
    while True:
        number = index.version().number
        with index.transaction() as transaction:
            for kind, ids, rows in next_operation(source, items):
                if kind == "delete":
                    transaction.delete(ids)
                else:
                    getattr(transaction, kind)(rows, ids)
        if transaction.number != number:
            os.write(pipe, b"a")


def check_recovered(folder: Path, before: tuple[int, Model], seed: int, acknowledged: int) -> tuple[int, Model, dict[str, int]]:
    """What the directory holds now, after checking that it is a prefix with all acknowledged changes and at most one more."""
    with LiveIndex.open(folder, compaction=CompactionPolicy(fraction=None)) as index:
        number, found = index.version().number, content(index.version())
        truncated = index.status.truncated_bytes
        compacted = index.status.num_replayed < number - before[0]
        source, items = random.Random(seed), dict(before[1])
        made = number - before[0]
        assert acknowledged <= made <= acknowledged + 1, f"{acknowledged} acknowledged, {made} found"
        while made:
            previous = list(items.items())
            net = dict(items)
            operation = next_operation(source, net)
            items = net
            made -= _has_effect(operation, dict(previous))
        agree(index, items)
        assert list(found.items()) == list(items.items())
    return number, items, {"truncated": truncated > 0, "compacted": compacted}


def _has_effect(operation: Operation, before: Model) -> bool:
    """Whether a transaction makes a version: not if all that it inserts it deletes again."""
    removed, added = set(), set()
    for kind, ids, _ in operation:
        if kind != "insert":
            removed |= {key for key in ids if key in before and key not in added}
            added -= set(ids)
        if kind != "delete":
            added |= set(ids)
    return bool(removed or added)


def warm_up(items: Model) -> None:
    """Have everything compiled, or read from numba's cache, before the first fork: a child inherits it."""
    with LiveIndex.create(None, union(items, SIZES), compaction=CompactionPolicy(fraction=None)) as index:
        for codes in ([[0, 0, 0]], [[1, 1, 1]]):
            index.insert(codes, ["x"])
            index.insert(codes * 2, ["y", "z"])
            index.delete(["x", next(iter(content(index.version())))])
            agree(index, content(index.version()))
            index.compact(wait=True)
            index.delete(["y", "z"])


def main(folder: Path, sync: bool, kills: int, seed: int) -> dict[str, Any]:
    source = random.Random(seed)
    before: tuple[int, Model] = (0, {key: (0, 0, row) for row, key in enumerate(KEYS[:10])})
    path = folder / "shop0"
    LiveIndex.create(path, union(before[1], SIZES)).close()
    warm_up(before[1])
    totals = {"kills": 0, "acknowledged": 0, "truncated": 0, "compacted": 0, "before_open": 0, "files_left": 0}
    for kill in range(kills):
        child_seed = source.randrange(1 << 30)
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(read_end)
                write(path, child_seed, sync, write_end)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(3)
        os.close(write_end)
        said = b""
        if source.random() < 0.8:  # else while it opens
            patience = source.choice([1, 2, 5, 10, 20])
            while len(said) < patience and (part := os.read(read_end, 1)):
                said += part
        time.sleep(source.random() * 0.005)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"the writer ended by itself: {status}"
        while part := os.read(read_end, 1 << 16):
            said += part
        os.close(read_end)
        totals["files_left"] += len(list(path.iterdir())) > 4
        number, items, seen = check_recovered(path, before, child_seed, said.count(b"a"))
        totals["kills"] += 1
        totals["acknowledged"] += number - before[0]
        totals["before_open"] += b"o" not in said
        for name, value in seen.items():
            totals[name] += value
        before = (number, items)
        if kill % 50 == 49:  # and an index that was only ever closed in order
            path = folder / f"shop{kill}"
            LiveIndex.create(path, union(before[1], SIZES)).close()
            before = (0, before[1])
    return totals


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "sync", int(sys.argv[3]), int(sys.argv[4]))))
