"""Constraints of `leafbeam generate` in JSON, from its options and files."""

import json
from collections.abc import Sequence
from pathlib import Path

from leafbeam.errors import DataError, LeafbeamError
from leafbeam.files import read_text
from leafbeam.json_reader import DoubledKeyError, parse_json
from leafbeam.text.constraints import constraint_from_json

_EXPECTED = 'expected an object with a prompt and a constraint, as {"prompt": "One word: ", "regex": "[a-z]+"}'


def constraint_of(schema: Path | None, regex: str | None, choices: Sequence[str] | None, template: Path | None) -> str:
    """Return the constraint of whichever of the four is not None, as `constraint_from_json` reads it.

    Raises:
        DataError: If a file cannot be read.
        AutomatonError: If the constraint is invalid.
    """
    if regex is not None:
        return json.dumps({"regex": regex})
    if schema is not None:
        return json.dumps({"json_schema": _read(schema, "a JSON Schema")})
    if template is None:
        return json.dumps({"choices": list(choices or ())})
    try:
        constraint = {"template": parse_json(_read(template, "a JSON list of parts"))}
        constraint_from_json(constraint)  # a mistake is named before the model is read
        return json.dumps(constraint)
    except (ValueError, RecursionError) as error:
        if isinstance(error, LeafbeamError):
            raise
        raise DataError(f"{template} cannot be read as JSON ({error}): expected a list of parts") from error


def prompts_and_constraints(path: Path) -> tuple[list[str], list[str]]:
    """Read the prompt and the constraint of each line of a file; DataError gives the line's number."""
    prompts, constraints = list[str](), list[str]()
    for number, line in enumerate(_read(path, "JSON lines").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            prompt = row.pop("prompt") if isinstance(row, dict) else None
            if not isinstance(prompt, str):
                raise DataError(_EXPECTED)
            constraint_from_json(row)
        except (ValueError, KeyError, RecursionError) as error:
            problem = str(error) if isinstance(error, LeafbeamError | DoubledKeyError) else _EXPECTED
            raise DataError(f"{path}, line {number:,}: {problem}") from error
        prompts.append(prompt)
        constraints.append(json.dumps(row))
    if not prompts:
        raise DataError(f"{path} has no lines: {_EXPECTED}")
    return prompts, constraints


def _read(path: Path, expected: str) -> str:
    if not path.is_file():
        raise DataError(f"{path} is not a file: expected {expected}")
    try:
        return read_text(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error})") from error
