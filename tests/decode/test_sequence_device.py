"""Searching languages where the model's logits are: the same answers as on the CPU (here under Triton's interpreter)."""

from typing import Any

import numpy as np
import pytest
import torch

from leafbeam.automata import Automaton
from leafbeam.decode import SequenceResult, SequenceSearch
from leafbeam.decode.automaton_constraint import AutomatonConstraint
from leafbeam.errors import ArgumentError, LogitsError
from leafbeam.ops.head import HeadCosts
from tests.fixtures.automaton_model import END, SINGLES, SIZE, Forecaster

DEVICE: dict[str, Any] = {"backend": "triton", "device": "cpu"}


class TorchModel:
    """The model in torch; it takes tensors and nothing else."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32, **kwargs: Any) -> None:
        self.inner, self.dtype = Forecaster(seed, **kwargs), dtype

    def step_fn(self, codes: Any, parents: Any) -> torch.Tensor:
        if codes is None:
            return torch.from_numpy(self.inner(None, None)).to(self.dtype)
        assert codes.dtype == parents.dtype == torch.int64
        return torch.from_numpy(self.inner(codes.numpy(), parents.numpy())).to(self.dtype)

    def suffix_fn(self, codes: torch.Tensor, parents: torch.Tensor) -> list[torch.Tensor]:
        return [torch.from_numpy(one).to(self.dtype) for one in self.inner.suffix_fn(codes.numpy(), parents.numpy())]


def assert_close(one: SequenceResult, other: SequenceResult) -> None:
    assert [[row.tolist() for row in rows] for rows in one.tokens] == [[row.tolist() for row in rows] for rows in other.tokens]
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-5, atol=1e-5)
    assert one.finished.tolist() == other.finished.tolist()
    assert one.num_valid.tolist() == other.num_valid.tolist()
    assert (one.rounds, one.rounds_saved) == (other.rounds, other.rounds_saved)
    assert [array.dtype for array in (one.scores, one.finished, one.num_valid, one.tokens[0][0])] == [
        array.dtype for array in (other.scores, other.finished, other.num_valid, other.tokens[0][0])
    ]


@pytest.mark.parametrize(
    ("scoring", "jumps", "limit"), [("full", False, 5), ("full", True, 20), ("allowed", False, 5), ("allowed", True, 20)]
)
def test_the_answer_is_that_of_the_cpu(scoring: Any, jumps: bool, limit: int) -> None:
    """One language as rows and one as masks; with jumps both come to their ends."""
    patterns = ["aab(0{6}|1-){2}b", "aab1{9}"] if jumps else ["-?(0|1[01]*)", "(ab|ba|01){2,4}-----"]
    chosen = [
        Automaton.from_regex(one, SINGLES, dense_share=share, compress=True)
        for one, share in zip(patterns, (0.0, 1.0), strict=True)
    ]
    shape: dict[str, Any] = {"end_code": END, "num_codes": SIZE, "num_beams": 3, "max_tokens": limit, "scoring": scoring}
    here, there = (SequenceSearch(chosen, **shape, **place) for place in ({}, DEVICE))
    model, expected = (TorchModel(1, batch_size=2) for _ in range(2))
    found = there.run(model.step_fn, 2, suffix_fn=model.suffix_fn if jumps else None)
    reference = here.run(expected.step_fn, 2, suffix_fn=expected.suffix_fn if jumps else None)
    assert_close(found, reference)
    assert found.rounds == model.inner.calls
    assert bool(found.rounds_saved) == jumps


def test_one_automaton_serves_a_batch_of_any_size_and_searches_side_by_side() -> None:
    words = np.random.default_rng(0).integers(0, 4, (6, 2)).tolist()
    shape: dict[str, Any] = {"end_code": 4, "num_codes": 5, "num_beams": 2, "max_tokens": 3}
    here, there = (SequenceSearch(Automaton.from_sequences(words, 4), **shape, **place) for place in ({}, DEVICE))
    for batch_size in (1, 2):
        models = [TorchModel(2, size=5, end=4, batch_size=batch_size) for _ in range(3)]

        def and_another(codes: Any, parents: Any, models: list[TorchModel] = models, size: int = batch_size) -> torch.Tensor:
            if codes is None:  # a search of the same object in the midst of this one
                there.run(models[2].step_fn, size)
            return models[0].step_fn(codes, parents)

        assert_close(there.run(and_another, batch_size), here.run(models[1].step_fn, batch_size))


def test_half_precision_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a round is turned into numpy, and logits keep their type."""
    seen: list[torch.dtype] = []
    step = AutomatonConstraint.step

    def watched(self: AutomatonConstraint, number: int, beams: Any, answer: Any) -> Any:
        assert all(isinstance(one, torch.Tensor) for one in (beams.lo, beams.hi, beams.scores, beams.code, beams.parent))
        seen.append(answer.dtype)
        return step(self, number, beams, answer)

    automaton = Automaton.from_regex("(a|b){4}", SINGLES)
    shape: dict[str, Any] = {"end_code": END, "num_codes": SIZE, "num_beams": 2, "max_tokens": 3}
    model, expected = TorchModel(1, torch.float16), TorchModel(1, torch.float16)
    with monkeypatch.context() as patch:
        patch.setattr(AutomatonConstraint, "step", watched)
        found = SequenceSearch(automaton, **shape, **DEVICE).run(model.step_fn)
    assert seen == [torch.float16] * 3
    assert_close(found, SequenceSearch(automaton, **shape).run(expected.step_fn))


