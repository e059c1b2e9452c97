"""xGR's in-place reordering of suffix slots: right for ascending parents, refused for others."""

import pytest
import torch
from torch import Tensor

from benchmarks.peers import in_place_kernel
from benchmarks.peers.in_place_reorder import by_parent, follow_in_place, two_passes
from leafbeam.errors import ArgumentError


def naive(slots: Tensor, parents: Tensor) -> None:
    """One pass from the first slot on."""
    for slot, parent in enumerate(parents[0].tolist()):
        slots[0, slot] = slots[0, parent]


def maps(seed: int, beams: int, ascending: bool) -> Tensor:
    parents = torch.randint(0, beams, (1, beams), generator=torch.Generator().manual_seed(seed))
    return parents.gather(1, by_parent(parents)) if ascending else parents


def test_two_passes_are_right_for_ascending_parents_and_one_pass_is_not() -> None:
    wrong = 0
    for seed in range(300):
        beams = 2 + seed % 30
        parents, slots = maps(seed, beams, ascending=True), torch.arange(float(beams))[None, :, None].clone()
        expected, one_pass = slots[:, parents[0]], slots.clone()
        naive(one_pass, parents)
        wrong += not torch.equal(one_pass, expected)
        follow_in_place(slots, parents)
        assert torch.equal(slots, expected)
    assert wrong > 150


@pytest.mark.parametrize(("beams", "slots"), [(1, 1), (7, 9), (600, 600)])
def test_the_kernel_moves_slots_within_one_buffer(beams: int, slots: int) -> None:
    """600 beams are three tiles: their parents are before, within and behind the own tile."""
    generator = torch.Generator().manual_seed(beams)
    buffer = torch.randn(2, slots, 3, 2, 3, generator=generator)
    parents = torch.randint(0, beams, (2, beams), generator=generator).sort(dim=1).values
    parents[1] = parents[1] // 3  # all from the first ones
    moved, expected = buffer.clone(), buffer.clone()
    in_place_kernel.follow_in_place(moved[:, :, :2], parents)
    two_passes(expected[:, :, :2], parents)
    assert torch.equal(moved, expected)
    assert torch.equal(expected[0, :beams, :2], buffer[0, parents[0], :2])
    assert torch.equal(expected[:, :, 2], buffer[:, :, 2])


def test_the_kernel_refuses_slots_and_parents_that_do_not_fit() -> None:
    slots = torch.zeros(2, 3, 2, 2, 4)
    parents = torch.zeros(2, 3, dtype=torch.int64)
    for bad in ((slots, parents.int()), (slots, parents[:1]), (slots, torch.zeros(2, 4, dtype=torch.int64)),
                (slots[..., :2], parents), (slots, parents.T.contiguous().T)):  # fmt: skip
        with pytest.raises(ArgumentError, match=r"slots"):
            in_place_kernel.follow_in_place(*bad)
    in_place_kernel.follow_in_place(slots[:, :, :0], parents)
    in_place_kernel.follow_in_place(slots, parents[:, :0])
