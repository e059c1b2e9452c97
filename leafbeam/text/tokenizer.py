"""A tokenizer as Hugging Face saves it (tokenizer.json): text to tokens, and the bytes of each token."""

import json
import re
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from leafbeam.automata import TokenTrie
from leafbeam.errors import ArgumentError, CheckpointError, counted, short_repr
from leafbeam.extras import require
from leafbeam.files import read_json, read_text
from leafbeam.json_reader import Json

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_MAX_TOKENS = 1 << 22
_END_FILES = ("generation_config.json", "config.json")


class TextTokenizer:
    """The tokenizer of a model, with the tokens that end a text.

    Any of the end tokens ends a text. An end token can be text itself, such as `}`: it is then part of the text where
    the constraint allows it, and ends the text after it if the text may end there. An added token, such as
    `<|im_end|>`, is never text.

    Token bytes are exact for byte-level BPE (GPT-2, Qwen, Llama 3) and for byte-fallback BPE (Llama 2, Gemma). Other kinds
    raise CheckpointError, because the text of their tokens depends on the neighbouring tokens.

    Args:
        tokenizer: A tokenizer of the package tokenizers.
        end: The end token, or several of them in the order of the model's files.

    Examples:
        >>> tokenizer = TextTokenizer.load("Qwen3-0.6B")           # doctest: +SKIP
        >>> tokenizer.decode(tokenizer.encode("a red lamp"))       # doctest: +SKIP
        'a red lamp'
    """

    def __init__(self, tokenizer: Any, *, end: int | Sequence[int]) -> None:
        self._tokenizer, self.ends = tokenizer, tuple(dict.fromkeys(_several(end)))
        self._tries: dict[int, TokenTrie] = {}
        if not self.ends:
            raise CheckpointError("there is no end token: expected at least one")
        for token in self.ends:
            if not 0 <= token < self.size:
                raise CheckpointError(f"the end token {token} is not one of the tokenizer's {counted(self.size, 'token')}")

    def __repr__(self) -> str:
        ends = ", ".join(map(str, self.ends))
        return f"TextTokenizer({counted(self.size, 'token')}, end={ends if len(self.ends) == 1 else f'[{ends}]'})"

    @property
    def end(self) -> int:
        """Return the first of the end tokens."""
        return self.ends[0]

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> "TextTokenizer":
        """Read tokenizer.json, and the end tokens from generation_config.json, or otherwise from config.json.

        Raises:
            CheckpointError: If a file is missing or damaged.
            MissingExtraError: If the package tokenizers is not installed.
        """
        require("tokenizers of language models", "tokenizers")
        from tokenizers import Tokenizer

        path = Path(directory) / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: save the model's tokenizer beside it")
        try:
            text = read_text(path)
            _check_ids(json.loads(text), path)
            tokenizer = Tokenizer.from_str(text)
        except CheckpointError:
            raise
        except Exception as error:  # the package raises Exception itself
            raise CheckpointError(f"{path} cannot be read ({error}): save the tokenizer again") from error
        return cls(tokenizer, end=_end_tokens(Path(directory)))

    @classmethod
    def of(cls, tokenizer: Any, *, end: int | Sequence[int] | None = None) -> "TextTokenizer":
        """Return the TextTokenizer of a fast tokenizer of transformers; a TextTokenizer is returned as it is.

        Args:
            tokenizer: The tokenizer.
            end: The end tokens; by default its `eos_token_id`.

        Raises:
            ArgumentError: If the package tokenizers does not run the tokenizer, or it has no end token.
        """
        if isinstance(tokenizer, TextTokenizer):
            if end is not None and not set(_several(end)) <= set(tokenizer.ends):
                raise ArgumentError(f"the end token is {end}, and the tokenizer's {list(tokenizer.ends)}: expected the same")
            return tokenizer
        backend, end = (
            getattr(tokenizer, "backend_tokenizer", None),
            getattr(tokenizer, "eos_token_id", None) if end is None else end,
        )
        if backend is None or end is None:
            raise ArgumentError(
                f"the tokenizer is {type(tokenizer).__name__} with the end token {end}: expected a fast tokenizer of "
                "transformers (with tokenizer.json) and an end token"
            )
        return cls(backend, end=end)

    @cached_property
    def size(self) -> int:
        """Return the largest token id, added tokens included, plus one. Some smaller ids may not be tokens."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the tokens of a text. If the text contains the name of a special token, that becomes the special
        token.

        Args:
            text: The text.
            add_special: Whether to add the tokens that the tokenizer puts around a text.

        Raises:
            ArgumentError: If the text has half of a surrogate pair.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ArgumentError(f"a text holds half a surrogate pair ({error}): expected Unicode text") from error
        return self._ids(text, add_special=add_special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens; bytes that are not UTF-8 become U+FFFD."""
        return self.bytes_of(tokens).decode("utf-8", "replace")

    def bytes_of(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of tokens. Special tokens, and ids that the model has and the tokenizer has not, have no bytes."""
        known = self.token_bytes
        return b"".join(known[token] or b"" for token in tokens if token < len(known))

    def spell(self, text: bytes) -> tuple[int, ...] | None:
        """Return the tokens that the tokenizer itself chooses for a piece of text. Nothing in the text is a special
        token.

        The result is None if the bytes are not whole characters, or if the tokens would have other bytes, such as a space
        before the text.
        """
        try:
            tokens = self._ids(text.decode(), add_special=False)
        except UnicodeDecodeError:
            return None
        return tuple(tokens) if self.bytes_of(tokens) == text else None

    def _ids(self, text: str, *, add_special: bool) -> list[int]:
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special).ids
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the package raises Exception itself, and its panics are not even that
            raise ArgumentError(f"the tokenizer cannot read the text {short_repr(text)}: {error}") from error

    @cached_property
    def token_bytes(self) -> tuple[bytes | None, ...]:
        """Return the bytes of each token by its id; None for special tokens, and for added ones that end a text."""
        settings = json.loads(self._tokenizer.to_str())
        special = {added["id"] for added in settings["added_tokens"] if added["special"] or added["id"] in self.ends}
        plain = {added["id"] for added in settings["added_tokens"]} - special
        kinds = _kinds(settings["decoder"]) | _kinds(settings["pre_tokenizer"])
        if "ByteLevel" in kinds:
            bytes_of = _byte_level
        elif settings["model"].get("byte_fallback"):
            bytes_of = _byte_fallback
        else:
            raise CheckpointError(
                f"the tokenizer decodes by {sorted(kinds)}: expected byte-level or byte-fallback BPE, whose tokens have bytes"
            )
        found: list[bytes | None] = []
        for token in range(self.size):
            text = self._tokenizer.id_to_token(token)
            if text is None or token in special:
                found.append(None)
            else:
                found.append(text.encode() if token in plain else bytes_of(text))
        return tuple(found)

    def trie(self, size: int) -> TokenTrie:
        """Return the tokens for automata over a model's `size` logits. This takes about 0.1 s for 150,000 tokens, once.

        Raises:
            CheckpointError: If the tokenizer has more tokens than the model has logits.
        """
        if self.size > size:
            raise CheckpointError(
                f"the tokenizer has {counted(self.size, 'token')} and the model {size:,}: they do not belong together"
            )
        if size not in self._tries:
            self._tries[size] = TokenTrie.of([*self.token_bytes, *[None] * (size - self.size)])
        return self._tries[size]


def _check_ids(settings: Json, path: Path) -> None:
    """Raise CheckpointError for ids so large that the package tokenizers would allocate more memory than there is."""
    vocabulary = settings.get("model", {}).get("vocab")
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else []
    ids += [added["id"] for added in settings.get("added_tokens", [])]
    if wrong := [token for token in ids if not isinstance(token, int) or not 0 <= token < _MAX_TOKENS]:
        raise CheckpointError(f"{path} has the token {wrong[0]!r}: expected 0 to {_MAX_TOKENS - 1:,}; save the tokenizer again")


def _several(end: int | Sequence[int]) -> Sequence[int]:
    return [end] if isinstance(end, int) else end


def _end_tokens(directory: Path) -> list[int]:
    for name in _END_FILES:
        path = directory / name
        if not path.is_file():
            continue
        try:
            found = read_json(path).get("eos_token_id")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is not a JSON object ({error}): save the model again") from error
        tokens: list[Any] = found if isinstance(found, list) else [found]
        if tokens and all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
            return tokens
        if found is not None:
            raise CheckpointError(f"{path}: eos_token_id is {found!r}, expected a token or a list of tokens")
    raise CheckpointError(f"{directory} names no eos_token_id in {' or '.join(_END_FILES)}: a text could not end")


def _kinds(part: Json | None) -> set[str]:
    """Return the types of a pre-tokenizer or decoder and of its parts."""
    if part is None:
        return set()
    inner = part.get("decoders") or part.get("pretokenizers") or []
    return {str(part.get("type"))}.union(*(_kinds(inner_part) for inner_part in inner))


def _byte_level(text: str) -> bytes:
    """Return the bytes of GPT-2's printable characters. A token with other characters is its own text, as in tokenizers."""
    return bytes(_BYTE_OF[character] for character in text) if all(c in _BYTE_OF for c in text) else text.encode()


def _byte_fallback(text: str) -> bytes:
    """Return the bytes of one of SentencePiece's pieces, in which U+2581 is a space and <0x0A> a byte."""
    single = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(single[1], 16)]) if single else text.replace("\u2581", " ").encode()


def _byte_level_characters() -> dict[str, int]:
    """Return each byte's character: the byte itself if it is printable, otherwise one from U+0100 on (Radford et al., 2019,
    encoder.py).
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTE_OF = _byte_level_characters()
