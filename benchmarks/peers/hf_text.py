"""Hugging Face's `generate`, greedy, under a pattern: with xgrammar's own processor, or with the masks of outlines-core.

outlines-core has no processor: `_Masks` calls what the one of outlines calls, a guide for each text and its kernels of torch.

Shapes: B texts, V tokens of the model, T tokens of a text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, Qwen3ForCausalLM

from benchmarks.vocabulary import END, real_vocabulary

__all__ = ["HfText", "load_sharing"]

Engine = Literal["xgrammar", "outlines-core"]


class HfText:
    """A model of transformers that writes texts of one pattern over the real vocabulary; the pattern is compiled here.

    step_s: seconds of the processor at each token of the last batch.
    """

    def __init__(self, model: Any, pattern: str, engine: Engine) -> None:
        self._model = model
        self._processor_of = (_xgrammar if engine == "xgrammar" else _outlines_core)(pattern)
        self.step_s: list[float] = []

    def write(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[list[int]]:
        """The tokens of a text for each prompt, without the end token; prompts have equal lengths."""
        tokens_BT = torch.tensor(prompts)
        timed = _Timed(self._processor_of(len(prompts)))
        with torch.inference_mode():
            found = self._model.generate(
                input_ids=tokens_BT,
                attention_mask=torch.ones_like(tokens_BT),
                max_new_tokens=max_tokens,
                do_sample=False,
                logits_processor=LogitsProcessorList([timed]),
                eos_token_id=END,
                pad_token_id=END,
            )
        self.step_s = timed.step_s
        rows = found[:, tokens_BT.shape[1] :].tolist()
        return [row[: row.index(END)] if END in row else row for row in rows]


def load_sharing(directory: Any, ours: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
    """The checkpoint in transformers, in this dtype, with these tensors in the place of its own equal ones."""
    model = Qwen3ForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    for name, parameter in model.named_parameters():
        if name in ours and ours[name].dtype == parameter.dtype:
            parameter.data = ours[name].data
    return model


class _Timed(LogitsProcessor):
    def __init__(self, processor: Any) -> None:
        self._processor, self.step_s = processor, list[float]()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        began = time.perf_counter()
        found = self._processor(input_ids, scores)
        self.step_s.append(time.perf_counter() - began)
        return found


def _xgrammar(pattern: str) -> Callable[[int], Any]:
    import xgrammar
    from xgrammar.contrib.hf import LogitsProcessor as Processor

    vocabulary = [text or b"" for text in real_vocabulary()]
    kind = xgrammar.VocabType.RAW
    info = xgrammar.TokenizerInfo(vocabulary, kind, vocab_size=len(vocabulary), stop_token_ids=[END])
    grammar = xgrammar.GrammarCompiler(info, max_threads=1).compile_regex(pattern)
    return lambda _: Processor(grammar)  # it serves one `generate`


def _outlines_core(pattern: str) -> Callable[[int], Any]:
    from outlines_core import Guide, Index, Vocabulary

    entries: dict[bytes, list[int]] = {}
    for token, text in enumerate(real_vocabulary()):
        if text is not None:
            entries.setdefault(text, []).append(token)
    index = Index(pattern, Vocabulary(END, entries))
    return lambda count: _Masks([Guide(index) for _ in range(count)])


class _Masks:
    """`OutlinesCoreLogitsProcessor` of outlines 1.x, without what serves other array types."""

    def __init__(self, guides: list[Any]) -> None:
        from outlines_core.kernels import torch as kernels

        self._guides, self._kernels = guides, kernels
        self._masks: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if not self._masks:
            self._masks = [self._kernels.allocate_token_bitmask(scores.shape[1]) for _ in self._guides]
        else:
            for guide, token in zip(self._guides, input_ids[:, -1].tolist(), strict=True):
                if not guide.is_finished():
                    guide.advance(token, return_tokens=False)
        for guide, mask, row_V in zip(self._guides, self._masks, scores, strict=True):
            self._kernels.fill_next_token_bitmask(guide, mask)
            self._kernels.apply_token_bitmask_inplace(row_V[None], mask)
        return scores
