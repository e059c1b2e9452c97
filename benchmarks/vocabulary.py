"""A real vocabulary: the 131,072 tokens of Tekken, which the package mistral-common carries as data."""

from __future__ import annotations

import base64
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from leafbeam.errors import MissingExtraError

__all__ = ["NUM_SPECIALS", "SIZE", "real_vocabulary"]

SIZE = 131_072
NUM_SPECIALS = 1_000  # the first tokens are special tokens without text


@cache
def real_vocabulary() -> tuple[bytes | None, ...]:
    """The bytes of each token, None for specials. Raises MissingExtraError where mistral-common is not installed."""
    found = find_spec("mistral_common")
    if found is None or found.origin is None:
        raise MissingExtraError("the real vocabulary needs mistral-common: pip install 'mistral-common>=1.9,<1.10'")
    content = json.loads((Path(found.origin).parent / "data" / "tekken_240911.json").read_text())
    entries = content["vocab"][: SIZE - NUM_SPECIALS]
    return (*[None] * NUM_SPECIALS, *(base64.b64decode(entry["token_bytes"]) for entry in entries))
