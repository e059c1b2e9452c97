"""The file format: what was saved is what is loaded, and nothing else is accepted."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from leafbeam import Trie
from leafbeam.errors import IndexFileError
from leafbeam.index import integrity, tensor_file
from leafbeam.index.integrity import fingerprint
from leafbeam.index.tensor_file import read, write
from leafbeam.index.trie import KIND

FIXTURE = Path(__file__).parent.parent / "fixtures" / "index-v1.pleach"


def fixture_trie() -> Trie:
    """What the committed file of format version 1 holds: every layout, shared leaves, string ids."""
    rng = np.random.default_rng(2026)
    codes = np.stack([rng.integers(0, size, 200) for size in (3, 300, 70_000)], axis=1)
    codes[150:] = codes[:50]
    return Trie.build(codes, (3, 300, 70_000), [f"item-{row}-é" for row in range(200)])


def test_format_version_1_loads_forever() -> None:
    loaded, expected = Trie.load(FIXTURE), fixture_trie()
    assert loaded.version == expected.version
    assert loaded.codebook_sizes == expected.codebook_sizes
    assert loaded.item_ids.tolist() == expected.item_ids.tolist()
    assert np.array_equal(loaded.codes_of(expected.item_ids), expected.codes_of(expected.item_ids))
    assert [level.layout for level in loaded.levels] == [level.layout for level in expected.levels]


def test_packed_codes_of_format_version_2_load_forever() -> None:
    loaded, expected = Trie.load(FIXTURE.with_name("index-v2-packed.pleach")), fixture_trie()
    assert loaded.version == expected.packed().version
    assert [level.width for level in loaded.levels] == [2, 9, 17]
    assert np.array_equal(loaded.codes_of(expected.item_ids), expected.codes_of(expected.item_ids))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ids", [None, "integers", "strings"])
@pytest.mark.parametrize(("num_items", "size"), [(0, 5), (1, 5), (500, 3), (2000, 2000), (300, 2**31)])
def test_load_gives_back_what_was_saved(tmp_path: Path, num_items: int, size: int, ids: str | None, packed: bool) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, size, (num_items, 4))
    item_ids = {None: None, "integers": np.arange(num_items) * 7, "strings": [f"é{row}" for row in range(num_items)]}[ids]
    trie = Trie.build(codes, [size] * 4, item_ids, packed=packed)
    trie.save(tmp_path / "x.leafbeam")
    loaded = Trie.load(tmp_path / "x.leafbeam")
    assert loaded.version == trie.version
    assert loaded.num_items == trie.num_items
    assert loaded.item_ids.tolist() == trie.item_ids.tolist()
    for ours, theirs in zip(trie.levels, loaded.levels, strict=True):
        assert np.array_equal(ours.codes, theirs.codes)
        assert ours.width == theirs.width
        assert (ours.firsts is None) == (theirs.firsts is None)
        assert ours.boundary == theirs.boundary
    mask = rng.random(num_items) < 0.3
    assert loaded.filter(mask) == trie.filter(mask)
    loaded.save(tmp_path / "y.leafbeam")
    assert (tmp_path / "x.leafbeam").read_bytes() == (tmp_path / "y.leafbeam").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.leafbeam", "y.leafbeam"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ids", [None, "integers", "strings"])
@pytest.mark.parametrize("num_items", [0, 1, 700])
def test_the_file_is_what_safetensors_itself_would_write(tmp_path: Path, num_items: int, ids: str | None, packed: bool) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    rng = np.random.default_rng(4)
    sizes = (3, 300, 70_000, *[2] * 9)
    item_ids = {None: None, "integers": np.arange(num_items), "strings": [f"é{row}" for row in range(num_items)]}[ids]
    codes = np.stack([rng.integers(0, size, num_items) for size in sizes], axis=1)
    Trie.build(codes, sizes, item_ids, packed=packed).save(tmp_path / "ours")
    with safe_open(tmp_path / "ours", "numpy") as file:
        save_file({name: file.get_tensor(name) for name in file.keys()}, tmp_path / "its", file.metadata())  # noqa: SIM118
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "its").read_bytes()


def test_loading_without_verification_reads_no_array(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    seconds: dict[int, list[float]] = {100: [], 400_000: []}
    for size in seconds:
        Trie.build(rng.integers(0, 2048, (size, 8)), [2048] * 8).save(tmp_path / f"{size}.leafbeam")
    for _ in range(9):
        for size, took in seconds.items():
            begin = time.perf_counter()
            Trie.load(tmp_path / f"{size}.leafbeam", verify=False)
            took.append(time.perf_counter() - begin)
    assert min(seconds[400_000]) < 8 * min(seconds[100])  # reading and checking 7 MB would take 50 times as long


def test_saving_over_an_open_index_leaves_the_reader_its_own(tmp_path: Path) -> None:
    path = tmp_path / "x.leafbeam"
    Trie.build([[0], [1]], [2], ["a", "b"]).save(path)
    reader = Trie.load(path)
    Trie.build([[1], [0], [1]], [2], ["c", "d", "e"]).save(path)
    assert reader.item_ids.tolist() == ["a", "b"]
    assert Trie.load(path).item_ids.tolist() == ["c", "d", "e"]


def test_a_saved_index_can_be_read_by_whoever_may_read_new_files(tmp_path: Path) -> None:
    Trie.build([[0]], [1]).save(tmp_path / "x.leafbeam")
    (tmp_path / "y").write_bytes(b"")
    assert (tmp_path / "x.leafbeam").stat().st_mode == (tmp_path / "y").stat().st_mode


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match="cannot open"):
        Trie.load(tmp_path / "none.leafbeam")
    with pytest.raises(IndexFileError, match="cannot open"):
        Trie.load(tmp_path)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "other"
    for content in (b"", b"abc", b"not an index at all", bytes(64), b"\xff" * 64, (2).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(IndexFileError, match="not a leafbeam index"):
            Trie.load(path)
    save_file({"w": np.zeros(3, np.float32)}, path)
    with pytest.raises(IndexFileError, match="not a leafbeam index"):
        Trie.load(path)


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    raw = FIXTURE.read_bytes()
    newer = raw.replace(rb"\"format_version\": 1", rb"\"format_version\": 9")
    assert newer != raw
    (tmp_path / "newer").write_bytes(newer)
    with pytest.raises(IndexFileError, match="upgrade leafbeam"):
        Trie.load(tmp_path / "newer")


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_file_that_was_made_longer_is_refused_before_all_of_it_is_read(tmp_path: Path, keeps: bool, mapped: bool) -> None:
    path = tmp_path / "index.leafbeam"
    Trie.build([[0], [1]], (2,)).save(path)
    if not keeps:
        path.write_bytes(b"")
    os.truncate(path, 1 << 40)  # sparse
    with pytest.raises(IndexFileError, match="bytes after its arrays" if keeps else "is not a leafbeam index"):
        read(path, KIND, mapped=mapped)


def test_an_index_that_does_not_fit_into_memory_is_a_named_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise MemoryError("Unable to allocate 1.00 TiB")

    Trie.build([[0]], (1,)).save(tmp_path / "index.leafbeam")
    monkeypatch.setattr(tensor_file, "_body", fails)
    with pytest.raises(IndexFileError, match="does not fit into memory: Unable to allocate"):
        Trie.load(tmp_path / "index.leafbeam")


@pytest.mark.parametrize("keep", [9, 100, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    raw = FIXTURE.read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(raw[: int(keep) if keep >= 1 else int(len(raw) * keep)])
    with pytest.raises(IndexFileError):
        Trie.load(path)


def test_parts_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    with safe_open(FIXTURE, "numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name in tensors:
        without = {other: tensor for other, tensor in tensors.items() if other != name}
        save_file(without, tmp_path / "x", metadata)
        with pytest.raises(IndexFileError, match="damaged"):
            Trie.load(tmp_path / "x")
        save_file({**without, name: tensors[name][:-1]}, tmp_path / "x", metadata)
        with pytest.raises(IndexFileError, match="damaged"):
            Trie.load(tmp_path / "x")
    header = json.loads(metadata["pleach"])
    for key in header:
        without_key = {other: value for other, value in header.items() if other != key}
        save_file(tensors, tmp_path / "x", {"leafbeam": json.dumps(without_key)})
        with pytest.raises(IndexFileError):
            Trie.load(tmp_path / "x")


def test_a_changed_array_is_refused_unless_verification_is_off(tmp_path: Path) -> None:
    raw = bytearray(FIXTURE.read_bytes())
    path = tmp_path / "x"
    for offset in range(len(raw) - 1, 8 + int.from_bytes(raw[:8], "little"), -257):
        changed = raw.copy()
        changed[offset] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(IndexFileError, match=f"{path} is damaged.*arrays hash to.*copy it again"):
            Trie.load(path)
        with pytest.raises(IndexFileError, match="arrays hash to"):
            Trie.load(path, verify=False).verify()


def test_a_file_changed_in_place_after_loading_has_no_effect(tmp_path: Path) -> None:
    path = tmp_path / "x"
    expected = fixture_trie()
    for new in (b"", bytes(5000), b"\xff" * 6000):
        expected.save(path)
        loaded = Trie.load(path)
        path.write_bytes(new)  # in place: the same file, truncated and written
        loaded.verify()
        assert loaded.item_ids.tolist() == expected.item_ids.tolist()


def test_what_is_not_a_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        for verify in (True, False):
            with pytest.raises(IndexFileError):
                Trie.load(path, verify=verify)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("levels", 1, "size"), -(2**31)),
        (("levels", 1, "size"), 2**31 + 1),
        (("levels", 1, "size"), 1e400),
        (("levels", 1, "size"), "many"),
        (("levels", 1, "size"), [[]]),
        (("levels", 1, "num_nodes"), -(2**31)),
        (("levels", 1, "num_nodes"), 10**300),
        (("levels", 1, "width"), 64),
        (("levels", 1, "width"), -1),
        (("levels",), []),
        (("levels",), {}),
        (("levels",), [1, 2, 3]),
        (("levels", 1), None),
        (("num_leaves",), -(2**31)),
        (("num_items",), 2**70),
        (("num_leaves",), float("nan")),
        (("end_code",), -1),
        (("end_code",), 2**70),
        (("ids",), ["utf-8"]),
        (("ids",), "int64"),
        (("version",), None),
        (("version",), "\ud800"),
    ],
)
def test_a_hostile_header_is_refused_by_name(tmp_path: Path, keys: tuple[str | int, ...], value: object) -> None:
    header, tensors = read(FIXTURE, KIND)
    *parents, last = keys
    target: Any = header
    for key in parents:
        target = target[key]
    target[last] = value
    write(tmp_path / "x", KIND, header, tensors)
    with pytest.raises(IndexFileError):
        Trie.load(tmp_path / "x")


def test_nested_brackets_and_other_bytes_in_a_header_are_refused_by_name(tmp_path: Path) -> None:
    for head in (
        b"[" * 100_000,
        b'{"__metadata__":' * 50_000,
        b'{"__metadata__":{"leafbeam":"' + b"[" * 100_000 + b'"}}',
        b"\xff{}",
    ):
        (tmp_path / "x").write_bytes(len(head).to_bytes(8, "little") + head)
        with pytest.raises(IndexFileError, match="not a leafbeam index"):
            Trie.load(tmp_path / "x")


def test_ids_that_are_not_utf8_are_refused_though_the_version_is_right(tmp_path: Path) -> None:
    header, tensors = read(FIXTURE, KIND)
    for first, second in ((b"\xff", b"\0"), (b"\xc3", b"\xa9")):  # no UTF-8; one character over two ids
        ids = tensors["items.ids"].copy()
        ids[0], ids[1] = ord(" "), ord(" ")
        ids[0, -1:], ids[1, :1] = np.frombuffer(first, np.uint8), np.frombuffer(second, np.uint8)
        changed = {**tensors, "items.ids": ids}
        write(tmp_path / "x", KIND, header, changed)
        trie = Trie.load(tmp_path / "x", verify=False)
        version = fingerprint(trie.levels, trie.items)
        write(tmp_path / "x", KIND, {**header, "version": version}, changed)
        with pytest.raises(IndexFileError, match="of row 0 has to be UTF-8"):
            Trie.load(tmp_path / "x")


def test_progress_is_logged_for_large_files_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "leafbeam.index")
    Trie.load(FIXTURE)
    assert caplog.messages == []
    version = Trie.load(FIXTURE).version
    for module in (integrity, tensor_file):
        monkeypatch.setattr(module, "_REPORT", 1024)
    assert Trie.load(FIXTURE).version == version
    content = FIXTURE.read_bytes()
    size = len(content) - 8 - int.from_bytes(content[:8], "little")
    assert len([line for line in caplog.messages if line.startswith("read")]) == -(-size // 1024)
    assert len([line for line in caplog.messages if line.startswith("hashed")]) >= 2


def test_the_format_version_is_what_the_fixture_proves() -> None:
    assert KIND.newest == 2
