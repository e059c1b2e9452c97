"""`leafbeam import`: a run of Semantic IDs, items and a model that other programs made."""

# pyarrow carries no types.
# pyright: reportUnknownParameterType=false

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from leafbeam import semid, tables, train
from leafbeam.cli.console import done, show_types, stdout
from leafbeam.cli.options import (
    DEFAULT_RUN,
    Format,
    Incomplete,
    Order,
    RunOption,
    TimeUnit,
    delimiter_of,
    option,
    parse_sizes,
    split_names,
    with_options,
)
from leafbeam.cli.recipes import NO_RECIPE, RECIPES, Recipe, RecipeName
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.errors import ArgumentError, CodesError, ConflictError, counted, short_repr
from leafbeam.extras import require
from leafbeam.files import replacing, write_json

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from rich.console import Console

    from leafbeam.cli.foreign_sids import ForeignSids
    from leafbeam.model import AnyModel

MODEL = "The model's tokens and prompts"
LOG = "Interactions, to evaluate or train"


@dataclass(frozen=True, kw_only=True)
class CodesOptions:
    """The options that say how the tables of codes and of items are read."""

    item_column: Annotated[
        str, option("--item-column", "The column of item ids; in a table of codes it may also be item_id.")
    ] = "item_id"
    id_column: Annotated[
        str | None, option("--id-column", "The column of item ids in the table of items.", default="as --item-column")
    ] = None
    text_ids: Annotated[bool, option("--text-ids", "Read all ids as text: “0”, not 0.")] = False
    sizes: Annotated[
        str | None,
        option("--codebook-sizes", "The number of codes of each level.", default="the model's, or from the largest codes"),
    ] = None
    transposed: Annotated[
        bool, option("--transposed", "Read a matrix of codes in which each row is a level and each column an item.")
    ] = False
    delimiter: Annotated[str, option("--delimiter", "The delimiter of CSV: one character, or tab.")] = ","
    encoding: Annotated[str, option("--encoding", "The encoding of CSV, such as latin-1 or utf-16.")] = "utf-8"

    @property
    def column_of_items(self) -> str:
        """Return the column of ids in the table of items."""
        return self.id_column or self.item_column

    @property
    def form(self) -> "tables.CsvFormat":
        """Return the format of CSV."""
        return tables.CsvFormat(delimiter=delimiter_of(self.delimiter), encoding=self.encoding)


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """The options that say which tokens of a model are codes, and what its prompts are."""

    tokens: Annotated[
        str | None,
        option(
            "--tokens",
            "The names of each level's tokens, with * for the code: '<a_*>,<b_*>'.",
            MODEL,
            default="as in a JSON index",
        ),
    ] = None
    first_token: Annotated[
        int | None, option("--first-token", "The id of the first code's token, if tokens have no names.", MODEL)
    ] = None
    prompt: Annotated[
        str | None, option("--prompt", "The text of a prompt, with {history}.", MODEL, default="the recipe's, or {history}")
    ] = None
    separator: Annotated[
        str | None,
        option("--separator", "The text between two items of a history.", MODEL, default="the recipe's, or none"),
    ] = None

    def check(self, model: Path | None, recipe: Recipe) -> None:
        """Raise ArgumentError for options that do not go together."""
        if self.tokens is not None and self.first_token is not None:
            raise ArgumentError(
                "pass either --tokens (the names of the tokens) or --first-token (the id of the first one), not both"
            )
        for name, value in vars(self).items():
            if value is None or (name == "separator" and value == ""):
                continue
            if model is None:
                raise ArgumentError(f"--{name.replace('_', '-')} needs --model")
            if recipe.load is not None:
                raise ArgumentError(
                    f"--{name.replace('_', '-')}: a checkpoint of this recipe already names its tokens: leave the option out"
                )

    def of(self, recipe: Recipe) -> "TokenOptions":
        """Return these options, with a recipe's prompt in place of those that are not given."""
        return replace(
            self,
            prompt=recipe.prompt if self.prompt is None else self.prompt,
            separator=recipe.separator if self.separator is None else self.separator,
        )


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """The options of a log of interactions."""

    data: Annotated[Path | None, option("--data", "The directory or file of interactions.", LOG)] = None
    kind: Annotated[Format, option("--format", "The format of the data, as in `fit-sids`.", LOG, metavar="NAME")] = "tables"
    user_column: Annotated[str, option("--user-column", "The column of the user of an interaction.", LOG)] = "user_id"
    time_column: Annotated[str, option("--time-column", "The column of the time of an interaction.", LOG)] = "timestamp"
    time_unit: Annotated[
        TimeUnit, option("--time-unit", "The unit of times that are written as numbers.", LOG, metavar="s|ms|us|ns")
    ] = "s"
    incomplete: Annotated[
        Incomplete,
        option(
            "--incomplete",
            "Refuse incomplete rows, or drop them.",
            LOG,
            metavar="refuse|drop",
        ),
    ] = "refuse"
    order: Annotated[
        Order,
        option(
            "--order",
            "By time (time), or as in the file, without times (file).",
            LOG,
            metavar="NAME",
        ),
    ] = "time"

    def source(self, codes: CodesOptions) -> Source:
        """Return the files of the log, and how they are read."""
        if self.kind != "tables":
            return Source(path=self.data, kind=self.kind)
        form = codes.form
        return Source(
            path=self.data,
            user_column=self.user_column,
            item_column=codes.item_column,
            time_column=self.time_column,
            id_column=codes.id_column,
            time_unit=self.time_unit,
            incomplete=self.incomplete,
            order=self.order,
            text_ids=codes.text_ids,
            delimiter=form.delimiter,
            encoding=form.encoding,
        )


