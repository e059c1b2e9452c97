"""Commands that measure one part of leafbeam beside its named peers: a row a run, appended to results/NAME.jsonl."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from benchmarks.rows import append_row
from benchmarks.workloads import DISTRIBUTIONS

__all__ = ["add_commands"]

_LARGE = 20_000_000  # more items than the peers have memory for
_HELP = {
    "micro": {
        "attention": "Attention of many beams over one prompt, against a copy for each beam.",
        "automaton": "Building automata, against outlines-core and xgrammar.",
        "forced": "Whole decodes with forced suffixes, against round by round.",
        "head": "Logits of legal codes alone, against all logits.",
        "hf": "Constrained generate of transformers, against a Python trie.",
        "jax": "Constrained rounds in JAX, against STATIC in JAX.",
        "post_filter": "Answers left under a rule, against filtering after the search.",
    },
    "serving": {
        "memory": "Peak memory of a search, against PagedAttention and per-beam copies.",
        "vllm": "Exact beams over vLLM, against vLLM's own beam search.",
        "traffic": "The scheduler under a month of traffic, in simulated time.",
        "latency": "Where the time of one request goes, from the model's calls to HTTP.",
        "profile": "The functions that one request runs, under the profiler.",
        "http_workers": "One request, load and attacks, with and without HTTP workers.",
        "hostile": "What hostile clients cost the server and its quiet client.",
    },
}
_HELP_OVER_DATA = {
    "bound": "Searches that prove their answers, beside beam searches of a fixed width.",
    "objectives": "Boosts and caps: what they cost, and what re-ranking misses.",
}

Rows = Iterable[tuple[dict[str, Any], dict[str, Any]]]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON row for each run and nothing else.")]
Quick = Annotated[bool, typer.Option("--quick", help="A hundredth of the size; rows are printed but not kept.")]
NumItems = Annotated[int | None, typer.Option(help="Items of the catalog; above 2 x 10^7 in chunks and without peers.")]
MemoryLimit = Annotated[int, typer.Option(help="Bytes that rows may take until they are sorted, when built in chunks.")]
Seconds = Annotated[float, typer.Option(help="How long the load lasts.")]
Data = Annotated[Path | None, typer.Option(help="A directory of interactions; a synthetic shop if absent.")]


def add_commands(app: typer.Typer) -> None:
    """Register every benchmark under its name."""
    for family, names in _HELP.items():
        for name, text in names.items():
            app.command(name.replace("_", "-"), help=text, rich_help_panel=family)(_plain(name, family))
    app.command("step", help="One constrained round, against STATIC and unconstrained.", rich_help_panel="micro")(_step)
    app.command("index", help="Building the index, against numpy and STATIC.", rich_help_panel="micro")(_index)
    for name, text in _HELP_OVER_DATA.items():
        app.command(name, help=text, rich_help_panel="serving")(_over_data(name))
    app.command("filters", help="The filtered step, against an index built on the filter.", rich_help_panel="micro")(_filters)
    app.command("updates", help="Changes of a live index while it is searched.", rich_help_panel="micro")(_updates)
    app.command(
        "language", help="Rounds over regular languages; or JSON beside transformers and vLLM.", rich_help_panel="micro"
    )(_language)
    app.command("retrieve", help="An item memory, alone and fused with the search.", rich_help_panel="micro")(_retrieve)
    app.command("tokeniser", help="Cost and quality of Semantic IDs.", rich_help_panel="micro")(_tokeniser)
    app.command("schemas", help="JSON Schemas as people write them, beside llguidance.", rich_help_panel="micro")(_schemas)
    app.command("static-public", help="STATIC's public code beside our form of it.", rich_help_panel="micro")(_static_public)
    app.command("serve", help="The engine and the server, against generate.", rich_help_panel="serving")(_serve)
    app.command("overload", help="The server at three times its capacity, four runs.", rich_help_panel="serving")(_overload)
    app.command("production", help="Beam search of vLLM and transformers, same model.", rich_help_panel="serving")(_production)
    app.command("changes", help="Item changes beside requests, over HTTP or of a topic.", rich_help_panel="serving")(_changes)
    app.command("shards", help="An index in shards over Ray actors, against one index.", rich_help_panel="serving")(_shards)
    app.command("soak", help="An engine, then a server: lost and wrong answers, memory.", rich_help_panel="serving")(_soak)
    app.command("gpu", help="Every Triton kernel on a GPU: parity, then speed.", rich_help_panel="gpu")(_gpu)


def _plain(name: str, family: str) -> Any:
    def command(as_json: AsJson = False, quick: Quick = False) -> None:
        module = importlib.import_module(f"benchmarks.{family}.{name}")
        _keep(name, module.runs(quick), as_json, quick, timed=getattr(module, "TIMED", True))

    return command


def _step(
    as_json: AsJson = False, quick: Quick = False, num_items: NumItems = None, memory_limit: MemoryLimit = 4 << 30
) -> None:
    from benchmarks.micro import step
    from benchmarks.serving import scale

    items, repeats = num_items or 1_000_000, 200
    size = items // (100 if quick else 1)
    if items > _LARGE:
        small = 1_000 if quick else scale.SMALL
        rows = (scale.measure(distribution, size, repeats, small, memory_limit) for distribution in DISTRIBUTIONS)
    else:
        rows = (step.measure(distribution, size, repeats) for distribution in DISTRIBUTIONS)
    _keep("step", rows, as_json, quick)


def _index(
    as_json: AsJson = False, quick: Quick = False, num_items: NumItems = None, memory_limit: MemoryLimit = 4 << 30
) -> None:
    from benchmarks.micro import index

    items = num_items or 10_000_000
    size = items // (100 if quick else 1)
    if items > _LARGE:
        rows = (index.measure_chunks(distribution, size, memory_limit) for distribution in DISTRIBUTIONS)
    else:
        rows = (index.measure(distribution, size, 3) for distribution in DISTRIBUTIONS)
    _keep("index", rows, as_json, quick)


def _filters(as_json: AsJson = False, quick: Quick = False, num_items: NumItems = None) -> None:
    from benchmarks.micro import filters

    smaller = 100 if quick else 1
    _keep("filters", (filters.measure(one, (num_items or 1_000_000) // smaller, 60) for one in DISTRIBUTIONS), as_json, quick)
    rules = (filters.measure_rules(one, (num_items or 10_000_000) // smaller, 20) for one in DISTRIBUTIONS)
    _keep("filters", rules, as_json, quick)


def _shards(
    as_json: AsJson = False,
    quick: Quick = False,
    num_items: NumItems = None,
    shards: Annotated[int, typer.Option(help="The number of shards, each an actor.")] = 4,
    memory_limit: MemoryLimit = 4 << 30,
) -> None:
    from benchmarks.serving.shards import measure

    size = (num_items or 1_000_000) // (100 if quick else 1)
    _keep("shards", [measure("uniform", size, shards, 5 if quick else 60, memory_limit)], as_json, quick)


def _over_data(name: str) -> Any:
    def command(
        as_json: AsJson = False,
        quick: Quick = False,
        data: Annotated[Path | None, typer.Option(help="A data set, which is measured in place of the demo's shop.")] = None,
    ) -> None:
        module = importlib.import_module(f"benchmarks.serving.{name}")
        _keep(name, module.runs(quick) if data is None else module.runs_of_data(quick, data), as_json, quick)

    return command


def _updates(as_json: AsJson = False, quick: Quick = False, seconds: Seconds = 60.0) -> None:
    from benchmarks.micro import updates

    _keep("updates", updates.runs(quick, seconds), as_json, quick)


def _language(
    part: Annotated[Literal["rounds", "vllm"], typer.Argument(help="Rounds, or whole texts beside vLLM.")] = "rounds",
    as_json: AsJson = False,
    quick: Quick = False,
    model: Annotated[
        Literal["Qwen3-0.6B", "Qwen3-1.7B"], typer.Option(help="Whose shape writes texts; a tiny one with --quick.")
    ] = "Qwen3-0.6B",
    batch: Annotated[int | None, typer.Option(help="Texts at a time; 1, then 8, if absent.", min=1)] = None,
) -> None:
    if part == "vllm":
        from benchmarks.serving import language as texts

        _keep("language", texts.runs(quick, model, batches=(1, 8) if batch is None else (batch,)), as_json, quick)
    else:
        from benchmarks.micro import language

        _keep("language", language.runs(quick), as_json, quick)


def _changes(
    as_json: AsJson = False,
    quick: Quick = False,
    part: Annotated[
        Literal["http", "replicas"], typer.Option("--part", help="Over HTTP to one server, or a topic that three follow.")
    ] = "http",
) -> None:
    if part == "replicas":
        from benchmarks.serving import replicas

        _keep("replicas", replicas.runs(quick), as_json, quick)
    else:
        from benchmarks.serving import changes

        _keep("changes", changes.runs(quick), as_json, quick)


def _soak(
    as_json: AsJson = False,
    quick: Quick = False,
    part: Annotated[Literal["engine", "http"] | None, typer.Option("--part", help="One part instead of both.")] = None,
    seconds: Annotated[float, typer.Option(help="How long each part lasts.")] = 60.0,
) -> None:
    from benchmarks.serving import soak, soak_http

    if part != "http":
        _keep("soak", soak.runs(quick, seconds), as_json, quick, timed=soak.TIMED)
    if part != "engine":
        _keep("soak_http", soak_http.runs(quick, seconds), as_json, quick, timed=soak_http.TIMED)


def _retrieve(as_json: AsJson = False, quick: Quick = False, data: Data = None) -> None:
    from benchmarks.micro import retrieve

    _keep("retrieve", retrieve.runs(quick, data), as_json, quick)


def _tokeniser(as_json: AsJson = False, quick: Quick = False, data: Data = None) -> None:
    from benchmarks.micro import tokeniser

    _keep("tokeniser", tokeniser.runs(quick, data), as_json, quick)


def _schemas(
    data: Annotated[
        Path,
        typer.Option(help="maskbench/data of guidance-ai/jsonschemabench, or tests/draft2020-12 of JSON-Schema-Test-Suite."),
    ],
    as_json: AsJson = False,
    quick: Quick = False,
    sample: Annotated[int | None, typer.Option(help="This many schemas, drawn at random; all if absent.", min=1)] = None,
    limit_s: Annotated[float, typer.Option(help="The seconds that an engine may take for one schema.", min=1)] = 60.0,
    seed: Annotated[int, typer.Option(help="The seed of the sample.")] = 0,
    tokenizer: Annotated[Path | None, typer.Option(help="A model's directory; a made tokenizer if absent.")] = None,
    environment: Annotated[Path | None, typer.Option(help="The environment of the peers; .venv-peers if absent.")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="An engine; several times for several, all three if absent.")] = None,
    times: Annotated[bool, typer.Option(help="Whether the row has times; if not, other programs may run beside it.")] = True,
) -> None:
    from benchmarks.micro import schemas

    suite = schemas.Suite(data=data, sample=20 if quick else sample, seed=seed)
    rows = schemas.runs(suite, tokenizer, environment, limit_s, engine or schemas.ENGINES, times)
    _keep("schemas", rows, as_json, quick, times)


def _static_public(
    static: Annotated[Path, typer.Option(help="A checkout of github.com/youtube/static-constraint-decoding.")],
    as_json: AsJson = False,
    quick: Quick = False,
) -> None:
    from benchmarks.micro import static_public

    _keep("static_public", static_public.runs(quick, static), as_json, quick)


def _serve(as_json: AsJson = False, quick: Quick = False, data: Data = None) -> None:
    from benchmarks.serving import serve

    _keep("serve", serve.runs(quick, data), as_json, quick)


def _overload(as_json: AsJson = False, quick: Quick = False, data: Data = None) -> None:
    from benchmarks.serving import overload

    _keep("overload", overload.runs(quick, data), as_json, quick)


def _production(
    as_json: AsJson = False,
    quick: Quick = False,
    part: Annotated[
        Literal["small", "http", "large", "large-http", "prefill", "load"] | None,
        typer.Option("--part", help="One part instead of all."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"], typer.Option("--dtype", help="Of the parts large and prefill.")
    ] = "float32",
    architecture: Annotated[
        Literal["qwen3", "qwen2", "llama"], typer.Option("--architecture", help="Of the parts large, large-http and load.")
    ] = "qwen3",
) -> None:
    from benchmarks.serving import model_load, prefill, production

    if part == "load" or (part is None and not quick):
        _keep("production", model_load.runs(quick, architecture), as_json, quick)
    if part not in ("prefill", "load"):
        _keep("production", production.runs(quick, part, dtype=dtype, architecture=architecture), as_json, quick)
    if part == "prefill" or (part is None and not quick):
        _keep("production", prefill.runs(quick, dtype=dtype), as_json, quick)


def _gpu(names: Annotated[list[str] | None, typer.Argument(help="The parts; all of them without names.")] = None) -> None:
    from benchmarks.gpu import parts

    parts.main(names or ())


def _keep(name: str, rows: Rows, as_json: bool, quick: bool, timed: bool = True) -> None:
    """Print each row as it is measured, and append it to results/NAME.jsonl unless it is a quick one."""
    console = Console(stderr=as_json)
    with console.status(name):
        for parameters, measured in rows:
            row: dict[str, Any] = {"bench": name, "parameters": parameters, "measured": measured}
            if not quick:
                row = append_row(name, parameters, measured, timed=timed)
            if as_json:
                print(json.dumps(row), flush=True)
            else:
                console.print(f"[bold]{name}[/] {parameters.get('distribution', '')}")
                console.print_json(json.dumps(measured))
