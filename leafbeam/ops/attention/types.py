"""What a captured decode needs of attention."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Attention:
    """The functions of one backend: `reference.attention()` or `triton.attention(costs)`; arguments as in `reference`.

    over_both: one softmax over prompt and codes. over_prompt, over_codes: over one of them.
    """

    over_both: Callable[..., Tensor]
    over_prompt: Callable[..., Tensor]
    over_codes: Callable[..., Tensor]
