"""Logs, records and manifests of a live index, item memories and their logs; checksums are made right after the change."""

import atexit
import functools
import json
import shutil
import struct
import tempfile
import zlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from leafbeam.index import Trie, tensor_file
from leafbeam.ingest.request_log import RequestLog
from leafbeam.live import LiveIndex
from leafbeam.retrieve import ItemMemory, LiveMemory, state

CORPUS = Path(__file__).parents[1] / "corpus"


@functools.cache
def _live() -> Path:
    """A live index of text ids, with two records in its log."""
    folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder) / "live"
    codes_NL = np.random.default_rng(0).integers(0, 8, (20, 2))
    with LiveIndex.create(path, Trie.build(codes_NL, (8, 8), item_ids=[f"item {n}" for n in range(20)])) as index:
        index.insert([[1, 2], [3, 4]], ["new", "é"])
        index.delete(["item 3"])
    return path


def _open(path: Path) -> None:
    with LiveIndex.open(path, read_only=True) as index:
        assert len(index) == len(index.version()) <= 1 << 20


def fuzz_log(data: bytes) -> None:
    """A log as it is, behind the base of a live index."""
    log = next(_live().glob("changes-*.log"))
    before = log.read_bytes()
    log.write_bytes(data)
    try:
        _open(_live())
    finally:
        log.write_bytes(before)


def fuzz_record(data: bytes) -> None:
    """A record of this payload, with the right checksums, at the end of a log."""
    log = next(_live().glob("changes-*.log"))
    before = log.read_bytes()
    head = struct.pack("<4sIQI", b"\xffrec", len(data), 3, zlib.crc32(data))
    log.write_bytes(before + head + struct.pack("<I", zlib.crc32(head)) + data)
    try:
        _open(_live())
    finally:
        log.write_bytes(before)


def fuzz_request_record(data: bytes) -> None:
    """A record of this payload, with the right checksums, in the log of requests that has the commits of an index."""
    path = _live().with_name("served")
    if not path.exists():
        path.mkdir()
        codes_NL = np.random.default_rng(0).integers(0, 8, (20, 2))
        trie = Trie.build(codes_NL, (8, 8), item_ids=[f"item {n}" for n in range(20)])
        with RequestLog.open(path) as requests, LiveIndex.create(None, trie) as index:
            index.persist(path / "index", journal=requests)
    log = path / "requests-0.log"
    before = log.read_bytes()
    head = struct.pack("<4sIQI", b"\xffrec", len(data), 2, zlib.crc32(data))
    log.write_bytes(before + head + struct.pack("<I", zlib.crc32(head)) + data)
    try:
        _open(path / "index")
        RequestLog.open(path, sync=False).close()
    finally:
        log.write_bytes(before)


def fuzz_manifest(data: bytes) -> None:
    """A manifest, with the right checksum where it is a JSON object."""
    manifest = _live() / "manifest.json"
    before = manifest.read_bytes()
    with suppress(ValueError, RecursionError):
        fields = json.loads(data)
        if isinstance(fields, dict):
            fields.pop("crc32", None)
            data = json.dumps(fields | {"crc32": zlib.crc32(json.dumps(fields, sort_keys=True).encode())}).encode()
    manifest.write_bytes(data)
    try:
        _open(_live())
    finally:
        manifest.write_bytes(before)


def fuzz_memory(data: bytes) -> None:
    """An item memory with the digest of its arrays: what loads is searched, counts, and is saved."""
    path = _live().with_name("memory.leafbeam")
    path.write_bytes(data)
    header, tensors = tensor_file.read(path, replace(state.KIND, has_digest=False))
    with suppress(UnicodeEncodeError):  # a name that cannot be hashed, so the file keeps a wrong digest
        tensor_file.write(path, state.KIND, header, tensors)
    loaded = ItemMemory.load(path)
    ids = loaded.item_ids[:4].tolist()
    known = set(loaded.item_ids.tolist())
    assert len(known) == loaded.num_items
    found = loaded.search(ids, num_items=4)
    assert known.issuperset(found.item_ids)
    assert np.isfinite(found.scores).all()
    if len(ids) > 1:
        loaded.observe(ids[:-1], ids[-1])
    loaded.save(path)
    assert ItemMemory.load(path).version == loaded.version


def fuzz_memory_record(data: bytes) -> None:
    """A record of this payload, with the right checksums, in the log of an item memory."""
    path = _live().with_name("counted.leafbeam")
    path.write_bytes((CORPUS / "memory" / "text").read_bytes())
    path.with_name(f"{path.name}.log").unlink(missing_ok=True)
    with LiveMemory.open(path, sync=False) as live:
        live._log.append(data)
    with LiveMemory.open(path, sync=False) as live:
        assert np.isfinite(live.memory.search(["a"]).scores).all()
        live.compact()
