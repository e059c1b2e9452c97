"""A run of six items: one for each module of tests, and one for each test to change."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from leafbeam.catalog import Catalog
from leafbeam.cli.run import RunDirectory
from leafbeam.index import Trie
from leafbeam.model import ModelConfig, Transformer, Vocabulary
from leafbeam.semid import QuantiserConfig, fit_sids
from tests.fixtures.items_run import IDS, TITLES


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six items with texts, and a model of random weights."""
    paths = RunDirectory(tmp_path_factory.mktemp("run"))
    items = pa.table({"item_id": sorted(IDS), "title": TITLES, "price": [float(n) for n in range(6)]})
    fit = fit_sids(items, None, quantiser=QuantiserConfig(codebook_sizes=(2, 4), collision_strategy="spread"))
    fit.table.save(paths.sids)
    fit.quantiser.save(paths.quantiser)
    fit.encoder.save(paths.quantiser, fit.table)
    Trie.build(fit.table.codes, fit.table.codebook_sizes, fit.table.item_ids).save(paths.trie)
    Catalog.create(paths.catalog, items)
    paths.rules.write_text("[rules]\ncheap = 'price < 3'\n")
    vocabulary = Vocabulary(codebook_sizes=fit.table.codebook_sizes)
    config = ModelConfig(
        vocab_size=vocabulary.size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
    )
    Transformer(config, vocabulary).save_pretrained(paths.model)
    return paths.path


@pytest.fixture
def run(first_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(first_run, tmp_path / "run")
    return tmp_path / "run"
