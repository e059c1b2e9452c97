"""`leafbeam recommend` and `leafbeam serve`."""

import gc
import logging
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import next_step, stdout
from leafbeam.cli.options import DeviceOption, RunOption, ScoringOption
from leafbeam.cli.run import RunDirectory
from leafbeam.errors import ArgumentError
from leafbeam.extras import require, require_device

__all__ = ["recommend", "serve"]


def recommend(
    run: RunOption = Path("runs/shop"),
    history: Annotated[str, typer.Option("--history", help="Item ids, oldest first, with commas between them.")] = "",
    user: Annotated[str, typer.Option("--user", help="A user of the log, in place of --history.")] = "",
    rules: Annotated[str, typer.Option("--rules", help="Names of rules that every item must pass, with commas.")] = "",
    deny: Annotated[str, typer.Option("--deny", help="Item ids to exclude, with commas.")] = "",
    num_items: Annotated[int, typer.Option("--items", help="Items to return, at most.")] = 10,
    num_beams: Annotated[int | None, typer.Option("--beams", help="Beams of the search. [dim]20[/dim]")] = None,
    scoring: ScoringOption = "full",
    device: DeviceOption = "cpu",
    users: Annotated[
        Path | None,
        typer.Option("--users", help="A Parquet file or directory of users (user_id, history), in place of --history."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="With --users: the directory to write Parquet into.")] = None,
    deny_history: Annotated[
        bool, typer.Option("--deny-history", help="With --users: exclude the items of each user's history.")
    ] = False,
    on_ray: Annotated[bool, typer.Option("--ray", help="With --users: run on a Ray cluster.")] = False,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", help="Address of the cluster. [dim]RAY_ADDRESS, or this machine[/dim]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="With --ray: number of engines. [dim]As many as fit[/dim]")
    ] = None,
) -> None:
    """Recommend the next items after a history, under rules, as a table with titles.

    With --users, recommend for every user of a table; an interrupted call continues where it stopped.
    """
    if [bool(history), bool(user), users is not None].count(True) != 1:
        raise ArgumentError("expected one of --history A,B,C, --user U or --users TABLE")
    if (users is None) != (out is None):
        raise ArgumentError("--users and --out go together: the table to read and the directory to write")
    if users is None and (on_ray or deny_history or workers is not None or ray_address is not None):
        raise ArgumentError("--ray, --ray-address, --workers and --deny-history go with --users")
    if users is not None and deny:
        raise ArgumentError("--deny goes with --history and --user; for a table there is --deny-history")
    paths = RunDirectory(run)
    files = engine_files(paths)
    if user:
        paths.existing(paths.source, "fit-sids")
    require("`leafbeam recommend`", "duckdb", "pyarrow", "torch")
    if on_ray:
        require("`leafbeam recommend --ray`", "ray")
    else:
        require_device(device)
    rule_names = split_names(rules)
    if users is not None and out is not None:
        from leafbeam.cli.batch import recommend_table
        from leafbeam.integrations.batch import RequestTemplate

        template = RequestTemplate(
            num_items=num_items, num_beams=num_beams, scoring=scoring, rules=rule_names, deny_history=deny_history
        )
        recommend_table(paths, users, out, template, device=device, on_ray=on_ray, address=ray_address, workers=workers)
        return
    gc.disable()  # imports make a million lasting objects: looking through them takes a sixth of this command
    try:
        from leafbeam.cli import output
        from leafbeam.engine import CatalogFiles, Engine, Request
    finally:
        gc.enable()

    console = stdout()
    model, index, catalog, rules_path = files
    catalog_files = CatalogFiles(index=index, catalog=catalog, rules=rules_path)
    with closing(Engine.load(model, catalog_files, device=device)) as engine:
        request = Request(
            history=tuple(output.history_of(paths, user) if user else output.parse_ids(history, engine.trie)),
            user=user or None,
            num_items=num_items,
            rules=rule_names,
            deny_item_ids=tuple(output.parse_ids(deny, engine.trie)),
            num_beams=num_beams,
            scoring=scoring,
        )
        output.show(console, engine, request, engine.recommend(request))
    next_step(console, "leafbeam", "serve", "--run", run)


