"""The attention functions that a captured decode calls."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The functions of one backend: `reference.attention()` or `triton.attention(costs)`; arguments as in `reference`.

    over_both: attention over prompt and codes, one softmax. over_prompt, over_codes: over one of the two.
    """

    over_both: Callable[..., Tensor]
    over_prompt: Callable[..., Tensor]
    over_codes: Callable[..., Tensor]
