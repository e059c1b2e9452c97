"""Attention of many beams on a GPU: parity with float64, then one layer's time beside PagedAttention and a tree mask.

Shapes: as `ops.attention`.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.timing import Measured, attempt, poisoned, relative_error, times
from benchmarks.micro.attention import QWEN3_06B, Shape, bytes_of
from benchmarks.peers import in_place_kernel, paged_attention
from benchmarks.peers.cascade_attention import CascadeBeams
from benchmarks.peers.in_place_reorder import by_parent, two_passes
from benchmarks.peers.paged_beams import PagedBeams
from benchmarks.peers.per_beam_attention import TreeBeams
from leafbeam.ops.attention import reference, triton

__all__ = ["measure", "parity", "runs"]


def runs(device: torch.device, bandwidth: float, operations: float, seconds: float, shape: Shape = QWEN3_06B) -> Measured:
    """Rows of parity, then of times."""
    until = time.monotonic() + seconds
    shapes = [
        shape,
        replace(shape, beams=max(1, shape.beams // 7)),
        replace(shape, requests=4, beams=max(1, shape.beams // 4)),
        replace(shape, tokens=shape.tokens * 5),
    ]
    for one in shapes:
        yield attempt({"what": "attention parity", **asdict(one)}, partial(parity, device, one))
    yield attempt({"what": "follow in place parity", "beams": shape.beams}, partial(_follow, device, shape))
    for one in shapes:
        parameters = {"what": "attention", **asdict(one)}
        if time.monotonic() > until:
            yield parameters, {"left_out": f"after {seconds:.0f} s"}
            continue
        yield attempt(parameters, partial(measure, device, one, bandwidth, operations))


def _inputs(device: torch.device, shape: Shape) -> dict[str, Tensor]:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    slots = (shape.requests, shape.beams, shape.codes, shape.groups, shape.size)
    return {
        "query": draw(shape.requests, shape.beams, shape.heads, shape.size),
        "key": draw(shape.requests, shape.groups, shape.size, shape.tokens),
        "value": draw(shape.requests, shape.groups, shape.tokens, shape.size),
        "lengths": torch.full((shape.requests,), shape.tokens, device=device),
        "slots_key": draw(*slots),
        "slots_value": draw(*slots),
        "ancestors": torch.randint(0, shape.beams, slots[:3], device=device),
    }


def parity(device: torch.device, shape: Shape) -> dict[str, Any]:
    """Merged attention over prompts of different lengths and suffixes through ancestors, against float64."""
    given = _inputs(device, shape)
    given["lengths"] = torch.randint(1, shape.tokens + 1, (shape.requests,), device=device)
    wide = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in given.items()}
    exact = torch.empty_like(wide["query"])
    for request in range(shape.requests):  # one at a time: scores of float64 are large
        one = {name: tensor[request : request + 1] for name, tensor in wide.items()}
        prefix = _float64_prefix(one["query"], one["key"], one["value"], one["lengths"])
        suffix = _float64_suffix(one["query"], one["slots_key"], one["slots_value"], one["ancestors"])
        exact[request] = reference.merge(*prefix, *suffix)[0]
    errors: dict[str, float] = {}
    with poisoned():
        errors["attend"] = relative_error(triton.attend(*given.values()), exact)
        errors["attend, one split"] = relative_error(triton.attend(*given.values(), splits=1), exact)
    limit = 1e-2 if given["query"].dtype == torch.bfloat16 else 1e-4
    bad = {name: error for name, error in errors.items() if not error < limit}
    assert not bad, f"relative errors {bad}: expected less than {limit}"
    return {"parity": "ok", "relative_errors": errors}


def _float64_prefix(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    groups, size = key.shape[1:3]
    query_BGKRE = query.unflatten(2, (groups, -1)).transpose(1, 2)
    score = torch.einsum("bgkre,bget->bgkrt", query_BGKRE * size**-0.5, key)
    score = score.masked_fill(torch.arange(key.shape[3], device=key.device) >= lengths[:, None, None, None, None], -torch.inf)
    values = torch.einsum("bgkrt,bgte->bgkre", score.softmax(-1), value).transpose(1, 2).flatten(2, 3)
    return values, score.logsumexp(-1).transpose(1, 2).flatten(2, 3)


def _float64_suffix(query: Tensor, key: Tensor, value: Tensor, ancestors: Tensor) -> tuple[Tensor, Tensor]:
    at = ancestors[..., None, None].expand(*ancestors.shape, *key.shape[3:])
    key, value = key.gather(1, at), value.gather(1, at)
    query_BKGRE = query.unflatten(2, (key.shape[3], -1)) * query.shape[3] ** -0.5
    score = torch.einsum("bkgre,bksge->bkgrs", query_BKGRE, key)
    return torch.einsum("bkgrs,bksge->bkgre", score.softmax(-1), value).flatten(2, 3), score.logsumexp(-1).flatten(2, 3)


def _follow(device: torch.device, shape: Shape) -> dict[str, Any]:
    """The in-place kernel against the two passes, on ascending parents, and how often it is wrong on others."""
    slots = torch.randn(2, shape.beams, shape.codes, shape.groups, shape.size, device=device)
    drawn = torch.randint(0, shape.beams, (2, shape.beams), device=device)
    ascending = drawn.gather(1, by_parent(drawn)).contiguous()
    expected, found = slots.cpu(), slots.clone()
    two_passes(expected, ascending.cpu())
    in_place_kernel.follow_in_place(found, ascending)
    assert torch.equal(found.cpu(), expected), "the kernel does not move slots as the two passes do"
    at = drawn[..., None, None, None].expand_as(slots)
    wrong = slots.clone()
    in_place_kernel.follow_in_place(wrong, drawn)
    share = float((wrong != slots.gather(1, at)).flatten(2).any(2).float().mean())
    rows = (ascending + torch.arange(2, device=device)[:, None] * shape.beams).flatten()

    def copied() -> Tensor:
        return torch.cat((slots.flatten(0, 1).index_select(0, rows).unflatten(0, drawn.shape), slots[:, :, :1]), 2)

    microseconds = {
        "in place": times([partial(in_place_kernel.follow_in_place, found, ascending)] * 2, device)["p50"],
        "copied": times([copied] * 2, device)["p50"],  # into another buffer, with space for the next code
    }
    return {"parity": "ok", "share_of_slots_destroyed_by_parents_out_of_order": round(share, 4), "us": microseconds}


def measure(device: torch.device, shape: Shape, bandwidth: float, operations: float) -> dict[str, Any]:
    """Microseconds of one layer, ours and the peers'."""
    given = _inputs(device, shape)
    keys = given["key"], given["value"], given["slots_key"], given["slots_value"]
    own = torch.arange(shape.beams, device=device)[None, :, None].expand_as(given["ancestors"]).contiguous()
    itemsize = given["query"].element_size()
    counts = bytes_of(shape, itemsize)
    query = given["query"]
    measured: dict[str, Any] = {"us": {}, "bytes": counts, "dtype": str(query.dtype).removeprefix("torch.")}
    expected = triton.attend(query, *given_prompt(given), *keys[2:], own)
    measured["us"]["shared"] = times([partial(triton.attend, query, *given_prompt(given), *keys[2:], own)] * 2, device)

    def in_torch() -> Tensor:
        return reference.merge(*reference.prefix_attention(query, *keys[:2]), *reference.suffix_attention(query, *keys[2:]))

    paged = partial(paged_attention.attend, PagedBeams.of(*keys), query)
    cascade = partial(CascadeBeams.of(*keys).attend, query)
    peers: dict[str, Any] = {"shared, torch": in_torch, "cascade, torch": cascade, "paged": paged}
    tree = TreeBeams.of(*keys)
    peers["tree mask, torch"] = partial(tree.attend, query)
    for name, run in peers.items():
        error = relative_error(run(), expected)
        assert error < 2e-2, f"{name} differs from ours by {error}"
        measured["us"][name] = times([run] * 2, device, samples=7)
    mine = measured["us"]["shared"]["p50"]
    measured["over_shared"] = {name: round(one["p50"] / mine, 3) for name, one in measured["us"].items() if name != "shared"}
    work = 4 * shape.requests * shape.beams * shape.heads * shape.size * (shape.tokens + shape.codes)
    measured["share_of_copy_bandwidth"] = round(counts["shared"] / (mine * 1e-6) / bandwidth, 4)
    measured["share_of_matrix_rate"] = round(work / (mine * 1e-6) / operations, 4)
    return measured


def given_prompt(given: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and lengths of the prompts."""
    return given["key"], given["value"], given["lengths"]
