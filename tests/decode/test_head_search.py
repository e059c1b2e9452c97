"""A search that multiplies the head for legal codes alone gives the items of one that reads all logits."""

from typing import Any

import numpy as np
import pytest
import torch

from leafbeam import BeamSearch, Trie
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.model import Transformer, Vocabulary
from leafbeam.ops.head import HeadCosts
from tests.fixtures.grid import CASES, FEW_SHAPES, LISTED, check_case
from tests.fixtures.shops import small_model

# A head that copies its hidden state gives the grid's logits exactly; but -inf times 0 is NaN, and 70,000 x 70,000 is large.
COPIED = [name for name in CASES if name not in ("codes-that-the-model-excludes", "codebook-over-65536")]


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The path of every round whose legal codes were listed."""
    from leafbeam.ops.head import cpu

    taken: list[str] = []
    original = cpu.head

    def watched(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        taken.append(found.path)
        return found

    monkeypatch.setattr(cpu, "head", watched)
    return taken


def copying_head(name: str) -> list[np.ndarray]:
    return [np.eye(size, dtype=np.float32) for size in CASES[name].sizes]


@pytest.mark.parametrize("path", LISTED)
@pytest.mark.parametrize("shape", FEW_SHAPES)
@pytest.mark.parametrize("name", COPIED)
def test_listed_rounds_give_the_beams_of_the_oracle(name: str, shape: str, path: str, paths: list[str]) -> None:
    check_case(name, shape, "cpu", "allowed", head=copying_head(name), costs=LISTED[path])
    if name not in ("empty-index", "uniform-filter-0.0", "skewed-filter-0.0"):
        assert path in paths


@pytest.mark.parametrize("name", COPIED)
def test_listed_rounds_of_all_codes_give_the_beams_of_the_oracle(name: str, paths: list[str]) -> None:
    check_case(name, "changed", "cpu", "full", head=copying_head(name), costs=LISTED["gather"])
    assert set(paths) <= {"dense"}


@pytest.mark.parametrize("scoring", ["full", "allowed"])
@pytest.mark.parametrize("name", COPIED)
def test_dense_rounds_give_the_beams_of_the_oracle(name: str, scoring: str, paths: list[str]) -> None:
    check_case(name, "changed", "cpu", scoring, head=copying_head(name), costs=HeadCosts(dense=((1, 1e-9),)))
    assert paths == []


SIZES = (300, 40, 300)


@pytest.fixture(scope="module")
def index() -> Trie:
    return Trie.build(np.random.default_rng(0).integers(0, SIZES, (2_000, 3)), SIZES)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return small_model(Vocabulary(codebook_sizes=SIZES), hidden_size=32, intermediate_size=48, head_dim=16)


def start(model: Transformer, *, hidden: bool) -> Any:
    tokens_BT, lengths_B = model.vocabulary.prompts([np.array([[1, 2, 3], [4, 5, 6]]), np.array([[7, 8, 9]])])
    return model.start(torch.from_numpy(tokens_BT), torch.from_numpy(lengths_B), hidden=hidden)


@pytest.mark.parametrize("costs", [None, *LISTED.values()], ids=["default", *LISTED])
@pytest.mark.parametrize("scoring", ["full", "allowed"])
def test_a_models_hidden_states_give_the_items_of_its_logits(
    index: Trie, model: Transformer, scoring: Any, costs: HeadCosts | None
) -> None:
    filters, deny = [index.filter(np.arange(2_000) % 3 == 0), None], [None, list(range(50))]
    search = BeamSearch(index, 20, scoring)
    wanted = search.run(start(model, hidden=False).step_fn, 2, filters, deny)
    session = start(model, hidden=True)
    found = search.run(session.step_fn, 2, filters, deny, suffix_fn=session.suffix_fn, head=model.level_heads(), costs=costs)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-4)
    for b in range(2):
        clear = wanted.scores[b] > wanted.scores[b].min() + 1e-3  # the order of nearly equal scores may differ
        assert set(wanted.item_ids[b][clear].tolist()) <= set(found.item_ids[b].tolist())


def test_a_finished_sequence_keeps_its_score_whatever_the_model_says() -> None:
    """The hidden state after the end is NaN."""
    end = 6
    trie = Trie.from_sequences([[1], [2, 3], [2, 4, 5]], end, ["a", "b", "c"])

    def step_fn(codes_BK: Any, parents_BK: Any) -> Any:
        if codes_BK is None:
            return np.ones((1, 2), np.float32)
        hidden_BKD = np.ones((*codes_BK.shape, 2), np.float32)
        hidden_BKD[codes_BK == end] = np.nan
        return hidden_BKD

    head = [np.random.default_rng(0).standard_normal((end + 1, 2), np.float32)] * trie.num_levels
    wanted = BeamSearch(trie, 3, "allowed").run(lambda *beams: step_fn(*beams) @ head[0].T)
    found = BeamSearch(trie, 3, "allowed").run(step_fn, head=head, costs=LISTED["gather"])
    assert found.item_ids[0].tolist() == wanted.item_ids[0].tolist()
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)


@pytest.mark.parametrize("costs", [None, *LISTED.values()], ids=["default", *LISTED])
def test_mistakes_are_named(index: Trie, costs: HeadCosts | None) -> None:
    search = BeamSearch(index, 5, "allowed")
    head = [np.ones((size, 4), np.float32) for size in SIZES]

    def answer(value: float, width: int = 4) -> Any:
        return lambda codes, parents: np.full((1, width) if codes is None else (1, 5, width), value, np.float32)

    for error, call, message in (
        (LogitsError, lambda: search.run(answer(np.nan), head=head, costs=costs), "request 0, beam 0 at level 0 hold NaN"),
        (
            LogitsError,
            lambda: search.run(answer(1.0, 3), head=head, costs=costs),
            r"hidden states of shape \(1, 1, 3\) at level 0: expected \(1, 1, 4\)",
        ),
        (ArgumentError, lambda: search.run(answer(1.0), head=head[:2], costs=costs), "expected one for each level"),
        (
            ArgumentError,
            lambda: search.run(answer(1.0), head=head[::-1][1:] + head[:1], costs=costs),
            r"\(300, D\), \(40, D\), \(300, D\)",
        ),
        (
            ArgumentError,
            lambda: BeamSearch(index, 5, "allowed", backend="reference").run(answer(1.0), head=head, costs=costs),
            "not 'reference'",
        ),
    ):
        with pytest.raises(error, match=message):
            call()
