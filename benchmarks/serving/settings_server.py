"""`python -m benchmarks.serving.settings_server RUN SETTINGS RULES [SYSTEM]`: a server on a free port, with engine settings
that `leafbeam serve` has no option for, or as one of two systems whose attention alone differs.

SETTINGS: fields of `leafbeam.engine.Settings` as JSON. RULES: SQL predicates by name, as JSON, beside the run's own. SYSTEM:
"leafbeam" or "paged_attention", which run all beams (`compared_models`); the engine as it is if absent.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import torch

from benchmarks.peers.compared_models import SESSIONS, ComparedModel
from leafbeam.catalog import Catalog
from leafbeam.engine import CatalogFiles, Engine, Model, Settings
from leafbeam.errors import ArgumentError
from leafbeam.model import load_model
from leafbeam.serve import Server, ServerConfig

__all__ = ["main"]


def main(run: Path, settings: str, rules: str, system: str = "") -> None:
    """Serve the run until SIGTERM, with one thread of matrix products for each worker."""
    if system and system not in SESSIONS:
        raise ArgumentError(f"system {system!r}: expected one of {', '.join(SESSIONS)}")
    torch.set_num_threads(1)
    chosen = Settings(**json.loads(settings))
    own = load_model(run / "model")
    model: Model = ComparedModel(model=own, session=SESSIONS[system]) if system else own
    files = CatalogFiles(
        index=run / "index.leafbeam", catalog=run / "catalog.duckdb", rules=[run / "rules.toml", json.loads(rules)]
    )
    with ExitStack() as opened:
        catalog = files.open(opened)
        assert isinstance(catalog, Catalog)
        engine = opened.enter_context(closing(Engine(model, catalog, settings=chosen)))
        Server(engine, config=ServerConfig(port=0)).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5])
