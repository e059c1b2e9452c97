"""New items get the codes that the fit would have given them, from a file, and never a code that no model can know."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from leafbeam.errors import CheckpointError, DataError
from leafbeam.index import Trie
from leafbeam.live import LiveIndex
from leafbeam.semid import EmbeddingConfig, ItemEncoder, QuantiserConfig, RqVaeConfig, SidFit, fit_sids
from leafbeam.semid.item_encoder import FILE

COLOURS, THINGS = ["red", "blue", "green", "old", "silk", "tiny"], ["shoe", "boot", "tea", "lamp", "cup", "book", "bag"]
TITLES = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]


def items(count: int = len(TITLES)) -> pa.Table:
    brands = [f"brand{n % 5}" for n in range(count)]
    return pa.table({"item_id": [f"i{n}" for n in range(count)], "title": TITLES[:count], "brand": brands})


def sessions(num_items: int) -> Any:
    rows = np.random.default_rng(0).integers(0, num_items, 400).astype(np.int32)
    return SimpleNamespace(indptr_U1=np.arange(0, 401, 4), items_E=rows)


def index_of(fit: SidFit) -> Trie:
    return Trie.build(fit.table.codes, fit.table.codebook_sizes, fit.table.item_ids)


@pytest.mark.parametrize("strategy", ["spread", "level", "none"])
@pytest.mark.parametrize("method", ["kmeans", "rqvae"])
def test_items_of_the_fit_get_their_own_codes_from_their_text(strategy, method, tmp_path):
    rqvae = RqVaeConfig(steps=20, batch=16, latent=4, hidden=8) if method == "rqvae" else None
    config = QuantiserConfig(codebook_sizes=(4, 4), collision_strategy=strategy, method=method, rqvae=rqvae)
    fit = fit_sids(items(), None, quantiser=config)
    fit.quantiser.save(tmp_path)
    fit.encoder.save(tmp_path, fit.table)
    for encoder in (fit.encoder, ItemEncoder.load(tmp_path, fit.table)):
        assert encoder.columns == ("title", "brand")
        assert (encoder.encode(items(), index_of(fit)) == fit.table.codes).all()


def test_items_without_interactions_get_the_codes_that_the_fit_gave_them():
    config = EmbeddingConfig(text_dims=8, behaviour_dims=4)
    fit = fit_sids(items(), sessions(30), embedding=config, quantiser=QuantiserConfig(codebook_sizes=(8, 8)))
    assert fit.report.items_without_behaviour == 12
    found = fit.encoder.encode(items().slice(30), index_of(fit))
    assert (found[:, :2] == fit.table.codes[30:, :2]).all()


def test_a_new_item_shares_the_sid_of_the_item_that_it_is_most_like():
    fit = fit_sids(items(), None, quantiser=QuantiserConfig(codebook_sizes=(3,), collision_strategy="spread"))
    index = index_of(fit)
    new = pa.table({"title": ["a wonderful TINY  book, tiny", "silk lamp"], "brand": ["brand0", None]})
    codes = fit.encoder.encode(new, index)
    assert all(row in index for row in codes.tolist())
    assert codes[0].tolist() == fit.table.codes[TITLES.index("tiny book")].tolist()
    with LiveIndex.create(None, index) as live:  # not that of an item that is gone
        like = TITLES.index("tiny book")
        live.delete([f"i{like}"])
        codes = fit.encoder.encode(new, live.version())
        assert codes[0, 0] == fit.table.codes[like, 0]
        assert codes[0, 1] != fit.table.codes[like, 1]
        assert codes[0].tolist() in live.version()
        live.delete([f"i{n}" for n in np.flatnonzero(fit.table.codes[:, 0] == codes[0, 0]) if n != like])
        assert len(live.version().children(codes[0, :1])) == 0
        again = fit.encoder.encode(new, live.version())
        assert again[0].tolist() == fit.table.codes[like].tolist()  # no item has its first code any more


NEW = pa.table({"title": ["a wonderful TINY  book, tiny", "silk lamp"], "brand": ["brand0", None]})
FREE = ["free", "hungarian", "sinkhorn"]


@pytest.mark.parametrize("strategy", FREE)
@pytest.mark.parametrize("method", ["kmeans", "rqvae"])
def test_a_new_item_gets_the_nearest_free_code_of_a_level_that_has_a_meaning(strategy, method, tmp_path):
    """S8: behind its own first codes, also from a file; a code that has a centroid, so that a model can reach it."""
    rqvae = RqVaeConfig(steps=20, batch=16, latent=4, hidden=8) if method == "rqvae" else None
    config = QuantiserConfig(codebook_sizes=(3, 42), collision_strategy=strategy, method=method, rqvae=rqvae)
    fit = fit_sids(items(), None, quantiser=config)
    fit.quantiser.save(tmp_path)
    fit.encoder.save(tmp_path, fit.table)
    reachable = set(range(len(fit.quantiser.centroids[-1])))
    for encoder in (fit.encoder, ItemEncoder.load(tmp_path, fit.table)):
        codes = encoder.encode(NEW, index_of(fit))
        assert (codes[:, 0] == fit.quantiser.encode(encoder.embed(NEW))[:, 0]).all()
        for row in codes.tolist():
            siblings = fit.table.codes[fit.table.codes[:, 0] == row[0], 1]
            free = reachable - set(siblings.tolist())
            assert (row[1] in free) if free else (row in index_of(fit))
        again = encoder.encode_vectors(encoder.embed(items()), index_of(fit), fit.table.codes.tolist())
        assert (again == fit.table.codes).all()  # items that are there keep theirs


def test_new_items_of_one_call_and_of_later_ones_get_different_free_codes():
    """S8: until no code is free; then they share the SID of the nearest centroid. Under "none" they share it at once."""
    fit = fit_sids(items(), None, quantiser=QuantiserConfig(codebook_sizes=(3, 42), collision_strategy="free"))
    many = pa.table({"title": ["tiny book"] * 60, "brand": ["brand0"] * 60})
    codes = fit.encoder.encode(many, index_of(fit))
    siblings = set(fit.table.codes[fit.table.codes[:, 0] == codes[0, 0], 1].tolist())
    free = len(set(range(len(fit.quantiser.centroids[-1]))) - siblings)
    assert 0 < free < 60
    assert len(np.unique(codes[:free], axis=0)) == free
    assert not any(row in index_of(fit) for row in codes[:free].tolist())
    nearest = fit.quantiser.encode(fit.encoder.embed(many.slice(0, 1)))[0]
    assert (codes[free:] == nearest).all()
    with LiveIndex.create(None, index_of(fit)) as live:
        seen: set[tuple[int, ...]] = set()
        for number in range(2):
            (row,) = fit.encoder.encode(many.slice(0, 1), live.version()).tolist()
            assert tuple(row) not in seen
            assert row not in live.version()
            live.insert([row], [f"new{number}"])
            seen.add(tuple(row))
        live.delete(["new0"])
        assert tuple(fit.encoder.encode(many.slice(0, 1), live.version())[0].tolist()) in seen  # its code is free again
    shared = fit_sids(items(), None, quantiser=QuantiserConfig(codebook_sizes=(3, 42), collision_strategy="none"))
    assert (shared.encoder.encode(many, index_of(shared)) == shared.quantiser.encode(shared.encoder.embed(many))).all()


def test_a_word_that_no_item_has_is_no_guess():
    fit = fit_sids(items(), None, quantiser=QuantiserConfig(codebook_sizes=(4,)))
    with pytest.raises(DataError, match="1 item has no word that the fit knew, the first in row 1"):
        fit.encoder.encode(pa.table({"title": ["red", "xyzzy"], "brand": ["", None]}), index_of(fit))
    with pytest.raises(DataError, match="no column 'brand'"):
        fit.encoder.encode(pa.table({"title": ["red"]}), index_of(fit))


def test_own_vectors_take_the_place_of_text(tmp_path):
    vectors = np.random.default_rng(1).normal(size=(42, 5)).astype(np.float32)
    fit = fit_sids(items(), None, vectors=vectors, quantiser=QuantiserConfig(codebook_sizes=(4, 4)))
    fit.quantiser.save(tmp_path)
    fit.encoder.save(tmp_path, fit.table)
    encoder = ItemEncoder.load(tmp_path, fit.table)
    assert (encoder.columns, encoder.num_dims) == ((), 5)
    assert (encoder.encode_vectors(vectors, index_of(fit)) == fit.table.codes).all()
    with pytest.raises(DataError, match="vectors of your own"):
        encoder.encode(items(), index_of(fit))
    with pytest.raises(DataError, match=r"this quantiser takes \(N, 5\)"):
        encoder.encode_vectors(vectors[:, :4], index_of(fit))


def test_a_large_fit_keeps_a_sample_of_its_vectors(monkeypatch):
    monkeypatch.setattr("leafbeam.semid.item_encoder._MAX_BYTES", 4 * 5 * 10)
    vectors = np.random.default_rng(1).normal(size=(42, 5)).astype(np.float32)
    fit = fit_sids(items(), None, vectors=vectors, quantiser=QuantiserConfig(codebook_sizes=(4, 4)))
    assert len(fit.encoder.vectors_RD) == 10
    codes = fit.encoder.encode_vectors(vectors, index_of(fit))
    assert (codes[:, :2] == fit.table.codes[:, :2]).all()
    assert all(row in index_of(fit) for row in codes.tolist())


def test_a_missing_damaged_or_foreign_file_is_named(tmp_path):
    fit = fit_sids(items(), None, quantiser=QuantiserConfig(codebook_sizes=(4,)))
    fit.quantiser.save(tmp_path)
    with pytest.raises(CheckpointError, match="run `leafbeam fit-sids` again, which writes it and"):
        ItemEncoder.load(tmp_path, fit.table)
    fit.encoder.save(tmp_path, fit.table)
    other = fit_sids(items(30), None, quantiser=QuantiserConfig(codebook_sizes=(4,)))
    with pytest.raises(CheckpointError, match="is of other Semantic IDs"):
        ItemEncoder.load(tmp_path, other.table)
    path = tmp_path / FILE
    with safe_open(path, framework="np") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file({**tensors, "vectors": tensors["vectors"] + 1}, path, metadata=metadata)
    with pytest.raises(CheckpointError, match="is damaged"):
        ItemEncoder.load(tmp_path, fit.table)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="does not hold an encoder"):
        ItemEncoder.load(tmp_path, fit.table)
