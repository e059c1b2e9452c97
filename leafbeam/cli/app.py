"""The typer application: all commands by name, and the one place that reports errors."""

from typing import Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from leafbeam import __version__
from leafbeam.cli import (
    demo,
    doctor,
    evaluate,
    generate,
    import_run,
    index,
    init,
    items,
    keys,
    recommend,
    serve,
    sids,
    status,
    train,
)
from leafbeam.cli.console import stderr
from leafbeam.errors import AccessDeniedError, LeafbeamError

_NUMBERS = {"int_parsing": "a whole number", "float_parsing": "a number"}  # by pydantic's type of an error


class Commands(TyperGroup):
    """A group of commands that reports a user's mistake in one message and exits with code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            _name_value(error)
            raise
        except (LeafbeamError, OSError) as error:
            if ctx.params.get("debug"):
                raise
            message = str(error)
            if isinstance(error, OSError) and error.filename is not None:
                message = f"{error.filename}: {error.strerror}"
            hint = "; a command reads its key from LEAFBEAM_KEY" if isinstance(error, AccessDeniedError) else ""
            stderr().print(Text.assemble(("Error: ", "bold red"), f"{message}{hint}"), soft_wrap=True)
            raise typer.Exit(2) from error


def _name_value(error: typer.BadParameter) -> None:
    """Name the value that is not a number, because pydantic's message, which typer shows, leaves it out."""
    cause: Any = error.__cause__
    if hasattr(cause, "errors"):
        problem = cause.errors()[0]
        if problem["type"] in _NUMBERS:
            error.message = f"{str(problem['input'])[:80]!r} is not {_NUMBERS[problem['type']]}"


app = typer.Typer(
    name="leafbeam",
    cls=Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Generative retrieval that can only return items you may show.\n\n"
    "From an interaction log to recommendations: init asks about your files, then fit-sids, train, evaluate, build, and "
    "recommend or serve. Without a command, leafbeam shows the runs here and the next step. "
    "[bold]leafbeam import[/bold] begins with a model and Semantic IDs of your own. "
    "[bold]leafbeam demo[/bold] runs all of them on a synthetic shop.",
)


def show_version(requested: bool) -> None:
    if requested:
        print(f"leafbeam {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Read the options of every command, and show the runs here where there is no command."""
    if context.invoked_subcommand is None:
        status.show_status()


app.command("init")(init.init)
app.command("fit-sids")(sids.fit_sids)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("build")(index.build)
app.command("import")(import_run.import_run)
app.command("recommend")(recommend.recommend)
app.command("serve")(serve.serve)
app.add_typer(items.app, name="items")
app.add_typer(keys.app, name="keys")
app.command("top")(status.top)
app.command("generate")(generate.generate)
app.command("inspect")(index.inspect)
app.command("doctor")(doctor.doctor)
app.command("make-shop")(demo.make_shop)
app.command("demo")(demo.demo)
