"""The masking of scores: -inf for all but the legal tokens.

    out = -inf
    out[row, token of each legal code] = score - log-sum-exp       of nothing, of the level's tokens, or of the legal ones
    out[row, eos] = END_SCORE if nothing else is finite: no row is all -inf

Shapes: S segments, R rows, W tokens of the model, V codes of a level, K tokens of a level, C legal codes of all rows.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import LogitsError
from leafbeam.integrations.kernels import mask_rows
from leafbeam.integrations.prefixes import PrefixTracker
from leafbeam.model.code_tokens import CodeTokens, check_end_token, end_token_error
from leafbeam.ops.backend import to_numpy
from leafbeam.ops.constrain import Scoring
from leafbeam.ops.constrain.cpu.logsumexp import CHUNK

# The score of the end token in a row without a legal token: finite, so that its softmax is 1 and not NaN, and far below the
# -1e9 of unfilled slots in transformers' beam search, also after a division by a small temperature, so that it fills none.
END_SCORE = -1e20


class ScoreMasker:
    """A writer of a step's scores: `scores + mask` without making the mask. It owns its buffers, so it serves one call
    at a time.

    In float32 on a CPU it writes each row once and reads legal scores only. Else it moves the indices of legal tokens (16 bytes
    each), and waits for the device once, to see whether the scores are finite.
    """

    def __init__(self, prefixes: PrefixTracker, tokens: CodeTokens, eos: int, variable_length: bool, scoring: Scoring) -> None:
        self._prefixes, self._tokens, self._eos, self._variable_length = prefixes, tokens, eos, variable_length
        self._scoring: Scoring = scoring
        self._number = {"vocabulary": 0, "full": 1, "allowed": 2}[scoring]
        width = max(len(level.token_V) for level in tokens.levels)
        self._codes_4V = np.empty((4, width), np.int64)
        self._floats_3V = np.empty((3, max(width, CHUNK)), np.float32)
        levels = list(zip(prefixes.levels, tokens.levels, strict=True))
        self._steps = [(level, prefixes.filters, own.token_V, own.sorted_2K) for level, own in levels]
        self._previous = [(level, own.sorted_2K) for level, own in [levels[0], *levels]]
        self._ends = [(eos, END_SCORE, own.replaced_code, eos if variable_length else -1) for own in tokens.levels]

    def write_legal(self, sequences_RT: Tensor, prompt_length: int, depth: int, scores_RW: Tensor, out_RW: Tensor) -> bool:
        """Write the scores of the legal tokens after `depth` < L generated ones to `out_RW`, which may be `scores_RW`.

        Returns what `PrefixTracker.advance` does. Raises LogitsError for a score that is NaN or +inf where it is read: at the
        legal tokens and, for scoring "full", at the others of the level. Raises CodesError if a sequence of the index contains
        the end token.
        """
        stride, apart = sequences_RT.stride()
        readable = sequences_RT.is_cpu and sequences_RT.dtype == torch.int64 and apart == 1
        if not (readable and scores_RW.is_cpu and scores_RW.dtype == torch.float32 and scores_RW.is_contiguous()):
            was_known = self._prefixes.advance(sequences_RT, prompt_length, depth)
            self._write_on_device(scores_RW, depth, out_RW)
            return was_known
        at = (sequences_RT.data_ptr(), stride, prompt_length, depth)
        num_rows, width = scores_RW.shape
        self._prefixes.resize(num_rows)
        bad = self._advance(at, scores_RW.data_ptr(), out_RW.data_ptr(), width)
        was_known = bad != -3
        if not was_known:
            self._prefixes.advance(sequences_RT, prompt_length, depth)
            bad = self._advance(at, scores_RW.data_ptr(), out_RW.data_ptr(), width)
        if bad == -2:
            raise end_token_error(self._tokens.levels[depth])
        if bad >= 0:
            raise bad_scores(bad, "among the tokens of its codes")
        return was_known

    def _advance(self, at: tuple[int, int, int, int], scores: int, out: int, width: int) -> int:
        depth, prefixes = at[3], self._prefixes
        state = prefixes.rows_per_request, prefixes.tokens_DRL, prefixes.ranges_D2SR
        work = prefixes.table, self._codes_4V, self._floats_3V
        levels = self._steps[depth], self._previous[depth]
        return mask_rows(*levels, at, *state, work, self._number, self._ends[depth], scores, out, width)

    def write_end(self, ended_R: NDArray[np.bool_], complete_R: Tensor | float, out_RW: Tensor) -> None:
        """Leave only the end token: with score `complete_R` in rows that just became complete, END_SCORE in ended ones.

        complete_R may be a view of `out_RW`. Raises LogitsError where it is NaN or +inf in a row that became complete.
        """
        ended = end_score(out_RW.dtype)
        values_R = torch.as_tensor(complete_R, dtype=out_RW.dtype, device=out_RW.device).clamp(min=ended)
        values_R = torch.where(torch.from_numpy(ended_R).to(out_RW.device), ended, values_R)
        if isinstance(complete_R, Tensor):
            check_below_infinity(values_R, np.arange(len(ended_R)), "at the end token")
        out_RW.fill_(-torch.inf)
        out_RW[:, self._eos] = values_R

    def _write_on_device(self, scores_RW: Tensor, depth: int, out_RW: Tensor) -> None:
        level, ranges_2SR = self._tokens.levels[depth], self._prefixes.ranges_D2SR[depth]
        if self._variable_length and depth:
            ranges_2SR = np.where(self._prefixes.tokens_DRL[depth, :, depth - 1] == self._eos, 0, ranges_2SR)
        row_indptr, code_C = self._prefixes.legal_codes(depth, ranges_2SR)
        check_end_token(level, code_C)
        row_C = np.repeat(np.arange(len(row_indptr) - 1), np.diff(row_indptr))
        row, token = torch.from_numpy(np.stack([row_C, level.token_V[code_C]])).to(scores_RW.device)
        values_C = scores_RW[row, token]
        if self._scoring == "full":
            level_K = torch.from_numpy(level.sorted_2K[0]).to(scores_RW.device)
            lse_C = scores_RW[:, level_K].logsumexp(1)[row]
            lse_C = torch.where(lse_C < torch.inf, lse_C, torch.nan)
            values_C = torch.where(values_C == -torch.inf, values_C, values_C - lse_C)
        check_below_infinity(values_C, row_C, "among the tokens of its codes")
        out_RW.fill_(-torch.inf)
        out_RW[row, token] = values_C
        if self._scoring == "allowed":
            out_RW -= _finite(out_RW.logsumexp(1))[:, None]
        best_R = torch.full((len(out_RW),), -torch.inf, dtype=out_RW.dtype, device=out_RW.device)
        best_R.scatter_reduce_(0, row, values_C, "amax")
        out_RW[:, self._eos] = torch.where(best_R == -torch.inf, end_score(out_RW.dtype), out_RW[:, self._eos])


def check_below_infinity(scores_n: Tensor, row_n: NDArray[np.int64], where: str) -> None:
    """Raise LogitsError for the first score that is NaN or +inf. Waits for the device.

    row_n: the row of each score. where: which scores they are, in words.
    """
    below_n = scores_n < torch.inf
    if not bool(below_n.all()):
        raise bad_scores(int(row_n[int(to_numpy(below_n).argmin())]), where)


def bad_scores(row: int, where: str) -> LogitsError:
    return LogitsError(
        f"the model's scores of row {row} hold NaN or +inf {where}: expected finite numbers, or -inf for a token to exclude; "
        "check the model's output"
    )


def end_score(dtype: torch.dtype) -> float:
    return max(END_SCORE, torch.finfo(dtype).min)


def _finite(lse_R: Tensor) -> Tensor:
    """Return 0 in place of -inf, so that subtracting it leaves -inf."""
    return torch.where(lse_R == -torch.inf, 0.0, lse_R)
