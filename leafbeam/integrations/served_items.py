"""The items from which an engine samples: an index, its tokens, and filters that requests use by name.

Shapes: S segments, R rows of logits, W tokens of the model, C legal tokens of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import and_

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.decode.results import check_batch, collect_items
from leafbeam.errors import ArgumentError
from leafbeam.index import Filter, Trie, Version
from leafbeam.integrations.prefixes import LegalTokens
from leafbeam.json_reader import Json
from leafbeam.model.code_tokens import CodeTokens, CodeTokensLike
from leafbeam.ops.constrain.cpu import step as cpu

RULES, DENY = "leafbeam_rules", "leafbeam_deny"


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedItems:
    """The items of one version of an index, for sampling in another engine.

    Args:
        index: A trie, or a version of a live index.
        eos_token_id: As for `TrieLogitsProcessor`.
        code_tokens: As for `TrieLogitsProcessor`.
        filters: The filters by the names under which requests ask for them.
    """

    index: Trie | Version
    eos_token_id: int
    code_tokens: CodeTokensLike = None
    filters: Mapping[str, Filter] = field(default_factory=dict[str, Filter])

    def __post_init__(self) -> None:
        check_batch(self.version, max(1, len(self.filters)), list(self.filters.values()) or None, None)
        assert self.tokens is not None

    @cached_property
    def version(self) -> Version:
        return Version.of(self.index)

    @cached_property
    def tokens(self) -> CodeTokens:
        return CodeTokens.for_index(self.code_tokens, self.version, self.eos_token_id)

    @cached_property
    def _arrays(self) -> cpu.VersionArrays:
        return cpu.bind(self.version)

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of a whole item (of the longest with its end, in an index of sequences): the `max_tokens`
        of a request.
        """
        return self.version.num_levels

    def request_filter(self, extra_args: Json | None) -> Filter | None:
        """Return the items that a request may be shown; None for a request that names no rules and no denied items, which
        samples text.

        Args:
            extra_args: The arguments of the request: `leafbeam_rules`, names of filters that must all allow an item, and
                `leafbeam_deny`, item ids. An empty list of rules allows every item.

        Raises:
            ArgumentError: If an argument has the wrong type, or a rule is unknown.
            ItemIdError: If an id is of the wrong kind.
        """
        arguments = dict(extra_args or {})
        unknown = [name for name in arguments if name.startswith("leafbeam") and name not in (RULES, DENY)]
        if unknown:
            raise ArgumentError(f"{unknown[0]} is not an argument of served items: expected {RULES} or {DENY}")
        if RULES not in arguments and DENY not in arguments:
            return None
        rules, deny = arguments.get(RULES, []), arguments.get(DENY, [])
        for name, values in ((RULES, rules), (DENY, deny)):
            if not isinstance(values, list) or not all(isinstance(value, str | int) for value in values):
                raise ArgumentError(f"{name} is {str(values)[:80]}: expected a list of names or ids")
        return check_batch(self.version, 1, self.filter_of(rules), [deny or None])[0]

    def filter_of(self, rules: Sequence[str]) -> Filter | None:
        """Return the items that all these filters allow, None for no rules.

        Raises:
            ArgumentError: If a name is unknown.
        """
        missing = [rule for rule in rules if rule not in self.filters]
        if missing:
            raise ArgumentError(f"{RULES} names {missing[0]!r}: expected some of {sorted(self.filters)}")
        return reduce(and_, (self.filters[rule] for rule in rules)) if rules else None

    def legal_tokens(self, request: Filter) -> LegalTokens:
        """Return the legal tokens of one request after each prefix."""
        return LegalTokens(self.version, self.tokens, self.eos_token_id, [request], self._arrays)

    def item_ids(self, generated: Sequence[int], extra_args: Mapping[str, object] | None = None) -> NDArray[np.generic]:
        """Return the allowed items that have the generated tokens; none if these are not a whole item.

        Args:
            generated: The tokens, with or without the end token.
            extra_args: The arguments of the request that generated them.
        """
        request = self.request_filter({RULES: [], **(extra_args or {})})
        assert request is not None
        tokens = list(generated)
        tokens = tokens[: tokens.index(self.eos_token_id)] if self.eos_token_id in tokens else tokens
        has_ends = self.version.segments[0].trie.end_code is not None
        is_whole = has_ends or len(tokens) == self.num_tokens
        tokens += [self.eos_token_id] * has_ends
        ranges_2S = self.legal_tokens(request).ranges(0, tokens) if is_whole else None
        found_B = np.array([0 if ranges_2S is None else 1])
        ranges_2S11 = np.zeros((2, len(self.version.segments), 1, 1), np.int64)
        if ranges_2S is not None:
            ranges_2S11[:, :, 0, 0] = ranges_2S
        scores_B1 = np.zeros((1, 1), np.float32)
        return collect_items(
            self.version, [request], (ranges_2S11[0], ranges_2S11[1]), scores_B1, found_B, self.version.num_items
        ).item_ids[0]


def keep_legal(logits_RW: Tensor, legal: Mapping[int, Sequence[int]]) -> None:
    """Set the logits of some rows to -inf, except for the row's legal tokens.

    This costs one copy of the tokens to the device.
    """
    rows = list(legal)
    row_C = np.repeat(rows, [len(legal[row]) for row in rows]).astype(np.int64)
    token_C = np.concatenate([np.asarray(legal[row], np.int64) for row in rows])
    row, token = torch.from_numpy(np.stack([row_C, token_C])).to(logits_RW.device)
    values_C = logits_RW[row, token]
    logits_RW[torch.tensor(rows, device=logits_RW.device)] = -torch.inf
    logits_RW[row, token] = values_C
