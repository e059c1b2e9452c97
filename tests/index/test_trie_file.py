"""The file format: what was saved is what is loaded, and nothing else is accepted."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.errors import IndexFileError, LeafbeamError
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


def test_loading_reads_no_array(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    seconds: dict[int, list[float]] = {100: [], 400_000: []}
    for size in seconds:
        Trie.build(rng.integers(0, 2048, (size, 8)), [2048] * 8).save(tmp_path / f"{size}.leafbeam")
    for _ in range(9):
        for size, took in seconds.items():
            begin = time.perf_counter()
            Trie.load(tmp_path / f"{size}.leafbeam")
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


@pytest.mark.parametrize("keep", [9, 100, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: float) -> None:
    raw = FIXTURE.read_bytes()
    path = tmp_path / "cut"
    path.write_bytes(raw[: int(keep) if keep >= 1 else int(len(raw) * keep)])
    with pytest.raises(IndexFileError):
        Trie.load(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_header_is_refused_or_harmless(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(FIXTURE.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, 8 + length - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged"
    path.write_bytes(bytes(raw))
    try:
        loaded = Trie.load(path)
    except LeafbeamError:
        return
    assert loaded.num_items == 200


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


def test_verify_finds_a_changed_array(tmp_path: Path) -> None:
    Trie.load(FIXTURE).verify()
    raw = bytearray(FIXTURE.read_bytes())
    for offset in range(len(raw) - 1, 8 + int.from_bytes(raw[:8], "little"), -257):
        changed = raw.copy()
        changed[offset] ^= 1
        (tmp_path / "x").write_bytes(bytes(changed))
        loaded = Trie.load(tmp_path / "x")
        with pytest.raises(IndexFileError, match="copy it again"):
            loaded.verify()


def test_the_format_version_is_what_the_fixture_proves() -> None:
    assert KIND.newest == 2
