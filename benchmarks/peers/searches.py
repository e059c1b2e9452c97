"""Searches of this process over one model: leafbeam's, PagedAttention, and a copy of the prompt for each beam.

All find the same items, which `answering` asserts before any speed is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers import paged_engine, per_beam_engine
from benchmarks.peers.block_tables import BlockTables
from benchmarks.peers.failure import failures_of
from leafbeam.decode import BeamSearch, SearchResult
from leafbeam.model import DecodeSession, ModelConfig, Transformer, Workspace, search_bytes

__all__ = ["Prompts", "Search", "Sizes", "answering", "check_same_sets", "kv_bytes_of", "searches_of"]

Prompts = Sequence[NDArray[np.int64]]
Search = Callable[[Prompts], SearchResult]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Searches at once: requests in flight, tokens of each prompt, beams, and rounds after the prompt."""

    prompt_tokens: int
    beams: int
    rounds: int
    inflight: int = 1


def searches_of(model: Transformer, search: BeamSearch) -> dict[str, Search]:
    """A whole search from histories: ours, through block tables, and with a copy of the prompt for each beam.

    Each has its own workspace.
    """

    def searched(start: Callable[[Tensor, Tensor, Workspace], DecodeSession]) -> Search:
        workspace = Workspace()

        def answer(prompts: Prompts) -> SearchResult:
            tokens_BT, lengths_B = model.vocabulary.prompts(prompts)
            rounds = start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), workspace)
            return search.run(rounds.step_fn, batch_size=len(prompts))

        return answer

    return {
        "leafbeam": searched(lambda *given: model.start(*given[:2], workspace=given[2])),
        "paged_attention": searched(partial(paged_engine.start, model)),
        "per_beam_copies": searched(partial(per_beam_engine.start, model)),
    }


def kv_bytes_of(name: str, config: ModelConfig, sizes: Sizes) -> int:
    """Bytes of keys and values that a search of this engine holds, by arithmetic; pages count whole."""
    given = asdict(sizes)
    shared = search_bytes(config, **given)
    if name == "leafbeam":
        return shared
    if name == "per_beam_copies":
        return shared + sizes.beams * search_bytes(config, **given | {"beams": 0})
    prompts = np.full(sizes.inflight, sizes.prompt_tokens)
    tables = BlockTables(prompts, paged_engine.PAGE, sizes.rounds)
    tables.extend(np.zeros((sizes.inflight, sizes.beams), np.int64), sizes.rounds)
    return tables.peak * search_bytes(config, prompt_tokens=paged_engine.PAGE, beams=0, rounds=0)


def answering(searches: Mapping[str, Search], prompts: Prompts) -> tuple[dict[str, Search], dict[str, dict[str, str]]]:
    """The engines that answer, their answers asserted to be leafbeam's, and the rows of the others."""
    mine = searches["leafbeam"](prompts)

    def check(theirs: SearchResult) -> None:
        np.testing.assert_allclose(theirs.scores, mine.scores, atol=1e-3)
        check_same_sets(mine.item_ids, theirs.item_ids)

    failed = failures_of({name: partial(answer, prompts) for name, answer in searches.items()}, check)
    return {name: answer for name, answer in searches.items() if name not in failed}, failed


def check_same_sets(mine: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> None:
    """Assert equal item sets, but for one that is a tie at the last place."""
    for one, other in zip(mine, theirs, strict=True):
        assert len(set(one.tolist()) ^ set(other.tolist())) <= 2
