"""`leafbeam recommend` and `leafbeam serve`."""

import gc
import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import typer

from leafbeam.cli.console import next_step, stdout
from leafbeam.cli.options import DEFAULT_RUN, DeviceOption, NoVerifyOption, RunOption, ScoringOption, option, split_names
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import ArgumentError
from leafbeam.extras import require, require_device

TABLE = "A table of users"
Channel = Literal["model", "memory", "fused"]
ENGINE_FILES = ("model", "trie", "catalog", "rules")
BATCHES = "Batches and memory"
LIMITS = "Limits"
CLIENTS = "Who may reach it"
OBSERVED = "What it says"
TEXT = "A language model"
_OF_ITEMS = {
    *("device", "no_verify", "learn", "changes", "workers", "slo_ms", "num_beams", "widest_beams", "rule", "refresh"),
    *("rule_timeout", "threads", "precision", "max_batch", "max_batch_tokens", "max_beam_rows", "wait_ms", "prompt_store_mb"),
    *("graphs", "graph_mb", "attention_costs", "max_beams", "max_queue", "max_batch_kb", "timeout", "watchdog"),
}  # options of `serve` that say nothing of texts

_HISTORY_HELP = (
    "Item ids, oldest first, with commas between them. An id with a comma, or with blanks around it, goes into double quotes, "
    'as in A7,"B,8"; a double quote inside those is written twice.'
)


def recommend(
    run: RunOption = DEFAULT_RUN,
    history: Annotated[str | None, option("--history", _HISTORY_HELP)] = None,
    user: Annotated[str, option("--user", "A user of the log, in place of --history.")] = "",
    rules: Annotated[str, option("--rules", "Names of rules that every item must pass, with commas.")] = "",
    deny: Annotated[str, option("--deny", "Item ids to exclude, as for --history.")] = "",
    keep_history: Annotated[bool, option("--keep-history", "Return items of the history too.")] = False,
    num_items: Annotated[int, option("--items", "Items to return, at most.")] = 10,
    num_beams: Annotated[int | None, option("--beams", "Beams of the search.", default="20")] = None,
    scoring: ScoringOption = "full",
    channel: Annotated[
        Channel | None,
        option(
            "--channel",
            "Who ranks: the model, the item memory, or both.",
            metavar="model|memory|fused",
            default="fused, without a memory model",
        ),
    ] = None,
    device: DeviceOption = "cpu",
    no_verify: NoVerifyOption = False,
    users: Annotated[Path | None, option("--users", "Parquet file or directory, in place of --history.", TABLE)] = None,
    out: Annotated[Path | None, option("--out", "The directory to write Parquet into.", TABLE)] = None,
    user_column: Annotated[str, option("--user-column", "The column of user ids.", TABLE)] = "user_id",
    history_column: Annotated[str, option("--history-column", "The column of lists of item ids.", TABLE)] = "history",
    on_ray: Annotated[bool, option("--ray", "Run on a Ray cluster.", TABLE)] = False,
    ray_address: Annotated[str | None, option("--ray-address", "Its address.", TABLE, default="RAY_ADDRESS, or here")] = None,
    workers: Annotated[int | None, option("--workers", "With --ray: engines.", TABLE, default="as many as fit")] = None,
) -> None:
    """Recommend the next items after a history, under rules, as a table with titles.

    With --users, recommend for every user of a table; an interrupted call continues where it stopped.
    """
    if [history is not None, bool(user), users is not None].count(True) != 1:
        raise ArgumentError("expected one of --history A,B,C, --user U or --users TABLE")
    if (users is None) != (out is None):
        raise ArgumentError("--users and --out go together: the table to read and the directory to write")
    if users is None and (on_ray or workers is not None or ray_address is not None):
        raise ArgumentError("--ray, --ray-address and --workers go with --users")
    if users is not None and deny:
        raise ArgumentError("--deny goes with --history and --user, not with --users")
    paths = RunDirectory(run)
    paths.check(*ENGINE_FILES, *(["source"] if user else []))
    require("`leafbeam recommend`", "duckdb", "pyarrow", "torch")
    if on_ray:
        require("`leafbeam recommend --ray`", "ray")
    else:
        require_device(device)
    rule_names = split_names(rules)
    if users is not None and out is not None:
        from leafbeam.cli.batch import recommend_table
        from leafbeam.integrations.batch import RequestTemplate, ServingFiles

        template = RequestTemplate(
            num_items=num_items,
            num_beams=num_beams,
            scoring=scoring,
            rules=rule_names,
            channel=channel,
            user_column=user_column,
            history_column=history_column,
            keep_history=keep_history,
        )
        files = ServingFiles(
            model=str(paths.model),
            index=str(paths.index),
            catalog=str(paths.catalog),
            rules=tuple(map(str, paths.rule_files)),
            verify=not no_verify,
            memory=None if paths.fitted_memory is None else str(paths.fitted_memory),
        )
        recommend_table(files, users, out, template, device=device, on_ray=on_ray, address=ray_address, workers=workers)
        return
    gc.disable()  # imports make a million lasting objects: looking through them takes a sixth of this command
    try:
        from leafbeam.cli import output
        from leafbeam.engine import CatalogFiles, Engine, Request
    finally:
        gc.enable()

    catalog_files = CatalogFiles(
        index=paths.index,
        catalog=paths.catalog,
        rules=paths.rule_files,
        verify=not no_verify,
        memory=paths.fitted_memory,
    )
    with closing(Engine.load(paths.model, catalog_files, device=device)) as engine:
        request = Request(
            history=tuple(output.history_of(paths, user) if user else output.parse_ids(history or "", engine.trie)),
            user=user or None,
            num_items=num_items,
            rules=rule_names,
            deny_item_ids=tuple(output.parse_ids(deny, engine.trie)),
            keep_history=keep_history,
            num_beams=num_beams,
            scoring=scoring,
            channel=channel,
        )
        output.show(stdout(), engine, request, engine.recommend(request))
    next_step(stdout(), "leafbeam", "serve", "--run", run)


