"""Sampling of items inside vLLM, through the logits processors of its V1 engine. Imports vLLM; tested with 0.32."""

# pyright: basic, reportMissingImports=false, reportUntypedBaseClass=false
from __future__ import annotations

from functools import cache

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from leafbeam.errors import LeafbeamError
from leafbeam.integrations.prefixes import LegalTokens
from leafbeam.integrations.served_items import ServedItems, keep_legal


class ItemLogitsProcessor(LogitsProcessor):
    """A logits processor that leaves only tokens of allowed items to requests that ask for items. Other requests are
    not changed.

    A subclass says what is served, and vLLM loads it by name, in each of its processes:

        class Items(ItemLogitsProcessor):
            @classmethod
            def served_items(cls):
                return ServedItems(index=index, code_tokens=tokens, eos_token_id=2, filters={"fresh": fresh})

        LLM(model, logits_processors=["my_items:Items"])
        # or: vllm serve MODEL --logits-processors my_items:Items

    A request asks with `SamplingParams(max_tokens=3, extra_args={"leafbeam_rules": ["fresh"], "leafbeam_deny": ["item-7"]})`,
    over HTTP with the field `vllm_xargs`; `ServedItems.request_filter` says what they mean, and vLLM refuses others. If
    nothing is allowed, or an item is complete, only the end token is left.

    Temperature, top-k, top-p and `n` act on the legal tokens. vLLM has no logits processors with its own beam search, nor with
    speculative decoding; for beams use `LogprobBeamSearch`.
    """

    @classmethod
    def served_items(cls) -> ServedItems:
        """Return the items to sample from; called once in a process."""
        raise NotImplementedError("write a subclass of ItemLogitsProcessor with a classmethod `served_items`")

    @classmethod
    @cache  # classes live as long as the process
    def _loaded(cls) -> ServedItems:
        return cls.served_items()

    @classmethod
    def validate_params(cls, sampling_params) -> None:
        try:
            cls._loaded().request_filter(sampling_params.extra_args)
        except LeafbeamError as error:
            raise ValueError(str(error)) from error

    def __init__(self, vllm_config, device: torch.device, is_pin_memory: bool) -> None:
        self._items = self._loaded()
        self._requests: dict[int, tuple[LegalTokens, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._requests, batch_update, self._request)

    def _request(self, params, prompt_tokens, generated: list[int]) -> tuple[LegalTokens, list[int]] | None:
        """Return the legal tokens and the generated ones of a request, to which vLLM appends; None without our arguments."""
        request = self._items.request_filter(params.extra_args)
        return None if request is None else (self._items.legal_tokens(request), generated)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._requests:
            keep_legal(logits, {row: legal.after(0, generated) for row, (legal, generated) in self._requests.items()})
        return logits