@with_options(CodesOptions, TokenOptions, LogOptions)
def import_run(
    sids: Annotated[
        Path, option("--sids", "The file of Semantic IDs: a table of codes, a JSON index of tokens, a tensor or an array.")
    ],
    model: Annotated[Path | None, option("--model", "The Hugging Face directory of the model, a decoder or a T5.")] = None,
    items: Annotated[Path | None, option("--items", "The file of the items' attributes: Parquet, CSV or JSON.")] = None,
    run: RunOption = DEFAULT_RUN,
    recipe: Annotated[
        RecipeName | None,
        option("--recipe", "The published recommender whose file formats and prompts these files follow.", metavar="NAME"),
    ] = None,
    *,
    codes: CodesOptions,
    tokens: TokenOptions,
    interactions: LogOptions,
) -> None:
    """Make a run, ready to serve, from Semantic IDs, items and a model of your own.

    Without --model, a model is trained on --data.
    """
    paths = RunDirectory(run)
    if model is not None and paths.model.exists():
        raise ConflictError(f"{paths.model} exists: name another --run, or remove that one")
    own = NO_RECIPE if recipe is None else RECIPES[recipe]
    tokens.check(model, own)
    sizes = None if codes.sizes is None else parse_sizes(codes.sizes)
    require("`leafbeam import`", "duckdb", "pyarrow", *([] if model is None else ["torch"]))
    from leafbeam.cli.index import build_run
    from leafbeam.semid.table import numpy_ids
    from leafbeam.train.item_join import with_items

    console, began = stdout(), time.perf_counter()
    foreign = _read_sids(sids, codes, own)
    if sizes is not None and len(sizes) == 1:
        sizes *= foreign.numbers_NL.shape[1]
    foreign = foreign.without_offsets(sizes)
    source = interactions.source(codes)
    log = None if source.path is None else source.read()
    offered = None if items is None else tables.read_table(items, ids=(codes.column_of_items,), form=codes.form)
    table, without_sid = _items(foreign, offered, log, codes.column_of_items, text_ids=codes.text_ids)
    if log is not None:
        with_items(log, table)  # its mistakes are said now, not by `evaluate`
    loaded, codes_NL = (None, foreign.numbers_NL) if model is None else _load(model, foreign, sizes, tokens, own)
    not_applied = ""
    if model is not None and loaded is not None:
        sizes = loaded.vocabulary.codebook_sizes
        not_applied = _settings_not_applied(model, loaded) if model.is_dir() else ""
    sizes = sizes or foreign.codebook_sizes or tuple((foreign.numbers_NL.max(axis=0) + 1).tolist())
    sid_table = semid.SidTable(item_ids=numpy_ids(table["item_id"]), codes=codes_NL, codebook_sizes=sizes)

    _write(paths, table, source, sid_table)
    if model is not None and loaded is not None:
        _save_model(console, loaded, paths, began, model if not_applied else None)
        _show_decoding(console, model, not_applied, recipe)
    sid_table.save(paths.sids)
    show_types(console, table)
    figures = _show_codes(console, foreign, sid_table, without_sid, f"{paths.sids}: ", began)
    paths.add_to_report("import", {"sids": str(sids), "model": None if model is None else str(model), **figures})
    build_run(run, False, [])


