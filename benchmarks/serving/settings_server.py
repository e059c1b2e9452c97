"""`python -m benchmarks.serving.settings_server RUN SETTINGS RULES`: a server on a free port, with engine settings that
`leafbeam serve` has no option for.

SETTINGS: fields of `leafbeam.engine.Settings` as JSON. RULES: SQL predicates by name, as JSON, beside the run's own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from leafbeam.engine import CatalogFiles, Settings
from leafbeam.serve import serve


def main(run: Path, settings: str, rules: str) -> None:
    """Serve the run until SIGTERM, with one thread of matrix products for each worker."""
    torch.set_num_threads(1)
    sources = [run / "rules.toml", json.loads(rules)]
    files = CatalogFiles(index=run / "index.leafbeam", catalog=run / "catalog.duckdb", rules=sources)
    serve(run / "model", files, port=0, settings=Settings(**json.loads(settings)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:4])
