"""`leafbeam make-shop` and `leafbeam demo`."""

import time
from pathlib import Path
from typing import Annotated

from leafbeam import datasets
from leafbeam.cli.console import done, next_step, stdout
from leafbeam.cli.options import option
from leafbeam.errors import DataError, counted
from leafbeam.extras import require


def make_shop(
    out: Annotated[Path, option("--out", "The directory to write items.parquet, interactions.parquet and rules.toml into.")],
    items: Annotated[int, option("--items", "The number of items.")] = 20_000,
    users: Annotated[int, option("--users", "The number of users.")] = 20_000,
    repeats: Annotated[
        float, option("--repeats", "The share of interactions in which a user takes an item again; 0.5 resembles music.")
    ] = 0.0,
    seed: Annotated[int, option("--seed", "The random seed; the same seed gives the same shop.")] = 0,
    force: Annotated[bool, option("--force", "Replace tables that exist.")] = False,
) -> None:
    """Generate a synthetic shop: items with attributes, and users whose purchases follow learnable patterns."""
    existing = [path for name in ("items", "interactions") if (path := out / f"{name}.parquet").exists()]
    if existing and not force:
        raise DataError(f"{existing[0]} exists: choose another --out, or pass --force to replace it")
    require("`leafbeam make-shop`", "pyarrow")
    from leafbeam.demo.rules import write_rules

    began = time.perf_counter()
    shop = datasets.make_shop(num_items=items, num_users=users, repeats=repeats, seed=seed)
    shop.save(out)
    rules = write_rules(out / "rules.toml", shop.items)
    interactions = counted(shop.interactions.num_rows, "interaction")
    counts = f"{counted(shop.items.num_rows, 'item')}, {counted(users, 'user')}, {interactions}"
    done(stdout(), f"{counts}; rules {', '.join(rules)}", since=began)
    next_step(stdout(), "leafbeam", "fit-sids", "--data", out, "--run", out)


def demo(
    data: Annotated[
        Path | None,
        option("--data", "The directory of your own interactions.* and items.*, with the default columns.", default="a shop"),
    ] = None,
    minutes: Annotated[
        float | None, option("--minutes", "The minutes of training.", default="0.75 for the shop, 6 for your data")
    ] = None,
    runs: Annotated[Path, option("--runs", "The directory in which the run directory is made.")] = Path("runs"),
    items: Annotated[int, option("--items", "The number of items of the shop.")] = 5_000,
    users: Annotated[int, option("--users", "The number of users of the shop.")] = 8_000,
    seed: Annotated[int, option("--seed", "The random seed of the shop, the Semantic IDs and the training.")] = 0,
    open_page: Annotated[
        bool, option("--open", "Leave the server running at the end, and open its page in a browser.")
    ] = False,
) -> None:
    """Run every step from a log to recommendations that obey rules, and show the results."""
    if data is not None and not data.is_dir():
        what = f"{data} is not a directory" if data.exists() else f"there is no directory {data}"
        raise DataError(
            f"{what}: the demo reads interactions.parquet and items.parquet (or .csv) from a directory; if your tables have "
            "other "
            "names or columns, begin with `leafbeam fit-sids --data FILE --items FILE`"
        )
    require(
        "`leafbeam demo`",
        *("duckdb", "httpx", "msgspec", "prometheus_client", "pyarrow", "scipy", "sklearn", "starlette", "torch", "uvicorn"),
        extra="train,serve",
    )
    from leafbeam.demo.pipeline import Demo

    Demo(
        data=data,
        minutes=minutes,
        runs=runs,
        num_items=items,
        num_users=users,
        seed=seed,
        console=stdout(),
        open_page=open_page,
    ).run()
