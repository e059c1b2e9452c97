"""Slots of codes that stay where they were written hold, through the table of ancestors, what copies of the parents' would."""

from typing import Any

import pytest
import torch
from torch import Tensor

from leafbeam.model import AnyModel, Vocabulary, torch_runner
from leafbeam.model.kv_cache import CodeCache
from leafbeam.ops.attention import reference, triton
from leafbeam.ops.attention.reference import codes_of
from tests.fixtures.static_runs import SIZES, new_encoder_decoder, new_model

# (beams, new codes of each, codes before them)
ROUNDS = [(1, 1, 0), (5, 1, 1), (3, 1, 1), (9, 2, 2), (4, 1, 4), (7, 1, 1), (2, 1, 2), (9, 3, 5), (20, 1, 5), (2, 2, 8)]


def copied(before: Tensor | None, new: Tensor, parents: Tensor) -> Tensor:
    """The parents' codes, and the new ones, in a copy."""
    return new if before is None else torch.cat((torch.stack([before[b, parents[b]] for b in range(len(parents))]), new), 2)


@pytest.mark.parametrize("expected_beams", [0, 4, 30])
def test_ancestors_find_what_copies_of_the_parents_hold(expected_beams: int) -> None:
    """Also after more beams of an earlier level."""
    generator = torch.Generator().manual_seed(3)
    cache = CodeCache(2, 11, expected_beams)
    held: list[list[Any]] = [[], []]  # per layer, for each number of codes: keys and values of all beams that ran
    for num_beams, num_codes, before in ROUNDS:
        beams = held[0][before - 1][0].shape[1] if before else 1
        parents = torch.randint(0, beams, (2, num_beams), generator=generator)
        cache.follow(parents, num_codes, before)
        for layer in range(2):
            new = [torch.randn(2, num_beams, num_codes, 2, 3, generator=generator) for _ in range(2)]
            slots = cache.extend(layer, *(one.flatten(1, 2) for one in new))
            parts = held[layer][before - 1] if before else (None, None)
            expected = [copied(part, one, parents) for part, one in zip(parts, new, strict=True)]
            for found, wanted in zip(slots, expected, strict=True):
                assert torch.equal(codes_of(found, cache.ancestors_BKS), wanted)
            if before < len(held[layer]):
                held[layer][before] = [torch.cat(both, 1) for both in zip(held[layer][before], expected, strict=True)]
            else:
                held[layer] += [[one[:, :, : before + code + 1] for one in expected] for code in range(num_codes)]


def test_a_buffer_is_made_anew_only_where_it_is_too_small() -> None:
    cache = CodeCache(1, 20, 6)
    views: list[Tensor] = []  # a buffer's address is its own while it is held
    for level, num_beams in enumerate((3, 6, 6, 6, 6, 2, 6, 6, 6, 7)):
        cache.follow(torch.zeros(1, num_beams, dtype=torch.int64), 1, level)
        keys, _ = cache.extend(0, *[torch.zeros(1, num_beams, 1, 2)] * 2)
        views.append(keys)
    buffers = [keys.untyped_storage().data_ptr() for keys in views]
    assert len(set(buffers[:8])) == 1
    assert len(set(buffers)) == 3  # 16 codes in place of 8; 7 beams
    assert cache.nbytes == 2 * 7 * 16 * 2 * 4


@pytest.mark.parametrize("kind", [new_model, pytest.param(new_encoder_decoder, marks=pytest.mark.slow)])
def test_a_session_with_kernels_gives_the_logits_of_plain_torch(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU runs without a graph: Triton's attention, under its interpreter."""
    model: AnyModel = kind(2, Vocabulary(codebook_sizes=SIZES))
    generator = torch.Generator().manual_seed(1)
    tokens, lengths = torch.randint(3, 20, (2, 5), generator=generator), torch.tensor([5, 2])
    codes = [torch.randint(0, 5, (2, beams), generator=generator) for beams in (4, 6)]
    parents = [torch.zeros(2, 4, dtype=torch.int64), torch.randint(0, 4, (2, 6), generator=generator)]
    forced = torch.randint(0, 5, (2, 4, 2), generator=generator)
    monkeypatch.setattr(type(model), "takes_workspace", False, raising=False)

    def logits() -> list[Tensor]:
        session = model.start(tokens, lengths)
        found = [session.step_fn(), *map(session.step_fn, codes, parents)]
        session.step_fn()
        return [*found, *session.suffix_fn(forced, parents[0])]

    expected = logits()
    with monkeypatch.context() as patch:
        patch.setattr("leafbeam.model.base.attention_on", lambda weight: triton.attention())
        for found, wanted in zip(logits(), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_kernels_run_on_a_gpu_with_triton_in_their_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Weight:
        def __init__(self, device: str, dtype: torch.dtype) -> None:
            self.device, self.dtype = torch.device(device), dtype

    def is_triton(device: str, dtype: torch.dtype) -> bool:
        attention = torch_runner.attention_on(Weight(device, dtype))  # type: ignore[arg-type]
        assert attention == reference.attention() or attention.over_codes is triton.attend_codes
        return attention.over_codes is triton.attend_codes

    assert is_triton("cuda", torch.bfloat16)
    assert not is_triton("cuda", torch.float64)
    assert not is_triton("cpu", torch.float32)
    monkeypatch.setattr(torch_runner, "is_installed", lambda package: False)
    assert not is_triton("cuda", torch.bfloat16)
