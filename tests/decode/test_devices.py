"""A search on a device leaves logits, ranges and scores there: nothing is copied to the host, or looked at, between rounds.

The stand-in for a device is this machine's own memory: every way from a tensor to the host is counted, wherever it lies.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from leafbeam import BeamSearch, SearchResult, Trie
from leafbeam.decode.constraint import decode
from leafbeam.decode.model_calls import ModelCalls
from leafbeam.decode.results import check_batch
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops.backend import IndexBindings

SIZES = (9, 7, 8)


def index() -> Trie:
    rng = np.random.default_rng(0)
    return Trie.build(rng.integers(0, SIZES, (200, 3)), SIZES)


def tables() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=size).astype(np.float32) for size in SIZES]


class Model:
    """Gives every beam of a level the same row, as the kind of array that `convert` makes; `between` runs at each call."""

    def __init__(self, convert: Callable[[np.ndarray], Any], rows: list[np.ndarray] | None = None) -> None:
        self.rows = [convert(row) for row in (tables() if rows is None else rows)]
        self.level = -1
        self.kinds: list[Any] = []

    def __call__(self, codes: Any, parents: Any) -> Any:
        self.level += 1
        row = self.rows[self.level]
        if codes is None:
            return row[None] + row[None] * 0
        self.kinds += [codes, parents]
        return row[None, None] + codes[..., None] * 0


class Transfers(TorchDispatchMode):
    """Counts the operations and methods that bring a tensor's values to the host."""

    METHODS = ("numpy", "item", "tolist", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__")

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def add(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.add(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def transfers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Transfers]:
    with Transfers() as seen, monkeypatch.context() as patch:
        for name in Transfers.METHODS:
            method = getattr(torch.Tensor, name)

            def counted(self: Any, *args: Any, _method: Any = method, _name: str = name, **kwargs: Any) -> Any:
                seen.add(_name)
                return _method(self, *args, **kwargs)

            patch.setattr(torch.Tensor, name, counted)
        yield seen


def assert_same(one: SearchResult, other: SearchResult) -> None:
    assert [ids.tolist() for ids in one.item_ids] == [ids.tolist() for ids in other.item_ids]
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5, atol=1e-5)


def test_torch_looks_at_nothing_until_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    trie = index()
    search = BeamSearch(trie, 6, backend="torch")
    expected = BeamSearch(trie, 6).run(Model(lambda row: row))
    model = Model(torch.from_numpy)
    with transfers(monkeypatch) as seen:
        before_last: dict[str, int] = {}

        def step_fn(codes: Any, parents: Any) -> Any:
            before_last.update(seen.counts)
            return model(codes, parents)

        result = search.run(step_fn)
    assert_same(result, expected)
    assert before_last == {}
    # Marks of bad logits, lo, hi, scores, the count and the levels' lowest scores: each once a search; no scalar on its own.
    assert seen.counts == {"cpu": 6, "numpy": 6}
    assert all(isinstance(one, torch.Tensor) for one in model.kinds)


def test_a_suffix_function_allows_looks_between_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(torch.from_numpy)

    def suffix_fn(codes: torch.Tensor, parents: torch.Tensor) -> list[torch.Tensor]:
        return [model(codes[..., t], parents) for t in range(codes.shape[2])]

    trie = index()
    with transfers(monkeypatch) as seen:
        result = BeamSearch(trie, 6, backend="torch").run(model, suffix_fn=suffix_fn)
    assert_same(result, BeamSearch(trie, 6).run(Model(lambda row: row)))
    assert seen.counts["__bool__"] == 3  # whether every beam is dead or finished, before each round


def test_triton_looks_at_nothing_until_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter copies on its own, so only what runs outside of the kernels is counted."""
    step = importlib.import_module("leafbeam.ops.constrain.triton.step")
    trie = index()
    search, model = BeamSearch(trie, 4, backend="triton"), Model(torch.from_numpy)
    launch = step.launch
    with transfers(monkeypatch) as seen:

        def uncounted(*arguments: Any, **options: Any) -> Any:
            assert all(isinstance(one, torch.Tensor) for one in (*vars(arguments[2]).values(), arguments[3]))
            before = dict(seen.counts)
            try:
                return launch(*arguments, **options)
            finally:
                seen.counts = before

        monkeypatch.setattr(step, "launch", uncounted)
        result = search.run(model)
    assert_same(result, BeamSearch(trie, 4).run(Model(lambda row: row)))
    assert seen.counts == {"cpu": 6, "numpy": 6}


def test_jax_looks_at_nothing_until_the_last_round() -> None:
    """The rounds run on traced logits, which have no values: a look at one raises."""
    jax = pytest.importorskip("jax")
    trie = index()
    search = BeamSearch(trie, 6)
    assert_same(search.run(Model(jax.numpy.asarray)), BeamSearch(trie, 6).run(Model(lambda row: row)))
    requests = check_batch(search.version, 1, None, None)
    bound = IndexBindings(trie).on("jax")

    def rounds(rows: list[Any], watch: bool) -> Any:
        constraint = search._constraint(None, None, bound, requests, np.full((1, 1), trie.num_leaves), search.config)
        return decode(constraint, ModelCalls(Model(lambda row: row, rows)), watch=watch).beams.scores

    assert jax.eval_shape(partial(rounds, watch=False), tables()).shape == (1, 6)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.eval_shape(partial(rounds, watch=True), tables())


@pytest.mark.parametrize(
    ("backend", "poison"),
    [
        ("torch", np.nan),
        ("torch", np.inf),
        ("triton", np.nan),
        ("triton", np.inf),
        pytest.param("jax", np.inf, marks=pytest.mark.slow),
    ],
)
def test_bad_logits_are_named_after_the_last_round_as_on_a_cpu(backend: str, poison: float) -> None:
    pytest.importorskip(backend)

    def rows(codes: Any, parents: Any) -> np.ndarray:
        nonlocal level
        level += 1
        logits = np.zeros((2, 1 if codes is None else codes.shape[1], SIZES[level]), np.float32)
        if level >= 1:
            logits[1, 2:] = poison
        return logits

    messages: list[str] = []
    for name in ("cpu", backend):
        level = -1
        with np.errstate(invalid="ignore"), pytest.raises(LogitsError) as raised:
            BeamSearch(index(), 3, backend=name).run(rows, 2)
        messages.append(str(raised.value))
        assert level == (1 if name == "cpu" else 2)
    assert "request 1, beam 2 at level 1 hold NaN or +inf" in messages[0]
    assert messages[0] == messages[1]


def test_auto_runs_where_the_first_logits_are_and_binds_once() -> None:
    bindings = IndexBindings(index())
    assert bindings.on("auto", logits=np.zeros(3)).name == "cpu"
    assert bindings.on("auto", logits=torch.zeros(3)).name == "cpu"
    assert bindings.on("torch", logits=torch.zeros(3)) is bindings.on("torch")
    jax = pytest.importorskip("jax")
    assert bindings.on("auto", logits=jax.numpy.zeros(3)).name == "jax"
    assert bindings.on("auto", logits=jax.numpy.zeros(3)) is bindings.on("jax")


def test_a_device_that_is_not_there_is_named_at_construction() -> None:
    with pytest.raises(ArgumentError, match="device is 'nowhere'"):
        BeamSearch(index(), backend="torch", device="nowhere")
    with pytest.raises(ArgumentError, match="backend 'cpu' runs on the CPU"):
        BeamSearch(index(), backend="cpu", device="cuda")


def test_half_precision_stays_half_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    ops: Any = importlib.import_module("leafbeam.ops.constrain.fixed_shape.torch")
    launch, seen = ops.launch, []

    def watched(*arguments: Any, **options: Any) -> Any:
        seen.append(arguments[3].dtype)
        return launch(*arguments, **options)

    monkeypatch.setattr(ops, "launch", watched)
    BeamSearch(index(), 4, backend="torch").run(Model(lambda row: torch.from_numpy(row).bfloat16()))
    assert seen == [torch.bfloat16] * 3
