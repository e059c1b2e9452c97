"""`python -m benchmarks.serving.settings_server RUN SETTINGS RULES [SYSTEM]`: a server on a free port, with engine settings
that `leafbeam serve` has no option for, or with a peer's attention.

SETTINGS: fields of `leafbeam.engine.Settings` as JSON; with `graphs`, decodes of fixed shapes stand in for CUDA graphs
(`torch_index`). RULES: SQL predicates by name, as JSON, beside the run's own. SYSTEM: "leafbeam" or "paged_attention".
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import torch

from benchmarks.peers.paged_model import PagedModel
from benchmarks.serving.torch_index import graphs_on_cpu
from leafbeam.catalog import Catalog
from leafbeam.engine import CatalogFiles, Engine, Model, Settings
from leafbeam.errors import ArgumentError
from leafbeam.model import load_model
from leafbeam.serve import Server

__all__ = ["SYSTEMS", "main"]

SYSTEMS = ("leafbeam", "paged_attention")


def main(run: Path, settings: str, rules: str, system: str = "leafbeam") -> None:
    """Serve the run until SIGTERM, with one thread of matrix products for each worker."""
    if system not in SYSTEMS:
        raise ArgumentError(f"system {system!r}: expected one of {', '.join(SYSTEMS)}")
    torch.set_num_threads(1)
    chosen = Settings(**json.loads(settings))
    own = load_model(run / "model")
    model: Model = PagedModel(model=own) if system == "paged_attention" else own
    files = CatalogFiles(
        index=run / "index.leafbeam", catalog=run / "catalog.duckdb", rules=[run / "rules.toml", json.loads(rules)]
    )
    with ExitStack() as opened:
        catalog = files.open(opened)
        assert isinstance(catalog, Catalog)
        engine = opened.enter_context(closing(Engine(model, catalog, settings=chosen, new_graphs=graphs_on_cpu)))
        Server(engine, port=0).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
