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

# (beams, new codes of each, whether they are kept)
ROUNDS = [(1, 1, True), (5, 1, True), (9, 2, False), (9, 2, True), (4, 1, True), (9, 3, True), (20, 1, False), (2, 2, True)]


def copied(kept: Tensor | None, new: Tensor, parents: Tensor) -> Tensor:
    """The parents' codes, and the new ones, in a copy."""
    return new if kept is None else torch.cat((torch.stack([kept[b, parents[b]] for b in range(len(parents))]), new), 2)


@pytest.mark.parametrize("expected_beams", [0, 4, 30])
def test_ancestors_find_what_copies_of_the_parents_hold(expected_beams: int) -> None:
    generator = torch.Generator().manual_seed(3)
    cache, kept = CodeCache(2, 11, expected_beams), [[None, None], [None, None]]
    beams = 1
    for num_beams, num_codes, keep in ROUNDS:
        parents = torch.randint(0, beams, (2, num_beams), generator=generator)
        cache.follow(parents, num_codes, keep=keep)
        for layer in range(2):
            new = [torch.randn(2, num_beams, num_codes, 2, 3, generator=generator) for _ in range(2)]
            slots = cache.extend(layer, *(one.flatten(1, 2) for one in new))
            expected: list[Any] = [copied(*pair, parents) for pair in zip(kept[layer], new, strict=True)]
            for found, wanted in zip(slots, expected, strict=True):
                assert torch.equal(codes_of(found, cache.ancestors_BKS), wanted)
            kept[layer] = expected if keep else kept[layer]
        beams = num_beams if keep else beams


def test_a_buffer_is_made_anew_only_where_it_is_too_small() -> None:
    cache = CodeCache(1, 20, 6)
    views: list[Tensor] = []  # a buffer's address is its own while it is held
    for num_beams in (3, 6, 6, 6, 6, 2, 6, 6, 6, 7):
        cache.follow(torch.zeros(1, num_beams, dtype=torch.int64), 1)
        keys, _ = cache.extend(0, *[torch.zeros(1, num_beams, 1, 2)] * 2)
        views.append(keys)
    buffers = [keys.untyped_storage().data_ptr() for keys in views]
    assert len(set(buffers[:8])) == 1
    assert len(set(buffers)) == 3  # 16 codes in place of 8; 7 beams
    assert cache.nbytes == 2 * 7 * 16 * 2 * 4


@pytest.mark.parametrize("kind", [new_model, new_encoder_decoder])
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
