"""The interaction log of a run: its path and format, and reading it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from leafbeam.cli.options import Format
from leafbeam.errors import ArgumentError, DataError
from leafbeam.train import InteractionLog, load_amazon, load_log, load_movielens

__all__ = ["Source"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A log's path and format, saved in a run so that later commands read the same log.

    path: a directory of tables (interactions.*, items.*) or of MovieLens, or a file of Amazon reviews.
    items: the file of Amazon metadata, if any. k_core: keep only users and items with at least so many interactions.
    """

    path: Path
    kind: Format = "tables"
    items: Path | None = None
    k_core: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(Format):
            raise ArgumentError(f"--format {self.kind}: choose one of {', '.join(get_args(Format))}")
        if self.items is not None and self.kind != "amazon":
            raise ArgumentError("--metadata goes with --format amazon; other formats have their items in the directory")

    def read(self) -> InteractionLog:
        """The log. Raises DataError where it cannot be read."""
        if self.kind == "amazon":
            return load_amazon(self.path, self.items, k_core=self.k_core)
        return (load_movielens if self.kind == "movielens" else load_log)(self.path, k_core=self.k_core)

    @property
    def directory(self) -> Path:
        """The directory of the log, which may hold a rules.toml too."""
        return self.path if self.path.is_dir() else self.path.parent

    def save(self, path: Path) -> None:
        """Write it as JSON with absolute paths."""
        items = None if self.items is None else str(self.items.resolve())
        fields = {"data": str(self.path.resolve()), "format": self.kind, "metadata": items, "k_core": self.k_core}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Source":
        """Read what `save` wrote. Raises DataError for anything else."""
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            items = None if fields["metadata"] is None else Path(fields["metadata"])
            return cls(path=Path(fields["data"]), kind=fields["format"], items=items, k_core=int(fields["k_core"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} cannot be read ({error}): run `leafbeam fit-sids --data ...` again") from error
