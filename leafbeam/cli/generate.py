"""`leafbeam generate`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leafbeam.cli.console import stderr
from leafbeam.cli.options import ScoringOption, option
from leafbeam.errors import ArgumentError, DataError
from leafbeam.extras import require
from leafbeam.files import read_text

if TYPE_CHECKING:
    from leafbeam.text import TextConstraint

CONSTRAINT = "Constraint, exactly one"


def generate(
    model: Annotated[Path, option("--model", "A directory of Hugging Face: Qwen3 with tokenizer.json.")],
    prompt: Annotated[list[str] | None, option("--prompt", "A prompt; repeatable.", default="lines of stdin")] = None,
    schema: Annotated[Path | None, option("--schema", "A file with a JSON Schema.", CONSTRAINT)] = None,
    regex: Annotated[str | None, option("--regex", "A pattern of the whole text.", CONSTRAINT)] = None,
    choice: Annotated[list[str] | None, option("--choice", "One of these texts; repeatable.", CONSTRAINT)] = None,
    max_tokens: Annotated[int, option("--max-tokens", "Of a text, its end included.")] = 256,
    num_beams: Annotated[int, option("--beams", "Beams of an exact search; 1 is greedy.")] = 1,
    num_texts: Annotated[int, option("--texts", "Texts to print for each prompt, at most --beams.")] = 1,
    scoring: ScoringOption = "allowed",
    as_json: Annotated[bool, option("--json", "A JSON line for each text: score, tokens, whether it is whole.")] = False,
) -> None:
    """Write texts of a language model that obey a JSON Schema, a regular expression or a list of choices.

    Every text obeys. One that is cut off by --max-tokens is printed too, named on stderr, and the exit code is 1.
    """
    if not 1 <= num_texts <= num_beams:
        raise ArgumentError(f"--texts {num_texts}: expected 1 to --beams, {num_beams}")
    constraint = _constraint(schema, regex, choice)
    prompts = prompt or [line for line in sys.stdin.read().splitlines() if line]
    require("`leafbeam generate`", "torch", "tokenizers", "outlines_core", extra="torch,automata")
    from leafbeam.text import TextGenerator

    generator = TextGenerator.load(model)
    result = generator.generate(prompts, constraint, max_tokens=max_tokens, num_beams=num_beams, scoring=scoring)
    cut = 0
    for number, texts in enumerate(result.texts):
        for text in texts[:num_texts]:
            cut += not text.finished
            print(json.dumps({"prompt": number, **asdict(text)}, ensure_ascii=False) if as_json else text.text)
    if cut:
        stderr().print(f"{cut} texts were cut off after {max_tokens} tokens: raise --max-tokens")
        raise typer.Exit(1)


def _constraint(schema: Path | None, regex: str | None, choices: list[str] | None) -> "TextConstraint":
    if sum(one is not None for one in (schema, regex, choices)) != 1:
        raise ArgumentError("name exactly one of --schema, --regex and --choice")
    require("`leafbeam generate`", "outlines_core")
    from leafbeam.text import Choices, JsonSchema, Regex

    if regex is not None:
        return Regex(pattern=regex)
    if schema is None:
        return Choices(texts=choices or [])
    if not schema.is_file():
        raise DataError(f"{schema} is not a file: expected a JSON Schema")
    try:
        return JsonSchema(schema=read_text(schema))
    except UnicodeDecodeError as error:
        raise DataError(f"{schema} is no UTF-8 text ({error})") from error
