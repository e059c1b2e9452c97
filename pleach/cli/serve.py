"""`pleach recommend` and `pleach serve`."""

from pathlib import Path
from typing import Annotated

import typer

from pleach.cli.run import RunDirectory, RunOption
from pleach.cli.screen import next_step, stdout
from pleach.errors import ArgumentError

__all__ = ["recommend", "serve"]

DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...")]


def recommend(
    run: RunOption = Path("runs/shop"),
    history: Annotated[str, typer.Option("--history", help="Item ids, oldest first, with commas between them.")] = "",
    user: Annotated[str, typer.Option("--user", help="Or a user of the log: everything that they took.")] = "",
    rules: Annotated[str, typer.Option("--rules", help="Names of rules.toml, all of which hold.")] = "",
    deny: Annotated[str, typer.Option("--deny", help="Item ids that must not come back.")] = "",
    num_items: Annotated[int, typer.Option("--items", help="How many items at most.")] = 10,
    num_beams: Annotated[int | None, typer.Option("--beams", help="Beams of the search. [dim]20[/dim]")] = None,
    scoring: Annotated[str, typer.Option("--scoring", help="full or allowed: how probabilities are normalised.")] = "full",
    device: DeviceOption = "cpu",
) -> None:
    """Ask once: what comes next after these items, under these rules? A table with titles."""
    from pleach.cli import asking
    from pleach.engine import Engine, Request

    if bool(history) == bool(user):
        raise ArgumentError("say whose next item is wanted: either --history A,B,C or --user U")
    here = RunDirectory(run)
    console = stdout()
    engine = Engine.load(
        here.need(here.model, "train"),
        here.need(here.trie, "build"),
        here.need(here.catalogue, "build"),
        here.need(here.rules, "build"),
        device=device,
    )
    taken = asking.history_of(here, user) if user else asking.ids_of(history, engine.trie)
    request = Request(
        history=tuple(taken),
        num_items=num_items,
        rules=tuple(name.strip() for name in rules.split(",") if name.strip()),
        deny_item_ids=tuple(asking.ids_of(deny, engine.trie)),
        num_beams=num_beams,
        scoring=asking.scoring_of(scoring),
    )
    (result,) = engine.recommend([request])
    asking.show(console, engine, request, result)
    next_step(console, "pleach", "serve", "--run", run)


def serve(
    run: RunOption = Path("runs/shop"),
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = 8000,
    num_beams: Annotated[int, typer.Option("--beams", help="Beams of requests that name none.")] = 20,
    max_batch: Annotated[int, typer.Option("--max-batch", help="How many requests are one search.")] = 16,
    max_queue: Annotated[int, typer.Option("--max-queue", help="How many may wait; one more is refused.")] = 256,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that a request may wait for its turn.")] = 10.0,
    device: DeviceOption = "cpu",
) -> None:
    """Answer over HTTP: POST /v1/recommend, /healthz, /readyz, /metrics, /docs.

    SIGHUP reads rules.toml and the catalogue again, with no rebuild; SIGTERM and Ctrl-C finish what runs, then stop.
    """
    import logging

    from pleach.serve import serve as answer

    here = RunDirectory(run)
    console = stdout()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S")

    def announce(line: str) -> None:
        console.print(line, soft_wrap=True)
        url = line.split(" at ", 1)[-1].split(" ", 1)[0]
        body = '{"history": [], "num_items": 10}'
        next_step(console, "curl", f"{url}/v1/recommend", "-H", "content-type: application/json", "-d", body)

    answer(
        here.need(here.model, "train"),
        here.need(here.trie, "build"),
        here.need(here.catalogue, "build"),
        here.need(here.rules, "build"),
        host=host,
        port=port,
        device=device,
        num_beams=num_beams,
        max_batch=max_batch,
        max_queue=max_queue,
        timeout_s=timeout,
        announce=announce,
    )
