"""`leafbeam keys`: the keys of a server's clients."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from leafbeam.cli.console import stdout
from leafbeam.cli.options import option
from leafbeam.serve.keys import add_key, read_keys, remove_key

KeysOption = Annotated[Path, option("--keys", "The file of keys, as for `leafbeam serve --keys`.")]
NameArgument = Annotated[str, typer.Argument(help="The key's name, which logs may show.")]
DEFAULT_KEYS = Path("keys.json")


def add(
    name: NameArgument,
    keys: KeysOption = DEFAULT_KEYS,
    scope: Annotated[
        Literal["read", "write", "admin"],
        option(
            "--scope",
            "The scope of the key: read (recommendations and metrics), write (also items and interactions) or admin (also "
            "rules and snapshots).",
            metavar="read|write|admin",
        ),
    ] = "read",
    rate: Annotated[
        float | None, option("--rate", "The largest number of requests per second.", default="the server's")
    ] = None,
) -> None:
    """Make a key and print it once; the file keeps only its hash."""
    print(add_key(keys, name, scope, rate))


def remove(name: NameArgument, keys: KeysOption = DEFAULT_KEYS) -> None:
    """Remove a key; a running server refuses it within a second."""
    remove_key(keys, name)
    print(f"{name} was removed from {keys}")


def show(keys: KeysOption = DEFAULT_KEYS) -> None:
    """List the names of keys, and what each may do."""
    table = Table("name", "scope", "requests a second")
    for key in read_keys(keys):
        table.add_row(key.name, key.scope, "" if key.rate is None else f"{key.rate:g}")
    stdout().print(table)


app = typer.Typer(no_args_is_help=True, help="Manage the keys of a server's clients, which `leafbeam serve --keys` requires.")
app.command("add")(add)
app.command("remove")(remove)
app.command("list")(show)
