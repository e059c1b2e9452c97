"""The settings of the `generate` of transformers that change its answers, as a generation config holds them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from leafbeam.json_reader import Json
from leafbeam.model.code_tokens import CodeTokens
from leafbeam.model.vocabulary import AnyVocabulary, TextTokens
from leafbeam.model.weights import read_generation_config

log = logging.getLogger("leafbeam.model")

# The value that turns a setting off; None does so too.
_ALWAYS: dict[str, object] = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "guidance_scale": 1.0,
    "remove_invalid_values": False,
    "renormalize_logits": False,
    "watermarking_config": None,
    "token_healing": False,
    "stop_strings": None,
    "max_time": None,
    "assistant_ensemble_weight": None,
    "do_sample": False,
}
_TOKENS: dict[str, Any] = dict.fromkeys(("bad_words_ids", "sequence_bias", "suppress_tokens", "begin_suppress_tokens"))
_ENDS: dict[str, object] = {"min_length": 0, "min_new_tokens": None, "exponential_decay_length_penalty": None}
_SAMPLING: dict[str, object] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
_BEAMS: dict[str, object] = {"length_penalty": 0.0}
_BEAMS_OF_TEXTS: dict[str, object] = {"early_stopping": False}
_FORCED: dict[str, object] = {"forced_bos_token_id": None, "forced_eos_token_id": None}


def changing_settings(settings: Json, is_code: Callable[[int], bool], *, same_length: bool, applied: bool = True) -> Json:
    """Return the settings under which `generate` returns other items or scores than a plain search, with their "off" values.

    settings: as in a generation config. is_code: whether a token may be generated. same_length: whether all sequences have one
    length, so that it does not matter what settings do to the end token. applied: by a `generate` that refuses forced tokens
    itself; if False, those are returned too.
    """
    names = dict(_ALWAYS | _TOKENS)
    if settings.get("do_sample"):
        names |= _SAMPLING
    if (settings.get("num_beams") or 1) > 1:
        names |= _BEAMS if same_length else _BEAMS | _BEAMS_OF_TEXTS
    if not same_length:
        names |= _ENDS
    if not applied:
        names |= _FORCED
    found = {name: off for name, off in names.items() if settings.get(name) not in (None, off)}
    if settings.get("length_penalty") == 1.0:  # the default of transformers, which makes scores means
        found.pop("length_penalty", None)
    return {name: off for name, off in found.items() if name not in _TOKENS or _reaches(settings[name], is_code)}


def shown(settings: Json, names: Iterable[str]) -> str:
    """Return these settings as a caller would write them, long values cut."""
    return ", ".join(f"{name}={settings[name]!s:.60}" for name in names)


def settings_not_applied(directory: Path, vocabulary: AnyVocabulary) -> str:
    """Return the settings of a checkpoint under which `generate` of transformers differs from leafbeam's search, or ""."""
    if isinstance(vocabulary, TextTokens):
        return ""
    levels, settings = CodeTokens.of(vocabulary).levels, read_generation_config(directory)
    names = changing_settings(
        settings, lambda token: any(level.code_of(token) >= 0 for level in levels), same_length=True, applied=False
    )
    return shown(settings, names)


def warn_of_settings(directory: Path, vocabulary: AnyVocabulary) -> None:
    """Log a warning that names the settings of a checkpoint that leafbeam's search does not apply."""
    if names := settings_not_applied(directory, vocabulary):
        log.warning("%s", not_applied_text(directory, names))


def not_applied_text(directory: Path, names: str) -> str:
    """Return the sentence that names settings which are not applied."""
    return (
        f"the generation config of {directory} sets {names}: leafbeam's search does not apply it, so `generate` of "
        "transformers gives other items or scores"
    )


def _reaches(value: Any, is_code: Callable[[int], bool]) -> bool:
    """Return whether a setting about tokens, or sequences of them, names one that may be generated."""
    keys = value.keys() if isinstance(value, Mapping) else value
    sequences = [key[0] if key and isinstance(key[0], list | tuple) else key for key in map(tokens_of, keys)]
    return any(is_code(int(tokens[-1])) for tokens in sequences if tokens)


def tokens_of(value: Any) -> list[Any]:
    """Return the token or tokens of a setting as a list."""
    if value is None:
        return []
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, list | tuple) else [value]