def _refuse_options_of_items(context: typer.Context) -> None:
    """Raise ArgumentError for an option of the command line that says nothing of texts."""
    for each in context.command.params:
        source = context.get_parameter_source(each.name or "")
        if each.name in _OF_ITEMS and source is not None and source.name == "COMMANDLINE":
            raise ArgumentError(f"{each.opts[0]} goes with --run: --text-model alone serves no items")


def serve(
    context: typer.Context,
    run: Annotated[Path | None, option("--run", "The run.", default=f"`{DEFAULT_RUN}`; none with --text-model")] = None,
    host: Annotated[str, option("--host", "Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, option("--port", "Port to listen on; 0 takes a free one.")] = 8000,
    device: DeviceOption = "cpu",
    no_verify: NoVerifyOption = False,
    learn: Annotated[bool, option("--learn", "Count interactions of POST /v1/interactions.")] = False,
    changes: Annotated[
        Literal["auto", "on", "off"],
        option(
            "--changes",
            "Changes: auto (this machine), on (all), off.",
            metavar="NAME",
        ),
    ] = "auto",
    workers: Annotated[int, option("--workers", "Threads of batches; they share the weights.")] = 1,
    slo_ms: Annotated[float | None, option("--slo-ms", "Default deadline; requests that cannot meet it get 429.")] = None,
    num_beams: Annotated[int, option("--beams", "Beams of requests that name none.")] = 20,
    widest_beams: Annotated[int, option("--widest-beams", "Most beams of a widened search; 0: never.")] = 128,
    rule: Annotated[
        list[str] | None, option("--rule", "One more rule, or NAME@60s=SQL; repeatable.", metavar="NAME=SQL")
    ] = None,
    refresh: Annotated[
        str | None, option("--refresh", "Interval of rules that name none.", default="at SIGHUP", metavar="60s")
    ] = None,
    rule_timeout: Annotated[float, option("--rule-timeout", "Seconds of one evaluation, at most.")] = 60.0,
    threads: Annotated[int | None, option("--threads", "Of each worker.", BATCHES, default="measured at the start")] = None,
    precision: Annotated[
        Literal["float32", "bfloat16"],
        option("--precision", "Or bfloat16, on a CPU, where faster.", BATCHES, metavar="NAME"),
    ] = "float32",
    max_batch: Annotated[int, option("--max-batch", "Maximum requests in one batch.", BATCHES)] = 16,
    max_batch_tokens: Annotated[int, option("--max-batch-tokens", "Its maximum prompt tokens.", BATCHES)] = 32_768,
    max_beam_rows: Annotated[int, option("--max-beam-rows", "Its maximum requests x beams.", BATCHES)] = 8_192,
    wait_ms: Annotated[float, option("--wait-ms", "Batching delay while a worker is idle.", BATCHES)] = 0.0,
    prompt_store_mb: Annotated[int, option("--prompt-store-mb", "Keys and values of recent prompts.", BATCHES)] = 0,
    graphs: Annotated[bool, option("--graphs", "On CUDA: capture decodes as graphs.", BATCHES)] = False,
    graph_mb: Annotated[int, option("--graph-mb", "With --graphs: memory for them.", BATCHES)] = 1024,
    attention_costs: Annotated[
        Path | None, option("--attention-costs", "With --graphs: a file of `make gpu`, of this GPU.", BATCHES)
    ] = None,
    max_beams: Annotated[int, option("--max-beams", "Maximum beams, and items, of a request.", LIMITS)] = 512,
    max_queue: Annotated[int, option("--max-queue", "Maximum queued requests; more get 429.", LIMITS)] = 256,
    max_body_kb: Annotated[int, option("--max-body-kb", "Maximum length of a request's body.", LIMITS)] = 1024,
    max_batch_kb: Annotated[int, option("--max-batch-kb", "Maximum length of a batch of items.", LIMITS)] = 8192,
    max_connections: Annotated[
        int | None, option("--max-connections", "Maximum open connections.", LIMITS, default="free descriptors")
    ] = None,
    http_workers: Annotated[int, option("--http-workers", "Processes for HTTP; 0: the engine's own.", LIMITS)] = 0,
    idle_timeout: Annotated[float, option("--idle-timeout", "Seconds before an idle connection is closed.", LIMITS)] = 75.0,
    timeout: Annotated[float, option("--timeout", "Default deadline in s without --slo-ms.", LIMITS)] = 10.0,
    watchdog: Annotated[float, option("--watchdog", "A batch fails after so many seconds.", LIMITS)] = 30.0,
    grace: Annotated[float, option("--grace", "Seconds for running requests at SIGTERM.", LIMITS)] = 30.0,
    keys: Annotated[Path | None, option("--keys", "Clients need a key of this file (`leafbeam keys`).", CLIENTS)] = None,
    rate: Annotated[float | None, option("--rate", "With --keys: requests a second of each, at most.", CLIENTS)] = None,
    insecure: Annotated[bool, option("--insecure", "Let other machines reach a server without keys.", CLIENTS)] = False,
    tls_certificate: Annotated[Path | None, option("--tls-certificate", "Answer over TLS: a PEM file.", CLIENTS)] = None,
    tls_key: Annotated[Path | None, option("--tls-key", "Its private key.", CLIENTS, default="in that file")] = None,
    cors: Annotated[
        list[str] | None, option("--cors", "A site whose pages may read answers; repeatable.", CLIENTS, metavar="ORIGIN")
    ] = None,
    log_format: Annotated[
        Literal["text", "json"], option("--log-format", "Lines of the log.", OBSERVED, metavar="text|json")
    ] = "text",
    log_requests: Annotated[
        Literal["off", "on", "histories"],
        option("--log-requests", "A line for each: on; histories, with them.", OBSERVED, metavar="NAME"),
    ] = "off",
    traces: Annotated[
        str | None, option("--traces", "OTLP collector for OpenTelemetry traces.", OBSERVED, default="OTEL_*", metavar="URL")
    ] = None,
    text_model: Annotated[
        Path | None, option("--text-model", "A Qwen3 directory to serve texts of, beside --run or alone.", TEXT)
    ] = None,
    text_timeout: Annotated[float, option("--text-timeout", "Seconds after which a text is cut off.", TEXT)] = 60.0,
    text_queue: Annotated[int, option("--text-queue", "Requests for texts that may wait; more get 429.", TEXT)] = 64,
    text_tokens: Annotated[int, option("--text-tokens", "Tokens of running texts, their prompts too.", TEXT)] = 16_384,
) -> None:
    """Serve POST /v1/recommend and, for OpenAI's clients, /v1/completions and /v1/chat/completions; /docs lists all routes.

    SIGHUP reloads rules and catalog.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until rules are loaded, there is nothing to reload
    paths = None if run is None and text_model is not None else RunDirectory(run or DEFAULT_RUN)
    if paths is not None:
        paths.check(*ENGINE_FILES)
    else:
        _refuse_options_of_items(context)
    if text_model is not None:
        require("`leafbeam serve --text-model`", "tokenizers", "outlines_core")
    require(
        "`leafbeam serve`",
        *("duckdb", "msgspec", "prometheus_client", "pyarrow", "starlette", "torch", "uvicorn"),
        extra="serve",
    )
    require_device(device)
    from leafbeam.catalog import rules_from_text
    from leafbeam.engine import CatalogFiles, Limits, Settings
    from leafbeam.ops.attention.costs import AttentionCosts
    from leafbeam.serve import ChangeFiles, ConnectionLimits, Exposure, KeyFile, Observation
    from leafbeam.serve import serve as run_server
    from leafbeam.serve.log_format import configure_log
    from leafbeam.serve.observation import traces_from_environment
    from leafbeam.text import TextService, TextSettings

    if rate is not None and keys is None:
        raise ArgumentError("--rate goes with --keys: it is the rate of each key")
    key_file = None if keys is None else KeyFile(keys, rate=rate)
    exposure = Exposure(certificate=tls_certificate, private_key=tls_key, origins=tuple(cors or ()), insecure=insecure)
    exposure.check(host, has_keys=key_file is not None)
    configure_log(log_format, values=log_requests == "histories")
    tracer = None
    if traces is not None or traces_from_environment():
        from leafbeam.serve import Traces

        tracer = Traces.to(traces)
    settings = Settings(
        num_beams=num_beams,
        widest_beams=widest_beams,
        workers=workers,
        threads=threads,
        precision=precision,
        max_batch=max_batch,
        max_batch_tokens=max_batch_tokens,
        max_beam_rows=max_beam_rows,
        max_queue=max_queue,
        slo_s=None if slo_ms is None else slo_ms / 1e3,
        timeout_s=timeout,
        wait_s=wait_ms / 1e3,
        watchdog_s=watchdog,
        prompt_store_mb=prompt_store_mb,
        graphs=graphs,
        graph_mb=graph_mb,
        attention_costs=None if attention_costs is None else AttentionCosts.load(attention_costs),
    )
    bounds = {} if max_connections is None else {"max_connections": max_connections}

    def on_ready(line: str) -> None:
        stdout().print(line, soft_wrap=True)
        url = line.split(" at ", 1)[-1].split(" ", 1)[0]
        name, body = "recommend", {"history": [], "num_items": 10}
        if paths is None and text is not None:
            name, body = "completions", {"model": text.name, "prompt": "A lamp is a", "guided_choice": ["thing", "person"]}
        header = [] if keys is None else ["-H", "authorization: Bearer KEY"]
        next_step(stdout(), "curl", f"{url}/v1/{name}", *header, "-H", "content-type: application/json", "-d", json.dumps(body))

    text = None
    if text_model is not None:
        text_settings = TextSettings(max_queue=text_queue, max_tokens=text_tokens, timeout_s=text_timeout)
        text = TextService.load(text_model, settings=text_settings)
    catalog = None
    if paths is not None:
        catalog = CatalogFiles(
            index=paths.trie,
            catalog=paths.catalog,
            rules=[paths.rules, rules_from_text(rule or [])],
            refresh=refresh,
            memory=paths.fitted_memory,
            learn=learn,
            rule_timeout_s=rule_timeout,
            verify=not no_verify,
        )
    run_server(
        None if paths is None else paths.model,
        catalog,
        text=text,
        changes=None if paths is None else ChangeFiles(directory=paths.live, encoder=paths.load_encoder(), changes=changes),
        keys=key_file,
        exposure=exposure,
        observation=Observation(log=log_requests, traces=tracer),
        host=host,
        port=port,
        device=device,
        limits=Limits(max_beams=max_beams, max_items=min(max_beams, Limits().max_items)),
        settings=settings,
        max_body_bytes=max_body_kb * 1024,
        max_batch_bytes=max_batch_kb * 1024,
        connections=ConnectionLimits(idle_s=idle_timeout, **bounds),
        http_workers=http_workers,
        grace_s=grace,
        on_ready=on_ready,
    )
