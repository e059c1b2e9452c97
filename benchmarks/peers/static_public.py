"""STATIC's public code, from a user's checkout of github.com/youtube/static-constraint-decoding, over given logits.

    csr_utils.build_static_index              its index
    decoding_jax.sparse_transition_jax        a whole search in one compiled function
    baselines_jax.generic_beam_search_jax     the same under a mask: PPV, a hash bitmap, a trie on the host

Its searches ask `model(input_ids, key)` for logits and the next key. Here the key is the logits of the levels that are still to
come, which are an argument of the compiled function, and the model takes the first of them: nothing of the code is changed.
Masks, not being arguments of its function, are constants in it.

Shapes: B requests, K beams, V codes, L levels, N sorted, distinct SIDs.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.jax_rounds import on_device
from leafbeam.errors import ArgumentError

__all__ = ["PublicStatic", "Whole"]

Whole = Callable[[], Any]  # a whole search: tokens [B, K, L], complete
_FILES = {
    "index": "static_decoding/csr_utils.py",
    "decoding": "static_decoding/decoding_jax.py",
    "baselines": "benchmarks/baselines_jax.py",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicStatic:
    """The modules of a checkout. commit: of the checkout, "unknown" where git knows none."""

    index: ModuleType
    decoding: ModuleType
    baselines: ModuleType
    commit: str

    @classmethod
    def load(cls, checkout: Path) -> PublicStatic:
        """Import the modules by their paths. Raises ArgumentError for a directory that lacks one of them."""
        paths = {name: checkout / path for name, path in _FILES.items()}
        if missing := [str(path) for path in paths.values() if not path.is_file()]:
            raise ArgumentError(
                f"{missing[0]} is not there: --static takes a checkout of github.com/youtube/static-constraint-decoding"
            )
        return cls(**{name: _module(name, path) for name, path in paths.items()}, commit=_commit(checkout))

    def search(self, sids_NL: NDArray[np.integer], logits: Sequence[Any], *, num_beams: int, num_candidates: int) -> Whole:
        """STATIC over an index of these SIDs. num_candidates: that the second level keeps of each beam; exact from K on."""
        num_codes = logits[-1].shape[-1]
        edges, indptr, max_branches, *dense = self.index.build_static_index(sids_NL.astype(np.int32), num_codes)
        names = ("packed_csr", "csr_indptr", "start_mask", "dense_mask", "dense_states")
        arrays = dict(zip(names, map(on_device, (edges, indptr, *dense)), strict=True))
        sizes = {"vocab_size": num_codes, "max_branch_factors": tuple(map(int, max_branches))}
        search = partial(self.decoding.sparse_transition_jax, **arrays, **sizes)
        return _whole(search, logits, num_beams, num_candidates)

    def baseline(
        self, name: str, sids_NL: NDArray[np.integer], logits: Sequence[Any], *, num_beams: int, num_candidates: int
    ) -> Whole:
        """Its search under one of its masks: ppv_exact, ppv_approximate, hash_bitmap, cpu_trie."""
        code, sids_NL, num_codes = self.baselines, sids_NL.astype(np.int32), logits[-1].shape[-1]
        if name == "cpu_trie":
            mask = code.make_trie_mask_fn(code.build_trie(sids_NL), num_codes)
        elif name == "hash_bitmap":
            mask = code.make_hash_bitmap_fn(code.build_hash_bitmap(sids_NL))
        else:
            mask = code.make_ppv_mask_fn(on_device(sids_NL), {"ppv_exact": num_codes, "ppv_approximate": 50}[name])
        search = partial(code.generic_beam_search_jax, mask_fn=mask)
        return _whole(search, logits, num_beams, num_candidates)


def _whole(search: Callable[..., Any], logits: Sequence[Any], num_beams: int, num_candidates: int) -> Whole:
    run = partial(
        search,
        model=_given,
        key=tuple(logits),
        batch_size=logits[0].shape[0],
        beam_size=num_beams,
        tokens_per_beam=num_candidates,
        start_token=0,
        max_sample_len=len(logits),
    )
    return lambda: run().block_until_ready()


def _given(input_ids: Any, key: Any) -> tuple[Any, Any]:
    """A model that has answered already: the logits of this level for each row, and those of the levels after it."""
    first, *rest = key
    return first.reshape(-1, 1, first.shape[-1]), tuple(rest)


def _module(name: str, path: Path) -> ModuleType:
    """A module by its path: its package is called as one of ours."""
    spec = importlib.util.spec_from_file_location(f"static_public_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _commit(checkout: Path) -> str:
    words = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
