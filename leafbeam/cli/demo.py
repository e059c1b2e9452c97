"""`leafbeam make-shop` and `leafbeam demo`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from leafbeam.cli.console import done, next_step, stdout
from leafbeam.errors import DataError

__all__ = ["demo", "make_shop"]


def make_shop(
    out: Annotated[Path, typer.Option("--out", help="Directory for items.parquet, interactions.parquet, rules.toml.")],
    items: Annotated[int, typer.Option("--items", help="How many items.")] = 20_000,
    users: Annotated[int, typer.Option("--users", help="How many customers.")] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same shop.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace tables that are already there.")] = False,
) -> None:
    """Invent a shop: items with attributes, and customers whose visits can be learnt from."""
    from leafbeam.datasets.shop import make_shop as invent
    from leafbeam.demo.rules import write_rules

    there = [path for name in ("items", "interactions") if (path := out / f"{name}.parquet").exists()]
    if there and not force:
        raise DataError(f"{there[0]} is already there: choose another --out, or pass --force to replace it")
    console = stdout()
    began = time.perf_counter()
    shop = invent(num_items=items, num_users=users, seed=seed)
    shop.save(out)
    rules = write_rules(out / "rules.toml", shop.items)
    done(
        console,
        what=f"{shop.items.num_rows:,} items, {users:,} customers, {shop.interactions.num_rows:,} interactions; "
        f"rules {', '.join(rules)}",
        seconds=time.perf_counter() - began,
    )
    next_step(console, "leafbeam", "fit-sids", "--data", out, "--run", out)


def demo(
    data: Annotated[
        Path | None, typer.Option("--data", help="Your own data (interactions.parquet, items.parquet); else a shop.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="Training time. [dim]2 for the shop, 10 for your own data[/dim]")
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where the run directory is made.")] = Path("runs"),
    items: Annotated[int, typer.Option("--items", help="Items of the shop.")] = 20_000,
    users: Annotated[int, typer.Option("--users", help="Customers of the shop.")] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the shop, the Semantic IDs and the training.")] = 0,
) -> None:
    """Walk the whole way, from a log to recommendations that obey rules, and show it."""
    from leafbeam.demo.demo import Demo

    Demo(data=data, minutes=minutes, runs=runs, num_items=items, num_users=users, seed=seed, console=stdout()).run()
