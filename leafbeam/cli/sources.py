"""Where a run's log comes from, and reading it, whatever its format."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from leafbeam.errors import ArgumentError, DataError
from leafbeam.train.amazon import load_amazon
from leafbeam.train.data import InteractionLog, load_log
from leafbeam.train.movielens import load_movielens

__all__ = ["Format", "Source"]

Format = Literal["tables", "amazon", "movielens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The place of a log, noted in a run so that later commands read the same.

    path: a directory with interactions.* and items.* (tables) or of MovieLens, or a file of Amazon reviews.
    items: the file of Amazon metadata, if there is one. k_core: keep only users and items with so many interactions.
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
        """The log. Raises DataError where it cannot be read as one."""
        if self.kind == "amazon":
            return load_amazon(self.path, self.items, k_core=self.k_core)
        if self.kind == "movielens":
            return load_movielens(self.path, k_core=self.k_core)
        return load_log(self.path, k_core=self.k_core)

    @property
    def directory(self) -> Path:
        """The directory that it lies in, where rules.toml may lie too."""
        return self.path if self.path.is_dir() else self.path.parent

    def save(self, path: Path) -> None:
        """Write it down; paths are absolute, so that it does not matter where the next command is typed."""
        items = None if self.items is None else str(self.items.resolve())
        noted = {"data": str(self.path.resolve()), "format": self.kind, "metadata": items, "k_core": self.k_core}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(noted, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "Source":
        """Read what `save` wrote; DataError where it is not that."""
        try:
            noted = json.loads(path.read_text(encoding="utf-8"))
            items = None if noted["metadata"] is None else Path(noted["metadata"])
            return cls(path=Path(noted["data"]), kind=noted["format"], items=items, k_core=int(noted["k_core"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} cannot be read ({error}): run `leafbeam fit-sids --data ...` again") from error
