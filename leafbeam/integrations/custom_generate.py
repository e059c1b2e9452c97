"""Exact constrained beams as transformers' own `generate`: the decoding that its `custom_generate` directories ship.

Shapes: B prompts, T tokens of each with padding, K beams, C new tokens of each beam, V codes of a round, N texts returned.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.decode import BeamSearch, SearchResult, SequenceResult, SequenceSearch
from leafbeam.errors import ArgumentError, GenerationSettingsWarning, counted
from leafbeam.integrations.constraint_processor import ItemConstraint, RowConstraint, automaton_of
from leafbeam.integrations.served_items import ServedItems
from leafbeam.model.generation_settings import changing_settings, shown, tokens_of
from leafbeam.ops.constrain import Scoring
from leafbeam.text import TextTokenizer
from leafbeam.text.request import DEFAULT_MAX_TOKENS

CUSTOM_GENERATE = str(Path(__file__).parent / "generate_repo")


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerateOutput:
    """The output of `generate` with return_dict_in_generate=True.

    Args:
        sequences: Shape (B x N, T'), int64. The prompts with their texts, best first, padded; a prompt with fewer texts than N
            has empty ones.
        sequences_scores: Shape (B x N,), float32; -inf for empty texts.
        result: A SequenceResult; for items a SearchResult with their ids.
    """

    sequences: Tensor
    sequences_scores: Tensor
    result: SequenceResult | SearchResult


def generate(
    model: Any,
    inputs: Tensor | None = None,
    *,
    constraint: RowConstraint | Sequence[RowConstraint] | None = None,
    tokenizer: object = None,
    scoring: Scoring = "full",
    input_ids: Tensor | None = None,
    attention_mask: Tensor | None = None,
    generation_config: Any = None,
    num_beams: int | None = None,
    num_return_sequences: int | None = None,
    max_new_tokens: int | None = None,
    eos_token_id: int | None = None,
    pad_token_id: int | None = None,
    return_dict_in_generate: bool | None = None,
    **others: object,
) -> Tensor | GenerateOutput:
    """Return the likeliest texts or items after each prompt, by a search of `num_beams` beams; transformers calls this.

    Without `num_beams`, items are proved to be the best `num_return_sequences` of all allowed ones (see `BeamSearch`).

    The prompts run once, and each later pass runs the new tokens of all beams over the cache, many at a time where they are
    forced. Of the model's generation config, num_beams, num_return_sequences, max_new_tokens and pad_token_id apply. Others
    that would change the answers of transformers' `generate` are named in a GenerationSettingsWarning.

    model: decoder-only, of transformers. constraint: one for all prompts, or one for each: text (`JsonSchema`, ...), automata,
    or an `ItemConstraint` for every prompt, over one `ServedItems`. tokenizer: for text, the one beside the model. scoring:
    log-softmax over all tokens ("full": for items those of their level), over the legal ones ("allowed") or, for items, over
    all tokens as in transformers' own beam search ("vocabulary"). attention_mask: 0 for padding, on the left. Others as in
    transformers' `generate`; those that it would read and this does not are refused.

    Returns the sequences, or a GenerateOutput with return_dict_in_generate=True. Raises ArgumentError, AutomatonError,
    FilterError, LogitsError.

    >>> model.generate(**inputs, custom_generate=CUSTOM_GENERATE, trust_remote_code=True, constraint=JsonSchema(schema=schema),
    ...                tokenizer=tokenizer, num_beams=4, max_new_tokens=200)
    """
    _check_call(model, others)
    prompts_BT = _checked(inputs if input_ids is None else input_ids)
    if constraint is None:
        raise ArgumentError("constraint is missing: expected one for all prompts, or one for each")
    config = model.generation_config if generation_config is None else generation_config
    _check_settings(vars(config), is_own=generation_config is not None)
    beams = num_beams or config.num_beams or 1
    texts = num_return_sequences or config.num_return_sequences or 1
    constraints = [constraint] * len(prompts_BT) if not isinstance(constraint, Sequence) else list(constraint)
    items = [one for one in constraints if isinstance(one, ItemConstraint)]
    proves = bool(items) and num_beams is None and config.num_beams in (None, 1)
    if not 1 <= texts <= (texts if proves else beams):
        raise ArgumentError(f"num_return_sequences is {texts}: expected 1 to num_beams, {beams}")
    if len(constraints) != len(prompts_BT):
        raise ArgumentError(
            f"{counted(len(constraints), 'constraint')} for {counted(len(prompts_BT), 'prompt')}: expected one for each"
        )
    text_tokenizer = None if tokenizer is None or items else TextTokenizer.of(tokenizer, end=eos_token_id)
    end = items[0].items.eos_token_id if items else eos_token_id if text_tokenizer is None else text_tokenizer.end
    texts_of = [one for one in constraints if not items and not isinstance(one, ItemConstraint)]
    by_id = {id(one): automaton_of(one, text_tokenizer) for one in texts_of}
    if end is None:
        raise ArgumentError("eos_token_id is missing: without a tokenizer, name the token that ends a text")
    passed = eos_token_id if eos_token_id is not None or generation_config is None else generation_config.eos_token_id
    if passed is not None and end not in tokens_of(passed):
        raise ArgumentError(f"eos_token_id is {passed}, and the constraint ends with {end}: pass the same end token to both")
    calls = _CachedModel(model, prompts_BT, attention_mask, restarts=proves)
    if items:
        result, tokens = _search_items(calls, items, len(constraints), scoring, None if proves else beams, texts)
    else:
        search = SequenceSearch(
            [by_id[id(one)] for one in constraints],
            end_code=end if text_tokenizer is None else text_tokenizer.ends,
            num_codes=calls.num_tokens,
            num_beams=beams,
            max_tokens=max_new_tokens or config.max_new_tokens or _default_max_tokens(model.config, prompts_BT.shape[1]),
            scoring=scoring,
            device=calls.device,
        )
        result, tokens = _search_texts(calls, search, len(constraints), end)
    pad = next((one for one in (pad_token_id, config.pad_token_id, end) if one is not None), end)
    output = _output(prompts_BT, tokens, texts, pad, result)
    return output if return_dict_in_generate else output.sequences


def _check_call(model: Any, others: Mapping[str, object]) -> None:
    """Raise ArgumentError for arguments that have no effect on this search, or a model that is not decoder-only."""
    refused = [name for name, value in others.items() if value is not None and value is not False]
    if refused:
        raise ArgumentError(f"{refused[0]} has no effect on exact constrained beams: leave it out")
    if model.config.is_encoder_decoder:
        raise ArgumentError(
            "the model is an encoder-decoder: expected a decoder-only one; use ConstraintLogitsProcessor for this"
        )


def _checked(prompts_BT: Tensor | None) -> Tensor:
    if prompts_BT is None or prompts_BT.ndim != 2 or prompts_BT.is_floating_point() or 0 in prompts_BT.shape:
        raise ArgumentError("input_ids are missing or empty: expected integers (prompts, tokens)")
    return prompts_BT


def _default_max_tokens(config: object, prompt_length: int) -> int:
    """Return 256, or the number of positions that the model has left after the prompts."""
    positions = getattr(config, "max_position_embeddings", None)
    return DEFAULT_MAX_TOKENS if positions is None else max(1, min(DEFAULT_MAX_TOKENS, positions - prompt_length + 1))


def _check_settings(settings: Mapping[str, object], *, is_own: bool) -> None:
    """Refuse settings of the caller's own generation config that this search does not apply, and warn of the model's."""
    names = changing_settings(settings, lambda token: True, same_length=False, applied=False)
    if names and is_own:
        raise ArgumentError(f"generation_config sets {shown(settings, names)}: expected none of it for exact constrained beams")
    if names:
        warnings.warn(
            f"the model's generation config sets {shown(settings, names)}: exact constrained beams do not apply it",
            GenerationSettingsWarning,
            stacklevel=3,
        )


def _search_items(
    calls: _CachedModel, items: Sequence[ItemConstraint], batch_size: int, scoring: Scoring, num_beams: int | None, texts: int
) -> tuple[SearchResult, list[list[NDArray[np.int64]]]]:
    """Return the items, and the tokens of each. num_beams: None to prove the best `texts` items."""
    served = items[0].items
    if len(items) != batch_size or any(item.items is not served for item in items):
        raise ArgumentError(
            "items of one ServedItems are searched together: use a batch for each, or ConstraintLogitsProcessor"
        )
    filters = [served.filter_of(item.rules) for item in items]
    deny = [list(item.deny) or None for item in items]
    level_tokens = [torch.from_numpy(level.token_V).to(calls.device) for level in served.tokens.levels]
    calls.tokens_of_level, calls.has_others = level_tokens, scoring == "vocabulary"
    search = BeamSearch(served.version, num_beams, scoring, num_items=texts if num_beams is None else None)
    result = search.run(calls.step_fn, batch_size, filters=filters, deny=deny, suffix_fn=calls.suffix_fn)
    tokens = [
        [np.array([int(level_tokens[level][code]) for level, code in enumerate(row)]) for row in rows[:count].tolist()]
        for rows, count in zip(result.codes, result.num_valid.tolist(), strict=True)
    ]
    return result, [[_until(row, served) for row in rows] for rows in tokens]


def _search_texts(
    calls: _CachedModel, search: SequenceSearch, batch_size: int, end: int
) -> tuple[SequenceResult, list[list[NDArray[np.int64]]]]:
    """Return the texts, and the tokens of each, with the end token where a text is finished."""
    result = search.run(calls.step_fn, batch_size, suffix_fn=calls.suffix_fn)
    return result, [
        [np.append(row, end) if result.finished[b, k] else row for k, row in enumerate(rows)]
        for b, rows in enumerate(result.tokens)
    ]


def _until(tokens_L: NDArray[np.int64], served: ServedItems) -> NDArray[np.int64]:
    """Return an item's tokens up to its end token, if it has one."""
    (ends,) = np.nonzero(tokens_L == served.eos_token_id)
    return tokens_L[: ends[0] + 1] if len(ends) else tokens_L


def _output(
    prompts_BT: Tensor,
    tokens: list[list[NDArray[np.int64]]],
    texts: int,
    pad: int,
    result: SequenceResult | SearchResult,
) -> GenerateOutput:
    """Return the prompts, each with its best `texts` texts, padded, and their scores."""
    tokens = [rows[:texts] for rows in tokens]
    width = max((len(row) for rows in tokens for row in rows), default=0)
    new_BNt = np.full((len(tokens), texts, width), pad, np.int64)
    for b, rows in enumerate(tokens):
        for k, row in enumerate(rows):
            new_BNt[b, k, : len(row)] = row
    new_Rt = torch.from_numpy(new_BNt).flatten(0, 1).to(prompts_BT)
    sequences = torch.cat([prompts_BT.repeat_interleave(texts, 0), new_Rt], 1)
    scores_BN = np.full((len(tokens), texts), -np.inf, np.float32)
    for b, rows in enumerate(tokens):
        scores_BN[b, : len(rows)] = result.scores[b, : len(rows)]
    return GenerateOutput(sequences=sequences, sequences_scores=torch.from_numpy(scores_BN.ravel()), result=result)


class _CachedModel:
    """A model of transformers as `step_fn` and `suffix_fn`, whose constructor runs the prompts; each beam has a copy of its
    prompt's cache. restarts: keep a copy of the prompts' cache, from which a search can start anew.

    tokens_of_level: the token of each code, by level; None where the codes are tokens. has_others: whether the logits of codes
    have one more column, of all other tokens.
    """

    def __init__(self, model: Any, prompts_BT: Tensor, attention_mask: Tensor | None, *, restarts: bool) -> None:
        mask_BT = torch.ones_like(prompts_BT) if attention_mask is None else attention_mask.to(prompts_BT)
        if mask_BT.shape != prompts_BT.shape or not bool((mask_BT.diff(dim=1) >= 0).all() and mask_BT[:, -1].all()):
            raise ArgumentError("attention_mask: expected (prompts, tokens), 1 for tokens and 0 for padding on the left")
        self._model, self.device = model, prompts_BT.device
        self._parameters = inspect.signature(model.forward).parameters
        self._mask_RT, self._num_beams, self._level = mask_BT, 1, 0
        self.tokens_of_level: Sequence[Tensor] | None = None
        self.has_others = False
        positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
        self._cache: Any = None
        last = {"logits_to_keep": 1} if "logits_to_keep" in self._parameters else {}
        self._root_BV = self._forward(prompts_BT, positions_BT, **last)[:, -1]
        self.num_tokens = int(self._root_BV.shape[1])
        self._prompt_cache, self._prompt_mask_BT = copy.deepcopy(self._cache) if restarts else None, mask_BT

    @torch.no_grad()
    def _forward(self, tokens_RC: Tensor, positions_RC: Tensor, **options: int) -> Tensor:
        positions = {"position_ids": positions_RC} if "position_ids" in self._parameters else {}
        output = self._model(
            input_ids=tokens_RC,
            attention_mask=self._mask_RT,
            past_key_values=self._cache,
            use_cache=True,
            **positions,
            **options,
        )
        self._cache = output.past_key_values
        return output.logits.float()

    def step_fn(self, codes_BK: object, parents_BK: object) -> Tensor:
        """Return the logits of the next round, as `BeamSearch.run` takes them."""
        if codes_BK is None:
            if self._level:
                self._cache, self._mask_RT = copy.deepcopy(self._prompt_cache), self._prompt_mask_BT
                self._num_beams, self._level = 1, 0
            return self._of_level(self._root_BV)
        return self.suffix_fn(torch.as_tensor(codes_BK)[..., None], parents_BK)[0]

    def suffix_fn(self, codes: object, parents: object) -> list[Tensor]:
        """Return the logits of the rounds after each of C codes."""
        codes_BKC, parents_BK = (torch.as_tensor(one, device=self.device) for one in (codes, parents))
        batch_size, num_beams, count = codes_BKC.shape
        first_B1 = torch.arange(batch_size, device=self.device)[:, None] * self._num_beams
        row_R = (first_B1 + parents_BK).flatten()
        self._cache.reorder_cache(row_R)
        new_RC = torch.ones_like(codes_BKC).flatten(0, 1)
        self._mask_RT = torch.cat([self._mask_RT[row_R], new_RC.to(self._mask_RT)], 1)
        positions_RC = (self._mask_RT.cumsum(1) - 1)[:, -count:]
        logits_RCV = self._forward(self._tokens(codes_BKC).flatten(0, 1), positions_RC)
        self._num_beams = num_beams
        logits: list[Tensor] = []
        for logits_RV in logits_RCV.unbind(1):
            self._level += 1
            logits.append(self._of_level(logits_RV).unflatten(0, (batch_size, num_beams)))
        return logits

    def _tokens(self, codes_BKC: Tensor) -> Tensor:
        if self.tokens_of_level is None:
            return codes_BKC
        levels = enumerate(codes_BKC.unbind(2), start=self._level)
        return torch.stack([self.tokens_of_level[level][codes_BK] for level, codes_BK in levels], 2)

    def _of_level(self, logits_RV: Tensor) -> Tensor:
        if self.tokens_of_level is None:
            return logits_RV
        tokens_V = self.tokens_of_level[self._level]
        if not self.has_others:
            return logits_RV[:, tokens_V]
        other_R1 = logits_RV.index_fill(1, tokens_V, -torch.inf).logsumexp(1, keepdim=True)
        return torch.cat([logits_RV[:, tokens_V], other_R1], 1)
