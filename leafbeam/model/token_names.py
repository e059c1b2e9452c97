"""The tokens of Semantic IDs in a Hugging Face directory of another program, by their names or by where they begin.

A name is a pattern with one star for the number: `<a_*>` of the tokens <a_0>, <a_1>, ... Shapes: V codes of a level.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from leafbeam.errors import ArgumentError, CheckpointError, counted, short_repr
from leafbeam.extras import require
from leafbeam.files import read_text
from leafbeam.json_reader import Json
from leafbeam.model.config import T5_FAMILY
from leafbeam.model.vocabulary import PromptTokens, TokenTable
from leafbeam.model.weights import read_hf

HISTORY = "{history}"
_FILES = ("tokenizer.json", "added_tokens.json", "tokenizer_config.json")
_DIGITS = r"(\d{1,9})"
_MAX_FAMILIES = 12  # in a message


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Codebook:
    """The tokens of a level: code c is the token called by numbers_V[c], ascending. Numbers without a token have no code."""

    name: str
    numbers_V: npt.NDArray[np.int64]
    tokens_V: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers_V)

    def codes(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the codes of numbers, -1 where there is no such token."""
        found = np.searchsorted(self.numbers_V, numbers).clip(max=len(self) - 1)
        return np.where(self.numbers_V[found] == numbers, found, -1)


def read_token_ids(directory: Path) -> dict[str, int]:
    """Every token by its text, from tokenizer.json, added_tokens.json and tokenizer_config.json, those that exist.

    Raises CheckpointError where none does, one is damaged, or two give a token different numbers.
    """
    paths = [path for name in _FILES if (path := directory / name).is_file()]
    if not paths:
        raise CheckpointError(f"{directory} has no {', '.join(_FILES[:-1])} or {_FILES[-1]}: save the model's tokenizer there")
    found: dict[str, int] = {}
    for path in paths:
        try:
            content = json.loads(read_text(path))
            for text, token in _tokens_of(path.name, content).items():
                if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 1 << 31:
                    raise ValueError(f"token {text!r:.60} has the number {short_repr(token)}")
                if found.setdefault(text, token) != token:
                    raise ValueError(f"token {text!r:.60} is {token}, and {found[text]} in another file")
        except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is not the file of a tokenizer ({error}): save the tokenizer again") from error
    return found


def families(tokens: Mapping[str, int]) -> list[str]:
    """Return names that at least two tokens have, largest families first: what a user may have meant."""
    counts: dict[str, int] = {}
    for text in tokens:
        if match := re.fullmatch(r"(<.*?)(\d{1,9})(\D*>)", text):
            counts[f"{match[1]}*{match[3]}"] = counts.get(f"{match[1]}*{match[3]}", 0) + 1
    return [name for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])) if count > 1][:_MAX_FAMILIES]


def named_vocabulary(
    directory: Path,
    codebooks: Sequence[Codebook],
    *,
    prompt: str | None = None,
    separator: str = "",
    ending: str | None = None,
) -> TokenTable:
    """Return the vocabulary of a directory whose tokenizer names the SID tokens.

    prompt: the text of a prompt, with {history} once, tokenized as a whole with all that the tokenizer adds; separator: the
    text between two items. Without a tokenizer.json both have to be left out: then `</s>` ends the prompt of a T5, and `bos`
    begins that of a Qwen3. ending: the text between an answer and the tokenizer's end token; each of their tokens is one more
    level, of one code, which prompts leave out. None: answers end with their last code.

    Raises CheckpointError, ArgumentError, MissingExtraError without the package tokenizers.
    """
    if (directory / "tokenizer.json").is_file():
        around = _tokenized(directory, codebooks, HISTORY if prompt is None else prompt, separator)
    elif prompt is not None or separator:
        raise CheckpointError(f"{directory} has no tokenizer.json, which a prompt of text needs: save a fast tokenizer there")
    else:
        around = None
    table = _table(directory, [book.tokens_V.tolist() for book in codebooks], around)
    if ending is None:
        return table
    ends = [(token,) for token in _ending(directory, ending, table.eos)]
    shown = replace(table.prompt_tokens, levels=table.num_levels)
    return replace(table, tokens_per_level=(*table.tokens_per_level, *ends), prompt=shown)


def offset_vocabulary(directory: Path, first: int, codebook_sizes: Sequence[int]) -> TokenTable:
    """Return the vocabulary of a directory whose levels lie end to end from token `first` on.

    Prompts are those of a directory without a tokenizer.
    """
    ends = np.cumsum([first, *codebook_sizes]).tolist()
    return _table(directory, [list(range(ends[level], ends[level + 1])) for level in range(len(codebook_sizes))], None)


def _tokens_of(file: str, content: Json) -> Json:
    if file == "added_tokens.json":
        return dict(content)
    if file == "tokenizer_config.json":
        added: Mapping[str, Json] = content.get("added_tokens_decoder") or {}
        return {fields["content"]: int(token) for token, fields in added.items()}
    vocab: Any = content["model"].get("vocab") or {}
    if isinstance(vocab, list):  # Unigram: texts with their scores, in order
        vocab = {str(text): token for token, (text, _) in enumerate(cast("list[Any]", vocab))}
    return dict(vocab) | {added["content"]: added["id"] for added in content.get("added_tokens") or []}


