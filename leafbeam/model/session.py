"""The rounds of a search: the prompts once, then one code of every beam at a time.

Shapes: B requests, T tokens of a prompt, K beams, V codes of a level, D hidden, L levels.
"""

from typing import Any

import torch
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.model.runner import KVCache, Runner
from leafbeam.model.vocabulary import AnyVocabulary


class DecodeSession:
    """What a beam search asks, answered with every prompt read once and every beam's codes read once.

    Made by `Transformer.start`, which runs the prompts; `step_fn` then costs one pass over B x K tokens. Think of it as running
    the model on `prompt + the beam's codes` for every beam (that is what it equals, to 1e-5), without ever doing so.

    prompt, beams: their `nbytes` say what the search holds of each.
    """

    def __init__(self, runner: Runner, vocabulary: AnyVocabulary, lengths_B: Tensor) -> None:
        self._runner, self._vocabulary, self._lengths_B = runner, vocabulary, lengths_B
        self._restart()

    @property
    def prompt(self) -> KVCache:
        """Keys and values of the prompts: one time for each request."""
        return self._runner.prompt

    @property
    def beams(self) -> KVCache:
        """Keys and values of the codes that beams have taken."""
        return self._runner.beams

    @torch.inference_mode()
    def step_fn(self, codes_BK: Any = None, parents_BK: Any = None) -> Tensor:
        """Logits of the next level's codes, of every beam.

        The first call, (None, None), answers for level 0: (B, V_0). A later one says which code each beam took and which beam
        of the previous round it extends (B, K), integers, torch or numpy; it answers (B, K, V of the next level). K may differ
        from round to round. Dead beams may carry any legal code and parent. Calling with None starts the same prompts anew.
        Codes outside the level, parents that do not exist and a round too many raise ArgumentError.
        """
        if codes_BK is None and parents_BK is None:
            self._restart()
            return self._runner.root_logits()
        codes_BK, parents_BK = self._checked(codes_BK, parents_BK)
        tokens_BK1 = self._vocabulary.tokens_at(codes_BK, self._level)[..., None]
        (logits_BKV,) = self._runner.extend(tokens_BK1, parents_BK, self._level)
        self._level += 1
        self._width = codes_BK.shape[1]
        return logits_BKV

    @torch.inference_mode()
    def suffix_fn(self, codes_BKT: Any, parents_BK: Any) -> list[Tensor]:
        """Logits of the next T levels when T codes of every beam are known: (B, K, V of the level) for each.

        Equal to T calls of `step_fn` with every beam its own parent after the first, for one pass over B x K x T tokens. The
        search is over then: step_fn(None, None) starts anew.
        """
        codes_BKT = _integers("codes", codes_BKT, self._lengths_B.device)
        if codes_BKT.ndim != 3 or codes_BKT.shape[2] < 1:
            raise ArgumentError(f"the codes of suffixes must have shape (B, K, T), not {tuple(codes_BKT.shape)}")
        first = self._level
        _, parents_BK = self._checked(codes_BKT[:, :, 0], parents_BK)
        tokens: list[Tensor] = []
        for level, codes_BK in enumerate(codes_BKT.unbind(2), start=first):
            self._level, self._width = level, codes_BKT.shape[1]
            self._checked(codes_BK, torch.zeros_like(codes_BK))
            tokens.append(self._vocabulary.tokens_at(codes_BK, level))
        self._level = self._vocabulary.num_levels - 1  # no round is left
        return self._runner.extend(torch.stack(tokens, 2), parents_BK, first)

    def _restart(self) -> None:
        self._runner.restart()
        self._level = 0  # of the codes that the next call brings
        self._width = 1  # beams of the round before: at first the prompt itself

    def _checked(self, codes: Any, parents: Any) -> tuple[Tensor, Tensor]:
        device = self._lengths_B.device
        codes_BK, parents_BK = _integers("codes", codes, device), _integers("parents", parents, device)
        expected = f"(B={len(self._lengths_B)}, K)"
        if codes_BK.ndim != 2 or len(codes_BK) != len(self._lengths_B) or parents_BK.shape != codes_BK.shape:
            shapes = f"{tuple(codes_BK.shape)} and {tuple(parents_BK.shape)}"
            raise ArgumentError(f"codes and parents must both have shape {expected}, not {shapes}")
        if self._level + 1 >= self._vocabulary.num_levels:
            raise ArgumentError(
                f"a SID has {self._vocabulary.num_levels} levels and the last was answered: step_fn(None, None) starts anew"
            )
        if device.type == "cpu" and codes_BK.numel():  # elsewhere, looking would stall the device
            size = self._vocabulary.codebook_sizes[self._level]
            if int(codes_BK.min()) < 0 or int(codes_BK.max()) >= size:
                raise ArgumentError(f"level {self._level} has the codes 0 to {size - 1:,}, got one outside")
            if int(parents_BK.min()) < 0 or int(parents_BK.max()) >= self._width:
                raise ArgumentError(f"the round before had the beams 0 to {self._width - 1:,}, got a parent outside")
        return codes_BK, parents_BK


def _integers(name: str, values: Any, device: torch.device) -> Tensor:
    try:
        tensor = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{name} must be integers (B, K): {error}") from error
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ArgumentError(f"{name} must be integers (B, K), not {tensor.dtype}")
    return tensor.to(torch.int64)
