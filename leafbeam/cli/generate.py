"""`leafbeam generate`."""

import json
import sys
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leafbeam.cli.console import stderr
from leafbeam.cli.options import ScoringOption, option
from leafbeam.errors import ArgumentError, counted
from leafbeam.extras import require

if TYPE_CHECKING:
    from leafbeam.automata import Automaton
    from leafbeam.text import TextGenerator

MAX_ROWS = 100_000  # texts of one call
CONSTRAINT = "Constraint, exactly one"
SAMPLING = "Sampling"


def generate(
    model: Annotated[Path, option("--model", "A directory of Hugging Face: Qwen3 with tokenizer.json.")],
    prompt: Annotated[list[str] | None, option("--prompt", "A prompt; repeatable.", default="lines of stdin")] = None,
    schema: Annotated[Path | None, option("--schema", "A file with a JSON Schema.", CONSTRAINT)] = None,
    regex: Annotated[str | None, option("--regex", "A regular expression that the whole text must match.", CONSTRAINT)] = None,
    choice: Annotated[list[str] | None, option("--choice", "One of these texts; repeatable.", CONSTRAINT)] = None,
    template: Annotated[Path | None, option("--template", "A file with a JSON list of parts.", CONSTRAINT)] = None,
    rows: Annotated[Path | None, option("--rows", "JSON lines of prompts with constraints of their own.", CONSTRAINT)] = None,
    max_tokens: Annotated[
        int | None,
        option(
            "--max-tokens",
            "The most tokens of a text, its end included.",
            default="256, or what the model has positions for",
        ),
    ] = None,
    num_beams: Annotated[int, option("--beams", "The number of beams of an exact search; 1 is greedy.")] = 1,
    num_texts: Annotated[int, option("--texts", "The number of texts for each prompt, from the beams or sampled.")] = 1,
    scoring: ScoringOption = "allowed",
    temperature: Annotated[
        float | None, option("--temperature", "Sample texts at this temperature, such as 0.7.", SAMPLING, default="no sampling")
    ] = None,
    top_k: Annotated[
        int | None, option("--top-k", "Sample only among this many of the likeliest tokens.", SAMPLING, default="all")
    ] = None,
    top_p: Annotated[
        float | None,
        option("--top-p", "Sample only among the likeliest tokens with this total probability.", SAMPLING, default="all"),
    ] = None,
    seed: Annotated[int, option("--seed", "The seed of sampling; the same seed gives the same texts.", SAMPLING)] = 0,
    stream: Annotated[bool, option("--stream", "Print the text of one prompt while it is written.")] = False,
    retokenize: Annotated[
        bool, option("--retokenize", "Append forced text at once, in the tokenizer's own tokens: fewer calls, other texts.")
    ] = False,
    as_json: Annotated[
        bool, option("--json", "A JSON line for each text: score, tokens, whether it is whole, calls of the model in all.")
    ] = False,
) -> None:
    """Write texts of a language model that obey a JSON Schema, a regular expression, a list of choices or a template of parts.

    Every text obeys. One that is cut off by --max-tokens is printed too, named on stderr, and the exit code is 1.
    """
    if temperature is None and (top_k, top_p) != (None, None):
        raise ArgumentError("--top-k and --top-p go with --temperature, which draws texts")
    if temperature is not None and num_beams != 1:
        raise ArgumentError("--temperature draws and --beams searches: name one of them")
    if temperature is None and not 1 <= num_texts <= num_beams:
        raise ArgumentError(f"--texts {num_texts}: expected 1 to --beams, {num_beams}; or --temperature, to draw them")
    if sum(one is not None for one in (schema, regex, choice, template, rows)) != 1 or (rows and prompt):
        raise ArgumentError("name exactly one of --schema, --regex, --choice, --template and --rows, which has prompts too")
    require("`leafbeam generate`", "outlines_core")
    from leafbeam.cli.text_constraints import constraint_of, prompts_and_constraints

    if rows is None:
        constraint = constraint_of(schema, regex, choice, template)
        prompts = prompt or [line for line in sys.stdin.read().splitlines() if line]
        constraints = [constraint] * len(prompts)
    else:
        prompts, constraints = prompts_and_constraints(rows)
    if (count := len(prompts) * max(num_beams, num_texts)) > MAX_ROWS:
        raise ArgumentError(
            f"{counted(count, 'text')}: expected at most {MAX_ROWS:,}; lower --beams or --texts, or name fewer prompts"
        )
    if stream and (len(prompts) != 1 or num_texts != 1 or num_beams != 1 or as_json):
        raise ArgumentError("--stream writes one text of one prompt, without --beams and --json")
    require("`leafbeam generate`", "torch", "tokenizers", "outlines_core", extra="torch,automata")
    from leafbeam.text import Sampling, TextGenerator

    sampling = None if temperature is None else Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    generator = TextGenerator.load(model)
    automata = _compiled(constraints, generator)
    token_rows = [generator.tokens_of(prompt) for prompt in prompts]
    if max_tokens is None and token_rows:
        max_tokens = generator.default_max_tokens(token_rows)
    cut = 0
    if stream:
        written = generator.stream(
            token_rows[0], automata[0], max_tokens=max_tokens, sampling=sampling, seed=seed, retokenize=retokenize
        )
        for piece in written:
            print(piece, end="", flush=True)
        print()
        cut += not written.generation.finished
    else:
        with _enough_memory(count):
            result = generator.generate(
                token_rows,
                automata,
                max_tokens=max_tokens,
                num_beams=num_beams,
                scoring=scoring,
                sampling=sampling,
                num_samples=1 if sampling is None else num_texts,
                seed=seed,
                retokenize=retokenize,
            )
        calls = {"model_calls": result.model_calls, "calls_saved": result.calls_saved}
        for number, texts in enumerate(result.texts):
            for text in texts[:num_texts]:
                cut += not text.finished
                print(json.dumps({"prompt": number, **asdict(text), **calls}, ensure_ascii=False) if as_json else text.text)
    if cut:
        more = max_tokens is not None and generator.has_positions_for(token_rows, max_tokens + 1)
        advice = "raise --max-tokens" if more else "the model has no more positions, shorten the prompt"
        after = "" if max_tokens is None else f" after {counted(max_tokens, 'token')}"
        stderr().print(f"{counted(cut, 'text was', 'texts were')} cut off{after}: {advice}")
        raise typer.Exit(1)


def _compiled(constraints: Sequence[str], generator: "TextGenerator") -> "list[Automaton]":
    """The automata, in bounded time and memory: the determinisation of some short patterns has no end."""
    from leafbeam.text import CompileLimits
    from leafbeam.text.compiler import ConstraintCompiler

    limits = CompileLimits(max_seconds=60.0, max_mb=4096, max_states=1_000_000, max_automaton_mb=1024)
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
            f"the memory does not hold {counted(count, 'text')} at a time: lower --beams, --texts or --max-tokens, "
            "or name fewer prompts"
        ) from error
