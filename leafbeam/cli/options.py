"""Options that several commands share, how an option is written, and how its value is read."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

import typer

from leafbeam.config_file import Setting, load_config, settings_of, to_toml
from leafbeam.errors import ArgumentError, counted
from leafbeam.extras import require
from leafbeam.precision import Precision

N = TypeVar("N", int, float)
Format = Literal["tables", "amazon", "movielens", "cornac"]
Incomplete = Literal["refuse", "drop"]
Order = Literal["time", "file"]
SplitBy = Literal["user", "time"]
TimeUnit = Literal["s", "ms", "us", "ns"]
DEFAULT_RUN = Path("runs/shop")
DEADLINE_S = 60.0  # of a batch of items that a command sends to a server
KEY = "LEAFBEAM_KEY"  # the variable of the environment with a command's key for a server
PLOT_FORMATS = (".pdf", ".png", ".svg")
_NUMBER = re.compile(r"(\d(?:_?\d){0,19})(?:(e|\^)(\d{1,2}))?")
_PLAN = "expected N,V,L: items, codebook and levels, such as 10000000,2048,8, 1e7,2048x2048x8192 or 10^8,256,4"


def parse_sizes(text: str, option: str = "--codebook-sizes") -> tuple[int, ...]:
    """Parse codebook sizes: `2048` or `2048,2048,8192`."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,9}", word) for word in words):
        raise ArgumentError(f"{option} {text}: expected the number of codes of each level, at least 1, such as 256,256,256")
    return tuple(int(word) for word in words)


def parse_bytes(text: str) -> int:
    """Parse a number of bytes: `4GiB`, `512 MB` or `1000000`."""
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,6})?) ?(?:([kmgt])(i?)b?|b)?", text.strip().lower())
    if match is None:
        raise ArgumentError(f"--memory-limit {text}: expected a number of bytes, such as 4GiB, 512MB or 1000000000")
    unit = (1024 if match[3] else 1000) ** ("kmgt".index(match[2]) + 1) if match[2] else 1
    return int(float(match[1]) * unit)


def parse_plan(text: str) -> tuple[int, tuple[int, ...]]:
    """Parse a number of items and the codebook sizes: `N,V,L` or `N,V1xV2x...`."""
    words = [word.strip() for word in text.split(",")]
    if len(words) not in (2, 3):
        raise ArgumentError(f"--plan {text}: {_PLAN}")
    num_items, *sizes = (_parse_whole(word, text) for word in [words[0], *words[1].split("x")])
    num_levels = _parse_whole(words[2], text) if len(words) == 3 else len(sizes)
    if len(words) == 2 and len(sizes) == 1:
        raise ArgumentError(f"--plan {text} names no number of levels: {_PLAN}")
    if len(sizes) == 1 and num_levels <= 1000:
        return num_items, tuple(sizes * num_levels)
    if len(sizes) != num_levels:
        raise ArgumentError(
            f"--plan {text} names {counted(len(sizes), 'codebook')} for {counted(num_levels, 'level')}: {_PLAN}"
        )
    return num_items, tuple(sizes)


def _parse_whole(word: str, text: str) -> int:
    match = _NUMBER.fullmatch(word)
    if match is None:
        raise ArgumentError(f"--plan {text}: {word!r} is not a whole number; {_PLAN}")
    base, operator, power = int(match[1]), match[2], int(match[3] or 0)
    return base * 10**power if operator == "e" else base**power if operator == "^" else base


def check_plot(path: Path) -> None:
    """Check that a plot can be written, before the work begins.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        ArgumentError: If the ending is not that of a plot.
    """
    require("--plot", "matplotlib")
    if path.suffix not in PLOT_FORMATS:
        raise ArgumentError(f"--plot {path}: expected a file name that ends in {', '.join(PLOT_FORMATS)}")
    if not path.parent.is_dir():
        raise ArgumentError(f"--plot {path}: the directory {path.parent} does not exist")


def option(
    flags: str,
    text: str,
    group: str | None = None,
    *,
    default: str | None = None,
    metavar: str | None = None,
    hidden: bool = False,
) -> object:
    """Return an option of a command.

    flags: its names with spaces between them. text: its help. group: its panel in `--help`, None the first. default: in words,
    where the value in the code (None) says nothing. hidden: whether `--help` leaves it out.
    """
    shown = default or True
    return typer.Option(*flags.split(), help=text, rich_help_panel=group, show_default=shown, metavar=metavar, hidden=hidden)


def with_options(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of dataclasses as options, and pass it the dataclasses as its last arguments.

    Args:
        groups: The dataclasses, in the order of the arguments. Their fields have typer's annotations, and maybe defaults.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters = list(inspect.signature(command).parameters.values())
        own, last = parameters[: -len(groups)], parameters[-len(groups) :]
        added = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=field.type,
            )
            for group in groups
            for field in fields(group)
        ]

        def run(**values: object) -> None:
            options = {
                parameter.name: group(**{field.name: values.pop(field.name) for field in fields(group)})
                for parameter, group in zip(last, groups, strict=True)
            }
            command(**values, **options)

        return _declared(run, command, [*own, *added])

    return decorate