def serve(
    run: RunOption = Path("runs/shop"),
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = 8000,
    device: DeviceOption = "cpu",
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="NAME=SQL", help="A rule beside those of rules.toml (NAME@60s=SQL); repeatable."),
    ] = None,
    refresh: Annotated[
        str | None,
        typer.Option("--refresh", metavar="60s", help="Interval between evaluations of rules that name no interval."),
    ] = None,
    num_beams: Annotated[int, typer.Option("--beams", help="Beams of requests that name none.")] = 20,
    max_beams: Annotated[int, typer.Option("--max-beams", help="Maximum beams, and items, of one request.")] = 512,
    slo_ms: Annotated[
        float | None,
        typer.Option("--slo-ms", help="Default deadline; requests that cannot meet it are rejected with 429."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Default deadline in seconds without --slo-ms.")] = 10.0,
    workers: Annotated[int, typer.Option("--workers", help="Threads that run batches over one copy of the weights.")] = 1,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads of each worker's matrix products. [dim]cores / workers[/dim]")
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", help="Maximum requests in one batch.")] = 16,
    max_batch_tokens: Annotated[int, typer.Option("--max-batch-tokens", help="Maximum prompt tokens in one batch.")] = 32_768,
    max_beam_rows: Annotated[int, typer.Option("--max-beam-rows", help="Maximum requests x beams in one batch.")] = 8_192,
    wait_ms: Annotated[float, typer.Option("--wait-ms", help="Maximum batching delay while a worker is idle.")] = 0.0,
    max_queue: Annotated[int, typer.Option("--max-queue", help="Maximum queued requests; one more gets 429.")] = 256,
    prompt_store_mb: Annotated[
        int, typer.Option("--prompt-store-mb", help="Memory for the keys and values of recent prompts, to extend them later.")
    ] = 0,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="With --device cuda: capture whole decodes as CUDA graphs at the start.")
    ] = False,
    graph_mb: Annotated[int, typer.Option("--graph-mb", help="With --graphs: memory for them.")] = 1024,
    watchdog: Annotated[
        float, typer.Option("--watchdog", help="Seconds after which a running batch fails and the server is not ready.")
    ] = 30.0,
    grace: Annotated[float, typer.Option("--grace", help="Seconds for running requests after SIGTERM.")] = 30.0,
    max_body_kb: Annotated[int, typer.Option("--max-body-kb", help="Maximum length of a request's body.")] = 1024,
    batching: Annotated[bool, typer.Option(help="Run several requests in one batch.")] = True,
    overlap: Annotated[bool, typer.Option(help="Run the host's work beside the workers.")] = True,
    predict: Annotated[
        bool, typer.Option(help="Reject requests that the latency model predicts to miss their deadline.")
    ] = True,
) -> None:
    """Serve recommendations over HTTP: POST /v1/recommend, /healthz, /readyz, /metrics, /docs.

    SIGHUP reloads rules.toml and the catalog without a rebuild. SIGTERM and Ctrl-C answer admitted requests, then stop.
    """
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until rules are loaded, there is nothing to reload
    if threads is not None and threads < 1:
        raise ArgumentError(f"--threads {threads}: expected at least 1")
    model, index, catalog, rules_path = engine_files(RunDirectory(run))
    require(
        "`leafbeam serve`",
        *("duckdb", "fastapi", "prometheus_client", "pyarrow", "torch", "uvicorn"),
        extra="serve",
    )
    require_device(device)
    import torch

    from leafbeam.catalog import rules_from_text
    from leafbeam.engine import CatalogFiles, Limits, Settings
    from leafbeam.serve import serve as run_server

    console = stdout()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S", force=True)
    settings = Settings(
        num_beams=num_beams,
        workers=workers,
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
        batching=batching,
        overlap=overlap,
        predict=predict,
    )
    if threads is not None or workers > 1:  # two workers that both use all cores are slower than one
        torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // workers))

    def on_ready(line: str) -> None:
        console.print(line, soft_wrap=True)
        url = line.split(" at ", 1)[-1].split(" ", 1)[0]
        body = '{"history": [], "num_items": 10}'
        next_step(console, "curl", f"{url}/v1/recommend", "-H", "content-type: application/json", "-d", body)

    run_server(
        model,
        CatalogFiles(index=index, catalog=catalog, rules=[rules_path, rules_from_text(rule or [])], refresh=refresh),
        host=host,
        port=port,
        device=device,
        limits=Limits(max_beams=max_beams, max_items=min(max_beams, Limits().max_items)),
        settings=settings,
        max_body_bytes=max_body_kb * 1024,
        grace_s=grace,
        on_ready=on_ready,
    )


def engine_files(paths: RunDirectory) -> tuple[Path, Path, Path, Path]:
    """The model, the index, the catalog and the rules of a run. Raises CheckpointError where one does not exist."""
    return (
        paths.existing(paths.model, "train"),
        paths.existing(paths.trie, "build"),
        paths.existing(paths.catalog, "build"),
        paths.existing(paths.rules, "build"),
    )


def split_names(text: str) -> tuple[str, ...]:
    """`a,b` as names, without blanks."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
