"""A whole decode in fixed shapes: input buffers, one `run`, output buffers; the host reads no value in between.

Shapes: S segments, B requests, T tokens of a prompt, K beams, V codes of a level, L levels, n requests of a batch.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.decode.config import SearchConfig
from leafbeam.decode.constraint import Trace, TrieConstraint, decode, raise_first_bad
from leafbeam.decode.model_calls import ModelCalls
from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.graphs.device_index import DeviceIndex, Requests
from leafbeam.model.static_model import StaticModel
from leafbeam.ops.constrain import Beams, Scoring
from leafbeam.ops.packed_inputs import PackedInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """The sizes of a decode: at most `batch` requests, with prompts of at most `length` tokens, and the search."""

    batch: int
    length: int
    num_beams: int
    scoring: Scoring

    @property
    def padded_tokens(self) -> int:
        """Return the tokens of a prefill, which are the same for every batch."""
        return self.batch * self.length

    def holds(self, size: BatchSize, num_beams: int, scoring: Scoring, *, is_proof: bool) -> bool:
        """Return whether it can run a batch: with exactly these beams, or as the first pass of a proof with more."""
        enough = num_beams == self.num_beams or (is_proof and num_beams < self.num_beams)
        return size.requests <= self.batch and size.longest <= self.length and enough and scoring == self.scoring


class StaticDecode:
    """A search from prompts to last beams, for one bucket, in buffers that never move, so that a CUDA graph can capture it.

        load(batch)   copies tokens, lengths, root ranges and filters into the input buffers, all at once
        run()         reads these and writes ranges, scores, counts and bad rows to the output buffers
        trace(n)      copies the output buffers to the host

    `run` synchronises with nothing and overwrites all that an earlier run left. A batch smaller than the bucket is filled up
    with requests that may reach nothing. Results are those of BeamSearch over a DecodeSession. end_code: of an index of
    sequences.

    Cost: all levels of all beams of the whole bucket, whatever the batch: nothing ends early.
    """

    def __init__(self, model: StaticModel, index: DeviceIndex, bucket: Bucket, *, end_code: int | None = None) -> None:
        self.bucket, self._model, self._index = bucket, model, index
        self.config = SearchConfig.fixed(model.codebook_sizes, end_code, bucket.num_beams, bucket.scoring)
        shape, device, whole = (bucket.batch, bucket.num_beams), model.device, torch.int64
        shapes = [(bucket.batch, bucket.length), (bucket.batch,), (index.num_segments, bucket.batch)]
        self._packed = PackedInputs([*shapes, *index.filter_shapes(bucket.batch)], device)
        self.tokens_BT, self.lengths_B, self.hi_SB, *filters = self._packed.tensors
        self._filters = index.filters(filters, self._packed.host[3:])
        self.lengths_B.fill_(1)
        self.scores_BK = torch.zeros(shape, device=device)
        self.ranges_2SBK = torch.zeros(2, index.num_segments, *shape, dtype=whole, device=device)
        self.num_valid_B = torch.zeros(bucket.batch, dtype=whole, device=device)
        self.bad_L = torch.zeros(self.config.num_rounds, dtype=whole, device=device)
        self.kept_LBK = torch.zeros(self.config.num_rounds - 1, *shape, device=device)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.tokens_BT, self.lengths_B, self.hi_SB

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return self.scores_BK, self.ranges_2SBK, self.num_valid_B, self.bad_L, self.kept_LBK

    @property
    def nbytes(self) -> int:
        """Return the bytes of the buffers."""
        return self._packed.nbytes + sum(tensor.nbytes for tensor in self.outputs)

    @property
    def work_bytes(self) -> int:
        """Return about how many bytes `run` needs: keys and values, activations of the prefill, scores and logits of a
        round."""
        bucket = self.bucket
        logits = 2 * 4 * bucket.batch * bucket.num_beams * max(self.config.code_sizes)
        return self._model.work_bytes(bucket.batch, bucket.length, bucket.num_beams) + logits

    def load(
        self, tokens_BT: NDArray[np.int64], lengths_B: NDArray[np.int64], hi_SB: NDArray[np.int64], requests: Requests
    ) -> bool:
        """Copy a batch that the bucket holds to the input buffers; False where its filters need more space than there is."""
        if not self._index.stage(self._filters, requests):
            return False
        batch, longest = tokens_BT.shape
        tokens, lengths, hi = self._packed.host[:3]
        tokens[:], lengths[:], hi[:] = 0, 1, 0  # a padding request has a prompt of one token and may reach nothing
        tokens[:batch, :longest] = tokens_BT
        lengths[:batch] = lengths_B
        hi[: len(hi_SB), :batch] = hi_SB
        self._packed.send()
        return True

    @torch.inference_mode()
    def run(self) -> None:
        """Compute the output buffers from the input buffers. This can be captured."""
        session = self._model.start(self.tokens_BT, self.lengths_B, self.bucket.num_beams)
        constraint = TrieConstraint(self.config, self.hi_SB, self._launch)
        trace = decode(constraint, ModelCalls(session.step_fn), watch=False)
        beams = trace.beams
        self.scores_BK.copy_(beams.scores)
        self.ranges_2SBK[0].copy_(beams.lo)
        self.ranges_2SBK[1].copy_(beams.hi)
        self.num_valid_B.copy_(beams.num_valid)
        self.bad_L.copy_(torch.stack(constraint.bad_T))
        for number, num_beams in enumerate(self.config.num_beams[:-1]):
            self.kept_LBK[number, :, :num_beams].copy_(trace.kept[number])

    def _launch(self, level: int, beams: Beams[Tensor], logits_BKV: Tensor, num_beams: int) -> tuple[Beams[Tensor], Tensor]:
        return self._index.launch(level, beams, logits_BKV, self._filters, num_beams=num_beams, scoring=self.config.scoring)

    def trace(self, batch: int, num_segments: int) -> Trace:
        """Return the search of the first `batch` requests; waits for the device. Raises LogitsError for NaN and +inf."""
        config = self.config
        raise_first_bad(_on_host(self.bad_L)[None], config.rows_of_rounds)
        lo_SBK, hi_SBK = _on_host(self.ranges_2SBK)[:, :num_segments, :batch]
        scores_BK, num_valid_B = _on_host(self.scores_BK)[:batch], _on_host(self.num_valid_B)[:batch]
        nothing_BK = np.zeros(scores_BK.shape, np.int64)
        kept_LBK = _on_host(self.kept_LBK)[:, :batch]
        kept = {number: kept_LBK[number, :, :num_beams] for number, num_beams in enumerate(config.num_beams[:-1])}
        return Trace(
            beams=Beams(scores=scores_BK, parent=nothing_BK, code=nothing_BK, lo=lo_SBK, hi=hi_SBK, num_valid=num_valid_B),
            rounds=[],
            calls=0,
            max_beams=None,
            kept=kept,
            bounds={number: scores[:, -1] for number, scores in kept.items() if not config.keeps_all(number)},
        )


def _on_host(tensor: Tensor) -> NDArray[Any]:
    return tensor.to("cpu", copy=True).numpy()
