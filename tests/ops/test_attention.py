"""Attention over prompt and codes: Triton kernels against torch, and the table of ancestors against moved slots."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.ops.attention import reference, triton
from leafbeam.ops.attention.costs import AttentionCosts
from leafbeam.ops.attention.reference import extend_ancestors

pytestmark = pytest.mark.usefixtures("poison")


def exact(query: Tensor, keys: Tensor, values: Tensor, live: Tensor) -> Tensor:
    """One softmax in float64. query (K, H, E); keys, values (K, N, H, E); live (K, N)."""
    scores = torch.einsum("khe,knhe->khn", query.double(), keys.double()) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~live[:, None], -torch.inf)
    return torch.einsum("khn,knhe->khe", scores.softmax(-1), values.double()).float()


def draw(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


# A prompt in one part, in one launch with the codes; and its keys and values read through descriptors, if they can be.
WAYS = [
    AttentionCosts(merge=1e6, one_launch=True),
    AttentionCosts(merge=1e6, one_launch=True, descriptors=True),
    AttentionCosts(merge=1e6, descriptors=True),
]
SHAPES = [(1, 1, 1, 1, 8, 3), (2, 5, 2, 2, 16, 70), (2, 3, 1, 4, 20, 132), (1, 33, 2, 1, 16, 65)]


@pytest.mark.parametrize(("requests", "beams", "groups", "per", "size", "tokens"), SHAPES)
@pytest.mark.parametrize("splits", [1, 3, *WAYS])
def test_prompts_of_any_length_and_shape_equal_the_reference(
    requests: int, beams: int, groups: int, per: int, size: int, tokens: int, splits: Any
) -> None:
    shapes = (requests, beams, groups * per, size), (requests, groups, size, tokens), (requests, groups, tokens, size)
    query, key, value, *slots = draw(tokens, *shapes, *[(requests, beams, 1, groups, size)] * 2)
    lengths = torch.tensor([max(1, tokens // 3), tokens][-requests:])
    found = triton.attend(query, key, value, lengths, *slots, splits=splits)
    torch.testing.assert_close(found, reference.attend(query, key, value, lengths, *slots), rtol=1e-4, atol=1e-5)


def test_descriptors_are_for_tensors_at_addresses_that_16_bytes_divide_and_for_gpus_that_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described: list[tuple[int, ...]] = []
    make = triton.TensorDescriptor.from_tensor
    monkeypatch.setattr(
        triton.TensorDescriptor,
        "from_tensor",
        lambda tensor, block: [described.append(tuple(tensor.shape)), make(tensor, block)][1],
    )
    for tokens in (88, 90):
        query, key, value = draw(1, (1, 3, 2, 16), (1, 1, 16, tokens), (1, 1, tokens, 16))
        triton.attend_prompt(query, key, value, torch.tensor([tokens]), splits=WAYS[2])
    assert described == [(1, 1, 16, 88), (1, 1, 88, 16)]
    on_gpu: Any = SimpleNamespace(
        device=torch.device("cuda"), data_ptr=lambda: 64, stride=lambda *axis: 1 if axis else (64, 64, 8, 1), itemsize=2
    )
    for capability, has_them in (((8, 9), False), ((9, 0), True), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=capability: found)
        assert triton._can_describe(on_gpu) is has_them


@pytest.mark.parametrize("splits", [2, *WAYS])
def test_keys_beyond_a_prompts_end_are_never_read(splits: Any) -> None:
    query, key, value, *slots = draw(1, (2, 3, 2, 16), (2, 1, 16, 88), (2, 1, 88, 16), *[(2, 3, 1, 1, 16)] * 2)
    lengths = torch.tensor([5, 66])
    before = triton.attend(query, key, value, lengths, *slots, splits=splits)
    for request, length in enumerate(lengths.tolist()):
        key[request, :, :, length:], value[request, :, length:] = torch.nan, torch.nan
    after = triton.attend(query, key, value, lengths, *slots, splits=splits)
    assert torch.equal(before, after)


@pytest.mark.parametrize("splits", [None, WAYS[0]])
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize(("groups", "per", "size", "codes"), [(1, 1, 8, 1), (2, 3, 12, 4)])
def test_codes_of_own_and_of_other_slots_equal_the_reference(
    table: bool, groups: int, per: int, size: int, codes: int, splits: Any
) -> None:
    query, slots_key, slots_value = draw(
        codes, (2, 3, groups * per, size), (2, 5, codes, groups, size), (2, 5, codes, groups, size)
    )
    prompt = (*draw(7, (2, groups, size, 2), (2, groups, 2, size)), torch.tensor([1, 2]))
    ancestors = torch.randint(0, 5, (2, 3, codes), generator=torch.Generator().manual_seed(2)) if table else None
    found = triton.attend(query, *prompt, slots_key, slots_value, ancestors, splits=splits)
    slots = (slots_key, slots_value) if table else (slots_key[:, :3], slots_value[:, :3])
    expected = reference.attend(query, *prompt, *slots, ancestors)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_prompt_alone_and_codes_alone_with_a_bias_equal_the_reference() -> None:
    query, key, value, slots_key, slots_value, bias = draw(
        9, (2, 3, 2, 8), (2, 2, 8, 66), (2, 2, 66, 8), (2, 4, 2, 2, 8), (2, 4, 2, 2, 8), (2, 2)
    )
    prompt = query, key, value, torch.tensor([65, 3])
    for costs in (None, *WAYS):
        found = triton.attend_prompt(*prompt, splits=costs)
        torch.testing.assert_close(found, reference.attend_prompt(*prompt), rtol=1e-4, atol=1e-5)
    codes = query, slots_key, slots_value, torch.tensor([[[0, 1], [3, 3], [2, 0]]] * 2), bias
    found = triton.attend_codes(*codes)
    torch.testing.assert_close(found, reference.attend_codes(*codes), rtol=1e-4, atol=1e-5)
    scores = torch.einsum("he,she->hs", query[0, 0], slots_key[0, [0, 1], [0, 1]]) * 8**-0.5 + bias
    expected = torch.einsum("hs,she->he", scores.softmax(-1), slots_value[0, [0, 1], [0, 1]])
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_attend_is_one_softmax_over_prompt_and_codes(scale: float) -> None:
    beams, groups, per, size, tokens, codes = 4, 2, 2, 16, 75, 3
    query, key, value, slots_key, slots_value = draw(
        3,
        (1, beams, groups * per, size),
        (1, groups, size, tokens),
        (1, groups, tokens, size),
        *[(1, beams, codes, groups, size)] * 2,
    )
    query = query * scale
    ancestors = torch.randint(0, beams, (1, beams, codes), generator=torch.Generator().manual_seed(4))
    lengths = torch.tensor([tokens - 9])
    found = triton.attend(query, key, value, lengths, slots_key, slots_value, ancestors, splits=2)
    own_key, own_value = (slots[0][ancestors[0], torch.arange(codes)] for slots in (slots_key, slots_value))
    prompt_key, prompt_value = (
        key[0].permute(2, 0, 1).expand(beams, -1, -1, -1),
        value[0].transpose(0, 1).expand(beams, -1, -1, -1),
    )
    keys = torch.cat([prompt_key, own_key], 1).repeat_interleave(per, 2)
    values = torch.cat([prompt_value, own_value], 1).repeat_interleave(per, 2)
    live = torch.cat([torch.arange(tokens) < lengths, torch.ones(codes, dtype=torch.bool)]).expand(beams, -1)
    torch.testing.assert_close(found[0], exact(query[0], keys, values, live), rtol=1e-4, atol=2e-5)


def test_ancestors_find_the_same_slots_as_moving_them() -> None:
    generator = torch.Generator().manual_seed(5)
    beams, rounds = 6, 5
    moved = torch.zeros(2, beams, 0, 4)
    kept, ancestors = torch.zeros(2, beams, 0, 4), None
    for number in range(rounds):
        if number:
            parents = torch.randint(0, beams, (2, beams), generator=generator)
            moved = moved.gather(1, parents[..., None, None].expand_as(moved))
        else:
            parents = torch.zeros(2, beams, dtype=torch.int64)
        new = torch.randn(2, beams, 1, 4, generator=generator)
        moved, kept = torch.cat([moved, new], 2), torch.cat([kept, new], 2)
        ancestors = extend_ancestors(ancestors, parents)
        assert ancestors.is_contiguous()
        followed = kept.gather(1, ancestors[..., None].expand(-1, -1, -1, 4))
        assert torch.equal(followed, moved)


def test_inputs_that_do_not_fit_are_refused_before_a_launch() -> None:
    query, key, value, slots = draw(6, (2, 3, 4, 16), (2, 2, 16, 9), (2, 2, 9, 16), (2, 3, 2, 2, 16))
    lengths = torch.tensor([9, 9])
    for call, message in (
        (lambda: triton.attend(query, value, value, lengths, slots, slots), "do not fit"),
        (lambda: triton.attend(query, key, value, lengths.int(), slots, slots), "int64"),
        (lambda: triton.attend(query[:, :, :3], key, value, lengths, slots, slots), "multiple"),
        (
            lambda: triton.attend(query, key, value.transpose(2, 3).contiguous().transpose(2, 3), lengths, slots, slots),
            "contiguous",
        ),
        (lambda: triton.attend(query, key, value, lengths, slots[:, :2], slots[:, :2]), "do not fit"),
        (lambda: triton.attend(query, key, value, lengths, slots[:, :, :0], slots[:, :, :0]), "at least one code"),
        (
            lambda: triton.attend(query, key, value, lengths, slots, slots.transpose(2, 3).contiguous().transpose(2, 3)),
            "equal strides",
        ),
        (lambda: triton.attend(query, key, value, lengths, slots, slots, torch.zeros(2, 3, 1, dtype=torch.int64)), "ancestors"),
        (
            lambda: triton.attend_codes(query, slots, slots, torch.zeros(2, 3, 2, dtype=torch.int64), torch.zeros(2, 4)),
            "the bias is",
        ),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
