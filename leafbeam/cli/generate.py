"""`leafbeam generate`: texts of a language model that obey a constraint."""

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from leafbeam import automata, text
from leafbeam.cli.console import stderr
from leafbeam.cli.options import option, with_options
from leafbeam.errors import ArgumentError, DataError, LeafbeamError, counted
from leafbeam.extras import require
from leafbeam.files import read_text
from leafbeam.json_reader import DoubledKeyError, parse_json

MAX_ROWS = 100_000  # texts of one call
CONSTRAINT = "Constraint, exactly one"
SAMPLING = "Sampling"


@dataclass(frozen=True, kw_only=True)
class ConstraintOptions:
    """The options that say what a text must obey; exactly one is given."""

    schema: Annotated[Path | None, option("--schema", "The file of a JSON Schema that the text must satisfy.", CONSTRAINT)] = (
        None
    )
    regex: Annotated[str | None, option("--regex", "The regular expression that the whole text must match.", CONSTRAINT)] = None
    choice: Annotated[list[str] | None, option("--choice", "One of the texts that may be written; repeatable.", CONSTRAINT)] = (
        None
    )
    template: Annotated[Path | None, option("--template", "The file of a template, a JSON list of parts.", CONSTRAINT)] = None
    rows: Annotated[
        Path | None, option("--rows", "A file of JSON lines, each with a prompt and its own constraint.", CONSTRAINT)
    ] = None

    def read(self, prompts: list[str] | None) -> tuple[list[str], list[str]]:
        """Return the prompts and the constraint of each. Raises ArgumentError unless exactly one option is given."""
        constraints = (self.schema, self.regex, self.choice, self.template, self.rows)
        if sum(constraint is not None for constraint in constraints) != 1 or (self.rows and prompts):
            raise ArgumentError(
                "pass exactly one of --schema, --regex, --choice, --template and --rows (a file that holds the prompts too)"
            )
        require("`leafbeam generate`", "outlines_core")

        if self.rows is not None:
            return prompts_and_constraints(self.rows)
        constraint = constraint_of(self.schema, self.regex, self.choice, self.template)
        prompts = prompts or [line for line in sys.stdin.read().splitlines() if line]
        return prompts, [constraint] * len(prompts)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of the search for a text."""

    max_tokens: Annotated[
        int | None,
        option(
            "--max-tokens",
            "The largest number of tokens of a text, its end included.",
            default="256, or as many as fit the model",
        ),
    ] = None
    num_beams: Annotated[int, option("--beams", "The number of beams of an exact search; 1 is greedy.")] = 1
    num_texts: Annotated[int, option("--texts", "The number of texts for each prompt: the best beams, or samples.")] = 1
    scoring: Annotated[
        Literal["full", "allowed"],
        option(
            "--scoring",
            "Compute probabilities over all tokens (full), or only over the allowed ones (allowed).",
            metavar="full|allowed",
        ),
    ] = "allowed"
    retokenize: Annotated[
        bool,
        option(
            "--retokenize",
            "Append forced text at once, in the tokenizer's own tokens. This saves model calls, but may change texts.",
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The options by which texts are drawn instead of searched."""

    temperature: Annotated[
        float | None, option("--temperature", "Sample texts at this temperature, such as 0.7.", SAMPLING, default="no sampling")
    ] = None
    top_k: Annotated[
        int | None, option("--top-k", "Sample only among this many of the likeliest tokens.", SAMPLING, default="all")
    ] = None
    top_p: Annotated[
        float | None,
        option("--top-p", "Sample only among the likeliest tokens with this total probability.", SAMPLING, default="all"),
    ] = None
    seed: Annotated[int, option("--seed", "The seed of sampling; the same seed gives the same texts.", SAMPLING)] = 0

    @property
    def sampling(self) -> "text.Sampling | None":
        """Return how texts are drawn; None for a search."""
        if self.temperature is None:
            return None
        return text.Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)


@with_options(SearchOptions, ConstraintOptions, SamplingOptions)
def generate(
    model: Annotated[Path, option("--model", "The Hugging Face directory of the model, a decoder with its tokenizer.json.")],
    prompt: Annotated[
        list[str] | None, option("--prompt", "The prompt of a text; repeatable.", default="lines of stdin")
    ] = None,
    stream: Annotated[bool, option("--stream", "Print the text of one prompt while it is written.")] = False,
    as_json: Annotated[
        bool,
        option(
            "--json",
            "Print a JSON line for each text: its score, its tokens, whether it is complete, and the number of model calls.",
        ),
    ] = False,
    *,
    search: SearchOptions,
    constraint: ConstraintOptions,
    draw: SamplingOptions,
) -> None:
    """Write texts of a language model that obey a JSON Schema, a regular expression, a list of choices or a template of parts.

    Every text obeys its constraint. A text that --max-tokens cuts off is printed too, and named on stderr; the exit code is
    then 1.
    """
    _check(search, draw)
    prompts, constraints = constraint.read(prompt)
    if (count := len(prompts) * max(search.num_beams, search.num_texts)) > MAX_ROWS:
        raise ArgumentError(
            f"{counted(count, 'text')}: expected at most {MAX_ROWS:,}; lower --beams or --texts, or name fewer prompts"
        )
    if stream and (len(prompts) != 1 or search.num_texts != 1 or search.num_beams != 1 or as_json):
        raise ArgumentError("--stream needs exactly one prompt and one text, and does not work with --beams or --json")
    require("`leafbeam generate`", "torch", "tokenizers", "outlines_core", extra="torch,automata")

    generator = text.TextGenerator.load(model)
    automata = _compiled(constraints, generator)
    token_rows = [generator.tokens_of(prompt) for prompt in prompts]
    if search.max_tokens is None and token_rows:
        search = replace(search, max_tokens=generator.default_max_tokens(token_rows))
    write = _stream if stream else partial(_print_texts, as_json=as_json)
    if num_cut := write(generator, token_rows, automata, search, draw):
        _report_cut(generator, token_rows, num_cut, search.max_tokens)
        raise typer.Exit(1)


