"""The regressor that splits a prompt's attention: what it picks, and the files it is read from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from leafbeam.engine import Settings
from leafbeam.errors import ArgumentError, DataError
from leafbeam.ops.attention import reference, triton
from leafbeam.ops.attention.costs import AttentionCosts, AttentionWork

QWEN3 = AttentionWork(requests=1, tokens=1000, beams=512, heads=16, groups=8, size=128)


def test_a_full_device_gets_one_part_and_an_empty_one_as_many_as_there_are_blocks_for() -> None:
    costs = AttentionCosts()
    assert costs.splits(replace(QWEN3, requests=64)) == 1
    assert costs.splits(replace(QWEN3, beams=1, tokens=64)) == 1
    assert costs.splits(replace(QWEN3, beams=1, tokens=65)) == 2
    assert costs.splits(replace(QWEN3, beams=1, tokens=100_000)) == 16


def test_the_kernel_takes_as_many_parts_as_the_costs_say(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (1, 1, 1, 16), (1, 1, 16, 130), (1, 1, 130, 16), *[(1, 1, 1, 1, 16)] * 2
    query, key, value, *slots = (torch.randn(shape, generator=generator) for shape in shapes)
    grids: list[tuple[int, ...]] = []
    kernel = triton.prefix_kernel

    class Noted:
        def __getitem__(self, grid: tuple[int, ...]) -> object:
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(triton, "prefix_kernel", Noted())
    lengths = torch.tensor([129])
    expected = reference.attend(query, key, value, lengths, *slots)
    for costs, parts in ((AttentionCosts(wave=0, block=0, merge=1), 1), (AttentionCosts(wave=0, merge=0), 3)):
        found = triton.attend(query, key, value, lengths, *slots, splits=costs)
        assert grids.pop()[2] == parts
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_file_is_read_as_it_was_written_and_any_other_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    costs = AttentionCosts(programs=7, wave=1.5, block=2.0, merge=0.25, device="a GPU")
    costs.save(path)
    assert AttentionCosts.load(path) == costs
    good = json.loads(path.read_text())
    for bad in ([], 3, {**good, "format": "other"}, {**good, "wave": -1.0}, {**good, "block": True}, {**good, "programs": 0},
                {**good, "more": 1}, {**good, "one_launch": 1}, {**good, "merge": "1"},
                {**good, "device": 5}, {**good, "wave": 10**400}):  # fmt: skip
        path.write_text(json.dumps(bad))
        with pytest.raises(DataError, match=r"holds no costs of attention .*make gpu"):
            AttentionCosts.load(path)
    path.write_text('{"format": "leafbeam-attention-costs-1", "wave": NaN}')
    with pytest.raises(DataError, match="not all 0"):
        AttentionCosts.load(path)
    with pytest.raises(DataError):
        AttentionCosts.load(tmp_path)


def test_costs_are_for_graphs() -> None:
    with pytest.raises(ArgumentError, match="used only with graphs"):
        Settings(graphs=False, attention_costs=Path("costs.json"))
