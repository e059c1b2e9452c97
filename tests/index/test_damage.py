"""Damaged and hostile index files: refused by name, or searched without harm. A child does it, so that a crash is seen."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from leafbeam import BeamSearch, Trie
from leafbeam.errors import IndexFileError
from leafbeam.index.tensor_file import Tensors, read, write
from leafbeam.index.trie import KIND

ROOT = Path(__file__).parent.parent.parent
EXTREMES = (0, 1, 63, 64, 2**31, 2**63)


def tries() -> list[Trie]:
    """Every layout: listings, columns and leaves, shared leaves, packed codes, three kinds of ids, sequences."""
    rng = np.random.default_rng(3)
    sizes = (3, 17, 300, 70_000)
    codes = np.stack([rng.integers(0, size, 300) for size in sizes], axis=1)
    codes[200:] = codes[:100]
    sequences = [rng.integers(0, 5, rng.integers(0, 6)) for _ in range(200)]
    return [
        Trie.build(codes, sizes, [f"item-{row}-é" for row in range(300)]),
        Trie.build(codes, sizes, np.arange(300) * 7, packed=True),
        Trie.build(codes[:200], sizes),
        Trie.from_sequences(sequences, 5, max_length=6),
    ]


def search(trie: Trie) -> set[object]:
    """The ids that searches find: without a filter, under a filter, and by look-ups."""
    rounds = iter(trie.codebook_sizes)

    def step_fn(codes: NDArray[np.int64] | None, parents: NDArray[np.int64] | None) -> NDArray[np.float32]:
        size = next(rounds)
        return (np.arange(2 * size).reshape(2, size) if codes is None else np.zeros((*codes.shape, size))).astype(np.float32)

    half = trie.filter(np.arange(trie.num_items) % 2 == 0)
    result = BeamSearch(trie, num_beams=8, scoring="allowed").run(step_fn, 2, filters=[half, None])
    trie.codes_of(trie.item_ids[:50].tolist())
    return {item_id for row in result.item_ids for item_id in row}


def damaged(tensors: Tensors, rng: np.random.Generator) -> Tensors:
    """One array changed: a bit, a number, its order, or a part of it repeated."""
    name = str(rng.choice([name for name in sorted(tensors) if tensors[name].size]))
    array = tensors[name].copy()
    flat = array.reshape(-1)
    index = int(rng.integers(flat.size))
    change = int(rng.integers(6))
    if change == 0:
        flat.view(np.uint8)[int(rng.integers(flat.nbytes))] ^= np.uint8(1 << int(rng.integers(8)))
    elif change == 1:
        flat[index] = np.array(rng.choice(EXTREMES), np.uint64).astype(flat.dtype)
    elif change == 2:
        flat[:] = np.roll(flat, int(rng.integers(1, 9)))
    elif change == 3:
        flat[index:] = flat[index]
    elif change == 4:
        rng.shuffle(flat)
    else:
        flat[:] = rng.integers(0, 256, flat.nbytes, np.uint8).view(flat.dtype)
    return {**tensors, name: array}


def reseal(header: dict[str, object], tensors: Tensors, path: Path) -> None:
    """Write the arrays with the version that they hash to, as a hostile author would."""
    from leafbeam.index.integrity import fingerprint

    write(path, KIND, header, tensors)
    loaded = Trie.load(path, verify=False)
    write(path, KIND, {**header, "version": fingerprint(loaded.levels, loaded.items, loaded.end_code)}, tensors)


def run_damages(folder: Path, count: int) -> None:
    """Damage, load and search; prints what it does before each search, and a JSON line at the end."""
    path, refused, searched = folder / "x", 0, 0
    for number, trie in enumerate(tries()):
        trie.save(folder / "sound")
        header, tensors = read(folder / "sound", KIND)
        raw = (folder / "sound").read_bytes()
        expected = search(Trie.load(folder / "sound"))
        known = set(trie.item_ids.tolist())
        for seed in range(count):
            rng = np.random.default_rng([number, seed])
            print("trie", number, "damage", seed, flush=True)
            is_hostile = seed % 2 == 0
            try:
                if is_hostile:
                    reseal(header, damaged(tensors, rng), path)
                else:
                    broken = bytearray(raw)
                    broken[int(rng.integers(len(raw)))] ^= 1 << int(rng.integers(8))
                    path.write_bytes(broken[: int(rng.choice([len(raw), len(raw), len(raw) - 1, len(raw) // 2]))])
                loaded = Trie.load(path)
            except IndexFileError:
                refused += 1
                continue
            found = search(loaded)
            searched += 1
            assert found <= set(loaded.item_ids.tolist())
            if not is_hostile:
                assert found == expected
                assert set(loaded.item_ids.tolist()) == known
    print(json.dumps({"refused": refused, "searched": searched}))


@pytest.mark.slow
def test_no_damaged_file_crashes_or_invents_an_item(tmp_path: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"from pathlib import Path; from tests.index.test_damage import run_damages; run_damages(Path({str(tmp_path)!r}), 40)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"{done.returncode} at {lines[-1:]}: {done.stderr[-2000:]}"
    counts = json.loads(lines[-1])
    assert counts["refused"] + counts["searched"] == 160
    assert counts["refused"] > 100
    assert counts["searched"] > 2  # other ids, or another order of the items, with the hash of them
