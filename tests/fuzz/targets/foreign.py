"""Files of other programs: Semantic IDs in every form, items as JSON, tokenizers that name the tokens of SIDs."""

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from leafbeam.cli.foreign_sids import read_sids
from leafbeam.model.token_names import codebook_of, families, named_vocabulary, read_token_ids
from leafbeam.semid import SidTable
from leafbeam.semid.table import numpy_ids
from leafbeam.tables import SourceTable, read_table
from leafbeam.train import LogRules, load_log
from leafbeam.train.item_join import item_table

_SUFFIXES = {b"{": "json", b"[[": "json", b"[": "jsonl", b"PK": "pt", b"PAR1": "parquet", b"\x93NUMPY": "npy"}


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _written(data: bytes) -> Path:
    """The bytes as a file whose ending is that of how they begin, CSV by default."""
    suffix = next((suffix for begins, suffix in _SUFFIXES.items() if data.startswith(begins)), "csv")
    path = Path(_folder().name) / f"file.{suffix}"
    path.write_bytes(data)
    return path


def fuzz_sid_file(data: bytes) -> None:
    """Semantic IDs, up to the table that a run keeps."""
    found = read_sids(_written(data)).without_offsets(None)
    ids_table = pa.table({"item_id": pa.array(found.item_ids)})
    ids = SourceTable(table=ids_table, source=found.source, is_text=found.is_text_file)
    table, _ = item_table(ids, None)
    sizes = found.codebook_sizes or tuple((found.numbers_NL.max(axis=0) + 1).tolist())
    sids = SidTable(item_ids=numpy_ids(table["item_id"]), codes=found.numbers_NL, codebook_sizes=sizes)
    assert len(sids) == len(found.item_ids)
    assert len(found.names) in (0, sids.num_levels)


def fuzz_item_table(data: bytes) -> None:
    """A table of items in CSV, JSON or Parquet, joined to the ids 0 and 1."""
    ids = SourceTable(table=pa.table({"item_id": ["0", "1"]}), source="the SIDs", is_text=True)
    table, _ = item_table(ids, read_table(_written(data), ids=("item_id",)))
    assert len(table) == 2


def fuzz_atomic_file(data: bytes) -> None:
    """RecBole's interactions, up to a log."""
    path = Path(_folder().name) / "x.inter"
    path.write_bytes(data)
    load_log(interactions=path)


def fuzz_ratings(data: bytes) -> None:
    """Lines of user, item, rating and perhaps time, up to a log."""
    path = Path(_folder().name) / "ratings"
    path.write_bytes(data)
    load_log(interactions=path, headerless=True, rules=LogRules(order="file"))


def fuzz_dataset(data: bytes) -> None:
    """A dataset's state.json, then a blank line and its Arrow stream, up to a log."""
    folder = Path(_folder().name) / "dataset"
    folder.mkdir(exist_ok=True)
    state, _, stream = data.partition(b"\n\n")
    (folder / "state.json").write_bytes(state)
    (folder / "data.arrow").write_bytes(stream)
    load_log(folder)


def fuzz_token_names(data: bytes) -> None:
    """A tokenizer.json, and its tokens <a_*> and <b_*>."""
    folder = Path(_folder().name)
    (folder / "tokenizer.json").write_bytes(data)
    (folder / "config.json").write_text(json.dumps({"model_type": "t5", "vocab_size": 64}))
    all_tokens = read_token_ids(folder)
    families(all_tokens)
    codebooks = [codebook_of(folder, all_tokens, name) for name in ("<a_*>", "<b_*>")]
    table = named_vocabulary(folder, codebooks, prompt="x {history} y", separator=", ")
    tokens, lengths = table.prompts([np.zeros((2, 2), np.int64)])
    assert tokens.shape == (1, int(lengths[0]))