def _read_sids(sids: Path, codes: CodesOptions, recipe: Recipe) -> "ForeignSids":
    from leafbeam.cli.foreign_sids import read_sids

    return read_sids(
        sids,
        id_column=recipe.id_column if codes.item_column == "item_id" else codes.item_column,
        form=codes.form,
        transposed=codes.transposed or recipe.transposed,
        packed_sizes=recipe.packed_sizes,
    )


def _write(paths: RunDirectory, table: "pa.Table", source: Source, sid_table: "semid.SidTable") -> None:
    """Write the items and the source of a run. Raises ConflictError if the run has other Semantic IDs."""
    import pyarrow.parquet as pq

    if paths.sids.exists() and semid.SidTable.load(paths.sids).digest != sid_table.digest:
        raise ConflictError(f"{paths.sids} has other Semantic IDs: name another --run, or remove that one")
    paths.path.mkdir(parents=True, exist_ok=True)
    with replacing(paths.items) as part:
        pq.write_table(table, part, write_page_checksum=True)
    replace(source, listed=paths.items).save(paths.source)


def _save_model(console: "Console", model: "AnyModel", paths: RunDirectory, began: float, settings_of: Path | None) -> None:
    """Write the model into the run. settings_of: a directory whose generation config goes with it, so that `serve` names it."""
    model.save_pretrained(paths.model)
    if settings_of is not None:
        from leafbeam.model.weights import read_generation_config

        write_json(paths.model / "generation_config.json", read_generation_config(settings_of))
    around = model.vocabulary.prompt_tokens
    prompts_shown = " ".join(map(str, [*around.before, "HISTORY", *around.after]))
    done(console, f"{paths.model}: {type(model).__name__}; prompts are the tokens {prompts_shown}", since=began)


def _show_decoding(console: "Console", model: Path, not_applied: str, recipe: RecipeName | None) -> None:
    """Print how the model's own decoding differs from leafbeam's search. not_applied: settings of its generation config."""
    from leafbeam.model.generation_settings import not_applied_text

    if not_applied:
        console.print(not_applied_text(model, not_applied), style="yellow", soft_wrap=True)
    if recipe is not None:
        console.print(
            f'requests with "scoring": "{RECIPES[recipe].scoring}" have the answers of {recipe}\'s own decoding',
            style="dim",
            soft_wrap=True,
        )


def _show_codes(
    console: "Console", foreign: "ForeignSids", sid_table: "semid.SidTable", without_sid: int, prefix: str, began: float
) -> dict[str, int]:
    """Print how many items have Semantic IDs, and what is unusual about them; return these counts."""
    import numpy as np

    codes_NL = sid_table.codes
    distinct = counted(len(np.unique(codes_NL, axis=0)), "SID")
    levels = " x ".join(map(str, sid_table.codebook_sizes))
    done(console, f"{prefix}{counted(len(sid_table), 'item')} with {distinct} of {levels}", since=began)
    for note in foreign.notes:
        console.print(f"{foreign.source}: {note}", style="yellow", soft_wrap=True)
    shared = np.unique(codes_NL, axis=0, return_counts=True)[1]
    unlike = int((codes_NL[:, : foreign.numbers_NL.shape[1]] != foreign.numbers_NL).any(axis=1).sum())
    counts = (
        (without_sid, "item without a SID left out", "items without a SID left out"),
        (int(shared[shared > 1].sum()), "item shares its SID with another", "items share their SID with another"),
        (
            unlike,
            "item has codes that differ from the numbers in its tokens",
            "items have codes that differ from the numbers in their tokens",
        ),
    )
    if notes := [counted(*count) for count in counts if count[0]]:
        console.print(", ".join(notes), style="dim", soft_wrap=True)
    return {plural.replace(" ", "_").replace("'", ""): count for count, _, plural in counts}


