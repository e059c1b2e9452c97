"""A run of six items: one for each module of tests, and one for each test to change."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from leafbeam.cli.run import RunDirectory
from tests.fixtures.items_run import IDS, TITLES
from tests.fixtures.shops import write_fitted_shop


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six items with texts, and a model of random weights."""
    paths = RunDirectory(tmp_path_factory.mktemp("run"))
    items = pa.table({"item_id": sorted(IDS), "title": TITLES, "price": [float(n) for n in range(6)]})
    fit = write_fitted_shop(paths.path, items, "[rules]\ncheap = 'price < 3'\n", (2, 4))
    fit.table.save(paths.sids)
    fit.quantiser.save(paths.quantiser)
    fit.encoder.save(paths.quantiser, fit.table)
    return paths.path


@pytest.fixture
def run(first_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(first_run, tmp_path / "run")
    return tmp_path / "run"
