"""A run directory: the files that commands leave for one another."""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from leafbeam import engine, ingest, semid
from leafbeam.errors import CheckpointError, DataError
from leafbeam.files import read_text, write_json

ENGINE_FILES = ("model", "trie", "catalog", "rules")  # without which a run cannot answer
_SAMPLE = 1000  # of the items whose codes are compared
_MAX_SHOWN = 10
_OF_A_RUN = ("source.json", "index.leafbeam")
WRITERS = {"source": "fit-sids", "sids": "fit-sids", "model": "train", "trie": "build", "catalog": "build", "rules": "build"}


class RunDirectory:
    """Paths of a run, and its report.

    source.json          where the log is, its format, columns and units    (fit-sids, import)
    sids.parquet, sids/  Semantic IDs, and the quantiser that made them     (fit-sids, import)
    imported_items.parquet  the items of imported Semantic IDs              (import)
    checkpoint/, model/  training's state, and the model in HF's format     (train)
    memory.leafbeam      the item memory, and how it is fused with the model   (train)
    index.leafbeam       the index                                          (build)
    catalog.duckdb       items and their attributes                         (build)
    rules.toml           rules as SQL predicates                            (yours)
    live/                items and rules that came since                    (serve, items)
    search_widths.json   how many beams the proofs of recent requests needed    (serve)
    report.json          figures of every step, one entry a step            (all)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = path / "source.json"
        self.sids = path / "sids.parquet"
        self.items = path / "imported_items.parquet"
        self.quantiser = path / "sids"
        self.model = path / "model"
        self.memory = path / "memory.leafbeam"
        self.trie = path / "index.leafbeam"
        self.catalog = path / "catalog.duckdb"
        self.rules = path / "rules.toml"
        self.live = path / "live"
        self.search_widths = path / "search_widths.json"
        self.report = path / "report.json"

    @property
    def index(self) -> Path:
        """Return the index to answer from: that of the changes since `build`, if there are any.

        Raises:
            ConflictError: If the changes belong to another build.
        """

        ingest.check_origin(self.live, self.trie)
        return self.live / ingest.INDEX if (self.live / ingest.INDEX / "manifest.json").exists() else self.trie

    @property
    def rule_files(self) -> list[Path]:
        """Return rules.toml, and the file of the rules made over HTTP."""

        return [path for path in (self.rules, self.live / ingest.RULES) if path.exists()]

    def load_encoder(self) -> "semid.ItemEncoder | str":
        """Return the encoder that gives new items codes from their text, or a text that says why this run has none."""

        if not self.sids.exists() or not self.quantiser.exists():
            return f"{self.path} has no {self.quantiser.name}/: its Semantic IDs are from elsewhere, so give new items codes"
        try:
            sids = semid.SidTable.load(self.sids)
            encoder = semid.ItemEncoder.load(self.quantiser, sids)
            check_sids(sids, self.trie)
        except CheckpointError as error:
            return str(error)
        return encoder

    def catalog_files(self, *, verify: bool) -> "engine.CatalogFiles":
        """Return the files to answer from, with the changes that clients have made since `build`."""

        return engine.CatalogFiles(
            index=self.index, catalog=self.catalog, rules=self.rule_files, verify=verify, memory=self.fitted_memory
        )

    @property
    def fitted_memory(self) -> Path | None:
        """Return the item memory, or None if the run of an older leafbeam has none."""
        return self.memory if self.memory.exists() else None

    def check(self, *names: str) -> None:
        """Raise CheckpointError, which names the command to run first, where the run or one of these files does not exist."""
        if names and not self.path.exists():
            beside = sorted(map(str, paths_of_runs(self.path.parent)))
            known = f"; runs beside it: {', '.join(beside[:_MAX_SHOWN])}" if beside else ""
            raise CheckpointError(
                f"there is no run {self.path} (--run): `leafbeam fit-sids --run {self.path}` begins one{known}"
            )
        for name in names:
            path: Path = getattr(self, name)
            if not path.exists():
                raise CheckpointError(f"{path} does not exist: run `leafbeam {WRITERS[name]} --run {self.path}` first")

    def add_to_report(self, step: str, figures: Mapping[str, object]) -> None:
        """Write the figures of a step into report.json; those of other steps stay."""
        report = self.read_report()
        report[step] = figures
        self.path.mkdir(parents=True, exist_ok=True)
        write_json(self.report, report)

    def read_report(self) -> dict[str, Any]:
        """Read the figures of all steps so far, which are empty before the first."""
        if not self.report.exists():
            return {}
        try:  # JSON has no NaN; old reports may hold one, which is read as null
            report = json.loads(read_text(self.report), parse_constant=lambda _: None, parse_float=_finite)
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"{self.report} cannot be read as JSON ({error}): delete it and run the steps again") from error
        if not isinstance(report, dict) or not all(isinstance(figures, dict) for figures in report.values()):
            raise DataError(f"{self.report} holds no JSON object of objects: delete it and run the steps again")
        return report


def paths_of_runs(directory: Path) -> set[Path]:
    """Return the directories in a directory that hold a run."""
    return {file.parent for name in _OF_A_RUN for file in directory.glob(f"*/{name}")}


def check_sids(sids: "semid.SidTable", trie: Path) -> None:
    """Raise CheckpointError unless an index has the codes of a table, of a sample of its items."""
    from leafbeam.index import Trie

    index = Trie.load(trie, verify=False)
    rows = slice(None, None, max(1, len(sids) // _SAMPLE))
    ids = sids.item_ids[rows]
    same = index.codebook_sizes == sids.codebook_sizes and bool(index.knows(ids).all())
    if not same or (index.codes_of(ids) != sids.codes[rows]).any():
        raise CheckpointError(f"{trie} has other Semantic IDs than the run's sids.parquet: run `leafbeam build` again")


def _finite(text: str) -> float | None:
    """Return a number of JSON, or None if a float64 cannot hold it, such as 1e999."""
    return number if isfinite(number := float(text)) else None
