"""The app: every command by name, and one way to say that something went wrong."""

import os
from importlib.metadata import version
from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from leafbeam.cli import demo, evaluate, index, serve, sids, train
from leafbeam.cli.console import stderr
from leafbeam.errors import LeafbeamError

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """A group of commands whose users' mistakes end in one message and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (LeafbeamError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            kind = "" if isinstance(error, LeafbeamError) else f"{type(error).__name__}: "
            stderr().print(Text.assemble(("Error: ", "bold red"), kind, str(error)), soft_wrap=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    name="leafbeam",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Generative retrieval that can only return items you may show.\n\n"
    "From a log to recommendations: fit-sids, train, evaluate, build, recommend or serve. "
    "No log at hand? [bold]leafbeam demo[/bold] invents a shop and walks the whole way.",
)


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"leafbeam {version('leafbeam')}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    show: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Options of every command."""


app.command("fit-sids")(sids.fit_sids)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("build")(index.build)
app.command("recommend")(serve.recommend)
app.command("serve")(serve.serve)
app.command("inspect")(index.inspect)
app.command("make-shop")(demo.make_shop)
app.command("demo")(demo.demo)


def main() -> None:
    """The `leafbeam` command."""
    # Threads that wait should sleep: where other programs want the cores too, spinning ones are ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()
