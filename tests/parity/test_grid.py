"""One grid for every backend: the same catalogs, filters and ties, against the float64 oracle."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from leafbeam import BeamSearch, Trie
from leafbeam.index import Filter, Segment, Version, VersionFilter
from tests.parity.oracle import search

BACKENDS = ("cpu", "reference")
SCORINGS = ("full", "allowed")
SHAPES = ("whole", "whole-packed", "changed", "changed-packed")


@dataclass(frozen=True)
class Case:
    codes: np.ndarray
    sizes: tuple[int, ...]
    widths: tuple[int, ...]
    share: float | None = None  # of the items that the filter allows
    denied: int = 0
    ties: bool = False
    minus_infinity: bool = False
    lowest: bool = False


def table(seed: int, num_items: int, sizes: tuple[int, ...], skewed: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    columns = [
        np.minimum(rng.geometric(0.4, num_items) - 1, size - 1) if skewed else rng.integers(0, size, num_items)
        for size in sizes
    ]
    return np.stack(columns, axis=1) if num_items else np.empty((0, len(sizes)), np.int64)


def cases() -> dict[str, Case]:
    grid: dict[str, Case] = {}
    for skewed, share in itertools.product((False, True), (None, 0.5, 0.1, 0.01, 0.0, 1.0)):
        name = f"{'skewed' if skewed else 'uniform'}-filter-{share}"
        grid[name] = Case(table(1, 400, (9, 7, 11), skewed), (9, 7, 11), (8, 16, 12), share, denied=7 if share else 0)
    grid["empty-index"] = Case(table(2, 0, (4, 4), False), (4, 4), (3, 3))
    grid["one-item"] = Case(table(3, 1, (5, 6, 7), False), (5, 6, 7), (4, 4, 4))
    grid["duplicate-sids"] = Case(table(4, 200, (3, 3), True), (3, 3), (4, 8), share=0.3, denied=30)
    grid["all-on-one-leaf"] = Case(np.zeros((50, 3), np.int64), (2, 2, 2), (5, 5, 5), share=0.2)
    grid["fewer-items-than-beams"] = Case(table(5, 6, (8, 8, 8), False), (8, 8, 8), (32, 32, 32))
    grid["ties"] = Case(table(6, 300, (6, 6, 6), False), (6, 6, 6), (7, 7, 7), ties=True)
    grid["ties-filtered"] = Case(table(6, 300, (6, 6, 6), True), (6, 6, 6), (7, 7, 7), 0.4, ties=True)
    grid["codes-that-the-model-excludes"] = Case(table(7, 300, (6, 6, 6), False), (6, 6, 6), (9, 9, 9), minus_infinity=True)
    # A12: sums of masks would be -inf, which means excluded.
    grid["masks-of-the-lowest-number"] = Case(table(7, 300, (6, 6, 6), False), (6, 6, 6), (9, 40, 300), share=0.9, lowest=True)
    grid["few-items-all-masked"] = Case(table(5, 4, (8, 8, 8), False), (8, 8, 8), (6, 6, 6), lowest=True)
    grid["wide-level-of-masks"] = Case(table(11, 4000, (3, 1000, 4), False), (3, 1000, 4), (3, 900, 900), lowest=True)
    grid["one-level"] = Case(table(8, 90, (200,), False), (200,), (20,))
    grid["sixteen-levels"] = Case(table(9, 120, (3,) * 16, False), (3,) * 16, (6,) * 16, share=0.5)
    grid["odd-codebooks"] = Case(table(10, 500, (67, 1, 129, 5), False), (67, 1, 129, 5), (10, 10, 10, 10), share=0.3)
    grid["wide-level"] = Case(table(11, 4000, (3, 1000, 4), False), (3, 1000, 4), (3, 60, 60))
    grid["wide-level-skewed-filtered"] = Case(table(12, 6000, (4, 700, 4), True), (4, 700, 4), (4, 50, 50), share=0.6)
    grid["wide-listing"] = Case(np.repeat(table(13, 900, (2, 500, 3), False), 1, 0), (2, 500, 3), (2, 40, 40))
    grid["codebook-over-65536"] = Case(table(14, 300, (70_000, 3), False), (70_000, 3), (12, 12), share=0.5)
    grid["growing-widths"] = Case(table(15, 800, (16, 16, 16), False), (16, 16, 16), (2, 20, 64))
    return grid


CASES = cases()


class TableModel:
    """A model whose logits depend on the prefix alone, drawn from a seeded generator at first use."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.seed = case, seed
        self.known: dict[tuple[int, ...], np.ndarray] = {}

    def logits(self, level: int, prefix: tuple[int, ...]) -> np.ndarray:
        if prefix not in self.known:
            rng = np.random.default_rng([self.seed, *prefix, 77])
            values = rng.normal(size=self.case.sizes[level]).astype(np.float32) * 2
            if self.case.ties:  # the same row everywhere, a few distinct values: whole beams tie exactly
                values = np.float32(np.arange(self.case.sizes[level]) % 3)
            if self.case.minus_infinity:
                values[rng.random(len(values)) < 0.4] = -np.inf
            if self.case.lowest:
                values[rng.random(len(values)) < 0.8] = np.finfo(np.float32).min
            self.known[prefix] = values
        return self.known[prefix]