LISTED = HeadCosts(dense=((1, 1e9),), gather=1e-6)


@pytest.mark.parametrize(
    ("costs", "scoring", "path"),
    [
        (LISTED, "allowed", "gather"),
        pytest.param(LISTED, "full", None, marks=pytest.mark.slow),
        (None, "allowed", None),
    ],
)
def test_the_head_of_legal_codes_gives_the_answer_of_the_cpu(
    costs: HeadCosts | None, scoring: Any, path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and masks; rounds of listed codes, and rounds that multiply the whole head, which no cost makes necessary here."""
    from leafbeam.ops.head import triton

    chosen = [
        Automaton.from_regex(one, SINGLES, dense_share=share, compress=True)
        for one, share in (("aab(0{3}|1-){2}b", 0.0), ("(ab|ba|01){1,3}-", 1.0))
    ]
    rng = np.random.default_rng(4)
    head, hidden = rng.standard_normal((SIZE, 6), np.float32), rng.standard_normal((13, 6), np.float32)

    def step_fn(codes: Any, parents: Any) -> np.ndarray:
        return hidden[:2] if codes is None else hidden[np.asarray(codes) % 13]

    def on_device(codes: Any, parents: Any) -> torch.Tensor:
        assert codes is None or isinstance(codes, torch.Tensor)
        return torch.from_numpy(step_fn(codes, parents))

    shape: dict[str, Any] = {"end_code": END, "num_codes": SIZE, "num_beams": 3, "max_tokens": 6, "scoring": scoring}
    expected = SequenceSearch(chosen, **shape).run(step_fn, 2, head=head)
    taken: list[str] = []
    original = triton.head

    def watched(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        taken.append(found.path)
        return found

    monkeypatch.setattr(triton, "head", watched)
    search = SequenceSearch(chosen, **shape, **DEVICE)
    for weight in (head, torch.from_numpy(head).requires_grad_()):
        taken.clear()
        assert_close(search.run(on_device, 2, head=weight, costs=costs), expected)
        assert set(taken) == ({path} if path else set())


def test_auto_takes_a_cuda_device_for_the_automata_that_its_kernels_take() -> None:
    automaton, other = Automaton.from_regex("(ab)+", SINGLES), Automaton.from_regex("(ab)+", [*SINGLES, b"ab"])
    shape: dict[str, Any] = {"num_codes": SIZE, "num_beams": 2, "max_tokens": 1}
    assert SequenceSearch(automaton, end_code=END, **shape, device="cpu").backend == "cpu"
    assert SequenceSearch(automaton, end_code=[END, 0], **shape, device="cuda").backend == "cpu"
    assert SequenceSearch([automaton, other], end_code=END, **shape, device="cuda").backend == "cpu"
    if torch.cuda.is_available():
        assert SequenceSearch(automaton, end_code=END, **shape, device="cuda").backend == "triton"
    else:
        with pytest.raises(ArgumentError, match="device is 'cuda', and torch says"):
            SequenceSearch(automaton, end_code=END, **shape, device="cuda")


def test_what_a_device_cannot_do_is_named() -> None:
    automaton = Automaton.from_regex("(ab)+", SINGLES)
    shape: dict[str, Any] = {"end_code": END, "num_codes": SIZE, "num_beams": 2, "max_tokens": 1}
    for wrong in ({"backend": "triton"}, {"backend": "cpu", "device": "cpu"}):
        with pytest.raises(ArgumentError, match="expected a device"):
            SequenceSearch(automaton, **shape, **wrong)
    with pytest.raises(ArgumentError, match="expected 'auto', 'cpu' or 'triton'"):
        SequenceSearch(automaton, **shape, backend="torch")
    with pytest.raises(ArgumentError, match="torch says"):
        SequenceSearch(automaton, **shape, backend="triton", device="nowhere")
    other = Automaton.from_regex("(ab)+", [*SINGLES, b"ab"])
    with pytest.raises(ArgumentError, match="different vocabularies"):
        SequenceSearch([automaton, other], **shape, **DEVICE)
    search = SequenceSearch(automaton, **shape, **DEVICE)
    with pytest.raises(LogitsError, match="hidden states of shape"):
        search.run(lambda codes, parents: torch.zeros(1, 5), head=np.zeros((SIZE, 4), np.float32))
    for costs in (LISTED, None):
        with pytest.raises(ArgumentError, match="expected one dtype"):
            SequenceSearch(automaton, **shape, **DEVICE, scoring="allowed").run(
                lambda codes, parents: torch.zeros(1, 4).half(), head=torch.zeros(SIZE, 4), costs=costs
            )
    with pytest.raises(LogitsError, match="shape"):
        search.run(lambda codes, parents: torch.zeros(1, SIZE - 1))
    with pytest.raises(LogitsError, match="NaN"):
        search.run(lambda codes, parents: torch.full((1, SIZE), torch.nan))
    assert search.run(lambda codes, parents: np.zeros((1, SIZE), np.float32)).num_valid[0] == 1  # numpy is copied there
