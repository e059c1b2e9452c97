"""A whole decode in fixed shapes: buffers in, one `run`, buffers out, and no look at a value in between.

Shapes: S segments, B requests, T tokens of a prompt, K beams, V codes of a level, L levels, n requests of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.engine.graphs.device_index import DeviceFilters, DeviceIndex
from leafbeam.errors import LogitsError
from leafbeam.model import search_bytes
from leafbeam.model.static_runner import StaticRunner
from leafbeam.ops.constrain import Beams, RequestFilter, Scoring

__all__ = ["Bucket", "DeviceFound", "StaticDecode"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """What a decode is made for: at most so many requests, with prompts of at most so many tokens; exactly this search."""

    batch: int
    length: int
    width: int
    scoring: Scoring

    @property
    def padded_tokens(self) -> int:
        """What it costs, whatever is in it."""
        return self.batch * self.length

    def holds(self, requests: int, longest: int, width: int, scoring: Scoring) -> bool:
        return requests <= self.batch and longest <= self.length and (width, scoring) == (self.width, self.scoring)


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceFound:
    """The last beams of n requests, best first, on the host: what `collect_items` takes."""

    lo_SBK: NDArray[np.int64]
    hi_SBK: NDArray[np.int64]
    scores_BK: NDArray[np.float32]
    num_valid_B: NDArray[np.int64]


class StaticDecode:
    """A search from prompt to last beam, for one bucket, in memory that stays where it is.

    Think of it as a machine with an in-tray and an out-tray. `load` puts a batch into the in-tray (tokens, lengths, root
    ranges, filters), `run` works from there to the out-tray (ranges, scores, counts, faults) without asking anybody, `found`
    carries the out-tray to the host. Whatever stood in either before makes no difference. That is what a CUDA graph can
    capture (`graph.py`); run by itself it is the same search, on any device.

        prompts through the model
        for each level: logits; ranges, scores and parents of the best (`DeviceIndex.step`); their codes through the model

    A batch smaller than the bucket is filled up with requests that may reach nothing. The answers are those of BeamSearch over
    DecodeSession. end_code: of an index of sequences: a beam that took it is certain to take it again.

    Cost: all levels of all beams of the whole bucket, whatever is in it: nothing ends early.
    """

    def __init__(
        self, rounds: StaticRunner, index: DeviceIndex, bucket: Bucket, filters: DeviceFilters, *, end_code: int | None = None
    ) -> None:
        self.bucket, self._rounds, self._index, self._filters, self._end_code = bucket, rounds, index, filters, end_code
        sizes = rounds.vocabulary.codebook_sizes
        # More beams than prefixes can exist would only be dead weight for the model.
        most = [prod(sizes[: level + 1]) for level in range(len(sizes))]
        self._widths = [*(min(bucket.width, one) for one in most[:-1]), bucket.width]
        shape, device, whole = (bucket.batch, bucket.width), rounds.device, torch.int64
        self.tokens_BT = torch.zeros(bucket.batch, bucket.length, dtype=whole, device=device)
        self.lengths_B = torch.ones(bucket.batch, dtype=whole, device=device)
        self.hi_SB = torch.zeros(index.num_segments, bucket.batch, dtype=whole, device=device)
        self.scores_BK = torch.zeros(shape, device=device)
        self.ranges_2SBK = torch.zeros(2, index.num_segments, *shape, dtype=whole, device=device)
        self.num_valid_B = torch.zeros(bucket.batch, dtype=whole, device=device)
        self.bad_L = torch.zeros(len(sizes), dtype=whole, device=device)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.tokens_BT, self.lengths_B, self.hi_SB

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.scores_BK, self.ranges_2SBK, self.num_valid_B, self.bad_L

    @property
    def nbytes(self) -> int:
        """Bytes of the trays; filters are shared between decodes of equal batch."""
        return sum(tensor.nbytes for tensor in (*self.inputs, *self.outputs))

    @property
    def work_bytes(self) -> int:
        """About what `run` needs in between: keys and values, activations of the prefill, scores and logits of a round."""
        config, bucket = self._rounds.config, self.bucket
        itemsize = self._rounds.dtype.itemsize
        beams = bucket.batch * bucket.width
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        activations = 4 * config.hidden_size + 2 * heads * config.head_dim + 2 * config.intermediate_size
        held = search_bytes(
            config,
            prompt_tokens=bucket.length,
            beams=bucket.width,
            rounds=len(self._widths) - 1,
            inflight=bucket.batch,
            itemsize=itemsize,
        )
        logits = 2 * 4 * beams * max(self._rounds.vocabulary.codebook_sizes)
        return held + max(bucket.padded_tokens, beams) * activations * itemsize + logits

    def load(
        self,
        tokens_BT: NDArray[np.int64],
        lengths_B: NDArray[np.int64],
        hi_SB: NDArray[np.int64],
        requests: Sequence[tuple[RequestFilter, ...]],
    ) -> bool:
        """Put a batch that the bucket holds into the in-tray; False where its filters need more room than there is."""
        if not self._filters.refill(requests):
            return False
        batch, longest = tokens_BT.shape
        tokens, lengths, hi = (np.zeros(one.shape, np.int64) for one in self.inputs)
        tokens[:batch, :longest] = tokens_BT
        lengths[:] = 1  # a request that is not there is a prompt of one token that may reach nothing
        lengths[:batch] = lengths_B
        hi[: len(hi_SB), :batch] = hi_SB
        for tensor, array in zip(self.inputs, (tokens, lengths, hi), strict=True):
            tensor.copy_(torch.from_numpy(array))
        return True

    @torch.inference_mode()
    def run(self) -> None:
        """In-tray to out-tray; can be captured."""
        zeros_B1 = self.hi_SB[0, :, None] * 0
        beams: Beams[Tensor] = Beams(
            scores=torch.where((self.hi_SB > 0).any(dim=0), 0.0, -torch.inf)[:, None],
            parent=zeros_B1,
            code=zeros_B1,
            lo=torch.zeros_like(self.hi_SB)[:, :, None],
            hi=self.hi_SB[:, :, None],
            num_valid=zeros_B1[:, 0],
        )
        search = self._rounds.start(self.tokens_BT, self.lengths_B, self.bucket.width)
        for level, width in enumerate(self._widths):
            logits_BKV = search.extend(beams.code, beams.parent) if level else search.root_logits_BV[:, None]
            if self._end_code is not None and level:
                logits_BKV = _certain(logits_BKV, beams.code == self._end_code)
            beams, bad = self._index.step(
                level,
                beams.lo,
                beams.hi,
                beams.scores,
                logits_BKV.contiguous(),
                self._filters,
                num_beams=width,
                scoring=self.bucket.scoring,
            )
            self.bad_L[level].copy_(bad)
        self.scores_BK.copy_(beams.scores)
        self.ranges_2SBK[0].copy_(beams.lo)
        self.ranges_2SBK[1].copy_(beams.hi)
        self.num_valid_B.copy_(beams.num_valid)

    def found(self, batch: int, num_segments: int) -> DeviceFound:
        """The out-tray of the first `batch` requests; waits for the device. Raises LogitsError where a row was no numbers."""
        bad_L = _on_host(self.bad_L)
        if bad_L.any():
            level = int(np.flatnonzero(bad_L)[0])
            request, beam = divmod(int(bad_L[level]) - 1, self._widths[level - 1] if level else 1)
            raise LogitsError.not_finite(request, beam, f"at level {level}")
        lo_SBK, hi_SBK = _on_host(self.ranges_2SBK)[:, :num_segments, :batch]
        scores_BK, num_valid_B = _on_host(self.scores_BK)[:batch], _on_host(self.num_valid_B)[:batch]
        return DeviceFound(lo_SBK=lo_SBK, hi_SBK=hi_SBK, scores_BK=scores_BK, num_valid_B=num_valid_B)


def _certain(logits_BKV: Tensor, ended_BK: Tensor) -> Tensor:
    """The rows of beams that ended: 0 for the end code, the last one, and -inf elsewhere."""
    code_V = torch.arange(logits_BKV.shape[2], device=logits_BKV.device)
    certain_V = torch.where(code_V == logits_BKV.shape[2] - 1, 0.0, -torch.inf).to(logits_BKV.dtype)
    return torch.where(ended_BK[:, :, None], certain_V, logits_BKV)


def _on_host(tensor: Tensor) -> NDArray[Any]:
    return tensor.to("cpu", copy=True).numpy()