def codebook_of(directory: Path, tokens: Mapping[str, int], name: str) -> Codebook:
    """Return the tokens of a level by their name, such as `<a_*>`.

    Args:
        directory: The directory, for messages.
        tokens: All tokens, of `read_token_ids`.
        name: The name.

    Raises:
        ArgumentError: If the name does not have one star.
        CheckpointError: If there are no such tokens, or they are not numbered once each.
    """
    if name.count("*") != 1:
        raise ArgumentError(f"the tokens {name!r}: expected one * in the place of the number, such as <a_*>")
    before, after = name.split("*")
    pattern = re.compile(re.escape(before) + _DIGITS + re.escape(after))
    by_number: dict[int, int] = {}
    for text, token in tokens.items():
        if (match := pattern.fullmatch(text)) and by_number.setdefault(int(match[1]), token) != token:
            raise CheckpointError(f"{directory}: two tokens {name} have the number {int(match[1])}, one of them {text}")
    if not by_number:
        known = ", ".join(families(tokens)) or "none like <a_0>"
        raise CheckpointError(f"the tokenizer of {directory} has no tokens {name}; numbered ones are {known}")
    numbers = sorted(by_number)
    return Codebook(name=name, numbers_V=np.array(numbers), tokens_V=np.array([by_number[number] for number in numbers]))


def _ending(directory: Path, text: str, eos: int) -> list[int]:
    """Return the tokens of a text after an answer, and the end token. eos: that of a tokenizer without a name for it."""
    path = directory / "tokenizer_config.json"
    name: Any = json.loads(read_text(path)).get("eos_token") if path.is_file() else None
    name = name.get("content") if isinstance(name, dict) else name  # pyright: ignore[reportUnknownMemberType]
    end = eos if name is None else read_token_ids(directory).get(name)
    if end is None:
        raise CheckpointError(f"the tokenizer lacks its end token, {short_repr(name)} in {path}: save the tokenizer again")
    return [*(_encoded(directory, text, is_whole=False) if text else []), end]


def _encoded(directory: Path, text: str, *, is_whole: bool = True) -> list[int]:
    """Return the tokens of a text. is_whole: with those that the tokenizer puts around it. Raises CheckpointError."""
    require("tokenizers of models", "tokenizers")
    from tokenizers import Tokenizer

    path = directory / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_str(read_text(path))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer.encode(text, add_special_tokens=is_whole).ids
    except Exception as error:  # the package raises Exception itself
        raise CheckpointError(f"{path} cannot be used ({error}): save the tokenizer again") from error


def _tokenized(directory: Path, codebooks: Sequence[Codebook], prompt: str, separator: str) -> PromptTokens:
    """Return the tokens of a prompt with two items, without those of the items."""
    if prompt.count(HISTORY) != 1:
        raise ArgumentError(
            f"the prompt {short_repr(prompt)} has {counted(prompt.count(HISTORY), 'time')} {HISTORY}: expected once"
        )
    wanted = {int(token) for book in codebooks for token in book.tokens_V[[0, -1]]}
    texts = {token: text for text, token in read_token_ids(directory).items() if token in wanted}
    items = ["".join(texts[int(book.tokens_V[code])] for book in codebooks) for code in (0, -1)]
    tokens = _encoded(directory, prompt.replace(HISTORY, separator.join(items)))
    sids = [[int(book.tokens_V[code]) for book in codebooks] for code in (0, -1)]
    first = _find(tokens, sids[0], 0)
    second = -1 if first < 0 else _find(tokens, sids[1], first + len(sids[0]))
    if second < 0:
        raise CheckpointError(
            f"the tokenizer of {directory} splits {''.join(items)} into other tokens than {sids[0] + sids[1]}: expected one "
            "for each code, so add them with tokenizer.add_tokens"
        )
    before, between = tokens[:first], tokens[first + len(sids[0]) : second]
    after = tokens[second + len(sids[1]) :]
    if not before and not after:
        raise ArgumentError(
            f"the tokenizer of {directory} puts no token around a history, so a prompt without one is empty: name what stands "
            "there with --prompt, such as '<|im_start|>{history}'"
        )
    return PromptTokens(before=tuple(before), between=tuple(between), after=tuple(after))


def _find(tokens: Sequence[int], part: Sequence[int], start: int) -> int:
    """Return the position at which a part begins, from `start` on; -1 if there is none."""
    last = len(tokens) - len(part) + 1
    return next((at for at in range(start, last) if list(tokens[at : at + len(part)]) == list(part)), -1)


def _table(directory: Path, levels: list[list[int]], around: PromptTokens | None) -> TokenTable:
    hf = read_hf(directory)
    is_t5 = hf.get("model_type") in T5_FAMILY
    eos: Any = hf.get("eos_token_id", 1 if is_t5 else None)
    eos = eos[0] if isinstance(eos, list) and eos else eos  # a list has the tokens that end a text, the first is its own
    if eos is None:
        raise CheckpointError(
            f"{directory / 'config.json'} has no eos_token_id: write the number of the token that ends a text"
        )
    pad, bos = (eos if hf.get(name) is None else hf[name] for name in ("pad_token_id", "bos_token_id"))
    try:
        around = PromptTokens(after=(eos,)) if around is None and is_t5 else around
        size: Any = hf.get("vocab_size", 0)
        return TokenTable(tokens_per_level=tuple(map(tuple, levels)), size=size, pad=pad, bos=bos, eos=eos, prompt=around)
    except ArgumentError as error:
        raise CheckpointError(f"the SID tokens do not fit the model in {directory}: {error}") from error
