"""The trial loop is fair and says what it leaves out; every table and figure runs small, from measuring to its plot."""

from __future__ import annotations

import io
import json
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.static import (
    experiment,
    figure_2,
    figure_3,
    figure_4,
    forms,
    inference,
    memory,
    methods,
    table_1,
    trials,
)
from benchmarks.static.apart import measured_apart
from benchmarks.static.catalog import Catalog, Shape
from benchmarks.static.methods import LABELS, LineUp, Method
from benchmarks.workloads import DISTRIBUTIONS
from leafbeam.errors import MissingExtraError

pytestmark = pytest.mark.slow

SMALL = {"num_items": 3000, "num_codes": 300, "num_levels": 3}
# The whole line-up needs no more than this at the small shape, a hash bitmap of 128 MiB included.
GIB = 2**30


def setting(**changes: Any) -> experiment.Setting:
    values: dict[str, Any] = {
        "quick": True,
        "device": "cpu",
        "memory": GIB,
        "num_trials": 2,
        "seconds_each": 1.0,
        "num_beams": 20,
    }
    return experiment.Setting(**{**values, **changes})


@pytest.fixture(scope="module")
def line_up() -> tuple[Catalog, LineUp]:
    catalog = Catalog.make(Shape(distribution="uniform", **SMALL))
    return catalog, LineUp.of(catalog, batch_size=2, num_beams=20, device="cpu", memory=GIB, names=tuple(LABELS))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_catalog_comes_from_its_seed_whatever_the_chunks(distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(distribution=distribution, **SMALL)
    table = shape.codes()
    assert table.dtype == np.uint16
    np.testing.assert_array_equal(table, shape.codes())
    assert not np.array_equal(table, Shape(distribution=distribution, seed=1, **SMALL).codes())
    whole = Catalog.make(shape).sorted_codes()
    monkeypatch.setattr("benchmarks.static.catalog._CHUNK", 700)
    pieces = Catalog.make(shape)
    sids = np.unique(pieces.shape.codes(), axis=0)
    np.testing.assert_array_equal(pieces.sorted_codes(), sids.T)
    assert pieces.nodes_L[-1] == pieces.trie.num_leaves == len(sids)
    np.testing.assert_array_equal(whole, np.unique(table, axis=0).T)


def test_exact_methods_agree_and_the_others_are_measured(line_up: tuple[Catalog, LineUp]) -> None:
    catalog, methods = line_up
    sets = trials.draw_logits(np.random.default_rng(5), catalog.trie, 2, 20)
    shares = trials.check(methods, catalog, sets)
    for name, method in methods.methods.items():
        if method.exact:
            assert shares[name]["found"] > 0.97
            assert shares[name]["invalid"] == 0
    assert shares["unconstrained"]["invalid"] > 0.9
    assert shares["ppv_approximate"]["found"] < 0.9
    assert shares["ppv_approximate"]["invalid"] == 0


def test_a_method_that_is_wrong_gets_no_speed(line_up: tuple[Catalog, LineUp]) -> None:
    catalog, methods = line_up
    floor = methods.methods["unconstrained"]
    liar = Method(name="liar", prepare=floor.prepare, round=floor.round, taken=floor.taken, exact=True)
    sets = trials.draw_logits(np.random.default_rng(5), catalog.trie, 2, 20)
    with pytest.raises(AssertionError, match="liar"):
        trials.check(LineUp(methods={"leafbeam": methods.methods["leafbeam"], "liar": liar}, left_out={}), catalog, sets)


def test_a_false_positive_rate_is_that_of_the_bitmap(line_up: tuple[Catalog, LineUp]) -> None:
    catalog, methods = line_up
    logits = trials.draw_logits(np.random.default_rng(5), catalog.trie, 2, 20)[0]
    from benchmarks.peers.hash_bitmap import HashBitmap

    rates = []
    for bits in (2**30, 2**14):
        peer = HashBitmap.of_sorted(catalog.sorted_codes(), num_bits=bits)
        bitmap = Method(name="hash_bitmap", prepare=None, round=None, taken=None, peer=peer)  # pyright: ignore
        rates.append(experiment.false_positives(catalog, bitmap, methods.methods["leafbeam"], logits))
    filled = np.unpackbits(peer.bytes_W.numpy()).mean()
    assert rates[0] < 0.001
    assert 0.5 * filled < rates[1] < filled + 0.05


def fake(name: str, order: list[str]) -> Method:
    def round_of(level: int, beams: Any, ready: Any) -> None:
        if level == 0:
            order.append(name)

    return Method(name=name, prepare=lambda values: values, round=round_of, taken=lambda beams: beams)


def test_methods_take_turns_in_an_order_drawn_for_each_trial() -> None:
    order: list[str] = []
    methods = {name: fake(name, order) for name in "abcd"}
    logits = [np.zeros((1, 1, 4), np.float32)] * 2
    taken = trials.run(LineUp(methods=methods, left_out={}), [logits], num_trials=8, seconds_each=9.0)
    turns = [tuple(order[at : at + 4]) for at in range(0, len(order), 4)]
    assert all(sorted(turn) == list("abcd") for turn in turns)
    assert len(set(turns)) > 3
    assert {name: values.shape for name, values in taken.items()} == dict.fromkeys("abcd", (8, 2))


def test_a_slow_method_stops_early_with_at_least_three_trials_and_the_row_says_so() -> None:
    order: list[str] = []
    up = LineUp(methods={name: fake(name, order) for name in ("quick", "slow")}, left_out={})
    taken = trials.run(up, [[np.zeros((1, 1, 4), np.float32)]], num_trials=10, seconds_each=0.0)
    found = trials.summary(up, taken)
    assert found["trials"] == {"quick": trials.LEAST, "slow": trials.LEAST}
    assert np.isnan(taken["slow"][-1]).all()


def test_overhead_is_paired_by_trial() -> None:
    up = LineUp(methods={name: fake(name, []) for name in ("unconstrained", "mine")}, left_out={})
    floor = np.array([[1e-3], [9e-3], [5e-3]])
    found = trials.summary(up, {"unconstrained": floor, "mine": floor + 2e-3})
    assert found["overhead_us"] == {"mine": {"p20": 2000.0, "p50": 2000.0, "p80": 2000.0, "mean": 2000.0, "sd": 0.0}}
    assert found["step_us"]["mine"]["p50"] == 7000.0
    assert found["step_us"]["unconstrained"]["mean"] == 5000.0
    assert found["step_us"]["unconstrained"]["sd"] == pytest.approx(np.std([1000, 9000, 5000]), abs=0.01)


def test_what_does_not_fit_is_named_with_what_it_needs(line_up: tuple[Catalog, LineUp]) -> None:
    up = LineUp.of(
        line_up[0], batch_size=2, num_beams=20, device="cpu", memory=2**20, names=("leafbeam", "hash_bitmap", "cpu_trie")
    )
    assert set(up.methods) == {"leafbeam"}
    assert up.left_out["hash_bitmap"].startswith("does not fit: needs 0.12 GiB")
    sizes = [Shape(distribution="uniform", num_items=10**8)]
    (row,) = replace(table_1.EXPERIMENT, shapes=lambda quick: sizes).run(
        setting(), ["uniform"], Console(quiet=True), keep=False
    )
    assert set(row["measured"]["left_out"]) == set(LABELS)
    assert "the catalog does not fit: needs 6." in row["measured"]["left_out"]["leafbeam"]


class Failing:
    """A peer that raises in a search, or ends its process, while it is asked for its mask."""

    exact, nbytes = True, 0

    def __init__(self, how: str) -> None:
        self.how = how

    def root(self, batch_size: int) -> None:
        return None

    def mask_step(self, state: None, log_p_BKV: torch.Tensor) -> Any:
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise MemoryError("four more GiB")

    def advance(self, pending: None, best: Any) -> None:
        return None


def raise_error(error: Exception) -> Any:
    raise error


def with_peers(hows: dict[str, str], patch: pytest.MonkeyPatch) -> None:
    """Methods of the line-up that fail: in a search ("raises", "killed"), or while they are made ("made", "missing")."""
    own = methods._builders

    def builders(catalog: Catalog, codes_LM: Any, batch_size: int, num_beams: int, device: str, held: Any) -> Any:
        errors = {"made": MemoryError("no GiB"), "missing": MissingExtraError("this peer needs marisa-trie")}
        for name, (needs, build) in own(catalog, codes_LM, batch_size, num_beams, device, held):
            how = hows.get(name)
            if how in errors:
                yield name, (needs, partial(raise_error, errors[how]))
            elif how is not None:
                peer = methods._torch_method(name, Failing(how), "", batch_size, num_beams, device)
                yield name, (needs, lambda peer=peer: peer)
            else:
                yield name, (needs, build)

    patch.setattr(methods, "_builders", builders)


def test_a_peer_that_raises_or_is_missing_is_left_out_by_name_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_peers({"ppv_exact": "raises", "hash_bitmap": "made", "marisa": "missing"}, monkeypatch)
    names = ("leafbeam", "unconstrained", "ppv_exact", "hash_bitmap", "marisa", "static_torch")
    measured = experiment.steps_of(Shape(distribution="uniform", **SMALL), setting(), names, lambda *_: {})
    assert measured["left_out"] == {
        "ppv_exact": "out of memory: MemoryError: four more GiB",
        "hash_bitmap": "out of memory: MemoryError: no GiB",
        "marisa": "MissingExtraError: this peer needs marisa-trie",
    }
    assert set(measured["step_us"]) == set(measured["forms"]) == {"leafbeam", "unconstrained", "static_torch"}
    assert measured["forms"]["static_torch"] == {"dtype": "int32", "form": "torch"}


def measure_with_a_killed_peer(shape: Shape, given: experiment.Setting) -> dict[str, Any]:
    """As table 1, in a child: PPV is ended by the system as it would be where memory runs out."""
    with pytest.MonkeyPatch.context() as patch:
        with_peers({"ppv_exact": "killed"}, patch)
        return experiment.steps_of(shape, given, ("leafbeam", "unconstrained", "ppv_exact", "hash_bitmap"), lambda *_: {})


def measure_and_die(shape: Shape, given: experiment.Setting) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def measure_wrongly(shape: Shape, given: experiment.Setting) -> dict[str, Any]:
    raise AssertionError("static_torch returned 3 % of the SIDs")


def test_a_peer_that_the_system_ends_is_left_out_by_name_and_the_others_are_measured(tmp_path: Path) -> None:
    shape = Shape(distribution="uniform", **SMALL)
    # The bitmap does not fit beside dictionaries that are not there: a second sitting of its own, beside leafbeam again.
    given = setting(apart=True)
    names = ("leafbeam", "unconstrained", "ppv_exact", "hash_bitmap")
    measured = measured_apart(measure_with_a_killed_peer, shape, given, names)
    assert not isinstance(measured, str)
    assert measured["left_out"].keys() == {"ppv_exact"}
    assert measured["left_out"]["ppv_exact"].startswith("out of memory: exit status -9")
    assert set(measured["step_us"]) == {"leafbeam", "unconstrained", "hash_bitmap"}


def test_a_point_that_the_system_ends_is_a_row_and_a_wrong_answer_still_stops(tmp_path: Path) -> None:
    chosen = replace(table_1.EXPERIMENT, measure=measure_and_die, shapes=lambda quick: [Shape(distribution="uniform", **SMALL)])
    (row,) = chosen.run(setting(apart=True), ["uniform"], Console(quiet=True), keep=True, folder=tmp_path)
    assert row["measured"]["left_out"]["static_jax"].startswith("out of memory: exit status -9")
    console = Console(record=True, width=250, file=io.StringIO())  # the last column has the reason on one line
    chosen.show(console, [row])
    assert "exit status -9" in console.export_text()
    wrong = replace(chosen, measure=measure_wrongly)
    with pytest.raises(AssertionError, match="3 % of the SIDs"):
        wrong.run(setting(apart=True), ["uniform"], Console(quiet=True), keep=False)


def test_torch_methods_are_measured_in_their_faster_form_with_the_same_answers(line_up: tuple[Catalog, LineUp]) -> None:
    catalog, up = line_up
    names = ("leafbeam", "static_torch", "ppv_approximate", "cpu_trie")
    up = up.only({name: up.methods[name] for name in names}, {})
    sets = trials.draw_logits(np.random.default_rng(5), catalog.trie, 2, 20)
    with trials.one_core():
        best = forms.in_best_form(up, sets[0])
        assert trials.check(best, catalog, sets)["static_torch"]["found"] > 0.97
    found = trials.summary(best, trials.run(best, sets, num_trials=1, seconds_each=1.0))["forms"]
    assert found["static_torch"]["form"].startswith("torch; torch.compile ")
    assert found["cpu_trie"]["form"] == "Python on the host, torch around it"


def test_a_share_of_an_inference_is_a_step_over_the_models_step_or_says_why_there_is_none() -> None:
    at = {"V": 64, "L": 3, "B": 2, "K": 5}
    measured = {"step_us": {"leafbeam": {"p50": 10.0}}}
    found = inference.shares_of_inference(measured, at, quick=True, memory=GIB)["tiny"]
    assert found["share_percent"]["leafbeam"] == pytest.approx(100 * 10 / (1e3 * found["step_ms"]["p50"]), abs=1e-3)
    assert (found["steps"], found["prompt_tokens"]) == (4, 32)
    none = inference.shares_of_inference(measured, at, quick=False, memory=GIB)
    assert {one["status"] for one in none.values()} == {"left out"}
    assert "does not fit: needs 2." in none["Qwen3-0.6B"]["reason"]


def test_the_rows_that_a_search_reads_are_those_whose_nan_it_minds(line_up: tuple[Catalog, LineUp]) -> None:
    catalog, methods = line_up
    logits = trials.draw_logits(np.random.default_rng(5), catalog.trie, 2, 20)[0]
    read = [figure_3.rows_read(methods.methods["leafbeam"], level, logits) for level in range(len(logits))]
    assert read[0].all()
    assert all(rows.any(axis=1).all() for rows in read)
    steep = [400 * logits[0], *logits[1:]]  # a few beams outweigh the others: those cannot reach the threshold
    assert not figure_3.rows_read(methods.methods["leafbeam"], 1, steep).all()


def small_shapes(quick: bool) -> list[Shape]:
    return [
        Shape(distribution=kind, num_items=size, num_codes=300, num_levels=4) for kind in DISTRIBUTIONS for size in (800, 3000)
    ]


def small_codebooks(quick: bool) -> list[Shape]:
    return [
        Shape(distribution=kind, num_items=3000, num_codes=size, num_levels=4) for kind in DISTRIBUTIONS for size in (64, 256)
    ]


@pytest.mark.parametrize(
    ("module", "shapes", "said"),
    [
        (table_1, small_shapes, "hash bitmap:"),
        (figure_2, small_shapes, "(target 2 x: "),
        (figure_3, small_codebooks, "µs of everything else"),
        (figure_4, small_codebooks, "STATIC reads B slots"),
        (memory, small_shapes, "1.46 GB"),
    ],
)
def test_every_experiment_runs_shows_draws_and_keeps_its_rows(module: Any, shapes: Any, said: str, tmp_path: Path) -> None:
    names = ("leafbeam", "static_torch", "hash_bitmap", "unconstrained")
    chosen = replace(module.EXPERIMENT, shapes=shapes)
    with pytest.MonkeyPatch.context() as patch:
        if hasattr(module, "LABELS"):
            patch.setattr(module, "LABELS", dict.fromkeys(names, ""))
        rows = chosen.run(setting(), DISTRIBUTIONS, Console(quiet=True), keep=True, folder=tmp_path)
    kept = experiment.kept_rows(chosen.name, quick=True, folder=tmp_path)
    assert [row["measured"] for row in kept] == [json.loads(json.dumps(row["measured"])) for row in rows]
    assert experiment.kept_rows(chosen.name, quick=False, folder=tmp_path) == []
    console = Console(record=True, width=200, file=io.StringIO())
    chosen.show(console, kept)
    text = console.export_text()
    assert said in text
    assert all(kind in text for kind in DISTRIBUTIONS)
    chosen.draw(kept).savefig(tmp_path / "plot.png", dpi=40)
    assert (tmp_path / "plot.png").stat().st_size > 3000