def _check(search: SearchOptions, draw: SamplingOptions) -> None:
    """Raise ArgumentError for options that do not go together."""
    num_beams, num_texts = search.num_beams, search.num_texts
    if draw.temperature is None and (draw.top_k, draw.top_p) != (None, None):
        raise ArgumentError("--top-k and --top-p limit what is sampled: pass --temperature too")
    if draw.temperature is not None and num_beams != 1:
        raise ArgumentError("--temperature samples and --beams searches: pass only one of them")
    if draw.temperature is None and not 1 <= num_texts <= num_beams:
        raise ArgumentError(f"--texts {num_texts}: expected 1 to --beams, {num_beams}; pass --temperature to sample more")


def _stream(
    generator: "text.TextGenerator",
    token_rows: Sequence[Sequence[int]],
    automata: "Sequence[automata.Automaton]",
    search: SearchOptions,
    draw: SamplingOptions,
) -> int:
    """Print the text of one prompt while it is written, and return 1 if it was cut off."""
    written = generator.stream(
        token_rows[0],
        automata[0],
        max_tokens=search.max_tokens,
        sampling=draw.sampling,
        seed=draw.seed,
        retokenize=search.retokenize,
    )
    for piece in written:
        print(piece, end="", flush=True)
    print()
    return int(not written.generation.finished)


def _print_texts(
    generator: "text.TextGenerator",
    token_rows: Sequence[Sequence[int]],
    automata: "Sequence[automata.Automaton]",
    search: SearchOptions,
    draw: SamplingOptions,
    *,
    as_json: bool,
) -> int:
    """Print the texts of all prompts, and return how many were cut off."""
    sampling = draw.sampling
    with _enough_memory(len(token_rows) * max(search.num_beams, search.num_texts)):
        result = generator.generate(
            token_rows,
            automata,
            max_tokens=search.max_tokens,
            num_beams=search.num_beams,
            scoring=search.scoring,
            sampling=sampling,
            num_samples=1 if sampling is None else search.num_texts,
            seed=draw.seed,
            retokenize=search.retokenize,
        )
    calls = {"model_calls": result.model_calls, "calls_saved": result.calls_saved}
    rows = [(number, made) for number, texts in enumerate(result.texts) for made in texts[: search.num_texts]]
    for number, made in rows:
        print(json.dumps({"prompt": number, **asdict(made), **calls}, ensure_ascii=False) if as_json else made.text)
    return sum(not made.finished for _, made in rows)


def _report_cut(
    generator: "text.TextGenerator", token_rows: Sequence[Sequence[int]], num_cut: int, max_tokens: int | None
) -> None:
    """Say that texts were cut off, and what to do."""
    more = max_tokens is not None and generator.has_positions_for(token_rows, max_tokens + 1)
    advice = "raise --max-tokens" if more else "the model has no more positions, shorten the prompt"
    after = "" if max_tokens is None else f" after {counted(max_tokens, 'token')}"
    stderr().print(f"{counted(num_cut, 'text was', 'texts were')} cut off{after}: {advice}")


def _compiled(constraints: Sequence[str], generator: "text.TextGenerator") -> "list[automata.Automaton]":
    """Compile the constraints in bounded time and memory, because the determinisation of some short patterns has no end."""
    from leafbeam.text.compiler import ConstraintCompiler

    limits = text.CompileLimits(max_seconds=60.0, max_mb=4096, max_states=1_000_000, max_automaton_mb=1024)
    with closing(ConstraintCompiler(generator.tokens, limits)) as compiler:
        automata = {constraint: compiler.compile(constraint) for constraint in dict.fromkeys(constraints)}
    return [automata[constraint] for constraint in constraints]


@contextmanager
def _enough_memory(count: int) -> Generator[None]:
    """Name the options that take less memory where there is too little."""
    from leafbeam.engine.decoder import is_out_of_memory

    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ArgumentError(
            f"there is not enough memory for {counted(count, 'text')} at a time: lower --beams, --texts or --max-tokens, "
            "or name fewer prompts"
        ) from error


_EXPECTED = 'expected an object with a prompt and a constraint, as {"prompt": "One word: ", "regex": "[a-z]+"}'


def constraint_of(schema: Path | None, regex: str | None, choices: Sequence[str] | None, template: Path | None) -> str:
    """Return the constraint of whichever of the four is not None, as `constraint_from_json` reads it.

    Raises:
        DataError: If a file cannot be read.
        AutomatonError: If the constraint is invalid.
    """
    from leafbeam.text.constraints import constraint_from_json

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
    from leafbeam.text.constraints import constraint_from_json

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
