"""Files of an index, an automaton, Semantic IDs, a model and a run, to their loaders."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import torch
from safetensors import safe_open
from safetensors.numpy import save
from safetensors.torch import save_file

from leafbeam import BeamSearch
from leafbeam.automata import Automaton, automaton_file
from leafbeam.cli.run import RunDirectory, Source
from leafbeam.errors import LeafbeamError
from leafbeam.files import CHECKSUMS
from leafbeam.index import Trie, trie
from leafbeam.index.integrity import fingerprint
from leafbeam.index.tensor_file import digest, read, write
from leafbeam.model import ModelConfig, Transformer, Vocabulary, load_model
from leafbeam.ops.attention.costs import AttentionCosts, AttentionWork
from leafbeam.semid import (
    EmbeddingConfig,
    ItemEncoder,
    QuantiserConfig,
    ResidualKMeans,
    SidTable,
    fit_sids,
    item_encoder,
)
from leafbeam.train import Checkpoint
from leafbeam.train.checkpoint import checksum

SEPARATOR = b"\n---\n"  # between config.json and leafbeam.json of a model


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _file(data: bytes) -> Path:
    path = _folder() / "file"
    path.write_bytes(data)
    return path


def fuzz_index(data: bytes) -> None:
    """Load it with the version that its arrays hash to, and search what loads."""
    path = _file(data)
    unverified = Trie.load(path, verify=False)
    header, tensors = read(path, trie.KIND)
    if max(unverified.codebook_sizes) > 1 << 16 or unverified.num_levels > 16:
        Trie.load(path)
        return  # its logits would take too long
    version = fingerprint(unverified.levels, unverified.items, unverified.end_code)
    write(path, trie.KIND, {**header, "version": version}, tensors)
    loaded = Trie.load(path)
    sizes = iter(loaded.codebook_sizes)

    def step_fn(codes: np.ndarray | None, parents: np.ndarray | None) -> np.ndarray:
        return np.zeros((1, next(sizes)) if codes is None else (*codes.shape, next(sizes)), np.float32)

    half = loaded.filter(np.arange(loaded.num_items) % 2 == 0)
    found = BeamSearch(loaded, num_beams=4, scoring="allowed").run(step_fn, 1, filters=[half])
    assert set(found.item_ids[0]) <= set(loaded.item_ids.tolist())
    loaded.codes_of(loaded.item_ids.tolist())


def fuzz_automaton(data: bytes) -> None:
    """Load it with the digest of its arrays, and walk what loads."""
    path = _file(data)
    header, tensors = read(path, replace(automaton_file.KIND, has_digest=False))
    with suppress(UnicodeEncodeError):  # a name that cannot be hashed, so the file keeps a wrong digest
        write(path, automaton_file.KIND, header, tensors)
    automaton = Automaton.load(path)
    states = np.arange(automaton.num_states)
    indptr, codes = automaton.legal(states)
    automaton.masks(states)
    automaton.step(np.repeat(states, np.diff(indptr)), codes)
    automaton.forced_bytes(0)


def fuzz_sids(data: bytes) -> None:
    """Load a table of Semantic IDs."""
    SidTable.load(_file(data))


@functools.cache
def _table() -> SidTable:
    """A quantiser is fitted into the folder; the codes are fixed, because another BLAS may fit others."""
    words = ["red shoe", "red boot", "green tea", "old green tea", "blue shoe", "old boot"]
    rows = np.array([0, 1, 2, 3, 0, 1, 2, 3], np.int32)
    items = pa.table({"item_id": range(6), "title": words})
    config = EmbeddingConfig(text_dims=3, behaviour_dims=2)
    sessions = SimpleNamespace(indptr_U1=np.array([0, 4, 8]), items_E=rows)
    fit = fit_sids(items, sessions, embedding=config, quantiser=QuantiserConfig(codebook_sizes=(2, 2)))
    fit.quantiser.save(_folder() / "fit")
    codes = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 0]])
    return SidTable(item_ids=np.arange(6), codes=codes, codebook_sizes=(2, 2, 2))


def fuzz_encoder(data: bytes) -> None:
    """Load an encoder of new items with the digest of its arrays, and encode an item."""
    table, path = _table(), _folder() / "fit" / item_encoder.FILE
    path.write_bytes(data)
    with suppress(Exception):  # then it is loaded as it is
        with safe_open(path, framework="np") as file:
            metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        path.write_bytes(save(tensors, {**metadata, "digest": digest(tensors), "sids": table.digest}))
    encoder = ItemEncoder.load(path.parent, table)
    index = Trie.build(table.codes, table.codebook_sizes)
    new = pa.table({name: ["an old red shoe"] for name in encoder.columns or ("title",)})
    assert encoder.encode(new, index).shape == (1, index.num_levels)


@functools.cache
def _model() -> Path:
    config = ModelConfig(vocab_size=19, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1,
                         num_key_value_heads=1, head_dim=4, max_position_embeddings=16)  # fmt: skip
    directory = _folder() / "model"
    Transformer(config, Vocabulary(codebook_sizes=(8, 8)), torch.Generator().manual_seed(0)).save_pretrained(directory)
    (directory / CHECKSUMS).unlink()
    return directory


def fuzz_model(data: bytes) -> None:
    """config.json and leafbeam.json beside the weights of a small model."""
    config, _, own = data.partition(SEPARATOR)
    (_model() / "config.json").write_bytes(config)
    (_model() / "leafbeam.json").write_bytes(own)
    load_model(_model())


@functools.cache
def _run() -> Path:
    """A directory with a quantiser; each case writes the JSON of a run there, and of a checkpoint."""
    directory = _folder() / "run"
    quantiser = ResidualKMeans(codebook_sizes=(4,)).fit(np.random.default_rng(0).standard_normal((20, 3)))
    quantiser.save(directory)
    (directory / CHECKSUMS).unlink()
    return directory


def fuzz_run(data: bytes) -> None:
    """The JSON of a run, all with these bytes: raises if none of them loads."""
    directory = _run()
    run, tensors = data.decode("utf-8", "replace"), {"weight/x": torch.zeros(2)}
    save_file(tensors, directory / "training.safetensors", {"run": run, "sha256": checksum(run, tensors)})
    for name in ("quantiser.json", "report.json", "source.json"):
        (directory / name).write_bytes(data)
    loaders: list[Callable[[], object]] = [
        lambda: Checkpoint.load(directory),
        lambda: ResidualKMeans.load(directory),
        lambda: Source.load(directory / "source.json"),
        lambda: RunDirectory(directory).read_report(),
    ]
    errors: list[LeafbeamError] = []
    for load in loaders:
        try:
            load()
        except LeafbeamError as error:
            errors.append(error)
    if len(errors) == len(loaders):
        raise errors[-1]


def fuzz_attention_costs(data: bytes) -> None:
    """A file of costs; what loads picks a number of parts that there is."""
    work = AttentionWork(requests=2, tokens=700, beams=5, heads=4, groups=2, size=16)
    assert AttentionCosts.load(_file(data)).splits(work) in work.splits()