class Recorder:
    """A step_fn over several requests that remembers the prefix of every beam."""

    def __init__(self, models: list[TableModel]) -> None:
        self.models = models
        self.prefixes: list[list[tuple[int, ...]]] = [[()] for _ in models]

    def __call__(self, codes_BK: np.ndarray | None, parents_BK: np.ndarray | None) -> np.ndarray:
        if codes_BK is not None and parents_BK is not None:
            self.prefixes = [
                [(*self.prefixes[b][parent], int(code)) for code, parent in zip(codes_BK[b], parents_BK[b], strict=True)]
                for b in range(len(self.models))
            ]
        level = len(self.prefixes[0][0])
        return np.stack(
            [
                np.stack([model.logits(level, prefix) for prefix in prefixes])
                for model, prefixes in zip(self.models, self.prefixes, strict=True)
            ]
        )


@dataclass(frozen=True)
class Catalog:
    """A case's items as an index, and the truth: id -> SID of every live item, in the order of equal scores."""

    index: Trie | Version
    sids: dict[str, tuple[int, ...]]

    def filter(self, ids: list[str]) -> Filter | VersionFilter:
        return self.index.filter(item_ids=ids)

    @classmethod
    def of(cls, case: Case, shape: str) -> Catalog:
        packed = shape.endswith("packed")
        return cls.changed(case, packed) if shape.startswith("changed") else cls.whole(case, packed)

    @classmethod
    def whole(cls, case: Case, packed: bool) -> Catalog:
        ids = [f"item-{row}" for row in range(len(case.codes))]
        trie = Trie.build(case.codes, case.sizes, ids if ids else None, packed=packed)
        return cls(trie, dict(zip(ids, map(tuple, case.codes.tolist()), strict=True)))

    @classmethod
    def changed(cls, case: Case, packed: bool) -> Catalog:
        """Two thirds of the items in the base; the rest, and copies of SIDs of the base, in the delta; a tenth deleted."""
        rng = np.random.default_rng(5)
        in_base = rng.random(len(case.codes)) < 0.67
        extra = case.codes[in_base][::7]
        tables = (case.codes[in_base], np.concatenate([case.codes[~in_base], extra]))
        segments, sids = [], {}
        for name, codes in zip(("base", "delta"), tables, strict=True):
            ids = [f"{name}-{row}" for row in range(len(codes))]
            trie = Trie.build(codes, case.sizes, ids if ids else None, packed=packed and name == "base")
            live = rng.random(len(codes)) < 0.9
            segments.append(Segment(trie=trie, live=trie.filter(live) if name == "base" or rng.random() < 0.7 else None))
            keep = live if segments[-1].live is not None else np.ones(len(codes), np.bool_)
            sids |= {ids[row]: tuple(codes[row].tolist()) for row in np.flatnonzero(keep)}
        return cls(Version(segments=tuple(segments), number=3), sids)


def check_case(
    name: str,
    shape: str,
    backend: str,
    scoring: str,
    *,
    num_requests: int = 2,
    max_beams: int | None = None,
    **head: Any,
) -> None:
    """Search a case with a backend and compare items, SIDs and scores with the oracle's. max_beams cuts the case's beams.

    head: `head` and `costs` of `BeamSearch.run`, for hidden states that are the logits.
    """
    case = CASES[name]
    widths = case.widths if max_beams is None else tuple(min(width, max_beams) for width in case.widths)
    rng = np.random.default_rng(99)
    catalog = Catalog.of(case, shape)
    ids = np.array(list(catalog.sids), dtype=np.str_)
    requests = range(num_requests)
    masks = [np.ones(len(ids), np.bool_) if case.share is None else rng.random(len(ids)) < case.share for _ in requests]
    filters = [None if case.share is None else catalog.filter(ids[mask].tolist()) for mask in masks]
    denied_rows = [rng.integers(0, len(ids), case.denied) if case.denied else np.empty(0, np.int64) for _ in requests]
    deny = [[*ids[rows], "never-heard-of"] for rows in denied_rows]
    models = [TableModel(case, seed + 1) for seed in requests]
    beam_search = BeamSearch(catalog.index, list(widths), scoring=scoring, backend=backend)  # type: ignore[arg-type]
    result = beam_search.run(Recorder(models), batch_size=num_requests, filters=filters, deny=deny, **head)
    for request in requests:
        may_show = masks[request].copy()
        may_show[denied_rows[request]] = False
        by_sid: dict[tuple[int, ...], list[str]] = {}
        for item in ids[may_show].tolist():
            by_sid.setdefault(catalog.sids[item], []).append(item)
        rounds = search(list(by_sid), models[request].logits, widths, scoring)
        expected = [(item, score, sid) for score, _, sid in rounds[-1] for item in by_sid[sid]][: widths[-1]]
        count = int(result.num_valid[request])
        assert count == len(expected)
        assert [str(item) for item in result.item_ids[request]] == [item for item, _, _ in expected]
        assert [tuple(sid) for sid in result.codes[request, :count].tolist()] == [sid for _, _, sid in expected]
        np.testing.assert_allclose(result.scores[request, :count], [score for _, score, _ in expected], rtol=1e-5, atol=2e-5)
        assert (result.scores[request, count:] == -np.inf).all()
        assert (result.codes[request, count:] == 0).all()


@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_every_backend_gives_the_beams_of_the_oracle(name: str, shape: str, backend: str, scoring: str) -> None:
    check_case(name, shape, backend, scoring)


@pytest.mark.full
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_jax_gives_the_beams_of_the_oracle(name: str, shape: str, scoring: str) -> None:
    pytest.importorskip("jax")
    check_case(name, shape, "jax", scoring)
