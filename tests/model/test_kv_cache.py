"""Slots that move within one buffer hold what copied ones hold, in an order in which parents ascend."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from leafbeam.model import AnyModel, Vocabulary, kv_cache
from leafbeam.model.kv_cache import BeamCache, InPlaceBeamCache, new_beam_cache
from leafbeam.ops.attention import reference, triton
from tests.fixtures.static_runs import SIZES, new_encoder_decoder, new_model

# (beams, new codes of each)
ROUNDS = [(1, 1), (5, 1), (9, 2), (4, 1), (9, 3), (20, 1), (20, 1), (2, 2)]


@pytest.mark.parametrize("move", [reference.follow_in_place, triton.follow_in_place])
def test_moved_slots_equal_copied_ones(move: Callable[[Tensor, Tensor], None]) -> None:
    rounds = ROUNDS if move is reference.follow_in_place else ROUNDS[:4]
    generator = torch.Generator().manual_seed(3)
    copies, moved = BeamCache(2), InPlaceBeamCache(2, move)
    beams, codes = 1, 0
    for num_beams, num_codes in rounds:
        parents = torch.randint(0, beams, (2, num_beams), generator=generator)
        copies.follow(parents, num_codes)
        moved.follow(parents, num_codes)
        beams, codes = num_beams, codes + num_codes
        for layer in range(2):
            new = [torch.randn(2, num_beams, num_codes, 2, 3, generator=generator) for _ in range(2)]
            expected = copies.extend(layer, *(one.flatten(1, 2) for one in new))
            found = moved.extend(layer, *(moved.to_slots(one).flatten(1, 2) for one in new))
            for slots, wanted in zip(found, expected, strict=True):
                assert slots.shape == (2, beams, codes, 2, 3)
                assert torch.equal(moved.to_beams(slots), wanted)
    assert moved.shape == copies.shape


def test_a_buffer_is_made_anew_only_where_it_is_too_small() -> None:
    cache = InPlaceBeamCache(1, reference.follow_in_place)
    views: list[Tensor] = []  # a buffer's address is its own while it is held
    for num_beams in (3, 6, 6, 6, 6, 2):
        cache.follow(torch.zeros(1, num_beams, dtype=torch.int64), 1)
        keys, _ = cache.extend(0, *[torch.zeros(1, num_beams, 1, 2)] * 2)
        views.append(keys)
    buffers = [keys.untyped_storage().data_ptr() for keys in views]
    assert len(set(buffers)) == 4  # of 3 beams; of 6 and 2, 4, 8 codes
    assert buffers[2] == buffers[3]
    assert buffers[4] == buffers[5]
    assert cache.nbytes == 2 * 6 * 8 * 2 * 4


@pytest.mark.parametrize("kind", [new_model, new_encoder_decoder])
def test_a_session_that_moves_slots_gives_the_logits_of_one_that_copies(
    kind: Callable[[int, Any], AnyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kind(2, Vocabulary(codebook_sizes=SIZES)).double()
    draw = partial(torch.randint, generator=torch.Generator().manual_seed(1))
    tokens, lengths = draw(3, 20, (2, 5)), torch.tensor([5, 2])
    codes, parents = [draw(0, 5, (2, beams)) for beams in (4, 6)], [torch.zeros(2, 4).long(), draw(0, 4, (2, 6))]
    forced = draw(0, 5, (2, 4, 2))

    def logits() -> list[Tensor]:
        session = model.start(tokens, lengths)
        found = [session.step_fn(), *map(session.step_fn, codes, parents)]
        session.step_fn()
        return [*found, *session.suffix_fn(forced, parents[0])]

    expected = logits()
    made: list[InPlaceBeamCache] = []

    def in_place(layers: int, device: torch.device) -> InPlaceBeamCache:
        made.append(InPlaceBeamCache(layers, reference.follow_in_place))
        return made[-1]

    for module in ("transformer", "encoder_decoder"):
        monkeypatch.setattr(f"leafbeam.model.{module}.new_beam_cache", in_place)
    for found, wanted in zip(logits(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)  # norms are computed in float32
    assert made


def test_slots_move_on_a_gpu_with_triton_and_are_copied_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(new_beam_cache(1, torch.device("cpu"))) is BeamCache
    assert type(new_beam_cache(1, torch.device("cuda"))) is InPlaceBeamCache
    monkeypatch.setattr(kv_cache, "is_installed", lambda package: False)
    assert type(new_beam_cache(1, torch.device("cuda"))) is BeamCache
