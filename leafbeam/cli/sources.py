"""The interaction log of a run: its files, format, columns and units, and reading it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from leafbeam.cli.options import Format, Order, TimeUnit
from leafbeam.errors import ArgumentError, DataError
from leafbeam.files import read_text, write_json

if TYPE_CHECKING:
    from leafbeam.train import InteractionLog


_KINDS: dict[str, Any] = {"path": str, "text_columns": (list, type(None))}  # in JSON; other fields are like their defaults
_COLUMNS = ("user_column", "item_column", "time_column", "id_column")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A log's files and how to read them, saved in a run so that later commands read the same log.

    path: a directory of tables (interactions.*, items.*) or of MovieLens, or the file of interactions or of Amazon reviews.
    items: the file of items, where it is not in that directory. k_core: keep only users and items with so many interactions.
    id_column: the item id in the table of items; None: item_column. text_columns: of the items; None: every column of words.
    The other fields are those of `load_log`; all but path, items and k_core apply to tables alone.
    """

    path: Path
    kind: Format = "tables"
    items: Path | None = None
    k_core: int = 0
    user_column: str = "user_id"
    item_column: str = "item_id"
    time_column: str = "timestamp"
    id_column: str | None = None
    text_columns: tuple[str, ...] | None = None
    time_unit: TimeUnit = "s"
    order: Order = "time"
    text_ids: bool = False
    delimiter: str = ","
    items_delimiter: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Format):
            raise ArgumentError(f"--format {self.kind}: choose one of {', '.join(get_args(Format))}")
        if self.kind == "tables":
            return
        if self.items is not None and self.kind == "movielens":
            raise ArgumentError("--items goes with --format tables or amazon; MovieLens has movies.csv in its directory")
        for name in (*_COLUMNS, "time_unit", "order", "text_ids", "delimiter", "items_delimiter"):
            if getattr(self, name) != self.__dataclass_fields__[name].default:
                flag = "--" + name.replace("_", "-")
                raise ArgumentError(f"{flag} goes with --format tables; {self.kind} has columns and units of its own")

    def read(self) -> InteractionLog:
        """The log. Raises DataError where it cannot be read."""
        from leafbeam.train import Columns, load_amazon, load_log, load_movielens

        if self.kind == "amazon":
            return load_amazon(self.path, self.items, k_core=self.k_core)
        if self.kind == "movielens":
            return load_movielens(self.path, k_core=self.k_core)
        is_file = self.path.is_file()
        return load_log(
            None if is_file else self.path,
            interactions=self.path if is_file else None,
            items=self.items,
            columns=Columns(
                user=self.user_column,
                item=self.item_column,
                timestamp=self.time_column,
                item_of_items=self.id_column or self.item_column,
            ),
            time_unit=self.time_unit,
            order=self.order,
            k_core=self.k_core,
            text_ids=self.text_ids,
            delimiter=self.delimiter,
            items_delimiter=self.items_delimiter,
        )

    @property
    def directory(self) -> Path:
        """The directory of the log, which may hold a rules.toml too."""
        return self.path if self.path.is_dir() else self.path.parent

    def save(self, path: Path) -> None:
        """Write it as JSON with absolute paths."""
        fields = asdict(self) | {"path": str(self.path.resolve())}
        fields["items"] = None if self.items is None else str(self.items.resolve())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, fields)

    @classmethod
    def load(cls, path: Path) -> Source:
        """Read what `save` wrote, now or in version 0.1. Raises DataError for anything else."""
        try:
            fields: dict[str, Any] = json.loads(read_text(path))
            renamed = {"data": "path", "format": "kind", "metadata": "items"}  # of version 0.1
            fields = {renamed.get(name, name): value for name, value in fields.items()}
            for name, value in fields.items():
                default = cls.__dataclass_fields__[name].default
                kind = _KINDS.get(name, str | None if default is None else type(default))
                if not isinstance(value, kind):
                    raise TypeError(f"{name} is {value!r:.80}")
            fields["path"] = Path(fields["path"])
            fields["items"] = None if fields["items"] is None else Path(fields["items"])
            fields["text_columns"] = None if fields.get("text_columns") is None else tuple(fields["text_columns"])
            return cls(**fields)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} cannot be read ({error}): run `leafbeam fit-sids --data ...` again") from error
