"""`leafbeam recommend` and `leafbeam serve`."""

from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import next_step, stdout
from leafbeam.cli.run import RunDirectory, RunOption
from leafbeam.errors import ArgumentError

__all__ = ["recommend", "serve"]

DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]


def recommend(
    run: RunOption = Path("runs/shop"),
    history: Annotated[str, typer.Option("--history", help="Item ids, oldest first, with commas between them.")] = "",
    user: Annotated[
        str,
        typer.Option("--user", help="Or a user of the log: everything that they took."),
    ] = "",
    rules: Annotated[str, typer.Option("--rules", help="Names of rules.toml, all of which hold.")] = "",
    deny: Annotated[str, typer.Option("--deny", help="Item ids that must not come back.")] = "",
    num_items: Annotated[int, typer.Option("--items", help="How many items at most.")] = 10,
    num_beams: Annotated[int | None, typer.Option("--beams", help="Beams of the search. [dim]20[/dim]")] = None,
    scoring: Annotated[str, typer.Option("--scoring", help="full or allowed: how probabilities are normalised.")] = "full",
    device: DeviceOption = "cpu",
    users: Annotated[
        Path | None, typer.Option("--users", help="Or a Parquet file (or directory) of users: columns user_id, history.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="With --users: the directory of Parquet that is written.")] = None,
    deny_history: Annotated[
        bool, typer.Option("--deny-history", help="With --users: nobody gets what is in their own history.")
    ] = False,
    on_ray: Annotated[bool, typer.Option("--ray", help="With --users: on a Ray cluster.")] = False,
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", help="Of the cluster. [dim]RAY_ADDRESS, or one on this machine[/dim]")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", help="With --ray: engines. [dim]As many as fit[/dim]")] = None,
) -> None:
    """Ask once: what comes next after these items, under these rules? A table with titles.

    With --users, ask for everybody in a table; a call that was stopped goes on where it was.
    """
    from leafbeam.cli import output as asking
    from leafbeam.engine import Engine, Request

    if [bool(history), bool(user), users is not None].count(True) != 1:
        raise ArgumentError("say whose next item is wanted: either --history A,B,C or --user U, or --users TABLE")
    if (users is None) != (out is None):
        raise ArgumentError("--users and --out go together: the table that is read and the one that is written")
    here = RunDirectory(run)
    console = stdout()
    names = tuple(name.strip() for name in rules.split(",") if name.strip())
    if users is not None and out is not None:
        from leafbeam.cli.batch import recommend_table
        from leafbeam.integrations.batch import Asked

        if deny:
            raise ArgumentError("--deny goes with --history and --user; for a table there is --deny-history")
        how = asking.scoring_of(scoring)
        asked = Asked(num_items=num_items, num_beams=num_beams, scoring=how, rules=names, deny_history=deny_history)
        recommend_table(console, here, users, out, asked, device=device, on_ray=on_ray, address=ray_address, workers=workers)
        return
    if on_ray or deny_history or workers is not None or ray_address is not None:
        raise ArgumentError("--ray, --ray-address, --workers and --deny-history go with --users")
    engine = Engine.load(
        here.need(here.model, "train"),
        here.need(here.trie, "build"),
        here.need(here.catalog, "build"),
        here.need(here.rules, "build"),
        device=device,
    )
    taken = asking.history_of(here, user) if user else asking.ids_of(history, engine.trie)
    request = Request(
        history=tuple(taken),
        user=user or None,
        num_items=num_items,
        rules=names,
        deny_item_ids=tuple(asking.ids_of(deny, engine.trie)),
        num_beams=num_beams,
        scoring=asking.scoring_of(scoring),
    )
    (result,) = engine.recommend([request])
    asking.show(console, engine, request, result)
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
        str | None, typer.Option("--refresh", metavar="60s", help="How often rules are evaluated that do not say so.")
    ] = None,
    num_beams: Annotated[int, typer.Option("--beams", help="Beams of requests that name none.")] = 20,
    max_beams: Annotated[int, typer.Option("--max-beams", help="The most beams, and items, of one request.")] = 512,
    slo_ms: Annotated[
        float | None,
        typer.Option("--slo-ms", help="The objective: the deadline of requests that bring none; what cannot keep it gets 429."),
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds until a request is given up, without --slo-ms.")] = 10.0,
    workers: Annotated[int, typer.Option("--workers", help="Threads that run batches over one copy of the weights.")] = 1,
    threads: Annotated[
        int | None, typer.Option("--threads", help="Threads of each worker's matrix products. [dim]cores / workers[/dim]")
    ] = None,
    max_batch: Annotated[int, typer.Option("--max-batch", help="The most requests in one batch.")] = 16,
    max_batch_tokens: Annotated[int, typer.Option("--max-batch-tokens", help="The most prompt tokens in one batch.")] = 32_768,
    max_beam_rows: Annotated[int, typer.Option("--max-beam-rows", help="The most requests x beams in one batch.")] = 8_192,
    wait_ms: Annotated[
        float, typer.Option("--wait-ms", help="How long a batch waits for company while a worker is idle.")
    ] = 0.0,
    max_queue: Annotated[int, typer.Option("--max-queue", help="How many may wait; one more gets 429.")] = 256,
    prompt_store_mb: Annotated[
        int,
        typer.Option("--prompt-store-mb", help="Memory for prompts seen lately, so that a longer one need not be read whole."),
    ] = 0,
    graphs: Annotated[
        bool, typer.Option("--graphs", help="With --device cuda: capture whole decodes at the start, and replay them.")
    ] = False,
    graph_mb: Annotated[int, typer.Option("--graph-mb", help="With --graphs: the memory that they may take.")] = 1024,
    watchdog: Annotated[
        float, typer.Option("--watchdog", help="Seconds after which a batch is lost and the server not ready.")
    ] = 30.0,
    grace: Annotated[float, typer.Option("--grace", help="Seconds that requests may still run after SIGTERM.")] = 30.0,
    max_body_kb: Annotated[int, typer.Option("--max-body-kb", help="The longest body of a request.")] = 1024,
    batching: Annotated[bool, typer.Option(help="Run requests together.")] = True,
    overlap: Annotated[bool, typer.Option(help="Do the host's work beside the workers.")] = True,
    predict: Annotated[bool, typer.Option(help="Refuse what the step-time model says cannot be in time.")] = True,
) -> None:
    """Answer over HTTP: POST /v1/recommend, /healthz, /readyz, /metrics, /docs.

    SIGHUP reads rules.toml and the catalog again, with no rebuild; SIGTERM and Ctrl-C answer what is in, then stop.
    """
    import signal

    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nothing is loaded yet that could be read again

    import logging

    from leafbeam.catalog.rule_config import rules_from_text
    from leafbeam.engine import Limits, Settings
    from leafbeam.serve import serve as answer

    here = RunDirectory(run)
    console = stdout()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")
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
    _set_threads(workers, threads)

    def announce(line: str) -> None:
        console.print(line, soft_wrap=True)
        url = line.split(" at ", 1)[-1].split(" ", 1)[0]
        body = '{"history": [], "num_items": 10}'
        next_step(console, "curl", f"{url}/v1/recommend", "-H", "content-type: application/json", "-d", body)

    answer(
        here.need(here.model, "train"),
        here.need(here.trie, "build"),
        here.need(here.catalog, "build"),
        [here.need(here.rules, "build"), rules_from_text(rule or [])],
        host=host,
        port=port,
        device=device,
        refresh=refresh,
        limits=Limits(max_beams=max_beams, max_items=min(max_beams, Limits().max_items)),
        settings=settings,
        max_body_bytes=max_body_kb * 1024,
        grace_s=grace,
        announce=announce,
    )


def _set_threads(workers: int, threads: int | None) -> None:
    """Share the cores out among the workers: two that both want all of them are slower than one."""
    import os

    import torch

    if threads is not None and threads < 1:
        raise ArgumentError(f"--threads has to be at least 1, not {threads}")
    if threads is not None or workers > 1:
        torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) // workers))
