"""A model's chat template: messages to the text of a prompt."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any

from leafbeam.errors import ArgumentError, CheckpointError
from leafbeam.extras import require
from leafbeam.files import read_json, read_text
from leafbeam.json_reader import Json


class ChatTemplate:
    r"""The chat template that Hugging Face keeps beside a tokenizer, in Jinja.

    It runs in Jinja's sandbox, and messages are only data: they are never read as template code.

    Args:
        source: The template's text.
        special_tokens: The special tokens by the names that the template uses.

    Examples:
        >>> ChatTemplate.load("Qwen3-0.6B").render([{"role": "user", "content": "Hello"}])     # doctest: +SKIP
        '<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n'
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        """Compile the template; `special_tokens` are by name, such as `bos_token`.

        Raises:
            CheckpointError: If the template is invalid.
        """
        require("chat templates", "jinja2")
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        names: Any = environment.globals
        names.update(raise_exception=_refuse, strftime_now=_now)
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise CheckpointError(f"the chat template is not a Jinja template ({error}): save the tokenizer again") from error

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> "ChatTemplate | None":
        """Read chat_template.jinja, or else `chat_template` of tokenizer_config.json (the one named "default" if there
        are several). Return None if there is neither.

        Raises:
            CheckpointError: If a file is damaged.
            MissingExtraError: If Jinja is not installed.
        """
        file, path = Path(directory) / "chat_template.jinja", Path(directory) / "tokenizer_config.json"
        config: Json = {}
        try:
            if path.is_file():
                config = read_json(path)
            source = read_text(file) if file.is_file() else config.get("chat_template")
        except (OSError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): save the tokenizer again") from error
        if isinstance(source, list):
            named = {template.get("name"): template.get("template") for template in source if isinstance(template, dict)}
            source = named.get("default")
        if source is None:
            return None
        if not isinstance(source, str):
            raise CheckpointError(f"{path}: chat_template is {type(source).__name__}, expected text or a list of templates")
        tokens = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items()}
        special = {name: value for name, value in tokens.items() if name.endswith("_token") and isinstance(value, str)}
        return cls(source, special)

    def render(self, messages: Sequence[Mapping[str, object]]) -> str:
        """Return the prompt that asks for the assistant's next message.

        Raises:
            ArgumentError: If the template refuses the messages.
        """
        try:
            return self._template.render(messages=messages, add_generation_prompt=True, **self._special_tokens)
        except Exception as error:  # whatever a template does with values that it does not expect
            raise ArgumentError(f"the model's chat template refuses these messages: {error}") from error


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    """Return JSON. Jinja's own filter would escape characters for HTML; this one does not."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(message: str) -> None:
    raise ValueError(message)
