"""The settings of the `generate` of transformers around a processor, which of them change its answers, and which break them.

`generate` passes a processor tokens and scores alone, and most of its settings come from the checkpoint's
generation_config.json, which its caller may never have seen. So they are read from the frame of the running call.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from leafbeam.errors import ArgumentError, GenerationSettingsWarning, counted
from leafbeam.model.generation_settings import changing_settings, shown, tokens_of


@dataclass(frozen=True, kw_only=True, eq=False)
class GenerateCall:
    """A running `generate`.

    config: the settings in effect. passed: names of those that its caller passed by keyword. defaults: the settings of the
    model. processors: all that it applies, in their order. columns: of the tokens that the first step gets.
    """

    config: Any
    passed: frozenset[str]
    defaults: Any
    processors: tuple[object, ...]
    columns: int

    @classmethod
    def current(cls) -> GenerateCall | None:
        """Return the `generate` that this function is called from; None outside one. Cost: a few microseconds."""
        frame: FrameType | None = inspect.currentframe()
        while frame is not None:
            if frame.f_code.co_name == "generate" and frame.f_globals.get("__name__") == "transformers.generation.utils":
                values = frame.f_locals
                config = values.get("generation_config")
                if config is not None and not config.is_assistant:  # the assistant runs inside the model's own `generate`
                    return cls(
                        config=config,
                        passed=frozenset(values.get("kwargs", ())),
                        defaults=values["self"].generation_config,
                        processors=tuple(values.get("prepared_logits_processor", ())),
                        columns=int(values.get("input_ids_length", 0)),
                    )
            frame = frame.f_back
        return None

    @property
    def num_return_sequences(self) -> int:
        """Return the number of sequences for each request."""
        return self.config.num_return_sequences or 1

    @property
    def rows_per_request(self) -> int:
        """Return the number of rows of each request in a step."""
        return max(self.config.num_beams or 1, self.num_return_sequences)

    @property
    def max_new_tokens(self) -> int:
        """Return the number of tokens after which it stops."""
        return int(self.config.max_length) - self.columns

    def processors_after(self, processor: object) -> list[str]:
        """Return the names of the caller's own processors that run after this one."""
        after = self.processors[self.processors.index(processor) + 1 :] if processor in self.processors else ()
        own = [other for other in after if not type(other).__module__.startswith("transformers.")]
        return [getattr(other, "__name__", type(other).__name__) for other in own]

    def check(
        self, *, eos_token_id: int, is_code: Callable[[int], bool], num_tokens: int | None = None, same_length: bool = False
    ) -> None:
        """Refuse settings under which a constraint's answers are wrong, and warn of the checkpoint's that change them.

        num_tokens: the tokens of a whole item; None for texts. same_length: as for `changing_settings`.
        Raises ArgumentError. Warns GenerationSettingsWarning.
        """
        config = self.config
        self._check_ends(eos_token_id, is_code, num_tokens if same_length else None)
        if config.forced_bos_token_id is not None and self.columns <= 1:
            raise ArgumentError(
                f"`generate` writes forced_bos_token_id={config.forced_bos_token_id} first, whatever is allowed: pass "
                "forced_bos_token_id=None, or, for a model that was trained with this token, decoder_input_ids that end in it "
                "and prompt_length=2"
            )
        if num_tokens is not None:
            self._check_length(eos_token_id, num_tokens, same_length)
        changing = changing_settings(vars(config), is_code, same_length=same_length)
        inherited = [
            name for name in changing if name not in self.passed and getattr(self.defaults, name, None) == getattr(config, name)
        ]
        if inherited:
            warnings.warn(
                f"the model's generation config sets {shown(vars(config), inherited)}, and `generate` applies it beside "
                "leafbeam's processor: answers, their order and their scores differ from those of a plain search. Pass "
                f"{', '.join(f'{name}={changing[name]}' for name in inherited)} to turn it off, or the same values by keyword "
                "to keep it",
                GenerationSettingsWarning,
                stacklevel=2,
            )

    def _check_ends(self, eos_token_id: int, is_code: Callable[[int], bool], whole: int | None) -> None:
        """Raise ArgumentError unless `generate` ends sequences where the processor does.

        whole: the tokens of every item, where no end token is needed.
        """
        ends = tokens_of(self.config.eos_token_id)
        if eos_token_id not in ends and (ends or whole is None or self.max_new_tokens > whole):
            raise ArgumentError(
                f"`generate` ends sequences with eos_token_id={self.config.eos_token_id}, the processor with {eos_token_id}: "
                "pass the same end token to both"
            )
        code = next((token for token in ends if token != eos_token_id and is_code(token)), None)
        if code is not None:
            raise ArgumentError(
                f"`generate` has eos_token_id={self.config.eos_token_id}, so it ends a sequence at token {code}, which the "
                f"processor may allow inside one: pass eos_token_id={eos_token_id} to `generate`"
            )

    def _check_length(self, eos_token_id: int, num_tokens: int, same_length: bool) -> None:
        """Raise ArgumentError for settings that force or forbid the end token where an item has to go on or to end."""
        forced, max_tokens = tokens_of(self.config.forced_eos_token_id), self.max_new_tokens
        if forced and (max_tokens <= num_tokens or eos_token_id not in forced):
            raise ArgumentError(
                f"`generate` forces the last of max_new_tokens={counted(max_tokens, 'token')} to be forced_eos_token_id="
                f"{self.config.forced_eos_token_id}, and an item has up to {num_tokens}: pass forced_eos_token_id=None, or "
                f"forced_eos_token_id={eos_token_id} with max_new_tokens={num_tokens + 1}"
            )
        end, shortest = num_tokens - (not same_length), (self.config.min_length or 0) - self.columns
        if shortest > end and max_tokens > end:
            raise ArgumentError(
                f"`generate` allows no end token before min_new_tokens={shortest}, "
                f"and an item has up to {counted(end, 'token')}: "
                "pass min_length=0 and min_new_tokens=None"
            )


def changed_after(processor: object, call: GenerateCall | None, *, if_any: bool = False) -> str:
    """Return why scores are not what leafbeam's processor wrote, and the remedy; "" with `if_any` if none runs after it."""
    names = [] if call is None else call.processors_after(processor)
    if if_any and not names:
        return ""
    shown_names = f" ({', '.join(names)})" if names else ""
    return (
        f"A processor after this one{shown_names} returned NaN, or changed what is excluded: correct it, or put it "
        "before this one in logits_processor"
    )
