"""A real vocabulary: the 131,072 tokens of Tekken, which the package mistral-common carries as data."""

from __future__ import annotations

import base64
import json
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from leafbeam.errors import MissingExtraError

__all__ = ["END", "NUM_SPECIALS", "SIZE", "real_vocabulary", "write_real_tokenizer"]

END = 2  # the special token that ends a text
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


def write_real_tokenizer(directory: Path) -> None:
    """The vocabulary as byte-level BPE, in the files that Hugging Face's packages read.

    A merge for every way to cut a token into two others, in the order of the tokens, gives the tokens of ranked BPE.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    characters = bytes_to_unicode()
    vocabulary = real_vocabulary()
    spelled = {token: "".join(map(characters.__getitem__, text)) for token, text in enumerate(vocabulary) if text is not None}
    known = set(spelled.values())
    merges = [
        (text[:cut], text[cut:])
        for text in spelled.values()
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]
    specials = [f"<{token}>" for token in range(NUM_SPECIALS)]
    ids = {name: token for token, name in enumerate(specials)} | {text: token for token, text in spelled.items()}
    tokenizer = Tokenizer(models.BPE(ids, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in specials])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"), pretty=False)
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": specials[END], "pad_token": specials[0]}
    (directory / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": END, "pad_token_id": 0}), encoding="utf-8")
