"""Options that several commands share, and how an option is written."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Format = Literal["tables", "amazon", "movielens", "cornac"]
Order = Literal["time", "file"]
TimeUnit = Literal["s", "ms", "us", "ns"]
DEFAULT_RUN = Path("runs/shop")


def option(flags: str, text: str, group: str | None = None, *, default: str | None = None, metavar: str | None = None) -> Any:
    """An option of a command.

    flags: its names with spaces between them. text: its help. group: its panel in `--help`, None the first. default: in words,
    where the value in the code (None) says nothing.
    """
    shown = default or True
    return typer.Option(*flags.split(), help=text, rich_help_panel=group, show_default=shown, metavar=metavar)


def with_options(shared: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The fields of a dataclass as options of a command, which gets them as its last argument.

    shared: the dataclass; its fields have typer's annotations, and defaults.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *own, last = inspect.signature(command).parameters.values()
        added = [
            inspect.Parameter(field.name, last.kind, default=field.default, annotation=field.type) for field in fields(shared)
        ]

        def run(**values: Any) -> None:
            options = shared(**{parameter.name: values.pop(parameter.name) for parameter in added})
            command(**values, **{last.name: options})

        decorated: Any = run  # of which typer reads what follows
        decorated.__signature__ = inspect.Signature([*own, *added])
        decorated.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *added]}
        decorated.__doc__ = command.__doc__
        return decorated

    return decorate


def delimiter_of(text: str) -> str:
    """Return the delimiter of CSV that an option names; `tab` is hard to type in a shell."""
    return "\t" if text == "tab" else text


def split_names(text: str) -> tuple[str, ...]:
    """`a,b` as names, without blanks."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


RunOption = Annotated[Path, option("--run", "The run directory.")]
DeviceOption = Annotated[str, option("--device", "Device of the model: cpu, cuda, cuda:1, ...")]
NoVerifyOption = Annotated[
    bool,
    option("--no-verify", "Trust the index: damage gives wrong items or a crash."),
]
ScoringOption = Annotated[
    Literal["full", "allowed"],
    option("--scoring", "Normalise over the full codebook or the allowed codes.", metavar="full|allowed"),
]