def _settings_not_applied(directory: Path, model: "AnyModel") -> str:
    from leafbeam.model.generation_settings import settings_not_applied

    return settings_not_applied(directory, model.vocabulary)


def _items(
    foreign: "ForeignSids",
    items: "tables.SourceTable | None",
    log: "train.InteractionLog | None",
    item_column: str,
    *,
    text_ids: bool,
) -> tuple["pa.Table", int]:
    """Return the items of the SIDs with attributes, from a file or the log, and the number of its items that have no SID."""
    import pyarrow as pa

    from leafbeam.train.item_join import item_table

    ids_table = pa.table({"item_id": pa.array(foreign.item_ids)})
    ids = tables.SourceTable(table=ids_table, source=foreign.source, is_text=foreign.is_text_file)
    if items is not None:
        return item_table(ids, items, item_column=item_column, text_ids=text_ids)
    return item_table(ids, None if log is None else tables.SourceTable(table=log.items, source="the log"), text_ids=text_ids)


def _load(
    directory: Path, foreign: "ForeignSids", sizes: tuple[int, ...] | None, tokens: TokenOptions, recipe: Recipe
) -> "tuple[AnyModel, NDArray[np.int64]]":
    """Return the model, and the codes (N, L) of its tokens."""
    import numpy as np

    from leafbeam.model import load_model
    from leafbeam.model.token_names import codebook_of, families, named_vocabulary, offset_vocabulary, read_token_ids

    names = (foreign.names or recipe.tokens) if tokens.tokens is None else split_names(tokens.tokens)
    first_token, prompt, separator = tokens.first_token, tokens.of(recipe).prompt, tokens.of(recipe).separator or ""
    codes_NL = foreign.numbers_NL
    num_levels = codes_NL.shape[1]
    if recipe.load is not None:
        model = recipe.load(directory)
    elif (directory / "leafbeam.json").exists():
        if first_token is not None or tokens.prompt or tokens.separator:
            raise ArgumentError(f"{directory} has a leafbeam.json, which names its tokens and prompts: leave these options out")
        model = load_model(directory)
    elif first_token is not None:
        sizes = sizes or foreign.codebook_sizes
        if not sizes or tokens.prompt or tokens.separator:
            raise ArgumentError("--first-token needs --codebook-sizes, and works without --prompt and --separator")
        model = load_model(directory, vocabulary=offset_vocabulary(directory, first_token, sizes))
    elif names:
        if len(names) != num_levels:
            raise CodesError(
                f"{foreign.source} has {counted(num_levels, 'level')}: expected as many --tokens, not {len(names)}"
            )
        all_tokens = read_token_ids(directory)
        codebooks = [codebook_of(directory, all_tokens, name) for name in names]
        codes_NL = np.stack([book.codes(codes_NL[:, level]) for level, book in enumerate(codebooks)], axis=1)
        if (missing_NL := codes_NL < 0).any():
            row, level = (int(at[0]) for at in np.nonzero(missing_NL))
            token = names[level].replace("*", str(foreign.numbers_NL[row, level]))
            raise CodesError(
                f"the tokenizer of {directory} has no token {token}, of item {short_repr(foreign.item_ids[row].item())}: was "
                "the model trained on these SIDs?"
            )
        vocabulary = named_vocabulary(directory, codebooks, prompt=prompt, separator=separator, ending=recipe.ending)
        model = load_model(directory, vocabulary=vocabulary)
    else:
        known = ", ".join(families(read_token_ids(directory))) or "none"
        raise ArgumentError(
            f"{foreign.source} holds numbers: name the model's tokens of each level with --tokens '<a_*>,<b_*>' (its tokenizer "
            f"has {known}), or where they begin with --first-token"
        )
    if (of_model := model.vocabulary.item_length) != num_levels:
        raise CodesError(f"{foreign.source} has {counted(num_levels, 'level')}, but the model in {directory} has {of_model}")
    return model, np.pad(codes_NL, ((0, 0), (0, model.vocabulary.num_levels - num_levels)))  # the tokens that end an answer