def _declared(
    run: Callable[..., None], command: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """Return a function with the parameters that typer shall see, and the description of a command."""
    declared: object = run
    declared.__signature__ = inspect.Signature(parameters)
    declared.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    declared.__doc__ = command.__doc__
    return declared


def delimiter_of(text: str) -> str:
    """Return the delimiter of CSV that an option names: `tab` stands for a tab, which is hard to type in a shell."""
    return "\t" if text == "tab" else text


def with_settings(
    config: type, names: Mapping[str, str], hidden: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options for settings of a config, and pass it the config with the values of all options.

    Args:
        config: The class of the config, as for `load_config`.
        names: The flag of each setting that gets an option of its own, by the setting's name.
        hidden: The flags that `--help` leaves out, because few people set them.

    Returns:
        A decorator of a command whose last argument gets the config. It also gives the command --config, --set and
        --print-config; with the last, the command itself does not run.
    """
    settings = {setting.name: setting for setting in settings_of(config)}
    added = [
        inspect.Parameter(
            name.replace(".", "__"),
            inspect.Parameter.KEYWORD_ONLY,
            default=settings[name].default,
            annotation=Annotated[settings[name].kind, _setting_option(flag, settings[name], hidden=flag in hidden)],
        )
        for name, flag in names.items()
    ]
    every = [("config_file", None, ConfigOption), ("words", None, SetOption), ("prints", False, PrintConfigOption)]
    added += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, default, kind in every
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *own, last = inspect.signature(command).parameters.values()

        def run(context: typer.Context, **values: Any) -> None:
            path, words, prints = (values.pop(name) for name, _, _ in every)
            options = {parameter.name: values.pop(parameter.name) for parameter in added[: -len(every)]}
            options = {name: value for name, value in options.items() if _is_stated(context, name)}
            loaded = load_config(config(), path, words or (), **options)
            if prints:
                typer.echo(to_toml(loaded), nl=False)
                return
            command(**values, **{last.name: loaded})

        context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        return _declared(run, command, [context, *named, *added])

    return decorate


def _is_stated(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _setting_option(flag: str, setting: Setting, *, hidden: bool) -> object:
    flags = f"{flag}/ " if setting.kind is bool else flag  # so that typer adds no second flag that turns it off
    metavar = "NAME" if get_origin(setting.kind) is Literal else None
    return option(flags.strip(), setting.meaning, metavar=metavar, hidden=hidden)


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in `a,b`, without blanks."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def split_numbers(option: str, texts: Sequence[str] | None, kind: type[N]) -> dict[str, N]:
    """Return the numbers of a repeatable option by name. Raises ArgumentError unless each text is NAME=NUMBER.

    >>> split_numbers("--at-most", ["brand=2"], int)
    {'brand': 2}
    """
    numbers: dict[str, N] = {}
    for text in texts or ():
        name, _, number = (part.strip() for part in text.rpartition("="))
        if not name:
            raise ArgumentError(f"{option} {text!r}: expected a name and a number, such as {option} {text.strip() or 'name'}=2")
        if name in numbers:
            raise ArgumentError(f"{option} {name!r} is stated twice: keep one")
        try:
            numbers[name] = kind(number)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ArgumentError(f"{option} {text!r}: expected {what} after the last =, not {number!r}") from None
    return numbers


@dataclass(frozen=True, kw_only=True)
class ObjectiveOptions:
    """The options that say what a list should prefer."""

    boosts: Annotated[
        list[str] | None,
        option(
            "--boost", "A boost and its weight, which are added to the score of each item; repeatable.", metavar="BOOST=WEIGHT"
        ),
    ] = None
    at_most: Annotated[
        list[str] | None,
        option(
            "--at-most",
            "The largest number of items in a list that have the same value of a column; repeatable.",
            metavar="COLUMN=NUMBER",
        ),
    ] = None
    at_least: Annotated[
        list[str] | None,
        option(
            "--at-least",
            "The number of items of a rule that a list must have, if so many are allowed; repeatable.",
            metavar="RULE=NUMBER",
        ),
    ] = None

    @property
    def objectives(self) -> dict[str, dict[str, float] | dict[str, int]]:
        """Return the fields of a `Request`. Raises ArgumentError."""
        return {
            "boosts": split_numbers("--boost", self.boosts, float),
            "at_most": split_numbers("--at-most", self.at_most, int),
            "at_least": split_numbers("--at-least", self.at_least, int),
        }


RunOption = Annotated[Path, option("--run", "The run directory.")]
DeviceOption = Annotated[str, option("--device", "The device of the model: cpu, cuda, cuda:1 and so on.")]
PrecisionOption = Annotated[
    Precision,
    option(
        "--precision",
        "The precision of the layers' matrix products. bfloat16 and int8 run on a CPU, and answer requests only if they are "
        "faster there; fp8 runs on a GPU.",
        metavar="float32|bfloat16|int8|fp8",
    ),
]
NoVerifyOption = Annotated[
    bool,
    option("--no-verify", "Load the index without checks; a damaged index then gives wrong items or a crash."),
]
ScoringOption = Annotated[
    Literal["full", "allowed", "vocabulary"],
    option(
        "--scoring",
        "Compute probabilities over all codes of a level (full), over the allowed ones (allowed), or over the model's whole "
        "vocabulary (vocabulary).",
        metavar="full|allowed|vocabulary",
    ),
]
ConfigOption = Annotated[Path | None, option("--config", "A TOML file of settings, as --print-config writes it.")]
SetOption = Annotated[
    list[str] | None,
    option("--set", "Change one setting by its name; repeatable. --print-config lists all names.", metavar="NAME=VALUE"),
]
PrintConfigOption = Annotated[bool, option("--print-config", "Print all settings as a file for --config, and do nothing else.")]
