"""From ranges to scores: everything -inf except the tokens that may follow.

    out = -inf
    out[row, token of each legal code] = score - log-sum-exp       of nothing, of the level's tokens, or of the legal ones
    out[row, eos] = ENDED where nothing else is finite: no row is ever empty

Shapes: S segments, R rows, W tokens of the model, V codes of a level, K tokens of a level, C legal codes of all rows.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import CodesError, LogitsError
from leafbeam.integrations.loops import advance_rows
from leafbeam.integrations.prefixes import Prefixes
from leafbeam.integrations.tokens import CodeTokens, LevelTokens
from leafbeam.ops.constrain.logsumexp import CHUNK

__all__ = ["ENDED", "Masking", "Normalisation", "check_ends"]

Normalisation = Literal["vocabulary", "full", "allowed"]

# What the end token of a row scores that is over or cannot go on: finite, so that a softmax over the row is 1 and not NaN, and
# far below the -1e9 that transformers' beam search gives to slots it has not filled, so that it never fills one; with room
# for a division by a tiny temperature.
ENDED = -1e20


class Masking:
    """Writes the scores of a round. Holds the room that its loops work in, so one call at a time.

    Think of it as `scores + mask` with the mask never made: on a CPU one write of the rows and a read of what is legal; on
    another device the index arrays (16 bytes a legal token) are all that is moved, and nothing waits for the device.
    """

    def __init__(self, prefixes: Prefixes, tokens: CodeTokens, eos: int, ends_early: bool, scoring: Normalisation) -> None:
        self._prefixes, self._tokens, self._eos, self._ends_early = prefixes, tokens, eos, ends_early
        self._scoring: Normalisation = scoring
        self._number = {"vocabulary": 0, "full": 1, "allowed": 2}[scoring]
        width = max(len(level.token_V) for level in tokens.levels)
        self._codes_4V = np.empty((4, width), np.int64)
        self._floats_3V = np.empty((3, max(width, CHUNK)), np.float32)
        levels = list(zip(prefixes.levels, tokens.levels, strict=True))
        self._steps = [(level, prefixes.filters, own.token_V, own.known_2K) for level, own in levels]
        self._befores = [(level, own.known_2K) for level, own in [levels[0], *levels]]
        self._ends = [(eos, ENDED, own.shadowed, eos if ends_early else -1) for own in tokens.levels]

    def write_legal(self, sequences_RT: Tensor, prompt_length: int, depth: int, scores_RW: Tensor, out_RW: Tensor) -> bool:
        """Write the scores of the tokens that may follow `depth` < L generated ones to `out_RW`, which may be `scores_RW`.

        Returns what `Prefixes.follow` does. Raises LogitsError where a score that is read is NaN or +inf (float32 on a CPU;
        elsewhere it is passed on), CodesError where a sequence of the index holds the end token.
        """
        stride, apart = sequences_RT.stride()
        readable = sequences_RT.is_cpu and sequences_RT.dtype == torch.int64 and apart == 1
        if not (readable and scores_RW.is_cpu and scores_RW.dtype == torch.float32 and scores_RW.is_contiguous()):
            foreseen = self._prefixes.follow(sequences_RT, prompt_length, depth)
            self._write_on_device(scores_RW, depth, out_RW)
            return foreseen
        at = (sequences_RT.data_ptr(), stride, prompt_length, depth)
        num_rows, width = scores_RW.shape
        self._prefixes.make_room(num_rows)
        bad = self._advance(at, scores_RW.data_ptr(), out_RW.data_ptr(), width)
        foreseen = bad != -3
        if not foreseen:
            self._prefixes.follow(sequences_RT, prompt_length, depth)
            bad = self._advance(at, scores_RW.data_ptr(), out_RW.data_ptr(), width)
        if bad == -2:
            raise _held_end(self._tokens.levels[depth])
        if bad >= 0:
            raise LogitsError(
                f"the model's scores of row {bad} hold NaN or +inf among the tokens of its codes: expected finite numbers, or "
                f"-inf for a token that must not be taken; look at the model's output"
            )
        return foreseen

    def _advance(self, at: tuple[int, int, int, int], scores: int, out: int, width: int) -> int:
        depth, rows = at[3], self._prefixes.rows
        return advance_rows(
            self._steps[depth],
            self._befores[depth],
            at,
            rows.per_request,
            rows.tokens_DRL,
            rows.ranges_D2SR,
            (rows.table, self._codes_4V, self._floats_3V),
            self._number,
            self._ends[depth],
            scores,
            out,
            width,
        )

    def write_end(self, over_R: NDArray[np.bool_], complete_R: Tensor | float, out_RW: Tensor) -> None:
        """Leave nothing but the end token: `complete_R` in rows that just became complete, ENDED in those that are over.

        complete_R may be a part of `out_RW`.
        """
        ended = _ended(out_RW.dtype)
        values_R = torch.as_tensor(complete_R, dtype=out_RW.dtype, device=out_RW.device).clamp(min=ended)
        values_R = torch.where(torch.from_numpy(over_R).to(out_RW.device), ended, values_R)
        out_RW.fill_(-torch.inf)
        out_RW[:, self._eos] = values_R

    def _write_on_device(self, scores_RW: Tensor, depth: int, out_RW: Tensor) -> None:
        level, rows = self._tokens.levels[depth], self._prefixes.rows
        ranges_2SR = rows.ranges_D2SR[depth]
        if self._ends_early and depth:
            ranges_2SR = np.where(rows.tokens_DRL[depth, :, depth - 1] == self._eos, 0, ranges_2SR)
        row_indptr, code_C = self._prefixes.codes(depth, ranges_2SR)
        check_ends(level, code_C)
        row_C = np.repeat(np.arange(len(row_indptr) - 1), np.diff(row_indptr))
        index_2C = torch.from_numpy(np.stack([row_C, level.token_V[code_C]])).to(scores_RW.device)
        row, token = index_2C[0], index_2C[1]
        values_C = scores_RW[row, token]
        if self._scoring == "full":
            level_K = torch.from_numpy(level.known_2K[0]).to(scores_RW.device)
            values_C = values_C - _finite(scores_RW[:, level_K].logsumexp(1))[row]
        out_RW.fill_(-torch.inf)
        out_RW[row, token] = values_C
        if self._scoring == "allowed":
            out_RW -= _finite(out_RW.logsumexp(1))[:, None]
        best_R = torch.full((len(out_RW),), -torch.inf, dtype=out_RW.dtype, device=out_RW.device)
        best_R.scatter_reduce_(0, row, values_C, "amax")
        out_RW[:, self._eos] = torch.where(best_R == -torch.inf, _ended(out_RW.dtype), out_RW[:, self._eos])


def check_ends(level: LevelTokens, code_C: NDArray[np.int64]) -> None:
    """Raise CodesError where the code occurs whose token the end has taken."""
    if level.shadowed >= 0 and bool((code_C == level.shadowed).any()):
        raise _held_end(level)


def _held_end(level: LevelTokens) -> CodesError:
    return CodesError(
        f"a sequence of the index holds code {level.shadowed:,}, whose token is the end of a sequence: build the index from "
        f"sequences without their end token, which it adds itself"
    )


def _ended(dtype: torch.dtype) -> float:
    return max(ENDED, torch.finfo(dtype).min)


def _finite(lse_R: Tensor) -> Tensor:
    """0 for a row without any mass, so that its -inf stay what they are."""
    return torch.where(lse_R == -torch.inf, 0.0, lse_R)
